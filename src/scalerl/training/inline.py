"""Engines in the controller's own process, for tests and for lockstep: everything in turns, and the same every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.engines.weights import TensorSource
from scalerl.protocols import WeightSource
from scalerl.types import Prompt, Rollout


class InlineGenerator:
    """A `GeneratorPool` of one, which takes a step, one token of every rollout, each time it is polled."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self._sent: int | None = None

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """As the generator's."""
        self.generator.submit(prompts)

    def poll(self) -> list[Rollout]:
        """Decode a token, and return what has finished."""
        if not self.generator.idle:
            self.generator.step()
        rollouts: list[Rollout] = self.generator.poll()
        return rollouts

    def update_weights(self, version: int, source: WeightSource) -> None:
        """Copied at once: the source is the trainer's own tensors, and its next step may run beside this generator."""
        if version != self._sent:
            self.generator.update_weights(version, TensorSource({name: tensor.clone() for name, tensor in source}))
            self._sent = version

    def state(self) -> Mapping[str, Any]:
        """As the generator's."""
        state: Mapping[str, Any] = self.generator.state()
        return state

    def reseed(self, *key: int) -> None:
        """The same integers give the same rollouts."""
        self.generator.reseed(int(np.random.SeedSequence([*key]).generate_state(1, np.uint64)[0] >> 1))

    def news(self) -> list[dict[str, Any]]:
        """Nothing: it cannot die alone."""
        return []
