"""How many groups may be under way, and when a step may be taken, so that nothing trained is staler than k.

Every group gets a deadline when it is submitted: the last step at which it may be trained. Two checks on the number of
groups per deadline are all there is; docs/staleness.md proves that they bound the staleness and never block for ever.
"""

from __future__ import annotations

from collections.abc import Iterable


class Admission:
    """Counts outstanding groups (submitted, not yet trained) by deadline.

    With t the steps taken and N(j) the number of outstanding groups with deadline <= t + j, this always holds:

        N(j) <= (j + 1) * prompts_per_step        for all j >= -1

    Args:
        prompts_per_step: P, groups that one step trains.
        max_staleness: k; a group submitted at step t is trained at step t + k at the latest.
        capacity: most groups outstanding, P to (k + 1) P; fewer keep the data fresher, more keep the generators busier.
        step: t, steps taken so far.
    """

    def __init__(self, prompts_per_step: int, max_staleness: int, capacity: int | None = None, step: int = 0) -> None:
        most = (max_staleness + 1) * prompts_per_step
        if prompts_per_step < 1 or max_staleness < 0:
            raise ValueError(f"needs P >= 1 and k >= 0, not P = {prompts_per_step}, k = {max_staleness}")
        if capacity is not None and not prompts_per_step <= capacity <= most:
            raise ValueError(f"capacity must be P = {prompts_per_step} to (k + 1) P = {most}, not {capacity}")
        self.prompts_per_step, self.max_staleness, self.step = prompts_per_step, max_staleness, step
        self.capacity = most if capacity is None else capacity
        self.outstanding = 0
        self._count: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Groups that may be submitted now. A new deadline is the latest of all, so only the total can object."""
        return self.capacity - self.outstanding

    def admit(self) -> int:
        """Take in one group; returns its deadline.

        Raises:
            RuntimeError: there is no room; `free` tells beforehand.
        """
        if self.free < 1:
            raise RuntimeError(f"{self.outstanding} groups are outstanding, which is the capacity")
        return self._enter(self.step + self.max_staleness)

    def restore(self, deadline: int) -> None:
        """Take in again a group of a checkpoint, with the deadline that it had.

        Raises:
            RuntimeError: the deadline is past, or was never given by this step; the checkpoint is not of this run.
        """
        if not self.step <= deadline <= self.step + self.max_staleness or self.free < 1:
            raise RuntimeError(f"a group with deadline {deadline} cannot be outstanding at step {self.step}")
        self._enter(deadline)
        if not self._holds(self._count, self.step):
            raise RuntimeError(f"more groups have deadline {deadline} or earlier than the steps until then can train")

    def renew(self, deadline: int) -> int:
        """Count a group that starts afresh from now on; returns its new deadline, which is never earlier."""
        self._leave(self._count, deadline)
        self.outstanding -= 1
        return self._enter(self.step + self.max_staleness)

    def allows(self, deadlines: Iterable[int]) -> bool:
        """Whether a step that trains groups of these deadlines leaves all others trainable in time."""
        after = dict(self._count)
        for deadline in deadlines:
            self._leave(after, deadline)
        return self._holds(after, self.step + 1)

    def trained(self, deadlines: Iterable[int]) -> None:
        """A step was taken; its groups free their slots now and not before.

        Raises:
            RuntimeError: the step was not allowed.
        """
        for deadline in deadlines:
            self._leave(self._count, deadline)
            self.outstanding -= 1
        self.step += 1
        if not self._holds(self._count, self.step):
            raise RuntimeError("a step was taken that `allows` had not allowed")

    def _enter(self, deadline: int) -> int:
        self._count[deadline] = self._count.get(deadline, 0) + 1
        self.outstanding += 1
        return deadline

    @staticmethod
    def _leave(count: dict[int, int], deadline: int) -> None:
        if count.get(deadline, 0) < 1:
            raise RuntimeError(f"no outstanding group has deadline {deadline}")
        count[deadline] -= 1
        if not count[deadline]:
            del count[deadline]

    def _holds(self, count: dict[int, int], step: int) -> bool:
        total = 0
        for deadline in sorted(count):  # at most k + 1 different ones
            total += count[deadline]
            if total > max(deadline - step + 1, 0) * self.prompts_per_step:
                return False
        return True
