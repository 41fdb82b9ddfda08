"""Where the time of a step went, and how busy each role was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Clocks:
    """Sums of seconds since the last `restart`.

    Attributes:
        seconds: by phase of the controller's own thread: "assemble", "publish", "engine" (inside a generator's calls),
            "verify", "checkpoint", "evaluate" (waiting for one), "sleep".
        train: of the optimizer step, in whichever thread.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.train = self.in_flight = 0.0
        self._begun = self._turn = time.monotonic()
        self._reported = (0.0, 0.0)
        self._share: float | None = None
        self._updates = (0, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens within."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begun

    def turn(self, in_flight: bool) -> None:
        """The loop begins a turn; `in_flight`: rollouts were outstanding since the last one."""
        now = time.monotonic()
        if in_flight:
            self.in_flight += now - self._turn
        self._turn = now

    def restart(self, generator: Mapping[str, Any], inline: bool) -> tuple[float, float, dict[str, float]]:
        """Close a step.

        Args:
            generator: its `state()`; where it reports `seconds_busy` and `seconds_idle`, their shares since its last
                report are taken, else the time in which rollouts were outstanding. inline: training happened in this
                thread.

        Returns:
            Wall seconds without those waited for an evaluation; the generator's busy seconds; metrics. Of these
            `update_pause_ms` is how long an update of the weights has kept a generator from decoding, the mean over the
            updates that generators have reported since the last step; absent where there was none.
        """
        now = time.monotonic()
        wall = now - self._begun
        paused = self.seconds.get("evaluate", 0.0)
        own = wall - sum(self.seconds.values()) - (self.train if inline else 0.0)
        running = max(wall - paused, 1e-9)
        share = self._busy_share(generator)
        busy = min(self.in_flight, running) if share is None else share * running
        metrics = {
            "seconds_total": wall,
            "seconds_train": self.train,
            "seconds_controller": max(own, 0.0),
            "generator_idle_share": min(max(1 - busy / running, 0.0), 1.0),
            "trainer_idle_share": min(max(1 - self.train / running, 0.0), 1.0),
            **{f"seconds_{name}": spent for name, spent in self.seconds.items()},
            **self._update_pause(generator),
        }
        self.seconds, self.train, self.in_flight, self._begun = {}, 0.0, 0.0, now
        return running, busy, metrics

    def _update_pause(self, generator: Mapping[str, Any]) -> dict[str, float]:
        updates, pause = int(generator.get("updates", 0)), float(generator.get("seconds_update_pause", 0.0))
        (updates_before, pause_before), self._updates = self._updates, (updates, pause)
        new = updates - updates_before  # below 0 where generators were lost or have left: their sums went with them
        return {"update_pause_ms": 1e3 * (pause - pause_before) / new} if new > 0 and pause >= pause_before else {}

    def _busy_share(self, generator: Mapping[str, Any]) -> float | None:
        """Of the generator's own clock; a report comes once in a while only, so the last one holds until the next."""
        busy, idle = float(generator.get("seconds_busy", 0.0)), float(generator.get("seconds_idle", 0.0))
        if (busy, idle) != self._reported:
            before = self._reported if busy >= self._reported[0] and idle >= self._reported[1] else (0.0, 0.0)
            self._reported = busy, idle  # one in the place of a dead one counts from 0 again
            spent = busy - before[0] + idle - before[1]
            self._share = (busy - before[0]) / spent if spent > 0 else self._share
        return self._share
