"""A trainer's state on disk: safetensors and JSON, no pickle. Atomic replacement is the pipeline's business."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scalerl.engines.model import named_tensors
from scalerl.errors import InputError, ScaleRLError

WEIGHTS, OPTIMIZER, COUNTERS = "model.safetensors", "optimizer.safetensors", "trainer.json"
FORMAT = 1
RANDOM_STATE = "random_state"
_OTHER = (
    "; config.yaml names another model than the one this was written with: put its model settings back, or start a new "
    "run in another directory"
)
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Saving:
    """A checkpoint that is being written; what is written was copied before this exists."""

    def __init__(self, future: Future[Any], path: Path) -> None:
        self._future, self._path = future, path

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._future.done()

    def wait(self) -> None:
        """Until all is written.

        Raises:
            ScaleRLError: it could not be.
        """
        error = self._future.exception()
        if error is not None:
            raise ScaleRLError(f"{self._path}: could not be written ({reason(error)})") from error


def begin_save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, counters: Mapping[str, Any]) -> Saving:
    """Copy the state to the CPU, and write it below `path` while others go on. `counters` are plain JSON values."""
    weights = {name: _copy(tensor) for name, tensor in named_tensors(model).items()}
    rest = {key: _copy(tensor) for key, tensor in moments(model, optimizer).items()}
    rest[RANDOM_STATE], counters = torch.get_rng_state(), dict(counters)

    def write() -> None:
        path.mkdir(parents=True, exist_ok=True)
        save_file(weights, path / WEIGHTS)
        save_file(rest, path / OPTIMIZER)
        write_counters(path, counters)

    thread = ThreadPoolExecutor(1, "checkpoint")
    saving = Saving(thread.submit(write), path)
    thread.shutdown(wait=False)  # ends when it has written
    return saving


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore what `begin_save` wrote and return its counters. Everything is read before anything is changed."""
    counters = read_counters(path)
    weights, rest = _read(path)
    own = named_tensors(model)
    check_tensors(path, own, {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()})
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
    torch.set_rng_state(rest.pop(RANDOM_STATE))
    optimizer.state.clear()
    parameters = dict(model.named_parameters())
    for key, value in rest.items():
        kind, name = key.split(".", 1)
        optimizer.state[parameters[name]][kind] = value
    return counters


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state, by kind and name of its parameter."""
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def is_moment(key: str) -> bool:
    """Whether a tensor of a checkpoint is none of the model's."""
    return key == RANDOM_STATE or key.split(".")[0] in _MOMENTS


def check_tensors(path: Path, own: Mapping[str, Tensor], found: Mapping[str, tuple[torch.Size, torch.dtype]]) -> None:
    """Refuse weights that are not this model's; `InputError` names the first tensor that differs."""
    for name in sorted(own.keys() ^ found.keys()):
        raise InputError(f"{path}: tensor {name} is not in both the files and the model{_OTHER}")
    for name, tensor in own.items():
        if (tensor.shape, tensor.dtype) != found[name]:
            raise InputError(f"{path}: tensor {name} has another shape or dtype than the model's{_OTHER}")


def write_counters(path: Path, counters: Mapping[str, Any]) -> None:
    """Plain JSON values, below `path`."""
    (path / COUNTERS).write_text(json.dumps({"format": FORMAT, **counters}, indent=1) + "\n")


def read_counters(path: Path) -> dict[str, Any]:
    """What `write_counters` wrote below `path`."""
    file = path / COUNTERS
    try:
        counters: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}); resume from an older checkpoint") from error
    if counters.get("format") != FORMAT:
        raise InputError(f"{file}: format {counters.get('format')!r}, this version reads {FORMAT}")
    return counters


def reason(error: BaseException) -> str:
    """In one line; of several ranks' that of the first, where `error` itself prints all tracebacks."""
    failures = getattr(error, "failures", {})
    return " ".join(str(next((first for first, *_ in failures.values()), error)).split())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and the rest; also what a sharded trainer wrote."""
    if (path / WEIGHTS).exists() or not any(path.glob("shard-*")):
        return _tensors(path / WEIGHTS), _tensors(path / OPTIMIZER)
    from scalerl.engines.sharded_state import read_whole

    both = read_whole(path)
    rest = {key: both.pop(key) for key in list(both) if is_moment(key)}
    return both, rest


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({error}); resume from an older checkpoint") from error
