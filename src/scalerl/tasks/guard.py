"""Verification that cannot hurt the run: what raises is excluded and counted, never rewarded with 0.

A reward of 0 for our own failure would teach the model that a right answer was wrong (trap 20). What counts as a
verdict is one rule: a finite number from -1 to 1. Anything else that a verifier returns is no verdict; the rollout is
excluded and counted, as where it raises. A number off the scale ends the run instead: its verifier counts in another
unit, so what it says within the scale is as wrong, and would be believed.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from decimal import Decimal

from scalerl.errors import VerifierError
from scalerl.protocols import Task
from scalerl.types import Prompt

_log = logging.getLogger("scalerl.tasks")


class Guard:
    """Runs a task's verifier.

    Args:
        task: whose answers are judged.
        give_up_after: consecutive failures after which the verifier counts as broken and the run must stop; a run in
            which nothing can be judged would otherwise go on for ever and learn nothing.
    """

    def __init__(self, task: Task, give_up_after: int = 200) -> None:
        self.task, self.give_up_after = task, give_up_after
        self.judged: Counter[str] = Counter()
        self.excluded: Counter[tuple[str, str]] = Counter()
        self._in_a_row = 0

    def verify(self, prompt: Prompt, completion: str) -> float | None:
        """The score, from -1 to 1; None where the rollout must be excluded.

        Raises:
            OffScale: the verifier counts in another unit. VerifierError: after `give_up_after` failures in a row.
        """
        try:
            reward = score(self.task.verify(prompt, completion))
        except OffScale as error:
            raise OffScale(f"{origin(self.task, prompt)}: {error}; mend the verifier") from error
        # SystemExit too: a verifier that calls sys.exit() must not end the training.
        except (Exception, SystemExit) as error:
            self._exclude(prompt, error)
            return None
        self.judged[prompt.task] += 1
        self._in_a_row = 0
        return reward

    def _exclude(self, prompt: Prompt, error: BaseException) -> None:
        kind = kind_of(error)
        first = self.excluded[prompt.task, kind] == 0
        self.excluded[prompt.task, kind] += 1
        self._in_a_row += 1
        message = f"{origin(self.task, prompt)}: no verdict ({told(error)})"
        if first:
            _log.warning("%s; such rollouts are excluded and counted", message)
        if self._in_a_row >= self.give_up_after:
            raise VerifierError(f"{message}, the {self._in_a_row}th failure in a row: mend the verifier") from error

    def counts(self) -> dict[str, float]:
        """For the metrics: `verified/TASK`, `excluded/TASK`, `excluded/TASK/ERROR`."""
        found: dict[str, float] = {f"verified/{task}": float(n) for task, n in self.judged.items()}
        for (task, kind), n in sorted(self.excluded.items()):
            found[f"excluded/{task}"] = found.get(f"excluded/{task}", 0.0) + n
            found[f"excluded/{task}/{kind}"] = float(n)
        return found


class OffScale(VerifierError):
    """A verifier returned a finite number outside of [-1, 1]."""


def score(value: object) -> float:
    """A verifier's return value as a score from -1 to 1.

    Raises:
        OffScale: it is a finite number outside of them. VerifierError: it is no finite number.
    """
    if isinstance(value, str | bytes) or value is None:
        raise VerifierError(f"it returned {value!r}; it must return a number")
    try:
        found = float(value)  # type: ignore[arg-type]
    except OverflowError as error:
        size = f"an integer of {digits(value):,} digits" if isinstance(value, int) else f"too large a {_kind(value)}"
        raise VerifierError(f"it returned {size}; it must return a number from -1 to 1") from error
    except (TypeError, ValueError) as error:
        raise VerifierError(f"it returned a {_kind(value)}; it must return a number") from error
    if not math.isfinite(found):
        raise VerifierError(f"it returned {found}; scores must be finite")
    if abs(found) > 1:
        raise OffScale(
            f"it returned {found:g}: return 1 for correct, 0 or -1 for wrong, or partial credit between 0 and 1"
        )
    return found


def digits(value: int) -> int:
    """How many decimal digits an integer has, whatever its size: `str` refuses those beyond 4300."""
    return Decimal(value).adjusted() + 1


def _kind(value: object) -> str:
    return type(value).__name__


def origin(task: Task, prompt: Prompt) -> str:
    """Who judges a prompt, and which one it is, for messages."""
    part = getattr(task, "tasks", {}).get(prompt.task, task)
    tell = getattr(part, "judged_by", None)
    who = "its verifier" if tell is None else tell(prompt)
    return f"task {prompt.task}, {who}, on prompt {' '.join(prompt.text.split())[:60]!r}"


def kind_of(error: BaseException) -> str:
    """The name of an error; of one from a judging process, what was raised there."""
    return str(getattr(error, "kind", getattr(error.__cause__, "kind", type(error).__name__)))


def told(error: BaseException) -> str:
    """An error in one line, with its kind."""
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, VerifierError) else f"{type(error).__name__}: {text}"
