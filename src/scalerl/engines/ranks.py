"""Ranks of a sharded trainer: joining them, and running them as processes behind one pipe.

The controller speaks to rank 0, which hands each command on to the others; all carry it out, and rank 0 answers. A rank
that dies ends them all: collectives need every one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scalerl.engines.commands import GLANCE, STEP_SECONDS
from scalerl.engines.process import EngineProcess, TrainerProcess
from scalerl.engines.serve import run_child, trainer_loop
from scalerl.engines.weights import SharedWeights
from scalerl.errors import EngineDied, InputError

_PATIENCE = timedelta(days=7)
"""For a collective. Ranks wait in one while generators work; who hangs is noticed by whoever waits for the answer."""

_AFTERMATH = 2.0  # seconds in which ranks die of the death of one


@contextmanager
def joined(rank: int, ranks: int, rendezvous: str) -> Iterator[None]:
    """Be one of `ranks` within: NCCL between GPUs, one a rank, and gloo between CPUs.

    Args:
        rendezvous: of `torch.distributed.init_process_group`, such as file:///new-file on one machine or
            tcp://host:port.

    Raises:
        InputError: more ranks on one machine than it has GPUs.
    """
    backend = "gloo"
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if rendezvous.startswith("file:") and ranks > gpus:
            raise InputError(f"engines.trainers = {ranks}: each needs a GPU of its own, and this machine has {gpus}")
        torch.cuda.set_device(rank % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rendezvous, _PATIENCE, ranks, rank)
    try:
        yield
    finally:
        dist.destroy_process_group()


def serve_rank(
    connection: Connection,
    log: Path | None,
    threads: int,
    factory: Callable[..., Any],
    arguments: Sequence[Any],
    weights: SharedWeights,
    rank: int,
    ranks: int,
    rendezvous: str,
) -> None:
    """Answer one command after the other, all ranks together; publish after each that changes the weights."""

    first = rank == 0

    def hear() -> Any:
        box = [connection.recv() if first else None]
        dist.broadcast_object_list(box, device=torch.device("cpu"))
        return box[0]

    def work() -> None:
        with joined(rank, ranks, rendezvous):
            trainer = factory(*arguments)

            def publish() -> None:
                """Tensor by tensor: all ranks gather, rank 0 writes."""
                if first:
                    weights.publish(trainer.version, trainer.weights())
                else:
                    for _ in trainer.weights():
                        pass

            trainer_loop(trainer, hear, connection.send if first else lambda _: None, publish)

    run_child(connection, log, threads, work)


class RankGroup(EngineProcess):
    """Rank 0's process, and with it those of all others.

    Args:
        arguments: factory, its arguments, weights: of `serve_rank`. log: of rank 0; the others' have their number.
    """

    def __init__(self, name: str, arguments: Sequence[Any], log: Path | None, threads: int, ranks: int) -> None:
        self._group, self._ranks = name, ranks
        self._cause: str | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="scalerl-ranks-")
        rendezvous = f"file://{self._folder.name}/rendezvous"
        super().__init__(f"{name} rank 0", serve_rank, (*arguments, 0, ranks, rendezvous), log, threads)
        self._others = [
            EngineProcess(
                f"{name} rank {rank}",
                serve_rank,
                (*arguments, rank, ranks, rendezvous),
                None if log is None else log.with_stem(f"{log.stem}-{rank}"),
                threads,
            )
            for rank in range(1, ranks)
        ]

    def send(self, command: str, *arguments: Any) -> None:
        """Raises `EngineDied`, naming the rank."""
        self._stay_dead()
        try:
            super().send(command, *arguments)
        except EngineDied as error:
            raise self._end() from error

    def receive(self, timeout: float | None = 0.0) -> tuple[str, Any] | None:
        """The next message of rank 0; raises `EngineDied` where any rank is gone."""
        self._stay_dead()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = GLANCE if deadline is None else min(GLANCE, deadline - time.monotonic())
            try:
                message = super().receive(max(0.0, left))
                for other in self._others:
                    other.receive()
            except EngineDied as error:
                raise self._end() from error
            if message is not None or (deadline is not None and time.monotonic() >= deadline):
                return message

    def give_up(self, why: str) -> EngineDied:
        """End them all: in a collective all are silent for the sake of one."""
        ranks = f"{self._group} of {self._ranks} rank" + "s" * (self._ranks > 1)
        self._cause = f"{ranks}: {why}{self._see_log()}"
        return self._end_all()

    def stop(self, grace: float = 5.0) -> None:
        """Ask rank 0, which tells the others; after `grace` seconds each is killed."""
        super().stop(grace)
        for other in self._others:
            other.stop(grace if self.process.exitcode == 0 else 0.0)
        self._folder.cleanup()

    def _stay_dead(self) -> None:
        if self._cause is not None:
            raise EngineDied(self._cause)

    def _end(self) -> EngineDied:
        """End them all, for what ended the first: killed by a signal, or else the earliest to fail."""
        engines: list[EngineProcess] = [self, *self._others]
        patience = time.monotonic() + _AFTERMATH
        while any(e.ended is None for e in engines) and time.monotonic() < patience:
            time.sleep(0.01)
        for engine in engines:
            if engine.ended is not None:
                engine.process.join(_AFTERMATH)
        dead = [e for e in engines if e.ended is not None]
        first = min(dead, key=lambda e: ((e.process.exitcode or 0) >= 0, e.ended))
        self._cause = str(first._obituary())
        return self._end_all()

    def _end_all(self) -> EngineDied:
        for engine in (self, *self._others):
            if engine.process.is_alive():
                engine.process.kill()
            engine.process.join()
        self._folder.cleanup()
        return EngineDied(self._cause)


class TrainerRanks(TrainerProcess):
    """A `Trainer` of several ranks, each in a process of its own.

    Args:
        factory: makes a rank's trainer in its process, where ranks have joined. ranks: how many. The others are those
            of `TrainerProcess`.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        arguments: Sequence[Any],
        weights: SharedWeights,
        log: Path | None = None,
        threads: int = 1,
        name: str = "trainer",
        step_seconds: float = STEP_SECONDS,
        ranks: int = 1,
    ) -> None:
        self._ranks = ranks
        super().__init__(factory, arguments, weights, log, threads, name, step_seconds)

    def _launch(self, name: str, arguments: tuple[Any, ...], log: Path | None, threads: int) -> EngineProcess:
        return RankGroup(name, arguments, log, threads, self._ranks)
