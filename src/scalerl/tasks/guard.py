"""Verification that cannot hurt the run: what raises is excluded and counted, never rewarded with 0.

A reward of 0 for our own failure would teach the model that a right answer was wrong (trap 20).
"""

from __future__ import annotations

import logging
import math
from collections import Counter

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
        """The reward, finite; None where the rollout must be excluded.

        Raises:
            VerifierError: after `give_up_after` failures in a row.
        """
        try:
            reward = finite_reward(self.task.verify(prompt, completion))
        # SystemExit too: a verifier that calls sys.exit() must not end the training.
        except (Exception, SystemExit) as error:
            self._exclude(prompt, error)
            return None
        self.judged[prompt.task] += 1
        self._in_a_row = 0
        return reward

    def _exclude(self, prompt: Prompt, error: BaseException) -> None:
        kind = getattr(error.__cause__, "kind", type(error).__name__)  # what was raised in the judging process
        first = self.excluded[prompt.task, kind] == 0
        self.excluded[prompt.task, kind] += 1
        self._in_a_row += 1
        message = f"task {prompt.task}: the verifier failed on prompt {prompt.prompt_id} ({kind}: {error})"
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


def finite_reward(value: object) -> float:
    """A verifier's return value as a reward.

    Raises:
        VerifierError: it is no number, or not finite.
    """
    if isinstance(value, str | bytes) or value is None:
        raise VerifierError(f"the verifier returned {value!r}; it must return a number")
    try:
        reward = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise VerifierError(f"the verifier returned {type(value).__name__}; it must return a number") from error
    if not math.isfinite(reward):
        raise VerifierError(f"the verifier returned {reward}; rewards must be finite")
    return reward
