"""The trainer on many ranks: the same steps as `trainer.TorchTrainer`, with everything large sharded (FSDP2).

One instance a rank, under an initialised `torch.distributed` (`ranks.joined`); every method is called by all ranks
with the same arguments, and gives all of them the same result. A rank computes its share of a batch's sequences. All
ranks take part in the same number of micro-batches, or the collectives of a layer would wait for ever: who has fewer
adds empty ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalerl.engines.micro_batches import MicroBatch, empty, split
from scalerl.engines.model import export_model, named_tensors
from scalerl.engines.sharded_state import begin_save, load_sharded
from scalerl.engines.sharding import ShardedSource, shard
from scalerl.engines.step_sums import StepSums
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.engines.trainer_state import Saving
from scalerl.protocols import WeightSource
from scalerl.recipe.loss import LossStats
from scalerl.types import Batch


class FSDPTrainer(TorchTrainer):
    """See `scalerl.protocols.Trainer`. `compute` "auto" is bf16 on GPUs and fp32 elsewhere."""

    def __init__(self, model: nn.Module, settings: TrainerSettings, reference: nn.Module | None = None) -> None:
        """`model` is sharded in place; all ranks have the same weights, on the CPU.

        It is enough if rank 0 has them: elsewhere both models may be on the meta device, as `model.empty_model` makes
        them.
        """
        if not dist.is_initialized():
            raise RuntimeError("a sharded trainer is one of several ranks: enter ranks.joined first")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
        super().__init__(model, settings, reference)
        self._for_checkpoints = dist.new_group(backend="gloo")  # a step's collectives must not meet a checkpoint's

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        found = super().logprobs(batch)
        dist.all_reduce(found)
        return found

    def weights(self) -> WeightSource:
        """The present weights. Iterating gathers one tensor after the other, and all ranks iterate together."""
        return ShardedSource(named_tensors(self.model))

    def load(self, path: Path) -> None:
        """Restore what any number of ranks wrote, or a trainer without ranks."""
        self._let_go()
        self._count(load_sharded(path, self.model, self.optimizer, self._for_checkpoints))

    def _begin_save(self, path: Path) -> Saving:
        """Each rank's shards; there is never another save under way, whose collectives these would meet."""
        return begin_save(path, self.model, self.optimizer, self._counters, self._for_checkpoints)

    def export(self, path: Path, tokenizer: Any) -> None:
        """Write a Hugging Face folder: rank 0, in whose CPU memory the whole model must fit meanwhile."""
        gathered = ((name, tensor.cpu()) for name, tensor in self.weights())
        tensors = {name: tensor for name, tensor in gathered if self.rank == 0}
        if self.rank == 0:
            export_model(self.model, path, tokenizer, tensors=tensors)
        dist.barrier()

    def _resolve(self, compute: str) -> Literal["fp32", "bf16"]:
        if compute == "auto":
            compute = "bf16" if self.device.type == "cuda" else "fp32"
        return "bf16" if compute == "bf16" and self._dtype != torch.float64 else "fp32"

    def _bodies(self) -> tuple[Any, Any]:
        bf16, kind = self.compute == "bf16", self.device.type
        policy = shard(self.model, self.settings, bf16, kind)
        return policy, None if self.reference is None else shard(self.reference, self.settings, bf16, kind)

    def _parts(self, batch: Batch) -> Iterable[MicroBatch]:
        own = list(split(batch, self.settings.micro_batch_tokens, self.rank, self.ranks))
        most = torch.tensor(len(own))
        dist.all_reduce(most, dist.ReduceOp.MAX)
        own += [empty()] * (int(most) - len(own))
        return (part.to(self.device) for part in own)

    def _logprobs(self, model: nn.Module, body: Any, part: MicroBatch) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = body.logprobs(part)
        return found

    def _total(self, sums: StepSums) -> StepSums:
        return over_ranks(sums)

    def _sum(self, counts: Tensor) -> Tensor:
        dist.all_reduce(counts)
        return counts

    def _gradients(self) -> list[Tensor]:
        """This rank's shards."""
        return [p.grad.to_local() for p in self.model.parameters() if p.grad is not None]  # type: ignore[attr-defined]

    def _gradient_norm(self) -> Tensor:
        squares = torch.zeros((), dtype=torch.float64)
        if gradients := self._gradients():
            squares += torch.stack(torch._foreach_norm(gradients)).double().square().sum().cpu()
        dist.all_reduce(squares)
        return squares.sqrt()


def over_ranks(sums: StepSums) -> StepSums:
    """Of all ranks together: equal on each of them."""
    s = sums.stats
    plain: dict[str, Any] = {f.name: getattr(sums, f.name) for f in fields(sums) if f.name != "stats"}
    if s is None:
        found, extremes = [0.0] * 5, [torch.inf, torch.inf]
    else:
        found = [float(t) for t in (s.tokens, s.dropped, s.ratio_sum, s.at_bound, s.mismatch_sum)]
        extremes = [float(s.ratio_min), -float(s.ratio_max)]
    total = torch.tensor([*found, *(value or 0.0 for value in plain.values())], dtype=torch.float64)
    lowest = torch.tensor(extremes, dtype=torch.float64)
    dist.all_reduce(total)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    tokens, dropped, ratio_sum, at_bound, mismatch_sum = total[:5]
    reduced = zip(plain.items(), total[5:].tolist(), strict=True)
    found_whole: dict[str, Any] = {name: None if value is None else whole for (name, value), whole in reduced}
    both = StepSums(**found_whole)
    if both.micro_batches:
        both.stats = LossStats(tokens, dropped, ratio_sum, lowest[0], -lowest[1], at_bound, mismatch_sum)
    return both
