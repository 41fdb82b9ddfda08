"""The reference trainer: optimizer steps of any Hugging Face causal LM on one machine.

It knows no algorithm beyond the loss it is given: advantages and weights come with the batch, whose weights sum to 1,
so gradient accumulation is a plain sum. Master weights are fp32, or a learning rate of 5e-7 would be rounded away; the
body may compute in bf16, the head's matmul does not.

Left out on purpose: sharding over ranks, on CPUs or GPUs, which `fsdp.py` adds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from scalerl.engines.compute import Body, choose_dtype, make_body
from scalerl.engines.fused import FusedBody
from scalerl.engines.head import token_logprobs
from scalerl.engines.micro_batches import MicroBatch, split
from scalerl.engines.model import head_weight, named_tensors
from scalerl.engines.router import RouterLoss
from scalerl.engines.step_sums import StepSums
from scalerl.engines.trainer_state import Saving, begin_save, load_state
from scalerl.engines.weights import TensorSource
from scalerl.errors import ScaleRLError
from scalerl.protocols import WeightSource
from scalerl.recipe.divergence import reference_kl
from scalerl.recipe.loss import Clip, LossKind, LossStats, policy_loss
from scalerl.types import Batch

if TYPE_CHECKING:
    from scalerl.recipe.recipe import Recipe

ComputeDtype = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class TrainerSettings:
    """How steps are taken. The defaults of the optimizer are PAPER A.3's.

    Attributes:
        loss, clip, temperature, fp32_head, kl_coefficient, router_loss: of the recipe.
        learning_rate: after `warmup_steps` of linear warm-up; constant then.
        gradient_clipping: largest gradient norm; None: none.
        micro_batch_tokens: inputs of one forward pass, padding included; memory grows with it.
        compute: of the body. "auto" measures which is faster; a checkpoint keeps what was found.
        activation_checkpointing: computes each layer again in the backward pass, for memory.
        reshard_after_forward: on many ranks, gathers a layer's weights once more for its backward pass, for memory.
        compiled: torch.compile of the body; needs a C++ compiler.
    """

    loss: LossKind = "cispo"
    clip: Clip = (None, 5.0)
    temperature: float = 1.0
    fp32_head: bool = True
    kl_coefficient: float = 0.0
    router_loss: float = 0.0
    learning_rate: float = 5e-7
    warmup_steps: int = 100
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-15
    weight_decay: float = 0.01
    gradient_clipping: float | None = 1.0
    micro_batch_tokens: int = 2048
    compute: ComputeDtype = "auto"
    activation_checkpointing: bool = False
    compiled: bool = False
    reshard_after_forward: bool = True

    @classmethod
    def from_recipe(
        cls,
        recipe: Recipe,
        micro_batch_tokens: int = 2048,
        compute: ComputeDtype = "auto",
        activation_checkpointing: bool = False,
        compiled: bool = False,
        reshard_after_forward: bool = True,
    ) -> TrainerSettings:
        """What the recipe says, beside what only the machine decides."""
        return cls(
            loss=recipe.loss,
            clip=recipe.clip,
            temperature=recipe.temperature,
            fp32_head=recipe.head_precision == "fp32",
            kl_coefficient=recipe.kl_coefficient,
            router_loss=recipe.router_loss,
            learning_rate=recipe.learning_rate,
            warmup_steps=recipe.warmup_steps,
            betas=(recipe.adam_beta1, recipe.adam_beta2),
            epsilon=recipe.adam_epsilon,
            weight_decay=recipe.weight_decay,
            gradient_clipping=recipe.gradient_clipping,
            micro_batch_tokens=micro_batch_tokens,
            compute=compute,
            activation_checkpointing=activation_checkpointing,
            compiled=compiled,
            reshard_after_forward=reshard_after_forward,
        )


class TorchTrainer:
    """See `scalerl.protocols.Trainer`.

    Attributes:
        version: steps taken or skipped; the policy version of the weights.
        updates: steps that changed the weights; warm-up counts these. skipped: steps that did not.
    """

    def __init__(self, model: nn.Module, settings: TrainerSettings, reference: nn.Module | None = None) -> None:
        """`model` is trained in place, in fp32 (or fp64). `reference`: frozen, for `kl_coefficient`."""
        if settings.kl_coefficient and reference is None:
            raise ValueError("kl_coefficient needs a reference model")
        self.settings = settings
        self.model = model if next(model.parameters()).dtype == torch.float64 else model.float()
        self.reference = reference
        self.version = self.updates = self.skipped = 0
        self._saving: Saving | None = None
        self.router = RouterLoss(self.model, settings.router_loss) if settings.router_loss else None
        self.compute = self._resolve(settings.compute)
        self._body, self._reference_body = self._bodies()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, batch: Batch) -> dict[str, float]:
        """One optimizer step. A batch without targets, or a gradient that is not finite, changes no weight."""
        started = time.perf_counter()
        stats = self.accumulate(batch)
        at = time.perf_counter()
        norm = self._gradient_norm()
        stats["grad_norm"] = float(norm)
        applied = stats["tokens"] > 0 and bool(torch.isfinite(norm))
        if applied:
            self._apply(float(norm))
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1
        self.updates += applied
        self.skipped += not applied
        ended = time.perf_counter()
        return stats | {
            "learning_rate": self._learning_rate(self.updates - 1) if applied else 0.0,
            "skipped_steps": float(self.skipped),
            "policy_version": float(self.version),
            "seconds_optimizer": ended - at,
            "seconds_step": ended - started,
        }

    def accumulate(self, batch: Batch) -> dict[str, float]:
        """Add the gradient of the whole batch to the parameters' own; returns the statistics."""
        started = time.perf_counter()
        self._count_experts(batch)
        seconds = {"seconds_forward": time.perf_counter() - started, "seconds_backward": 0.0}
        sums = StepSums(
            reference_kl=0.0 if self.settings.kl_coefficient else None, router_loss=0.0 if self.router else None
        )
        with self._body.step() if isinstance(self._body, FusedBody) else nullcontext():
            for part in self._parts(batch):
                started = time.perf_counter()
                loss, stats, extra = self._loss(part)
                forwarded = time.perf_counter()
                loss.backward()  # type: ignore[no-untyped-call]
                seconds["seconds_forward"] += forwarded - started
                seconds["seconds_backward"] += time.perf_counter() - forwarded
                sums.add(part, loss, stats, **extra)
        return self._total(sums).metrics() | seconds

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """(n,) log-probability of each target under the present weights, at its place in the batch; 0 elsewhere."""
        found = torch.zeros(len(batch.token_ids), dtype=torch.promote_types(self._dtype, torch.float32))
        for part in self._parts(batch):
            found[torch.from_numpy(part.batch_index)] = self._logprobs(self.model, self._body, part)[0].cpu()
        return found

    def weights(self) -> WeightSource:
        """The present weights, by reference: read them before the next step."""
        return TensorSource(named_tensors(self.model))

    def save(self, path: Path) -> None:
        """Write weights, optimizer, counters and random state below `path`: safetensors and JSON."""
        self.begin_save(path)
        self.saved()

    def begin_save(self, path: Path) -> None:
        """Copy the state, and write the copy in the background; `saved` tells when that is over."""
        self._let_go()
        self._saving = self._begin_save(path)

    def saved(self, wait: bool = True) -> bool:
        """Whether all is written; `ScaleRLError` where it could not be."""
        if self._saving is None:
            return True
        if not wait and not self._saving.done:
            return False
        saving, self._saving = self._saving, None
        saving.wait()
        return True

    def check(self) -> None:
        """Nothing: it lives in this process."""

    def load(self, path: Path) -> None:
        """Restore what `save` wrote, bit for bit; `InputError` where it is not of this model."""
        self._let_go()
        counters = load_state(path, self.model, self.optimizer)
        self._count(counters)
        if self.settings.compute == "auto" and counters["compute"] != self.compute:
            self.compute = self._resolve(counters["compute"])
            self._body, self._reference_body = self._bodies()

    def _let_go(self) -> None:
        """Wait for a save that nobody asks about any more."""
        with suppress(ScaleRLError):
            self.saved()

    def _begin_save(self, path: Path) -> Saving:
        return begin_save(path, self.model, self.optimizer, self._counters)

    @property
    def _counters(self) -> dict[str, Any]:
        return {"version": self.version, "updates": self.updates, "skipped": self.skipped, "compute": self.compute}

    def _count(self, counters: Mapping[str, Any]) -> None:
        """Go on from these."""
        self.version, self.updates = int(counters["version"]), int(counters["updates"])
        self.skipped = int(counters["skipped"])

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def _resolve(self, compute: str) -> Literal["fp32", "bf16"]:
        if compute == "auto":
            compute = choose_dtype(self.model, self.settings.micro_batch_tokens)
        return "bf16" if compute == "bf16" and self._dtype != torch.float64 else "fp32"

    def _bodies(self) -> tuple[Body, Body | None]:
        bf16 = self.compute == "bf16"
        body = make_body(self.model, bf16, self.settings.activation_checkpointing, self.settings.compiled)
        return body, None if self.reference is None else make_body(self.reference, bf16)

    def _parts(self, batch: Batch) -> Iterable[MicroBatch]:
        """What this process computes of a batch."""
        return split(batch, self.settings.micro_batch_tokens)

    def _total(self, sums: StepSums) -> StepSums:
        """Over all that take part."""
        return sums

    def _sum(self, counts: Tensor) -> Tensor:
        """Over all that take part."""
        return counts

    @torch.no_grad()
    def _count_experts(self, batch: Batch) -> None:
        """Tell the router's loss what the whole batch chooses; see `router.py`."""
        if self.router is None:
            return
        counts = torch.zeros(self.router.experts, dtype=torch.float64)
        for part in self._parts(batch):
            with self.router.listening() as heard:
                self._logprobs(self.model, self._body, part)
            counts += self.router.counts(heard, part)
        self.router.begin(self._sum(counts))

    def _loss(self, part: MicroBatch) -> tuple[Tensor, LossStats, dict[str, float]]:
        """The loss, its statistics, and what else `StepSums.add` adds up."""
        settings, extra = self.settings, {}
        listening: AbstractContextManager[list[Tensor]] = self.router.listening() if self.router else nullcontext([])
        with listening as heard:
            logprobs, nats = self._logprobs(self.model, self._body, part)
        loss, stats = policy_loss(
            settings.loss,
            logprobs,
            part.generator_logprobs,
            part.advantages,
            part.weights,
            part.sequence_ids,
            settings.clip,
        )
        if self.router:
            balance = self.router.loss(heard, part)
            loss = loss + settings.router_loss * balance
            extra["router_loss"] = float(balance.detach())
        if settings.kl_coefficient and self.reference is not None and self._reference_body is not None:
            with torch.no_grad():
                anchor = self._logprobs(self.reference, self._reference_body, part)[0]
            loss = loss + settings.kl_coefficient * reference_kl(logprobs, anchor, part.weights)
            extra["reference_kl"] = float(reference_kl(logprobs.detach(), anchor, (part.weights > 0).to(anchor.dtype)))
        return loss, stats, extra | {"entropy": float(nats.sum())}

    def _logprobs(self, model: nn.Module, body: Body, part: MicroBatch) -> tuple[Tensor, Tensor]:
        """Only states that predict a target meet the head."""
        hidden = body(part.token_ids, part.lengths)
        chosen = hidden.reshape(-1, hidden.shape[-1]).index_select(0, part.sites)
        if not self.settings.fp32_head and self.compute == "bf16":
            chosen = chosen.bfloat16()
        return token_logprobs(
            chosen, head_weight(model), part.targets, self.settings.temperature, self.settings.fp32_head
        )

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def _gradient_norm(self) -> Tensor:
        gradients = self._gradients()
        return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())

    def _apply(self, norm: float) -> None:
        largest = self.settings.gradient_clipping
        if largest is not None and norm > largest:
            torch._foreach_mul_(self._gradients(), largest / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(self.updates)
        self.optimizer.step()

    def _learning_rate(self, update: int) -> float:
        return self.settings.learning_rate * min(1.0, (update + 1) / max(1, self.settings.warmup_steps))
