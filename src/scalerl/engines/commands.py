"""A trainer's commands, carried out where it lives: what fails for want of a disk leaves the trainer as it was."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from scalerl.errors import ScaleRLError

_WRITING = ("save", "begin_save", "saved", "export")
STEP_SECONDS = 10_800.0
"""Default patience with a command; no honest step on hardware that is fit for it lasts as long."""
START_SECONDS = 900.0
"""Patience with a beginning, or more where a command is given more."""
GLANCE = 0.1
"""Seconds between two looks. Patience is counted in looks: the clock goes on while who waits is itself stopped."""
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


def silence(what: str, seconds: float) -> str:
    """Of a trainer, for a message; `what` it was told."""
    return f"has said nothing for {seconds:g} s since it was told to {what} (engines.step_seconds)"
