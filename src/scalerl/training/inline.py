"""Engines in the controller's own process, for tests and for lockstep: everything in turns, and the same every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.engines.weights import TensorSource
from scalerl.protocols import WeightSource
from scalerl.types import Prompt, Rollout


class InlineGenerator:
    """A generator that takes a step, one token of every rollout, each time it is polled."""

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

    def reseed(self, seed: int) -> None:
        """As the generator's."""
        self.generator.reseed(seed)
