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


class MetricsLog:
    """Appends rows.

    Args:
        directory: of the run.
        size: bytes that the checkpoint to be resumed had seen; 0 for a new run. What lies behind is the work that the
            resumed run does again, often with half a line at its end: it moves to metrics.discarded.jsonl.
        listener: is shown each row after it was written; for a terminal, or a forecast in the background.

    Raises:
        InputError: the file is shorter than `size`: what the checkpoint had logged is gone.
    """

    def __init__(self, directory: Path, size: int = 0, listener: Callable[[Row], None] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / NAME
        self.listener = listener
        self.discarded = _cut(self.path, directory / DISCARDED, size)
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
            raise _no_row(path, number, str(error)) from error
        if not isinstance(row, dict) or "kind" not in row:
            raise _no_row(path, number, "an object with kind is needed")
        rows.append(row)
    return rows


def _no_row(path: Path, number: int, why: str) -> InputError:
    return InputError(f"{path}:{number}: no row of a run ({why}); mend or remove the line, or put the file back")


def _cut(path: Path, discarded: Path, size: int) -> int:
    """Move what lies behind `size` to another file; returns the number of bytes moved."""
    found = path.stat().st_size if path.exists() else 0
    if found < size:
        raise InputError(
            f"{path}: has {found:,} bytes, but {size:,} when the checkpoint was written; put the file back, or "
            "remove the checkpoints that are newer than it"
        )
    if found == size:
        return 0
    with path.open("r+b") as file:
        file.seek(size)
        rest = file.read()
        with discarded.open("ab") as other:
            other.write(rest if rest.endswith(b"\n") else rest + b"\n")
            other.flush()
            os.fsync(other.fileno())
        file.truncate(size)
    return len(rest)
