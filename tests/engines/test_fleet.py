"""Many generators as one: nothing lost, nothing twice, slow ones get little, dead and silent ones are replaced."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.engines import fleet as module
from scalerl.engines.fleet import Fleet, FleetSettings
from scalerl.errors import EngineDied, InputError
from scalerl.types import Prompt, Rollout


class Clock:
    """Seconds that only a test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Engine:
    """Answers `speed` rollouts a poll with its version; dies after so many polls, or falls silent."""

    def __init__(self, speed: int = 4, dies_after: int | None = None, starts_after: int = 0) -> None:
        self.speed, self.dies_after, self.starts_after = speed, dies_after, starts_after
        self.queue: list[tuple[int, Prompt]] = []
        self.version, self.polls, self.made, self.most = -1, 0, 0, 0
        self.silent_seconds, self.closed, self.hangs = 0.0, False, False
        self.let_go = threading.Event()
        self.let_go.set()

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        self._live()
        self.queue += prompts
        self.most = max(self.most, len(self.queue))

    def poll(self) -> list[Rollout]:
        self.polls += 1
        self._live()
        if self.hangs:
            return []
        done, self.queue = self.queue[: self.speed], self.queue[self.speed :]
        self.made += len(done)
        return [self._rollout(group_id, prompt) for group_id, prompt in done]

    def update_weights(self, version: int, source: Any) -> None:
        self._live()
        self.version = version

    def state(self) -> Mapping[str, Any]:
        return {"version": self.version, "tokens_generated": self.made} if self.polls > self.starts_after else {}

    def close(self, hangs: bool = False) -> None:
        if not hangs:
            self.let_go.wait(10)
        self.closed = True

    def _live(self) -> None:
        if self.dies_after is not None and self.polls > self.dies_after:
            raise EngineDied("killed by signal 9")

    def _rollout(self, group_id: int, prompt: Prompt) -> Rollout:
        one = np.ones(1)
        version = np.array([self.version])
        return Rollout(prompt, group_id, version, one.astype(np.float32), one.astype(bool), version, "stop")


def requests(groups: int, generations: int = 4) -> list[tuple[int, Prompt]]:
    return [(g, Prompt((1,), f"p{g}", "t")) for g in range(groups) for _ in range(generations)]


def asked(pairs: Sequence[tuple[int, Prompt]]) -> Counter[int]:
    return Counter(group_id for group_id, _ in pairs)


def came(rollouts: Sequence[Rollout]) -> Counter[int]:
    return Counter(rollout.group_id for rollout in rollouts)


def collect(fleet: Fleet, polls: int = 400) -> list[Rollout]:
    return [rollout for _ in range(polls) for rollout in fleet.poll()]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4), st.lists(st.integers(1, 12), max_size=6),
    st.integers(1, 20), st.integers(1, 9),
)  # fmt: skip
def test_every_rollout_comes_exactly_once_whoever_dies(
    speeds: list[int], lives: list[int], groups: int, in_flight: int
) -> None:
    deaths = iter(lives)

    def spawn(place: int) -> Engine:
        return Engine(speeds[place], next(deaths, None), starts_after=place)

    fleet = Fleet(spawn, len(speeds), FleetSettings(in_flight, attempts=10))
    fleet.update_weights(3, None)  # type: ignore[arg-type]
    fleet.submit(requests(groups))
    found = collect(fleet)
    assert came(found) == asked(requests(groups))
    assert {rollout.oldest_version for rollout in found} == {3}
    assert fleet.state()["asked_again"] == sum(event.get("rollouts_asked_again", 0) for event in fleet.news())


def test_a_slow_engine_gets_little_and_is_never_given_more_than_it_may_hold() -> None:
    engines = [Engine(speed=1), Engine(speed=8)]
    fleet = Fleet(lambda place: engines[place], 2, FleetSettings(in_flight=8))
    collect(fleet, 1)
    fleet.submit(requests(50))
    collect(fleet, 30)
    assert engines[1].made > 5 * engines[0].made > 0
    assert max(engine.most for engine in engines) <= 8


def test_a_group_goes_to_one_engine() -> None:
    engines = [Engine(), Engine(), Engine()]
    fleet = Fleet(lambda place: engines[place], 3, FleetSettings(in_flight=16))
    collect(fleet, 1)
    fleet.submit(requests(6))
    owners = [{group_id for group_id, _ in engine.queue} for engine in engines]
    assert sorted(map(len, owners)) == [2, 2, 2]
    assert set.union(*owners) == set(range(6))


def test_one_that_comes_up_late_is_given_the_newest_weights_before_any_work() -> None:
    engines = [Engine(speed=1), Engine(starts_after=3)]
    fleet = Fleet(lambda place: engines[place], 2, FleetSettings(in_flight=4))
    fleet.poll()
    for version in range(5):
        fleet.update_weights(version, None)  # type: ignore[arg-type]
    fleet.submit(requests(12))
    assert not engines[1].queue
    assert {rollout.oldest_version for rollout in collect(fleet)} == {4}
    assert engines[1].made > 0


def test_a_silent_engine_is_ended_and_its_work_done_elsewhere(clock: Clock) -> None:
    made: list[Engine] = []

    def spawn(place: int) -> Engine:
        made.append(Engine())
        return made[-1]

    fleet = Fleet(spawn, 2, FleetSettings(in_flight=8, silent_seconds=10))
    fleet.poll()
    made[0].hangs = True
    fleet.submit(requests(4))
    found = collect(fleet, 20)
    assert sum(came(found).values()) == 8
    made[0].let_go.clear()
    for second in range(1, 11):
        assert fleet.news() == []
        made[0].silent_seconds = clock.now = float(second)
        fleet.poll()
    made[0].silent_seconds = clock.now = 11.0
    found += collect(fleet)
    assert came(found) == asked(requests(4))
    (event,) = fleet.news()
    assert event["event"] == "generator replaced"
    assert event["rollouts_asked_again"] == 8
    assert "nothing for 10 s" in event["reason"]
    fleet.close()
    assert made[0].closed  # at once, without a while to end by itself


def test_deaths_of_an_idle_engine_are_no_fault_of_its_own() -> None:
    made: list[Engine] = []

    def spawn(place: int) -> Engine:
        made.append(Engine())
        return made[-1]

    fleet = Fleet(spawn, 1, FleetSettings(in_flight=8, attempts=2))
    for _ in range(10):
        fleet.poll()  # it is up
        made[-1].dies_after = 0
        fleet.poll()
    assert len(made) == 11
    made[-1].hangs = True
    fleet.submit(requests(1))
    for _ in range(2):  # at work
        fleet.poll()
        made[-1].dies_after = 0
        fleet.poll()
        made[-1].hangs = True
    fleet.poll()
    made[-1].dies_after = 0
    with pytest.raises(EngineDied):
        fleet.poll()


def test_who_did_not_listen_has_heard_no_silence(clock: Clock) -> None:
    """The loop itself may stand still: in a verifier, on a slow disk, or stopped with all of its machine."""
    engine = Engine()
    fleet = Fleet(lambda place: engine, 1, FleetSettings(in_flight=8, silent_seconds=10))
    fleet.poll()
    for _ in range(4):  # each time it is heard again soon
        clock.now += 300.0
        engine.silent_seconds = 300.0
        fleet.poll()
        clock.now += 1.0
        engine.silent_seconds = 0.5
        fleet.poll()
    assert fleet.news() == []
    while not fleet.news():  # and one that does hang is found all the same
        clock.now += 300.0
        engine.silent_seconds += 300.0
        fleet.poll()
        assert engine.silent_seconds <= 6 * 300.0 + 1


def test_an_engine_that_takes_its_time_to_end_holds_nobody_up(clock: Clock) -> None:
    engines: list[Engine] = []

    def spawn(place: int) -> Engine:
        engines.append(Engine(dies_after=3 if not engines else None))
        return engines[-1]

    fleet = Fleet(spawn, 1, FleetSettings(in_flight=8))
    engines[0].let_go.clear()
    fleet.submit(requests(8))
    assert came(collect(fleet)) == asked(requests(8))
    assert not engines[0].closed
    engines[0].let_go.set()
    fleet.close()
    assert all(engine.closed for engine in engines)


def test_a_rollout_that_takes_too_long_is_given_up_and_dropped_when_it_comes(clock: Clock) -> None:
    engine = Engine()
    fleet = Fleet(lambda place: engine, 1, FleetSettings(in_flight=8, rollout_seconds=30))
    fleet.poll()
    engine.hangs = True
    fleet.submit(requests(1))
    assert fleet.poll() == []
    clock.now = 31.0
    late = fleet.poll()
    assert [rollout.finish_reason for rollout in late] == ["late"] * 4
    assert fleet.state()["late"] == 4
    engine.hangs = False
    assert collect(fleet) == []  # they came, and nobody wanted them
    fleet.submit(requests(1))
    assert [rollout.finish_reason for rollout in collect(fleet)] == ["stop"] * 4


def test_engines_join_and_leave_and_what_they_have_is_finished(clock: Clock) -> None:
    made: list[Engine] = []
    wanted = 1

    def spawn(place: int) -> Engine:
        made.append(Engine(speed=1))
        return made[-1]

    fleet = Fleet(spawn, 1, FleetSettings(in_flight=4), wanted=lambda: wanted, devices=2.0)
    fleet.submit(requests(30))
    found = collect(fleet, 3)
    wanted, clock.now = 3, 2.0
    found += collect(fleet, 10)
    assert len(made) == 3
    assert all(engine.made for engine in made)
    assert fleet.state()["devices"] == 6.0
    wanted, clock.now = 1, 4.0
    found += collect(fleet, 10)
    clock.now = 6.0
    found += collect(fleet)
    assert came(found) == asked(requests(30))
    assert [engine.closed for engine in made] == [False, True, True]
    assert fleet.state()["tokens_generated"] == 120  # those that left are counted on
    events = Counter(event["event"] for event in fleet.news())
    assert events == {"generator joins": 2, "generator left": 2}


def test_one_that_dies_again_and_again_is_given_up_and_the_last_one_ends_the_run() -> None:
    made: list[Engine] = []

    def spawn(place: int) -> Engine:
        made.append(Engine(dies_after=1 if place else None))
        return made[-1]

    fleet = Fleet(spawn, 2, FleetSettings(in_flight=2, attempts=3))
    fleet.submit(requests(10))
    assert came(collect(fleet)) == asked(requests(10))
    assert fleet.state()["engines"] == 1
    doomed = Fleet(lambda place: Engine(dies_after=0), 1, FleetSettings(in_flight=2))
    with pytest.raises(EngineDied, match="signal 9"):
        collect(doomed)


def test_a_great_wish_is_followed_a_few_at_a_time_and_can_be_taken_back(clock: Clock) -> None:
    made: list[Engine] = []
    wanted = 200

    def spawn(place: int) -> Engine:
        made.append(Engine(starts_after=3))
        return made[-1]

    fleet = Fleet(spawn, 1, FleetSettings(in_flight=4), wanted=lambda: wanted)
    for clock.now in (2.0, 4.0):
        fleet.poll()
    assert len(made) == 4  # the first is not up yet either
    wanted = 1
    for clock.now in (6.0, 8.0, 10.0):
        collect(fleet, 3)
    assert fleet.state()["engines"] == 1
    assert sum(engine.closed for engine in made) == 3


def test_an_impossible_wish_is_told_once_and_changes_nothing(clock: Clock) -> None:
    def wanted() -> int:
        raise InputError("generators: 'banana' is no number")

    fleet = Fleet(lambda place: Engine(), 2, FleetSettings(in_flight=4), wanted=wanted)
    for clock.now in (2.0, 4.0, 6.0):
        fleet.poll()
    assert fleet.state()["engines"] == 2
    assert [event["reason"] for event in fleet.news()] == ["generators: 'banana' is no number"]
