"""A policy whose parameters are spread over ranks by `torch.distributed.fsdp.fully_shard`.

Each decoder layer is a group of its own: gathered before it is computed, given back after. Embedding, last norm and
head form the root's group, which is always gathered in fp32, so that the head's matmul runs in fp32 on the very master
weights, tied or not (TRAPS 4-6); the layers compute in bf16 where that is asked for, and reduce gradients in fp32.

The gradients of ranks are added up, never averaged: the weights of a batch sum to 1 over all of them (TRAPS 10).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from scalerl.engines.compute import prepare
from scalerl.engines.head import token_logprobs
from scalerl.engines.micro_batches import MicroBatch
from scalerl.engines.model import body, head_weight
from scalerl.engines.trainer import TrainerSettings
from scalerl.engines.weights import TensorSource
from scalerl.errors import InputError


class ShardedPolicy(nn.Module):
    """Micro-batch -> log-probabilities: one module, so that body and head share the root's gathered parameters."""

    def __init__(self, model: nn.Module, settings: TrainerSettings, bf16: bool) -> None:
        super().__init__()
        self.model = model
        self.temperature, self.fp32_head = settings.temperature, settings.fp32_head
        self.bf16_head = bf16 and not settings.fp32_head

    def forward(self, token_ids: Tensor, sites: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, width) ids, (n,) flat indices of the states that predict, (n,) targets -> (n,) log-probabilities and
        (n,) entropies, as in `head.token_logprobs`."""
        module: Any = body(self.model)
        hidden: Tensor = module(input_ids=token_ids, use_cache=False).last_hidden_state
        chosen = hidden.reshape(-1, hidden.shape[-1]).index_select(0, sites)
        if self.bf16_head:
            chosen = chosen.bfloat16()
        return token_logprobs(chosen, head_weight(self.model), targets, self.temperature, self.fp32_head)

    def logprobs(self, part: MicroBatch) -> tuple[Tensor, Tensor]:
        """The same of a micro-batch; a forward pass without a gradient leaves no parameter gathered."""
        found: tuple[Tensor, Tensor] = self(part.token_ids, part.sites, part.targets)
        if not torch.is_grad_enabled():
            self.reshard()  # type: ignore[operator]  # of FSDPModule, which `fully_shard` mixes in
        return found


def shard(model: nn.Module, settings: TrainerSettings, bf16: bool, device: str) -> ShardedPolicy:
    """Spread a model over all ranks, in place; every rank calls it with the same weights.

    Args:
        bf16: the dtype that the layers compute in; else their own. device: "cpu" or "cuda".

    Raises:
        InputError: the model has no list of decoder layers.
    """
    layers = getattr(body(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise InputError(f"model_type {model.config.model_type}: no list of decoder layers to shard; use 1 trainer")  # type: ignore[union-attr]
    prepare(model, settings.activation_checkpointing)
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    policy = ShardedPolicy(model, settings, bf16)
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        if settings.compiled:
            layer.compile(dynamic=True)
        fully_shard(
            layer,
            mesh=mesh,
            reshard_after_forward=settings.reshard_after_forward,
            mp_policy=low if bf16 else MixedPrecisionPolicy(),
        )
    fully_shard(policy, mesh=mesh, reshard_after_forward=False)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums
    return policy


class ShardedSource(TensorSource):
    """Over tensors that are spread over ranks: each is gathered when its turn comes, on all ranks at once.

    All ranks must iterate to the end, together. No more than one gathered tensor is alive here; what a consumer keeps
    is its own affair.
    """

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.tensors.items():
            whole = getattr(tensor.detach(), "full_tensor", None)
            yield name, tensor.detach() if whole is None else whole()
