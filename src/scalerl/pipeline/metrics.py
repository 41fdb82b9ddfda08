"""`metrics.jsonl`: one object a line, `kind` train | eval | event. It only ever grows, and a resume cuts it cleanly."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from scalerl.errors import InputError

Row = dict[str, Any]
NAME = "metrics.jsonl"
DISCARDED = "metrics.discarded.jsonl"
_BROUGHT_AGAIN = ("end", "evaluation skipped", "settings changed")
_TEXTS = ("kind", "task", "group_ids")
_OBJECTS = ("compute", "compute/device_hours", "compute/evaluation", "staleness_histogram", "pass_rate_by_task")


class MetricsLog:
    """Appends rows.

    Args:
        directory: of the run.
        size: bytes that the checkpoint to be resumed had seen; 0 for a new run. What lies behind is the work that the
            resumed run does again, often with half a line at its end: it moves to metrics.discarded.jsonl. What befell
            engines does not happen again, and its rows stay.
        listener: is shown each row after it was written; for a terminal, or a forecast in the background.

    Raises:
        InputError: the file is shorter than `size`: what the checkpoint had logged is gone.
    """

    def __init__(self, directory: Path, size: int = 0, listener: Callable[[Row], None] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / NAME
        self.listener = listener
        _cut(self.path, directory / DISCARDED, size)
        self._file = self.path.open("ab")

    def write(self, kind: str, row: Mapping[str, Any]) -> None:
        """Append a row with the wall clock; NaN becomes null. Readers see it at once.

        Raises:
            InputError: it cannot be written, for example to a full disk.
        """
        full: Row = {"kind": kind, **row, "timestamp": round(time.time(), 3)}
        try:
            self._file.write(orjson.dumps(full, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
            self._file.flush()
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written ({error.strerror}); mend that, then `scalerl resume "
                f"{self.path.parent}` goes on from the newest checkpoint"
            ) from error
        if self.listener is not None:
            self.listener(full)

    def sync(self) -> int:
        """Put everything on disk; returns the file's size, for the checkpoint."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # a row that a full disk refused, which was told
            self._file.close()


def rows_of(data: bytes, path: Path) -> list[Row]:
    """Rows of the whole lines of metrics.jsonl.

    Raises:
        InputError: naming the first line that is no row.
    """
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise _no_row(path, number, "no UTF-8" if "UTF-8" in str(error) else str(error)) from error
        wrong = _wrong(row)
        if wrong is not None:
            raise _no_row(path, number, wrong)
        rows.append(row)
    return rows


def _wrong(row: Any) -> str | None:
    """What keeps readers from taking it for a row."""
    if not isinstance(row, dict) or "kind" not in row:
        return "an object with kind is needed"
    kind, step = row["kind"], row.get("step")
    if kind not in ("train", "eval", "event"):
        return f"kind is {kind!r}, not train, eval or event"
    if not isinstance(step, int) or isinstance(step, bool):
        return f"step is {step!r}, a whole number is needed"
    name = {"eval": "task", "event": "event"}.get(kind, "kind")
    if not isinstance(row.get(name), str):
        return f"{name} is {row.get(name)!r}, a row of kind {kind} needs a text there"
    if kind == "event":
        return None
    wrong = next((why for name, value in row.items() if (why := _wrong_value(name, value)) is not None), None)
    if wrong is None and kind == "eval" and row.get("pass_rate") is not None:  # a point of the curve
        spent = row.get("compute", {})
        missing = [n for n in ("flops", "tokens", "device_hours") if n not in spent]
        missing = [f"compute/{name}" for name in missing] + ["trials"] * (row.get("trials") is None)
        wrong = f"{missing[0]} is missing, which a row with a pass_rate needs" if missing else None
    return wrong


def _wrong_value(name: str, value: Any) -> str | None:
    """Rows of kinds train and eval hold numbers, but for a few names; null stands for NaN, which counts cannot be."""
    if name in _TEXTS:
        return None
    if name in _OBJECTS:
        if not isinstance(value, dict):
            return f"{name} is {value!r}, an object is needed"
        if name == "staleness_histogram" and not all(key.isdecimal() for key in value):
            return f"{name} is {value!r}, its names must be whole numbers"
        parts = (_wrong_value(f"{name}/{key}", part) for key, part in value.items())
        return next((why for why in parts if why is not None), None)
    if isinstance(value, int | float) or (value is None and "/" not in name):
        return None
    return f"{name} is {value!r}, a number is needed"


def _no_row(path: Path, number: int, why: str) -> InputError:
    return InputError(f"{path}:{number}: no row of a run ({why}); mend or remove the line, or put the file back")


def reaches(path: Path, size: int) -> int:
    """How many bytes it has; `InputError` where they are fewer than a checkpoint had seen."""
    found = path.stat().st_size if path.exists() else 0
    if found < size:
        raise InputError(
            f"{path}: has {found:,} bytes, but {size:,} when the checkpoint was written; put the file back, or "
            "remove the checkpoints that are newer than it"
        )
    return found


def _cut(path: Path, discarded: Path, size: int) -> None:
    """Move what lies behind `size` to another file, all but the events that stay."""
    if reaches(path, size) == size:
        return
    with path.open("r+b") as file:
        file.seek(size)
        kept: list[bytes] = []
        moved: list[bytes] = []
        for line in file.read().splitlines(keepends=True):
            (kept if _stays(line) else moved).append(line)
        with discarded.open("ab") as other:
            other.writelines(line.rstrip(b"\n") + b"\n" for line in moved)
            other.flush()
            os.fsync(other.fileno())
        file.seek(size)
        file.writelines(kept)
        file.truncate()


def _stays(line: bytes) -> bool:
    """Whether it is an event that the resumed run will not bring again."""
    try:
        row = orjson.loads(line) if line.endswith(b"\n") else None
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and row.get("kind") == "event" and row.get("event") not in _BROUGHT_AGAIN
