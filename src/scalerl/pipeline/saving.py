"""Checkpoints beside training: what is saved belongs to one step, and later steps go on while it is written.

The trainer copies its state and writes the copy; between two steps it is asked whether that is done. Then a thread
reads the files for the manifest, forces them to disk and renames the folder. One is under way at a time: the next one
waits for it, so that the work at risk stays bounded where the disk is slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalerl.errors import CheckpointError, ScaleRLError
from scalerl.pipeline.checkpoint import Checkpoints, Draft
from scalerl.protocols import Trainer

Snapshot = Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""State and arrays of the pipeline, as `Checkpoints.begin` takes them."""

_GLANCE = 0.2  # seconds between two questions to the trainer, which may be far away


class Saver:
    """Writes the checkpoints of a run.

    Args:
        event: told what could not be saved, as event(name, reason=...). beside: whether training goes on meanwhile.

    Attributes:
        step: of the newest that was begun or resumed from; -1 where there is none.
    """

    def __init__(self, checkpoints: Checkpoints, trainer: Trainer, event: Callable[..., None], beside: bool) -> None:
        self.step = -1
        self._checkpoints, self._trainer, self._event, self._beside = checkpoints, trainer, event, beside
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._draft: Draft | None = None
        self._finishing: Future[Path] | None = None
        self._asked, self._failures = 0.0, 0

    @property
    def under_way(self) -> bool:
        """Whether one is being written."""
        return self._draft is not None

    def begin(self, step: int, snapshot: Snapshot) -> None:
        """Save this step; called, as all methods here, while the trainer is idle.

        Raises:
            CheckpointError: no checkpoint could be written yet, for the second time. EngineDied: the trainer.
        """
        with self._told():
            self._go_on(wait=True)
        with self._told():
            self._begin(step, snapshot)
            self._go_on(wait=not self._beside)

    def poll(self) -> None:
        """Take what is under way further, without waiting; raises as `begin` does."""
        with self._told():
            self._go_on(wait=False)

    def last(self, step: int, snapshot: Snapshot, directory: Path) -> None:
        """Have this step saved on return.

        Raises:
            CheckpointError: it could not be; names how to go on with the run in `directory`. EngineDied: the trainer.
        """
        with self._told():
            self._go_on(wait=True)
        if self.step == step:
            return
        try:
            self._begin(step, snapshot)
            self._go_on(wait=True)
        except CheckpointError as error:
            then = f"then `scalerl resume {directory}` goes on from the one before"
            none = self._checkpoints.latest() is None
            raise CheckpointError(f"{error}; {'there is none before it' if none else then}") from error

    def close(self) -> None:
        """What the trainer has written is made a checkpoint; what it still writes is not."""
        self._pool.shutdown()

    def _begin(self, step: int, snapshot: Snapshot) -> None:
        self._draft = self._checkpoints.begin(step, *snapshot(), self._trainer.begin_save)
        self.step, self._asked = step, 0.0

    def _go_on(self, wait: bool) -> None:
        draft = self._draft
        if draft is None:
            return
        try:
            if self._finishing is None and self._written(draft, wait):
                self._finishing = self._pool.submit(self._checkpoints.finish, draft)
            if self._finishing is not None and (wait or self._finishing.done()):
                self._finishing.result()
                self._draft = self._finishing = None
        except ScaleRLError:
            self._draft = self._finishing = None
            raise

    def _written(self, draft: Draft, wait: bool) -> bool:
        """Whether the trainer has written all."""
        if not wait and time.monotonic() - self._asked < _GLANCE:
            return False
        with draft.whole():
            written = self._trainer.saved(wait)
        self._asked = time.monotonic()
        return written

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A failure is an event: training is intact and goes on, and the next one may find room."""
        try:
            yield
        except CheckpointError as error:
            self.step = -1
            self._failures += 1
            if self._failures > 1 and self._checkpoints.latest() is None:
                raise CheckpointError(f"{error}; no checkpoint could be written yet: all work is at risk") from error
            self._event("checkpoint failed", reason=str(error))
