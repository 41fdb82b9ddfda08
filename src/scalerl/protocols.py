"""Floor 0: what the pipeline asks of its engines and tasks. Small on purpose, so that tests can stand in for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from scalerl.types import Batch, Prompt, Rollout


class WeightSource(Protocol):
    """A consistent set of weights of one policy version. The shape of vLLM's own, so that its engines take it."""

    def metadata(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        """(name, dtype, shape) of every tensor, in the order of iteration."""
        ...

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """(name, full tensor) of every tensor."""
        ...


class Generator(Protocol):
    """Turns prompts into rollouts, without ever stopping for an update of its weights."""

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """Queue one rollout for each (group_id, prompt)."""
        ...

    def poll(self) -> list[Rollout]:
        """Rollouts that have finished since the last call; never waits."""
        ...

    def update_weights(self, version: int, source: WeightSource) -> None:
        """Use these weights from the next token on; running rollouts keep their KV cache."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Policy version, running and queued rollouts, tokens generated."""
        ...


class GeneratorPool(Generator, Protocol):
    """All generators of a run as one: those that die are replaced within, and what they had is generated again."""

    def reseed(self, *key: int) -> None:
        """Begin the random numbers that these integers stand for; nothing where rollouts do not repeat anyway."""
        ...

    def news(self) -> list[dict[str, Any]]:
        """Events since the last call, for the log."""
        ...


class Trainer(Protocol):
    """Takes optimizer steps; knows no algorithm beyond the loss it was made with."""

    def step(self, batch: Batch) -> Mapping[str, float]:
        """One optimizer step; its statistics."""
        ...

    def weights(self) -> WeightSource:
        """The weights after the last step."""
        ...

    def begin_save(self, path: Path) -> None:
        """Write weights, optimizer and random state below `path`; steps may follow before all is written."""
        ...

    def saved(self, wait: bool) -> bool:
        """Whether all of the last `begin_save` is written; raises where it could not be."""
        ...

    def load(self, path: Path) -> None:
        """Restore what was saved below `path`."""
        ...

    def check(self) -> None:
        """Raise `EngineDied` where it has died while nothing was asked of it; called between steps."""
        ...


class Task(Protocol):
    """Prompts and the verifier of their answers."""

    name: str

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Prompts of a split, "train" or "held-out"; the same on every call."""
        ...

    def verify(self, prompt: Prompt, completion: str) -> float:
        """Reward of a completion. Raising excludes the rollout: our failure is not the model's."""
        ...
