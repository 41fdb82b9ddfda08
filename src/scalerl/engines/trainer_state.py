"""A trainer's state on disk: safetensors and JSON, no pickle. Atomic replacement is the pipeline's business."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scalerl.engines.model import named_tensors
from scalerl.errors import InputError

WEIGHTS, OPTIMIZER, COUNTERS = "model.safetensors", "optimizer.safetensors", "trainer.json"
FORMAT = 1
_RNG = "random_state"


def save_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, counters: Mapping[str, Any]) -> None:
    """Write below `path`; `counters` are plain JSON values."""
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().contiguous() for name, t in named_tensors(model).items()}, path / WEIGHTS)
    moments = {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }
    save_file({**moments, _RNG: torch.get_rng_state()}, path / OPTIMIZER)
    (path / COUNTERS).write_text(json.dumps({"format": FORMAT, **counters}, indent=1) + "\n")


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore what `save_state` wrote and return its counters. Everything is read before anything is changed."""
    counters = _counters(path / COUNTERS)
    weights, moments = _tensors(path / WEIGHTS), _tensors(path / OPTIMIZER)
    own = named_tensors(model)
    for name in sorted(own.keys() ^ weights.keys()):
        raise InputError(
            f"{path / WEIGHTS}: tensor {name} is not in both the file and the model; is it another model's?"
        )
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape or tensor.dtype != weights[name].dtype:
            raise InputError(f"{path / WEIGHTS}: tensor {name} has another shape or dtype than the model's")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
    torch.set_rng_state(moments.pop(_RNG))
    optimizer.state.clear()
    parameters = dict(model.named_parameters())
    for key, value in moments.items():
        kind, name = key.split(".", 1)
        optimizer.state[parameters[name]][kind] = value
    return counters


def _counters(path: Path) -> dict[str, Any]:
    try:
        counters: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); resume from an older checkpoint") from error
    if counters.get("format") != FORMAT:
        raise InputError(f"{path}: format {counters.get('format')!r}, this version reads {FORMAT}")
    return counters


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({error}); resume from an older checkpoint") from error
