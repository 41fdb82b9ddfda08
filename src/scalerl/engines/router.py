"""The auxiliary loss of a mixture of experts, which keeps its router from sending all tokens to few experts.

L = E sum_e f_e P_e (Switch Transformer, arXiv 2101.03961, eq. 4-6; Hugging Face's `load_balancing_loss_func`) with f_e
the share of (layer, token) pairs that chose expert e, and P_e their mean probability of it. It is a product of two
means over the batch, and so no sum over micro-batches: each split would have its own. But f_e has no gradient. Counted
over the whole batch first, by a forward pass without gradients, it leaves L a plain sum over tokens, the same under
every split and on any number of ranks. That pass is the price: about a third more of the trainer's compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.engines.micro_batches import MicroBatch
from scalerl.engines.model import body
from scalerl.errors import InputError


class RouterLoss:
    """Hears the routers of one model.

    Attributes:
        share: (experts,) f_e of the batch, times experts / rows: what each probability is weighted with.
    """

    def __init__(self, model: nn.Module, coefficient: float) -> None:
        """Raises `InputError` where the model has no router that can be heard."""
        config: Any = model.config
        recorder: Any = (getattr(body(model), "_can_record_outputs", None) or {}).get("router_logits")
        kind = getattr(recorder, "target_class", None)
        routers = [m for m in model.modules() if kind is not None and isinstance(m, kind)]
        if not routers:
            raise InputError(f"recipe.router_loss = {coefficient}: a {config.model_type} has no router; set it to 0")
        self.coefficient = coefficient
        self.top_k = int(config.num_experts_per_tok)
        self.experts = int(getattr(config, "num_experts", None) or config.num_local_experts)
        self.share = torch.zeros(self.experts)
        self._index = int(recorder.index)
        self._heard: list[Tensor] | None = None
        for router in routers:
            router.register_forward_hook(self._hear)

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """(rows x width, experts) logits of each layer that is computed within."""
        heard: list[Tensor] = []
        self._heard = heard
        try:
            yield heard
        finally:
            self._heard = None  # recomputed activations are not heard again

    def counts(self, heard: list[Tensor], part: MicroBatch) -> Tensor:
        """(experts,) how often each was chosen, padding left out; in fp64."""
        inside = _inside(part)
        chosen = torch.cat([logits.topk(self.top_k).indices[inside].flatten() for logits in heard])
        return torch.bincount(chosen, minlength=self.experts).double().cpu()

    def begin(self, counts: Tensor) -> None:
        """A batch, of which these are the counts of all micro-batches."""
        rows = (counts.sum() / self.top_k).clamp(min=1)
        self.share = self.experts * counts / rows**2

    def loss(self, heard: list[Tensor], part: MicroBatch) -> Tensor:
        """() this micro-batch's summand of L, without the coefficient."""
        inside = _inside(part)
        dtype = torch.promote_types(heard[0].dtype, torch.float32)
        share = self.share.to(heard[0].device, dtype)
        return torch.stack([(logits.to(dtype).softmax(-1)[inside] @ share).sum() for logits in heard]).sum()

    def _hear(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._heard is not None:
            self._heard.append(output[self._index])


def _inside(part: MicroBatch) -> Tensor:
    """(rows x width,) where there is an input; nowhere in a micro-batch that only keeps other ranks company."""
    column = torch.arange(part.token_ids.shape[1], device=part.lengths.device)
    inside = (column < part.lengths[:, None]).flatten()
    return inside if part.tokens else torch.zeros_like(inside)
