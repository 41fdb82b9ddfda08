"""What the tests of the sharded trainer run on each rank; `RankPool.run` gives these functions to its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tiny_models import random_batch, tiny
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from scalerl.engines.fsdp import FSDPTrainer
from scalerl.engines.model import body, checksum, head_weight
from scalerl.engines.trainer import TrainerSettings
from scalerl.errors import InputError, ScaleRLError
from scalerl.types import Batch


def trainer(kind: str, dtype: torch.dtype, seed: int = 0, **changes: Any) -> FSDPTrainer:
    settings = TrainerSettings(**({"compute": "fp32"} | changes))
    reference = tiny(kind, dtype, seed=5) if settings.kl_coefficient else None
    return FSDPTrainer(tiny(kind, dtype, seed), settings, reference)


def whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.detach().full_tensor()
    return found


def gradients(kind: str, dtype: torch.dtype, batch: Batch, changes: dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """Gradients and statistics of one batch."""
    made = trainer(kind, dtype, **changes)
    stats = made.accumulate(batch)
    return {n: whole(p.grad) for n, p in made.model.named_parameters() if p.grad is not None}, stats


def gradients_from_rank_0(kind: str, dtype: torch.dtype, batch: Batch, changes: dict[str, Any]) -> Any:
    """The same, where rank 0 alone has weights."""
    settings = TrainerSettings(**({"compute": "fp32"} | changes))
    models = [tiny(kind, dtype, seed) for seed in (0, 5)]
    if dist.get_rank() > 0:
        models = [model.to("meta") for model in models]
        for model in models:
            model.tie_weights()  # type: ignore[operator]  # `to` has torn them apart
    made = FSDPTrainer(models[0], settings, models[1] if settings.kl_coefficient else None)
    stats = made.accumulate(batch)
    return {n: whole(p.grad) for n, p in made.model.named_parameters() if p.grad is not None}, stats


def logprobs(kind: str, dtype: torch.dtype, batch: Batch, changes: dict[str, Any]) -> tuple[Tensor, bool]:
    """Of a batch; and whether the weights can still be read as shards."""
    made = trainer(kind, dtype, **changes)
    found = made.logprobs(batch)
    return found, all(hasattr(p, "full_tensor") for p in made.model.parameters())


def steps(kind: str, dtype: torch.dtype, batches: list[Batch], changes: dict[str, Any]) -> tuple[Any, ...]:
    """Weights and statistics after these steps."""
    made = trainer(kind, dtype, **changes)
    stats = [made.step(batch) for batch in batches]
    counters = (made.version, made.updates, made.skipped)
    return dict(made.weights()), stats, counters, {str(p.dtype) for p in made.model.parameters()}


def a_poisoned_rank() -> tuple[bool, float, bool]:
    """Whether a NaN on the last rank alone leaves all weights as they are."""
    made = trainer("tied", torch.float32)
    before = checksum(made.weights())
    batch = random_batch(1)
    if dist.get_rank() == dist.get_world_size() - 1:
        batch.advantages[np.flatnonzero(batch.loss_mask)] = np.nan
    stats = made.step(batch)
    return before == checksum(made.weights()), stats["skipped_steps"], np.isnan(stats["grad_norm"])


def head_error(kind: str, batch: Batch, fp32_head: bool) -> float:
    """Largest error of log-probabilities against an fp64 head, of fp32 master weights, over the same bf16 body."""
    made = trainer(kind, torch.float32, compute="bf16", fp32_head=fp32_head, micro_batch_tokens=10**6)
    part = next(iter(made._parts(batch)))
    states: list[Tensor] = []
    hook = body(made.model).norm.register_forward_hook(lambda *args: states.append(args[-1]))
    with torch.no_grad():
        found = made._body.logprobs(part)[0]
    hook.remove()
    logits = states[0].reshape(-1, states[0].shape[-1])[part.sites].double() @ whole(head_weight(made.model)).double().T
    exact = torch.log_softmax(logits, -1).gather(1, part.targets[:, None])[:, 0]
    return float((found - exact).abs().max())


def source(kind: str) -> tuple[list[Any], list[Any], str, int]:
    """Metadata, what iteration gives, its checksum, and how many of the gathered tensors were alive at once at most."""
    weights = trainer(kind, torch.float32).weights()
    given, storages, most = [], [], 0
    for name, tensor in weights:
        given.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)))
        storages.append(StorageWeakRef(tensor.untyped_storage()))
        most = max(most, sum(not storage.expired() for storage in storages))
    return list(weights.metadata()), given, checksum(weights), most


def save(kind: str, batches: list[Batch], path: Path, beside: Batch | None, changes: dict[str, Any]) -> Any:
    """Weights and statistics of a step after saving; `beside`: a step while it is being written, saved or not."""
    made = trainer(kind, torch.float64, **changes)
    for batch in batches:
        made.step(batch)
    made.begin_save(path)
    stats = made.step(beside) if beside is not None else {}
    assert made.saved()
    return dict(made.weights()), stats


def load(kind: str, path: Path, batch: Batch, changes: dict[str, Any]) -> Any:
    """Of a step after loading into a trainer that was elsewhere; its counters and whether the random state is back."""
    made = trainer(kind, torch.float64, seed=9, **changes)
    made.step(random_batch(99))
    made.load(path)
    drawn = torch.rand(1)
    made.load(path)
    again = bool(torch.equal(torch.rand(1), drawn))
    stats = made.step(batch)
    return dict(made.weights()), stats, (made.version, made.updates, made.skipped), again


def load_fails(kind: str, path: Path) -> tuple[str, bool]:
    """What a load that cannot be says, and whether it changed nothing."""
    made = trainer(kind, torch.float64)
    before = checksum(made.weights())
    try:
        made.load(path)
    except InputError as error:
        return str(error), before == checksum(made.weights())
    return "", False


def save_fails(kind: str, path: Path) -> str:
    try:
        trainer(kind, torch.float64).save(path)
    except ScaleRLError as error:
        return str(error)
    return ""


def export(kind: str, path: Path) -> None:
    trainer(kind, torch.float32).export(path, None)
