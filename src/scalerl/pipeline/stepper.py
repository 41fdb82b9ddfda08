"""The optimizer step under way: in a thread that waits for the trainer, or at once where everything goes in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from scalerl.pipeline.buffer import Entry
from scalerl.protocols import Trainer
from scalerl.types import Batch

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Done:
    """A step that was taken: its groups, its batch, the trainer's statistics, and how long it took."""

    entries: list[Entry]
    batch: Batch
    stats: Mapping[str, float]
    seconds: float


class Stepper:
    """One step at a time.

    Args:
        trainer: whose `step` may take its time. overlap: whether it runs beside the caller.
    """

    def __init__(self, trainer: Trainer, overlap: bool) -> None:
        self._trainer = trainer
        self._pool = ThreadPoolExecutor(1, "train") if overlap else None
        self._running: Future[Done] | None = None
        self._looked = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a step was begun whose result nobody has taken."""
        return self._running is not None

    def begin(self, entries: list[Entry], batch: Batch) -> None:
        """Start a step; without overlap it is over on return."""
        if self._pool is not None:
            self._running = self._pool.submit(self._step, entries, batch)
        else:
            self._running = Future()
            self._running.set_result(self._step(entries, batch))

    def take(self) -> Done | None:
        """The step's result once it is over.

        Raises:
            EngineDied: the trainer is gone.
        """
        if self._running is None or not self._running.done():
            return None
        running, self._running = self._running, None
        return running.result()

    def check(self) -> None:
        """Look, once a second, whether the trainer has died while it waited for the next batch.

        Raises:
            EngineDied: it has.
        """
        now = time.monotonic()
        if not self.busy and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._trainer.check()

    def close(self) -> None:
        """End the thread when its step is over."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _step(self, entries: list[Entry], batch: Batch) -> Done:
        begun = time.monotonic()
        stats = self._trainer.step(batch)
        return Done(entries, batch, stats, time.monotonic() - begun)
