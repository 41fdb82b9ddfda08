"""A trainer of one or many ranks in Ray actors, behind the protocol of one trainer.

All ranks are told the same, and all must answer: one that dies ends the group, for the others wait for it in a
collective. Whoever owns the group makes another and loads the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from scalerl.engines.commands import GLANCE, START_SECONDS, STEP_SECONDS, Answer, carry_out, outcome, silence
from scalerl.engines.object_store import Chunk, StoredWeights, put_own_chunks, together
from scalerl.engines.ranks import joined
from scalerl.engines.ray_generator import reason
from scalerl.errors import EngineDied
from scalerl.protocols import WeightSource
from scalerl.types import Batch


class TrainerHost:
    """The actor of one rank."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._trainer: Any = None
        self._group = contextlib.ExitStack()
        self._rank, self._ranks = 0, 1

    def meeting_place(self) -> str:
        """Where the ranks can meet if this one is the first."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def begin(
        self, factory: Callable[..., Any], arguments: Sequence[Any], rank: int, ranks: int, rendezvous: str
    ) -> int:
        """Join the others and make the trainer; returns its version."""
        self._rank, self._ranks = rank, ranks
        if ranks > 1:
            self._group.enter_context(joined(rank, ranks, rendezvous))
        self._trainer = factory(*arguments)
        return int(self._trainer.version)

    def here(self) -> None:
        """Nothing: that it answers is all."""

    def call(self, method: str, *arguments: Any) -> tuple[Answer, int]:
        """Any method of the trainer; what came of it, and the version after it."""
        return carry_out(self._trainer, method, arguments), int(self._trainer.version)

    def publish(self, dtype: Any) -> dict[int, Chunk]:
        """This rank's share of the present weights, in the store."""
        return put_own_chunks(self._trainer.weights(), dtype, self._rank, self._ranks)


class RayTrainer:
    """See `scalerl.protocols.Trainer`; its weights are in the object store.

    Args:
        factory: makes each rank's trainer: factory(*arguments). options: of each rank's actor.
        dtype: that weights are published in; None keeps their own. step_seconds: as of `process.TrainerProcess`.

    Raises:
        EngineDied: a rank could not begin.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        arguments: Sequence[Any],
        options: Sequence[Mapping[str, Any]],
        threads: int = 1,
        dtype: Any = None,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        host = ray.remote(TrainerHost)
        self._dtype, self._dead, self._step_seconds = dtype, "", step_seconds
        self._calls: dict[Any, int] = {}  # to see who is there; their ranks
        start_seconds = max(step_seconds, START_SECONDS)
        self._ranks = [host.options(max_restarts=0, **own).remote(threads) for own in options]
        (where,) = self._answers("begin", start_seconds, [self._ranks[0].meeting_place.remote()])
        self.version: int = self._answers(
            "begin", start_seconds, [
                actor.begin.remote(factory, tuple(arguments), rank, len(self._ranks), where)
                for rank, actor in enumerate(self._ranks)
            ],
        )[0]  # fmt: skip
        self._source = self._publish()

    def step(self, batch: Batch) -> Mapping[str, float]:
        """As the trainer's; the weights after it are published."""
        stats: Mapping[str, float] = self.call("step", batch)
        self._source = self._publish()
        return stats

    def weights(self) -> WeightSource:
        """The weights after the last step; holding the result pins them."""
        return self._source

    def hold(self, version: int) -> StoredWeights | None:
        """The weights of the last step, if that is the version."""
        return self._source if self._source.version == version else None

    def save(self, path: Path) -> None:
        """As the trainer's; the folder must be one that all ranks' nodes see."""
        self.call("save", path)

    def begin_save(self, path: Path) -> None:
        """As `save`, but for what is written later."""
        self.call("begin_save", path)

    def saved(self, wait: bool = True) -> bool:
        """As the trainer's."""
        return bool(self.call("saved", wait))

    def load(self, path: Path) -> None:
        """As the trainer's."""
        self.call("load", path)
        self._source = self._publish()

    def check(self) -> None:
        """As the trainer's. A dead rank's share of the weights is lost to every generator that starts from now on."""
        if self._dead:
            raise EngineDied(self._dead)
        if not self._calls:
            self._calls = {actor.here.remote(): rank for rank, actor in enumerate(self._ranks)}
        for call in ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)[0]:
            rank = self._calls.pop(call)
            try:
                ray.get(call)
            except ray.exceptions.RayError as error:
                raise self._lost(rank, error) from error

    def call(self, method: str, *arguments: Any) -> Any:
        """Any method of the trainer, on all ranks; the first one's result.

        Raises:
            EngineDied: a rank died or failed. ScaleRLError: one could not write its files, and all live on.
        """
        stored = [ray.put(argument) for argument in arguments]  # once, not once a rank
        answers = self._answers(
            method, self._step_seconds, [actor.call.remote(method, *stored) for actor in self._ranks]
        )
        self.version = answers[0][1]
        results = [outcome(answer) for answer, _ in answers]
        return results[0]

    @property
    def alive(self) -> bool:
        """Whether all ranks live, as far as anybody has noticed."""
        return not self._dead

    def close(self) -> None:
        """End all ranks."""
        for actor in self._ranks:
            ray.kill(actor)

    def _publish(self) -> StoredWeights:
        shares = [actor.publish.remote(self._dtype) for actor in self._ranks]
        return together(self.version, self._answers("publish", self._step_seconds, shares))

    def _answers(self, command: str, patience: float, asked: Sequence[Any]) -> list[Any]:
        """One from each rank, in order; the first that fails, or one that is silent for too long, ends them all.

        Each is fetched once. As a client, Ray frees what a fetched answer refers to when that answer is dropped, be it
        after the same answer has been fetched again.
        """
        if self._dead:
            raise EngineDied(self._dead)
        left, answers, looks = list(asked), dict[Any, Any](), 0
        try:
            while left:
                found, left = ray.wait(left, timeout=GLANCE)
                for done in found:
                    answers[done] = ray.get(done)
                looks += not found
                if looks * GLANCE >= patience:  # none can be named: all wait for the one that hangs
                    raise self._end(f"trainer of {len(self._ranks)} ranks: {silence(command, patience)}")
            return [answers[one] for one in asked]
        except ray.exceptions.RayError as error:
            raise self._lost(asked.index(done), error) from error

    def _lost(self, rank: int, error: Exception) -> EngineDied:
        return self._end(f"trainer, rank {rank} of {len(self._ranks)}: {reason(error)}")

    def _end(self, why: str) -> EngineDied:
        """End all ranks: those that live wait for the others."""
        self._dead = why
        self.close()
        return EngineDied(why)
