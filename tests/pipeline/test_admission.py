"""TRAPS 22-26: no trained group is staler than k, nothing blocks for ever, no burst, under all that can go wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.pipeline.admission import Admission


@dataclass(eq=False)
class Group:
    deadline: int
    born: int
    remaining: int
    """Ticks until all its rollouts have finished."""
    finished_at: int = -1


class Play:
    """A run in miniature: random delays, random losses; training takes time, while groups go on finishing."""

    def __init__(self, data: st.DataObject, P: int, k: int, capacity: int | None) -> None:
        self.data, self.P, self.k = data, P, k
        self.admission = Admission(P, k, capacity)
        self.groups: list[Group] = []
        self.training: list[Group] = []
        self.clock = 0
        self.staleness: list[int] = []

    def tick(self) -> None:
        draw = self.data.draw
        self.clock += 1
        wanted = draw(st.integers(0, self.admission.free))
        if len(self.groups) < self.P:
            wanted = max(wanted, min(self.admission.free, self.P))
        for _ in range(wanted):
            self.groups.append(Group(self.admission.admit(), self.admission.step, draw(st.integers(0, 40))))
        for group in self.groups:
            group.remaining -= 1
            if group.remaining <= 0 and group.finished_at < 0:
                group.finished_at = self.clock
        if self.training:
            if draw(st.booleans()):
                self.end_step()
        else:
            self.try_step()

    def try_step(self) -> bool:
        ready = sorted((g for g in self.groups if g.finished_at >= 0), key=lambda g: (g.deadline, g.finished_at))
        batch = ready[: self.P]
        if len(batch) < self.P or not self.admission.allows(g.deadline for g in batch):
            return False
        self.training = batch
        return True

    def end_step(self) -> None:
        self.staleness += [self.admission.step - g.born for g in self.training]
        self.admission.trained(g.deadline for g in self.training)
        self.groups = [g for g in self.groups if g not in self.training]
        self.training = []

    def lose(self) -> None:
        """An engine dies: some unfinished groups start again, from now."""
        for group in self.groups:
            if group.finished_at < 0 and self.data.draw(st.booleans()):
                group.deadline, group.born = self.admission.renew(group.deadline), self.admission.step
                group.remaining = self.data.draw(st.integers(0, 40))

    def resume(self) -> None:
        """Kill and resume: a step in the making is lost, finished groups are kept, the others start again."""
        self.training = []
        old, self.admission = self.admission, Admission(self.P, self.k, self.admission.capacity, self.admission.step)
        for group in self.groups:
            self.admission.restore(group.deadline)
        assert self.admission.outstanding == old.outstanding == len(self.groups) <= self.admission.capacity
        self.lose()

    def check(self) -> None:
        t = self.admission.step
        for j in range(-1, self.k + 1):
            assert sum(g.deadline <= t + j for g in self.groups) <= (j + 1) * self.P
        assert max(self.staleness, default=0) <= self.k


@settings(max_examples=150)
@given(st.data(), st.integers(1, 5), st.integers(0, 4), st.booleans())
def test_staleness_is_bounded_whatever_happens(data: st.DataObject, P: int, k: int, full: bool) -> None:
    capacity = None if full else data.draw(st.integers(P, (k + 1) * P))
    play = Play(data, P, k, capacity)
    for _ in range(data.draw(st.integers(5, 40))):
        play.tick()
        fault = data.draw(st.sampled_from(["none"] * 8 + ["lose", "resume"]))
        if fault != "none":
            getattr(play, fault)()
        play.check()
    # No deadlock: with time, everything that is outstanding gets finished, and then a step is always possible.
    if play.training:
        play.end_step()
    while play.admission.outstanding < P:
        play.groups.append(Group(play.admission.admit(), play.admission.step, 0))
    for group in play.groups:
        group.finished_at = max(group.finished_at, 0)
    while len(play.groups) >= P:
        assert play.try_step()
        play.end_step()
        play.check()


def test_a_young_batch_waits_for_the_group_that_falls_due() -> None:
    admission = Admission(prompts_per_step=1, max_staleness=1)
    old = admission.admit()
    admission.admit()
    admission.trained([1])
    assert old == 1
    young = admission.admit()
    assert young == 2
    assert not admission.allows([young])  # the old one would be overdue after it
    assert admission.allows([old])


def test_slots_are_freed_by_training_only() -> None:
    admission = Admission(prompts_per_step=2, max_staleness=1)
    deadlines = [admission.admit() for _ in range(4)]
    assert admission.free == 0
    assert admission.allows(deadlines[:2])
    assert admission.free == 0
    with pytest.raises(RuntimeError, match="capacity"):
        admission.admit()
    admission.trained(deadlines[:2])
    assert admission.free == 2


def test_a_checkpoint_of_another_run_is_refused() -> None:
    admission = Admission(prompts_per_step=1, max_staleness=2, step=10)
    for wrong in (9, 13):
        with pytest.raises(RuntimeError, match="cannot be outstanding"):
            admission.restore(wrong)
    admission.restore(10)
    with pytest.raises(RuntimeError, match="than the steps until then"):
        admission.restore(10)


def test_a_step_that_was_not_allowed_is_an_error() -> None:
    admission = Admission(prompts_per_step=1, max_staleness=1)
    admission.admit()
    admission.admit()
    admission.trained([1])
    admission.admit()
    with pytest.raises(RuntimeError, match="not allowed"):
        admission.trained([2])


@pytest.mark.parametrize(("P", "k", "capacity"), [(0, 1, None), (1, -1, None), (4, 1, 3), (4, 1, 9)])
def test_impossible_settings(P: int, k: int, capacity: int | None) -> None:
    with pytest.raises(ValueError, match=r"needs P|capacity must be"):
        Admission(P, k, capacity)
