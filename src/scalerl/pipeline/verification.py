"""From tokens to rewards, beside the loop if that takes long. The verdicts come back in the order of submission.

Nobody waits for a verdict: a verifier may hang. What is not judged when a run is saved is judged after a resume.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from scalerl.types import Prompt, Rollout

Verify = Callable[[Prompt, str], float | None]
"""Reward of a completion, None where it must be excluded: `tasks.guard.Guard.verify`."""
Decode = Callable[[Sequence[int]], str]
K = TypeVar("K")
_Job = tuple[Rollout, "Future[float | None]"]


class Verification(Generic[K]):
    """Judges rollouts.

    Args:
        verify: the verifier, guarded. decode: tokens of a completion to its text.
        threads: how many are judged at once; 0 judges within `submit`, which is right for verifiers of microseconds.

    Attributes:
        until: `time.monotonic()` from which on no further rollout is judged.
    """

    def __init__(self, verify: Verify, decode: Decode, threads: int = 0) -> None:
        self._verify, self._decode, self._threads = verify, decode, threads
        self.until = float("inf")
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[K, Rollout, Future[float | None]]] = deque()
        # Daemons, unlike those of an executor: one that a verifier never comes back to must not keep the process.
        for i in range(threads):
            threading.Thread(target=self._work, name=f"verify_{i}", daemon=True).start()

    def submit(self, key: K, rollout: Rollout) -> None:
        """Judge a rollout; `poll` returns it with `key`."""
        verdict: Future[float | None] = Future()
        self._waiting.append((key, rollout, verdict))
        if self._threads:
            self._jobs.put((rollout, verdict))
        else:
            self._judge(rollout, verdict)

    def poll(self) -> list[tuple[K, Rollout, float | None]]:
        """(key, rollout, reward) of those judged since the last call.

        Raises:
            VerifierError: the verifier is broken.
        """
        judged = []
        while self._waiting and self._waiting[0][2].done():
            key, rollout, verdict = self._waiting.popleft()
            judged.append((key, rollout, verdict.result()))
        return judged

    @property
    def overdue(self) -> bool:
        """Whether a verdict is outstanding that is not waited for any more."""
        return time.monotonic() >= self.until and any(not verdict.done() for *_, verdict in self._waiting)

    def close(self) -> None:
        """Begin nothing more; the threads end with what they are at."""
        self.until = 0.0
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._judge(*job)

    def _judge(self, rollout: Rollout, verdict: Future[float | None]) -> None:
        if time.monotonic() >= self.until:
            return
        try:
            verdict.set_result(self._verify(rollout.prompt, self._decode(rollout.token_ids.tolist())))
        except BaseException as error:
            verdict.set_exception(error)
            if not self._threads:
                raise
