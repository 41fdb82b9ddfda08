"""Many generators as one: they share a queue, die and are replaced, join and leave, and the run does not notice.

Work is pulled, not dealt: an engine is given a few rollouts more than it can run, and the next ones when some have come
back, so a slow engine gets little and a fast one much. What an engine had when it was lost is generated elsewhere, from
the beginning and with current weights; the staleness bound counts from submission, so that costs it nothing.

Left out on purpose: where engines run and how they are started (`spawn` knows), and moving a half-made rollout.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from scalerl.errors import EngineDied, InputError
from scalerl.protocols import Generator, WeightSource
from scalerl.types import Prompt, Rollout

Event = dict[str, Any]
_LOOK_SECONDS = 1.0
"""Between two looks at clocks: silence, late rollouts, the number of engines wanted."""
_STARTING = 4
"""Engines that join at once: each start loads a machine, and the wish may have changed when they are up."""


class Member(Generator, Protocol):
    """What a fleet asks of an engine's proxy: it starts in the background, and `state` is empty until it is up."""

    @property
    def silent_seconds(self) -> float:
        """Since it was last heard of, or since it was made."""
        ...

    def close(self, hangs: bool = False) -> None:
        """End it; at once where it `hangs`, else it is given a while to end what it started."""
        ...


@dataclass(frozen=True)
class FleetSettings:
    """When a fleet loses patience.

    Attributes:
        in_flight: most rollouts with one engine at once.
        silent_seconds: an engine not heard of for so long is taken for dead. start_seconds: the same before its first
            word.
        rollout_seconds: a rollout that has been with an engine for longer is given up; None: never.
        attempts: deaths of an engine, starting or at work, without a rollout between them, after which it is not
            replaced any more. One that dies idle has shown no fault of its own.
    """

    in_flight: int
    silent_seconds: float = 120.0
    start_seconds: float = 900.0
    rollout_seconds: float | None = None
    attempts: int = 5


@dataclass(frozen=True, eq=False, slots=True)
class _Request:
    group_id: int
    prompt: Prompt

    @property
    def key(self) -> tuple[int, str]:
        return self.group_id, self.prompt.prompt_id


@dataclass(eq=False)
class _Place:
    """One engine after another at one place of the fleet.

    Attributes:
        asked: (request, when) by its key, oldest first. given_up: rollouts that are not waited for any more.
        silent: seconds for which it was listened to and nothing was heard.
    """

    number: int
    engine: Member
    asked: dict[tuple[int, str], deque[tuple[_Request, float]]] = field(default_factory=dict)
    given_up: Counter[tuple[int, str]] = field(default_factory=Counter)
    load: int = 0
    silent: float = 0.0
    deaths: int = 0
    up: bool = False
    leaving: bool = False

    def take_back(self) -> list[_Request]:
        """All that it was asked for, oldest first; nothing is outstanding any more."""
        lost = sorted((pair for queue in self.asked.values() for pair in queue), key=lambda pair: pair[1])
        self.asked.clear()
        self.given_up.clear()
        self.load = 0
        return [request for request, _ in lost]


class Fleet:
    """See `scalerl.protocols.GeneratorPool`.

    Args:
        spawn: makes the engine of a place (0, 1, ...); returns at once. size: places at the start.
        wanted: how many engines there should be now, asked once a second; None for no opinion, `InputError` for an
            impossible one.
        devices: that one engine holds, for the ledger. name: of an engine, in events.

    Attributes:
        asked_again: rollouts that died with an engine and were generated elsewhere. late: given up.
    """

    def __init__(
        self,
        spawn: Callable[[int], Member],
        size: int,
        settings: FleetSettings,
        wanted: Callable[[], int | None] = lambda: None,
        devices: float = 1.0,
        name: str = "generator",
    ) -> None:
        self.settings, self._spawn, self._wanted, self._devices = settings, spawn, wanted, devices
        self._name = name
        self._places = [_Place(number, spawn(number)) for number in range(size)]
        self._numbers = size
        self._queue: deque[_Request] = deque()
        self._weights: tuple[int, WeightSource] | None = None
        self._news: list[Event] = []
        self._refused = ""
        self._ended: dict[str, float] = {}
        self._looked = time.monotonic()
        self._ending: list[threading.Thread] = []
        self.asked_again = self.late = 0

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """Queue one rollout for each (group_id, prompt)."""
        self._queue += [_Request(group_id, prompt) for group_id, prompt in prompts]
        self._deal()

    def poll(self) -> list[Rollout]:
        """Rollouts that have finished anywhere.

        Raises:
            EngineDied: no engine is left, and none can be had.
        """
        found: list[Rollout] = []
        for place in list(self._places):
            found += self._accepted(place, self._try(place, place.engine.poll) or [])
            if not place.up and self._try(place, place.engine.state):
                self._welcome(place)
        since = time.monotonic() - self._looked
        if since >= _LOOK_SECONDS:
            self._looked += since
            found += self._look(since)
        self._deal()
        return found

    def update_weights(self, version: int, source: WeightSource) -> None:
        """Pass new weights on; an engine that comes up later is given the newest."""
        self._weights = version, source
        for place in list(self._places):
            if place.up:
                self._try(place, partial(place.engine.update_weights, version, source))

    def state(self) -> Mapping[str, Any]:
        """Sums over all engines, dead ones too, so that no counter ever falls; `version` is the oldest in use."""
        sums = dict(self._ended)
        versions: list[int] = []
        for place in self._places:
            for name, value in (self._try(place, place.engine.state) or {}).items():
                if name == "version":
                    versions.append(value)
                elif isinstance(value, int | float):
                    sums[name] = sums.get(name, 0) + value
        up = sum(place.up for place in self._places)
        own = {"engines": len(self._places), "engines_up": up, "devices": self._devices * len(self._places)}
        own |= {"queued": sums.get("queued", 0) + len(self._queue), "asked_again": self.asked_again, "late": self.late}
        return sums | own | ({"version": min(versions)} if versions else {})

    def reseed(self, *key: int) -> None:
        """Nothing: who makes which rollout depends on clocks, and no run of a fleet repeats itself."""

    def news(self) -> list[Event]:
        """What has happened to engines since the last call."""
        news, self._news = self._news, []
        return news

    def resize(self, size: int) -> None:
        """Move towards so many engines: a few new ones start at a time, surplus ones finish what they have and go."""
        staying = [place for place in self._places if not place.leaving]
        for place in staying[size:]:
            place.leaving = True
        starting = sum(not place.up for place in self._places)
        for _ in range(min(size - len(staying), _STARTING - starting)):
            self._places.append(_Place(self._numbers, self._spawn(self._numbers)))
            self._say("joins", self._places[-1])
            self._numbers += 1

    def close(self) -> None:
        """End all engines."""
        for place in self._places:
            self._end(place.engine)
        self._places.clear()
        for thread in self._ending:
            thread.join()

    def _end(self, engine: Member, hangs: bool = False) -> None:
        """Beside everything else: it may take its time, and the others shall not wait for it."""
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        self._ending.append(threading.Thread(target=engine.close, args=(hangs,), daemon=True))
        self._ending[-1].start()

    def _try(self, place: _Place, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EngineDied as error:
            self._lose(place, error)
            return None

    def _welcome(self, place: _Place) -> None:
        place.up = True
        if self._weights is not None:
            version, source = self._weights
            self._try(place, partial(place.engine.update_weights, version, source))

    def _accepted(self, place: _Place, rollouts: Sequence[Rollout]) -> Iterator[Rollout]:
        for rollout in rollouts:
            key = rollout.group_id, rollout.prompt.prompt_id
            place.deaths = 0
            if place.given_up[key]:
                place.given_up[key] -= 1
            elif key in place.asked:
                self._forget(place, key)
                yield rollout

    @staticmethod
    def _forget(place: _Place, key: tuple[int, str]) -> _Request:
        queue = place.asked[key]
        request, _ = queue.popleft()
        place.load -= 1
        if not queue:
            del place.asked[key]
        return request

    def _deal(self) -> None:
        """Give what waits to whoever has room, a group to one engine: it then computes the prompt once."""
        while self._queue:
            ready = [p for p in self._places if p.up and not p.leaving and p.load < self.settings.in_flight]
            if not ready:
                return
            place = min(ready, key=lambda p: p.load)
            group, room = self._queue[0].group_id, self.settings.in_flight - place.load
            taken: list[_Request] = []
            while self._queue and len(taken) < room and self._queue[0].group_id == group:
                taken.append(self._queue.popleft())
            now = time.monotonic()
            for request in taken:  # before they are sent: an engine that dies of it gives them back
                place.asked.setdefault(request.key, deque()).append((request, now))
            place.load += len(taken)
            requests = [(request.group_id, request.prompt) for request in taken]
            self._try(place, partial(place.engine.submit, requests))

    def _look(self, since: float) -> list[Rollout]:
        """Everything that depends on clocks; `since` the last look."""
        self._follow_wish()
        late: list[Rollout] = []
        for place in list(self._places):
            patience = self.settings.silent_seconds if place.up else self.settings.start_seconds
            # After a long while without a look nobody had listened: that is no silence of the engine's.
            listened, silent = min(since, 2 * _LOOK_SECONDS), place.engine.silent_seconds
            place.silent = silent if silent < since else place.silent + listened
            if place.silent > patience:
                error = EngineDied(f"{self._name} {place.number} has said nothing for {patience:g} s")
                self._lose(place, error, hangs=True)
            elif place.leaving and not place.load:
                self._remove(place)
                self._say("left", place)
            else:
                late += self._give_up(place)
        return late

    def _follow_wish(self) -> None:
        try:
            wanted = self._wanted()
        except InputError as error:
            if str(error) != self._refused:  # once for each
                self._refused = str(error)
                self._news.append({"event": "number of generators refused", "reason": str(error)})
            return
        if wanted is not None:
            self.resize(wanted)

    def _give_up(self, place: _Place) -> list[Rollout]:
        patience = self.settings.rollout_seconds
        if patience is None:
            return []
        since = time.monotonic() - patience
        late: list[Rollout] = []
        for key in list(place.asked):
            while key in place.asked and place.asked[key][0][1] < since:
                late.append(_late(self._forget(place, key)))
                place.given_up[key] += 1
        self.late += len(late)
        return late

    def _lose(self, place: _Place, error: EngineDied, hangs: bool = False) -> None:
        """An engine is gone: its rollouts go back to the head of the queue, and another takes its place."""
        if place not in self._places:
            return
        lost = place.take_back()
        self._queue.extendleft(reversed(lost))
        self.asked_again += len(lost)
        self._remove(place, hangs)
        place.deaths += bool(lost) or not place.up
        if not place.leaving and place.deaths <= self.settings.attempts:
            place.engine, place.up, place.silent = self._spawn(place.number), False, 0.0
            self._places.append(place)
            self._say("replaced", place, error, rollouts_asked_again=len(lost))
            return
        self._say("given up", place, error, rollouts_asked_again=len(lost))
        if not self._places:
            raise error

    def _remove(self, place: _Place, hangs: bool = False) -> None:
        try:
            ended = place.engine.state()
        except EngineDied:
            ended = {}
        for name in ("tokens_generated", "tokens_prefilled", "decode_steps", "seconds_busy", "seconds_idle"):
            self._ended[name] = self._ended.get(name, 0) + ended.get(name, 0)
        self._places.remove(place)
        self._end(place.engine, hangs)

    def _say(self, event: str, place: _Place, error: EngineDied | None = None, **more: Any) -> None:
        reason = {} if error is None else {"reason": str(error)}
        self._news.append({"event": f"{self._name} {event}", self._name: place.number, **reason, **more})


def _late(request: _Request) -> Rollout:
    """Stands for a rollout that nobody waits for: no tokens, and never trained."""
    nothing = np.zeros(0, dtype=np.int64)
    return Rollout(
        request.prompt, request.group_id, nothing, np.zeros(0, np.float32), np.zeros(0, np.bool_), nothing, "late"
    )
