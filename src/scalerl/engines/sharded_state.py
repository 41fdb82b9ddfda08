"""A sharded trainer's state on disk: `torch.distributed.checkpoint`, each rank its own shards, as safetensors and JSON.

The tensors have the names that `trainer_state.py` gives them, and its files can be read here as those of here can be
read there: any number of ranks goes on from what any other number wrote. DCP's own default format would be pickles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from scalerl.engines.model import named_tensors
from scalerl.engines.trainer_state import (
    RANDOM_STATE,
    Saving,
    check_tensors,
    is_moment,
    moments,
    read_counters,
    reason,
    write_counters,
)
from scalerl.errors import InputError, ScaleRLError


def begin_save(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    counters: Mapping[str, Any],
    group: dist.ProcessGroup,
) -> Saving:
    """Copy the state, and write it below `path` while others go on; all ranks call it.

    Args:
        counters: plain JSON values, equal on all ranks. group: of all ranks on CPUs, for nothing but this, one at a
            time.

    Raises:
        ScaleRLError: on all ranks, where one cannot even begin.
    """
    _together(path, group, lambda: _prepare(path, counters if dist.get_rank(group) == 0 else None))
    tensors = {n: t.detach() for n, t in named_tensors(model).items()}
    state = tensors | moments(model, optimizer) | {RANDOM_STATE: torch.get_rng_state()}
    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    future = async_save(state, storage_writer=writer, process_group=group)
    assert isinstance(future, Future)  # this writer's staging is over on return
    return Saving(future, path)


def load_sharded(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> dict[str, Any]:
    """Restore what `begin_save` or `trainer_state.begin_save` wrote, each rank its shards, and return the counters.

    Everything is read before anything is changed; `InputError` where it is cut short or of another model.
    """
    counters = read_counters(path)
    found = _metadata(path)
    own = named_tensors(model)
    check_tensors(path, own, {n: (m.size, m.properties.dtype) for n, m in found.items() if not is_moment(n)})
    parameters = dict(model.named_parameters())
    read: dict[str, Tensor] = {n: torch.empty_like(t.detach()) for n, t in own.items()}
    read[RANDOM_STATE] = torch.get_rng_state()
    for key in found:
        kind, _, name = key.partition(".")
        if is_moment(key) and key != RANDOM_STATE:
            like = parameters[name].detach()
            read[key] = torch.zeros((), device=like.device) if kind == "step" else torch.empty_like(like)
    _read(path, read, group)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(read[name])
    torch.set_rng_state(read.pop(RANDOM_STATE))
    optimizer.state.clear()
    for key, value in read.items():
        if is_moment(key):
            kind, _, name = key.partition(".")
            optimizer.state[parameters[name]][kind] = value
    return counters


def _prepare(path: Path, counters: Mapping[str, Any] | None) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if counters is not None:
        write_counters(path, counters)


def _together(path: Path, group: dist.ProcessGroup, write: Callable[[], None]) -> None:
    """Write on each rank; where one cannot, all raise, or those that could would wait for it in the next collective."""
    failure = None
    try:
        write()
    except OSError as error:
        failure = str(error)
    failures: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(failures, failure, group)
    for found in failures:
        if found is not None:
            raise ScaleRLError(f"{path}: could not be written ({found})")


def read_whole(path: Path) -> dict[str, Tensor]:
    """All tensors below `path` in one process, put together of their shards."""
    found = {n: torch.empty(m.size, dtype=m.properties.dtype) for n, m in _metadata(path).items()}
    _read(path, found, None)
    return found


def _metadata(path: Path) -> dict[str, Any]:
    try:
        return dict(HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); resume from an older checkpoint") from error


def _read(path: Path, into: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant to be
            load(into, storage_reader=HuggingFaceStorageReader(str(path)), process_group=group, no_dist=group is None)
    except CheckpointException as error:
        raise InputError(f"{path}: cannot be read ({reason(error)}); resume from an older checkpoint") from error
