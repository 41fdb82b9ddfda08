"""Folders that hold one run: our own run directory, a Tinker log folder, an HF output folder with checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from scalerl.errors import InputError
from scalerl.runs.formats import json_rows
from scalerl.runs.table import Table

_LOGS = ("metrics.jsonl", "trainer_state.json", "wandb-history.jsonl", "trainer_log.jsonl", "metrics.json")
_AXES = {"flops": "compute/flops", "tokens": "compute/tokens", "device_hours": "compute/device_hours", "step": "step"}


def matches(path: Path, head: bytes) -> bool:
    """Whether the folder holds a log of a known name."""
    return path.is_dir() and _find(path) is not None


def read(path: Path) -> Table:
    """Read the log within the folder; of several checkpoints the last, whose history holds the others'.

    Raises:
        InputError: the log is missing or holds nothing.
    """
    log = _find(path)
    if log is None:
        raise InputError(f"{path}: holds none of {', '.join(_LOGS)}; name the log file itself")
    if log.stat().st_size == 0:
        raise InputError(f"{log}: the file is empty; has the run written anything yet?")
    table = json_rows.read(log)
    table.notes.insert(0, f"Read {log.relative_to(path)} of the folder.")
    if (path / "config.yaml").is_file() and table.format == "scalerl metrics.jsonl":
        table.format = "scalerl run directory"
        table.axis = _axis(path / "config.yaml")
    return table


def _axis(config: Path) -> str | None:
    """Column of the axis that the run's own forecasts are made in."""
    try:
        found = yaml.safe_load(config.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return None  # the log is what was asked for, and it can be read without
    forecast = found.get("forecast") if isinstance(found, dict) else None
    return _AXES.get(str(forecast.get("axis"))) if isinstance(forecast, dict) else None


def _find(path: Path) -> Path | None:
    for name in _LOGS:
        if (path / name).is_file():
            return path / name
    states = [
        (int(m[1]), f)
        for f in path.glob("checkpoint-*/trainer_state.json")
        if (m := re.search(r"-(\d+)$", f.parent.name))
    ]
    return max(states)[1] if states else None
