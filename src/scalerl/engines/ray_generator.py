"""A generator in a Ray actor, behind the same protocol as one in this process.

The actor decodes in a thread of its own, in the very loop that serves a generator process; its other threads take
commands and hand out what has come of them. The proxy always has one such request under way, so that polling costs no
round trip.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from scalerl.engines.commands import one_line
from scalerl.engines.serve import GeneratorLoop
from scalerl.errors import EngineDied, ScaleRLError
from scalerl.protocols import WeightSource
from scalerl.types import Prompt, Rollout

_TAKE_SECONDS = 1.0
"""How long the actor waits for news before it answers that there is none."""
_LEAVE_SECONDS = 12.0
"""How long a generator has to end what it started, before the actor is killed."""


class Mailbox:
    """The loop's end of a pipe, between threads of one process."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._next: tuple[str, tuple[Any, ...]] | None = None

    def poll(self, timeout: float) -> bool:
        """Whether a command has come, within `timeout` seconds."""
        if self._next is None:
            try:
                self._next = self.commands.get(timeout=timeout) if timeout else self.commands.get_nowait()
            except queue.Empty:
                return False
        return True

    def recv(self) -> tuple[str, tuple[Any, ...]]:
        """The next command."""
        command, self._next = self._next, None
        return self.commands.get() if command is None else command

    def send(self, message: tuple[str, Any]) -> None:
        """To whoever takes messages."""
        self.messages.put(message)


class GeneratorHost:
    """The actor. `factory(*arguments)` makes the generator, in the thread that decodes."""

    def __init__(self, factory: Callable[..., Any], arguments: Sequence[Any], threads: int) -> None:
        self._mailbox, self._failure = Mailbox(), ""
        self._thread = threading.Thread(target=self._work, args=(factory, arguments, threads), daemon=True)
        self._thread.start()

    @ray.method(concurrency_group="obey")  # type: ignore[untyped-decorator]
    def obey(self, command: str, *arguments: Any) -> None:
        """Hand the loop a command."""
        self._mailbox.commands.put((command, arguments))

    @ray.method(concurrency_group="take")  # type: ignore[untyped-decorator]
    def take(self) -> list[tuple[str, Any]]:
        """Messages of the loop; waits a little for the first."""
        found: list[tuple[str, Any]] = []
        try:
            found.append(self._mailbox.messages.get(timeout=_TAKE_SECONDS))
            while True:
                found.append(self._mailbox.messages.get_nowait())
        except queue.Empty:
            if not found and self._failure:
                raise ScaleRLError(self._failure) from None
            return found

    @ray.method(concurrency_group="obey")  # type: ignore[untyped-decorator]
    def leave(self) -> None:
        """Return when the loop has ended, as it was told to."""
        self._thread.join(_LEAVE_SECONDS)

    def _work(self, factory: Callable[..., Any], arguments: Sequence[Any], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        try:
            GeneratorLoop(self._mailbox, factory(*arguments)).run()
        except Exception as error:
            self._failure = one_line(error)


class RayGenerator:
    """A `fleet.Member` in an actor.

    Args:
        factory: as for `process.GeneratorProcess`. options: of the actor: resources, placement, runtime_env.
        name: for messages.
    """

    def __init__(
        self, factory: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any], threads: int, name: str
    ) -> None:
        self.name = name
        # Commands are obeyed in order, one at a time; taking waits, and must not hold them up.
        host = ray.remote(concurrency_groups={"obey": 1, "take": 1})(GeneratorHost)
        self._actor = host.options(max_restarts=0, **options).remote(factory, tuple(arguments), threads)
        self._heard, self._state = time.monotonic(), dict[str, Any]()
        self._taking = self._take()

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """As the generator's."""
        self._tell("submit", list(prompts))

    def poll(self) -> list[Rollout]:
        """As the generator's.

        Raises:
            EngineDied: the actor is gone, or its generator failed.
        """
        rollouts: list[Rollout] = []
        while ray.wait([self._taking], timeout=0)[0]:
            try:
                messages = ray.get(self._taking)
            except ray.exceptions.RayError as error:
                raise EngineDied(f"{self.name}: {reason(error)}") from error
            self._taking = self._take()
            if messages:  # the actor answers though its loop may hang
                self._heard = time.monotonic()
            for kind, value in messages:
                if kind == "rollouts":
                    rollouts += value
                elif kind == "state":
                    self._state = value
        return rollouts

    def update_weights(self, version: int, source: WeightSource) -> None:
        """As the generator's; `source` is `object_store.StoredWeights`."""
        self._tell("update_weights", version, source)

    def state(self) -> Mapping[str, Any]:
        """As of its last message; empty until it is up."""
        return self._state

    @property
    def silent_seconds(self) -> float:
        """Since the last message of the actor's loop, or since the actor was asked for."""
        return time.monotonic() - self._heard

    def close(self, hangs: bool = False) -> None:
        """End the actor, after its generator where that answers: it may have processes of its own to end."""
        with contextlib.suppress(ray.exceptions.RayError):
            if not hangs:
                self._tell("stop")
                ray.wait([self._actor.leave.remote()], timeout=_LEAVE_SECONDS)
        ray.kill(self._actor)

    def _take(self) -> Any:
        return self._actor.take.remote()

    def _tell(self, command: str, *arguments: Any) -> None:
        self._actor.obey.remote(command, *arguments)


def reason(error: Exception) -> str:
    """One line: the cause, or which process died and how, without Ray's account of where that passed through."""
    cause = getattr(error, "cause", None)
    if isinstance(error, ray.exceptions.RayTaskError) and cause is not None:
        return " ".join(str(cause).split())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = dict(line.split(": ", 1) for line in lines if line.startswith(("pid: ", "ip: ")))
    if len(where) == 2:  # the last line tells how it died, and guesses at length why
        return f"process {where['pid']} on {where['ip']}: {lines[-1].partition(' Some common causes')[0]}"
    return lines[0] if lines else type(error).__name__
