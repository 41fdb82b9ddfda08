"""What runs inside an engine's process: take commands from the pipe, work, answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from scalerl.engines.commands import carry_out, one_line
from scalerl.engines.memory import keep_freed_memory
from scalerl.engines.model import named_tensors
from scalerl.engines.weights import HeldWeights, SharedWeights
from scalerl.errors import ScaleRLError

HEARTBEAT_SECONDS = 1.0
_IDLE_WAIT_SECONDS = 0.05


def serve_generator(
    connection: Connection,
    log: Path | None,
    threads: int,
    factory: Callable[..., Any],
    arguments: Sequence[Any],
    weights: SharedWeights,
) -> None:
    """Decode for ever; between two steps obey what has arrived."""

    def work() -> None:
        generator, reader = factory(*arguments), weights.reader()
        GeneratorLoop(connection, generator, lambda version: reader.acquire(version) or reader.acquire()).run()

    run_child(connection, log, threads, work)


def serve_trainer(
    connection: Connection,
    log: Path | None,
    threads: int,
    factory: Callable[..., Any],
    arguments: Sequence[Any],
    weights: SharedWeights,
) -> None:
    """Answer one command after the other; publish after each that changes the weights."""

    def work() -> None:
        trainer = factory(*arguments)
        trainer_loop(
            trainer, connection.recv, connection.send,
            lambda: weights.publish(trainer.version, named_tensors(trainer.model)),
        )  # fmt: skip

    run_child(connection, log, threads, work)


class Commands(Protocol):
    """The engine's end of a pipe: a `multiprocessing` connection has these, and so has anything like it."""

    def poll(self, timeout: float) -> bool:
        """Whether something has arrived, within `timeout` seconds."""
        ...

    def recv(self) -> Any:
        """The next command, (name, arguments)."""
        ...

    def send(self, message: Any, /) -> None:
        """A message, (kind, value)."""
        ...


class GeneratorLoop:
    """Decodes, and between two steps obeys: submit(prompts), update_weights(version[, source]), stop().

    Args:
        find: weights of a version, or newer ones, where a command names no source; each is released when the generator
            has moved on.
    """

    def __init__(
        self, connection: Commands, generator: Any, find: Callable[[int], HeldWeights | None] = lambda _: None
    ) -> None:
        self.connection, self.generator, self.find = connection, generator, find
        self.held: list[Any] = []
        self.busy = self.idle = 0.0
        self.spoke = 0.0

    def run(self) -> None:
        """Until the command to stop, or the pipe's end; then the generator is closed if it can be."""
        try:
            self._work()
        finally:
            getattr(self.generator, "close", lambda: None)()

    def _work(self) -> None:
        while self._obey():
            started = time.perf_counter()
            if not self.generator.idle:
                self.generator.step()
                self.busy += time.perf_counter() - started
            self._release_replaced()
            rollouts = self.generator.poll()
            if rollouts:
                self.connection.send(("rollouts", rollouts))
            if time.monotonic() - self.spoke > HEARTBEAT_SECONDS:
                self._say_state()

    def _obey(self) -> bool:
        """Carry out all commands that have arrived, waiting a little if there is nothing else to do."""
        started = time.perf_counter()
        wait = _IDLE_WAIT_SECONDS if self.generator.idle else 0.0
        arrived = self.connection.poll(wait)
        self.idle += time.perf_counter() - started if wait else 0.0
        while arrived:
            command, arguments = self.connection.recv()
            if command == "stop":
                return False
            if command == "submit":
                self.generator.submit(*arguments)
            elif command == "update_weights":
                self._update(*arguments)
            else:
                raise ValueError(f"unknown command {command!r}")
            arrived = self.connection.poll(0.0)
        return True

    def _update(self, version: int, source: Any = None) -> None:
        held = self.find(version) if source is None else source
        if held is None:
            raise ScaleRLError(f"weights of version {version} were announced but never published")
        self.generator.update_weights(held.version, held)
        while len(self.held) > 1:  # waited for a step that never came, and is superseded
            self.held.pop().release()
        self.held.append(held)
        self.spoke = 0.0  # how long it paused is told at once

    def _release_replaced(self) -> None:
        """The generator computes with views of what it holds: let go only once it has moved on."""
        if len(self.held) > 1 and self.generator.version == self.held[-1].version:
            for held in self.held[:-1]:
                held.release()
            del self.held[:-1]

    def _say_state(self) -> None:
        state = dict(self.generator.state()) | {"seconds_busy": self.busy, "seconds_idle": self.idle}
        self.connection.send(("state", state))
        self.spoke = time.monotonic()


def trainer_loop(
    trainer: Any,
    hear: Callable[[], tuple[str, Sequence[Any]]],
    say: Callable[[Any], None],
    publish: Callable[[], None],
) -> None:
    """Until the command to stop.

    Args:
        hear: waits for the next command, (name, arguments). say: takes each answer. publish: the present weights.
    """
    publish()
    say(("ready", None))
    while True:
        command, arguments = hear()
        if command == "stop":
            return
        kind, result = carry_out(trainer, command, arguments)
        if command in ("step", "load"):
            started = time.perf_counter()
            publish()
            if command == "step":
                result = dict(result) | {"seconds_publish": time.perf_counter() - started}
        say((kind, result))


def run_child(connection: Connection, log: Path | None, threads: int, work: Callable[[], None]) -> None:
    """Set the process up, and let no error pass in silence."""
    # The controller decides what Ctrl-C and Slurm's SIGTERM mean; a closed pipe ends this process in any case.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # for `ps` and `top`, where there is such a file
        Path("/proc/self/comm").write_text(multiprocessing.current_process().name)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
    import torch

    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        work()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the parent is gone
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        connection.send(("error", one_line(error)))
        connection.close()
        sys.exit(1)
