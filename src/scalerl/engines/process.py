"""A generator or a trainer in a process of its own, behind the same protocol as in one process.

Commands and answers travel over a pipe, weights through shared memory. A child's error comes back as one line, its
traceback stands in the child's log. A child that ends is an `EngineDied`; `restart` replaces it. Children outlive
neither their parent nor a closed pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scalerl.engines.commands import GLANCE, START_SECONDS, STEP_SECONDS, outcome, silence
from scalerl.engines.serve import serve_generator, serve_trainer
from scalerl.engines.weights import NewestWeights, SharedWeights
from scalerl.errors import EngineDied
from scalerl.protocols import WeightSource
from scalerl.types import Batch, Prompt, Rollout


class EngineProcess:
    """A spawned child and its pipe.

    Args:
        name: for messages. serve: the child's main function; called as serve(connection, factory, ...).
        arguments: of `serve` after the connection; they are pickled. log: file for the child's output.
        threads: of torch in the child.

    Attributes:
        ended: when its pipe closed or its error came, by `time.monotonic`; None while it works.
    """

    def __init__(
        self, name: str, serve: Callable[..., None], arguments: Sequence[Any], log: Path | None = None, threads: int = 1
    ) -> None:
        self.name, self.log = name, log
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._inbox: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self.last_heard = time.monotonic()
        self.ended: float | None = None
        # No daemon, since an engine may have children of its own; ended before multiprocessing would wait for it.
        self.process = context.Process(target=serve, args=(theirs, log, threads, *arguments), name=name, daemon=False)
        self.process.start()
        theirs.close()
        atexit.register(self.stop, 0.0)
        # The pipe is emptied at once, so that a child never waits for a parent that is busy writing to it.
        threading.Thread(target=self._listen, args=(self._connection, self._inbox), daemon=True).start()

    def _listen(self, connection: Connection, inbox: queue.SimpleQueue[tuple[str, Any] | None]) -> None:
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                self.ended = self.ended or time.monotonic()
                inbox.put(None)
                return
            self.last_heard = time.monotonic()
            if message[0] == "error":
                self.ended = self.last_heard
            inbox.put(message)

    def send(self, command: str, *arguments: Any) -> None:
        """Raises `EngineDied` where nobody listens any more."""
        try:
            self._connection.send((command, arguments))
        except (BrokenPipeError, ConnectionResetError, OSError) as error:
            raise self._obituary() from error

    def receive(self, timeout: float | None = 0.0) -> tuple[str, Any] | None:
        """The next message, or None if there is none within `timeout` seconds (None: wait for it)."""
        try:
            message = self._inbox.get(timeout=timeout) if timeout != 0.0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if message is None or message[0] == "error":
            self._inbox.put(message)  # dead stays dead, for the same reason
            raise self._obituary()
        return message

    @property
    def silent_seconds(self) -> float:
        """Since the last message; a living generator is silent for little more than `serve.HEARTBEAT_SECONDS`."""
        return time.monotonic() - self.last_heard

    def stop(self, grace: float = 5.0) -> None:
        """Ask the child to end; after `grace` seconds it is killed."""
        atexit.unregister(self.stop)
        if self.process.is_alive() and grace > 0:
            with contextlib.suppress(OSError):  # it is ending already
                self._connection.send(("stop", ()))
            self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._connection.close()

    def give_up(self, why: str) -> EngineDied:
        """End the child, for a reason that is told from now on."""
        self._inbox.put(("error", why))
        self.process.kill()
        return self._obituary()

    def _obituary(self) -> EngineDied:
        self.process.join(5.0)
        while not self._inbox.empty():  # what it said last explains more than its exit code
            message = self._inbox.get()
            if message is not None and message[0] == "error":
                self._inbox.put(message)
                return EngineDied(f"{self.name}: {message[1]}{self._see_log()}")
        self._inbox.put(None)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return EngineDied(f"the {self.name} process {how}{self._see_log()}")

    def _see_log(self) -> str:
        return f"; see {self.log}" if self.log is not None else ""


class GeneratorProcess:
    """A `Generator` in a process of its own, which decodes without waiting for anybody.

    Args:
        factory: makes the generator in the child: factory(*arguments), picklable; the result has `step` and `idle`
            beside the protocol's methods. weights: where updates come from.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        arguments: Sequence[Any],
        weights: SharedWeights,
        log: Path | None = None,
        threads: int = 1,
        name: str = "generator",
    ) -> None:
        self._state: dict[str, Any] = {}
        self.engine = EngineProcess(name, serve_generator, (factory, tuple(arguments), weights), log, threads)

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        self.engine.send("submit", list(prompts))

    def poll(self, timeout: float = 0.0) -> list[Rollout]:
        """Finished rollouts; with a timeout waits that long for the first message."""
        rollouts: list[Rollout] = []
        try:
            message = self.engine.receive(timeout)
            while message is not None:
                kind, value = message
                if kind == "rollouts":
                    rollouts += value
                elif kind == "state":
                    self._state = value
                message = self.engine.receive()
        except EngineDied:
            if not rollouts:
                raise  # else they are handed over first; the next call raises
        return rollouts

    def update_weights(self, version: int, source: WeightSource) -> None:
        """`source` is not read: the child takes this version from shared memory, or a newer one if it is gone."""
        self.engine.send("update_weights", version)

    def state(self) -> Mapping[str, Any]:
        """As of the last heartbeat, with the child's own busy and idle seconds."""
        return self._state

    @property
    def silent_seconds(self) -> float:
        """Since its last message, or since it was started."""
        return self.engine.silent_seconds

    def close(self, hangs: bool = False) -> None:
        self.engine.stop(grace=0.0 if hangs else 15.0)  # its generator may have processes of its own to end


class TrainerProcess:
    """A `Trainer` in a process of its own; after each step its weights are in shared memory.

    Args:
        factory: makes the trainer in the child: factory(*arguments), picklable. weights: where it publishes.
        step_seconds: in which a command must be answered; else the trainer is ended, for it hangs.
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
    ) -> None:
        self._weights, self._step_seconds = weights, step_seconds
        self._source: NewestWeights | None = None
        self.busy = False
        self.engine = self._launch(name, (factory, tuple(arguments), weights), log, threads)
        # Once it is ready, the first weights are published.
        self._answer("begin", max(self._step_seconds, START_SECONDS))

    def _launch(self, name: str, arguments: tuple[Any, ...], log: Path | None, threads: int) -> EngineProcess:
        return EngineProcess(name, serve_trainer, arguments, log, threads)

    def step(self, batch: Batch) -> Mapping[str, float]:
        stats: Mapping[str, float] = self.call("step", batch)
        return stats

    def weights(self) -> WeightSource:
        if self._source is None:
            self._source = NewestWeights(self._weights)
        return self._source

    def save(self, path: Path) -> None:
        self.call("save", path)

    def begin_save(self, path: Path) -> None:
        self.call("begin_save", path)

    def saved(self, wait: bool = True) -> bool:
        return bool(self.call("saved", wait))

    def load(self, path: Path) -> None:
        self.call("load", path)

    def check(self) -> None:
        if not self.busy:
            self.engine.receive()

    def call(self, method: str, *arguments: Any) -> Any:
        """Any other method of the trainer, in its process.

        Raises:
            ScaleRLError: it could not write its files, and lives on. EngineDied: it is gone, or hung.
        """
        if self.busy:
            raise RuntimeError("the trainer carries out another command")
        self.busy = True
        try:
            self.engine.send(method, *arguments)
            return outcome(self._answer(method, self._step_seconds))
        finally:
            self.busy = False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.engine.process.is_alive()

    def close(self) -> None:
        self.engine.stop()

    def _answer(self, command: str, patience: float) -> tuple[str, Any]:
        for _ in range(math.ceil(patience / GLANCE)):
            message = self.engine.receive(GLANCE)
            if message is not None:
                return message
        raise self.engine.give_up(silence(command, patience))
