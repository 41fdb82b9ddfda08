"""A trainer's commands, carried out where it lives: what fails for want of a disk leaves the trainer as it was."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from scalerl.errors import ScaleRLError

_WRITING = ("save", "begin_save", "saved", "export")
Answer = tuple[str, Any]
"""("result", value) or ("refused", why)."""


def carry_out(trainer: Any, command: str, arguments: Sequence[Any]) -> Answer:
    """Call the method `command`: its result, or in one line why files could not be written. Other errors pass."""
    method = getattr(trainer, command)
    if command not in _WRITING:
        return "result", method(*arguments)
    try:
        return "result", method(*arguments)
    except Exception as error:
        traceback.print_exc()  # to the engine's log
        return "refused", one_line(error)


def outcome(answer: Answer) -> Any:
    """The result.

    Raises:
        ScaleRLError: the trainer could not write.
    """
    kind, value = answer
    if kind == "refused":
        raise ScaleRLError(value)
    return value


def one_line(error: BaseException) -> str:
    """An error as a message holds it: ours as it is, others with their kind."""
    line = " ".join(str(error).split()) or "no message"
    return line if isinstance(error, ScaleRLError) else f"{type(error).__name__}: {line}"
