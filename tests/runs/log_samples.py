"""Small logs in the shapes that users have, written by hand or by a few lines of code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.runs import RunLog, read_run

CURVES = Path(__file__).parents[2].parent / "shared" / "curves"


def save(folder: Path, content: str | bytes, name: str = "log") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def run_of(folder: Path, content: str | bytes, name: str = "log") -> RunLog:
    return read_run(save(folder, content, name))


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def said(notes: Iterable[str], *words: str) -> bool:
    """Whether one note holds all the words."""
    return any(all(w in note for w in words) for note in notes)


def close(values: Any, expected: Any) -> bool:
    return bool(np.allclose(np.asarray(values, dtype=float), np.asarray(expected, dtype=float), atol=1e-9))
