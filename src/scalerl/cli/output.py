"""Where answers and notes go: answers to stdout, notes and errors to stderr; a reader that hangs up is no error."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from scalerl.errors import InputError

MIN_WIDTH, MAX_WIDTH = 80, 100
"""Tables need 80 columns: a narrower terminal wraps them itself, which is ugly, but cuts no number."""
MAX_LINE = 600


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """The text without line breaks and control characters, cut to `limit` characters."""
    flat = " ".join(text.split())
    flat = "".join(c if c.isprintable() else "\\" + f"x{ord(c):02x}" for c in flat)
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def say(text: str) -> None:
    """One line to stderr."""
    try:
        _write(sys.stderr, one_line(text) + "\n")
    except OSError:  # a full disk: there is nobody left to tell
        send_nowhere(sys.stderr)


def print_json(answer: dict[str, Any]) -> None:
    """One JSON object to stdout."""
    _write(_stdout(), json.dumps(_sayable(answer), indent=1, allow_nan=False) + "\n")


def _sayable(value: Any) -> Any:
    """The same structure with null for what JSON cannot say, and plain numbers for numpy's."""
    if isinstance(value, dict):
        return {str(key): _sayable(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, (int, float, bool)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_view(*parts: Any) -> None:
    """Rich renderables to stdout: coloured on a terminal, plain elsewhere, 80 columns where the width is unknown."""
    from scalerl.report.terminal import render

    stream = _stdout()
    _write(stream, render(parts, view_width(), _wants_colour(stream), stream.encoding or "utf-8"))


def _stdout() -> IO[str]:
    if sys.stdout is None:  # what Python makes of `>&-`
        raise InputError("stdout: is closed, so the answer has nowhere to go; send it to a file or to /dev/null")
    return sys.stdout


def view_width() -> int:
    """Columns that a view may take."""
    return max(min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH), MIN_WIDTH)


def _wants_colour(stream: IO[str]) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _write(stream: IO[str] | None, text: str) -> None:
    if stream is None:  # what Python makes of `2>&-`: there is nobody to tell
        return
    encoding = stream.encoding or "utf-8"
    with _quiet_pipe(stream):
        stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
        stream.flush()


@contextmanager
def _quiet_pipe(stream: IO[str]) -> Iterator[None]:
    """`| head` closes the pipe early: the rest goes nowhere, without a word."""
    try:
        yield
    except BrokenPipeError:
        send_nowhere(stream)


def send_nowhere(stream: IO[str]) -> None:
    """What is still to be written is thrown away, or the interpreter complains when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
