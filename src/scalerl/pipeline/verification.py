"""From tokens to rewards, beside the loop if that takes long. The verdicts come back in the order of submission."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from scalerl.types import Prompt, Rollout

Verify = Callable[[Prompt, str], float | None]
"""Reward of a completion, None where it must be excluded: `tasks.guard.Guard.verify`."""
Decode = Callable[[Sequence[int]], str]
K = TypeVar("K")


class Verification(Generic[K]):
    """Judges rollouts.

    Args:
        verify: the verifier, guarded. decode: tokens of a completion to its text.
        threads: how many are judged at once; 0 judges within `submit`, which is right for verifiers of microseconds.
    """

    def __init__(self, verify: Verify, decode: Decode, threads: int = 0) -> None:
        self._verify, self._decode = verify, decode
        self._pool = ThreadPoolExecutor(threads, "verify") if threads else None
        self._waiting: deque[tuple[K, Rollout, Future[float | None]]] = deque()
        self._done: deque[tuple[K, Rollout, float | None]] = deque()

    def submit(self, key: K, rollout: Rollout) -> None:
        """Judge a rollout; `poll` returns it with `key`."""
        if self._pool is None:
            self._done.append((key, rollout, self._judge(rollout)))
        else:
            self._waiting.append((key, rollout, self._pool.submit(self._judge, rollout)))

    def poll(self, wait: bool = False) -> list[tuple[K, Rollout, float | None]]:
        """(key, rollout, reward) of those judged since the last call; with `wait`, of all.

        Raises:
            VerifierError: the verifier is broken.
        """
        while self._waiting and (wait or self._waiting[0][2].done()):
            key, rollout, verdict = self._waiting.popleft()
            self._done.append((key, rollout, verdict.result()))
        done = list(self._done)
        self._done.clear()
        return done

    def close(self) -> None:
        """End the threads; what they have not begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _judge(self, rollout: Rollout) -> float | None:
        return self._verify(rollout.prompt, self._decode(rollout.token_ids.tolist()))
