"""A generator that may die: the loop notices, puts another in its place, and asks again for what was lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.errors import EngineDied
from scalerl.protocols import Generator, WeightSource
from scalerl.types import Prompt, Rollout


class Revivable:
    """A `Generator` whose calls do nothing once it is dead; `dead` tells, and `revive` mends.

    Whoever calls must ask again for all that is outstanding after `revive`, so a call that went nowhere costs nothing.

    Args:
        generator: the first one. another: makes the next one; None if there can be none.
        attempts: deaths without a single rollout between them that are taken for a fault that will not go away.
    """

    def __init__(self, generator: Generator, another: Callable[[], Generator] | None = None, attempts: int = 3) -> None:
        self.generator, self._another, self._attempts = generator, another, attempts
        self.dead: EngineDied | None = None
        self.deaths = self._in_a_row = 0

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """As the generator's."""
        self._call(lambda: self.generator.submit(prompts))

    def poll(self) -> list[Rollout]:
        """As the generator's; nothing from a dead one."""
        found: list[Rollout] = self._call(self.generator.poll) or []
        if found:
            self._in_a_row = 0
        return found

    def update_weights(self, version: int, source: WeightSource) -> None:
        """As the generator's."""
        self._call(lambda: self.generator.update_weights(version, source))

    def state(self) -> Mapping[str, Any]:
        """As the generator's; empty from a dead one."""
        state: Mapping[str, Any] = self._call(self.generator.state) or {}
        return state

    def news(self) -> list[dict[str, Any]]:
        """What a fleet of generators has to tell, for the log; nothing if it is a single one."""
        news = getattr(self.generator, "news", None)
        return [] if news is None else list(news())

    def reseed(self, *key: int) -> None:
        """Start its random numbers afresh from these integers; nothing if it has no `reseed(seed)`."""
        reseed = getattr(self.generator, "reseed", None)
        if reseed is not None:
            seed = int(np.random.SeedSequence([*key]).generate_state(1, np.uint64)[0] >> 1)
            self._call(lambda: reseed(seed))

    def revive(self, version: int, source: WeightSource) -> None:
        """Put another in the place of the dead one, with these weights.

        Raises:
            EngineDied: there can be no other, or each one dies before its first rollout.
        """
        assert self.dead is not None
        self.deaths += 1
        self._in_a_row += 1
        if self._another is None or self._in_a_row > self._attempts:
            raise self.dead
        self.dead = None
        self.generator = self._another()
        self.update_weights(version, source)

    def _call(self, call: Callable[[], Any]) -> Any:
        if self.dead is not None:
            return None
        try:
            return call()
        except EngineDied as error:
            self.dead = error
            return None
