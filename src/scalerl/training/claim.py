"""One writer a run directory: a lock that the kernel drops with its process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.pipeline.checkpoint import FOLDER
from scalerl.pipeline.metrics import DISCARDED, NAME
from scalerl.training.lock import LOCK
from scalerl.training.model import INITIAL
from scalerl.training.settings import CONFIG

_log = logging.getLogger("scalerl.training")


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Be the only one who writes this run, until the context ends.

    Raises:
        InputError: another process writes it, or nobody can write there.
    """
    try:
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror})") from error
    try:
        try:
            _lock(handle)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise InputError(
                f"{directory}: {holder} is writing this run; wait for its end, or end it with SIGTERM, which writes a "
                "checkpoint"
            ) from None
        except OSError as error:  # some network file systems have no locks
            _log.warning("%s: cannot be locked (%s); see that no other process writes this run", directory, error)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Raises `BlockingIOError` where another process has it; who only asks, as `watch` does, has it for a moment."""
    for last in (False, False, False, False, True):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if last:
                raise
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def claimed_new(directory: Path) -> Iterator[None]:
    """The same for a run that begins there. What a refused or interrupted start has left behind is removed.

    Raises:
        InputError: there is a run, or settings that scalerl has not written.
    """
    taken = InputError(
        f"{directory}: holds a run already; go on with `scalerl resume {directory}` or choose another --out"
    )
    known = (directory / LOCK).exists()  # settings without the lock beside them are somebody's own
    if holds_run(directory) or ((directory / CONFIG).exists() and not known):
        raise taken
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror or error}); choose another --out") from error
    with claimed(directory):
        if holds_run(directory):  # it began meanwhile
            raise taken
        for name in (INITIAL, "logs"):
            shutil.rmtree(directory / name, ignore_errors=True)
        yield


def holds_run(directory: Path) -> bool:
    """Whether anything was done there: a row was written, or a checkpoint."""
    logs = [directory / name for name in (NAME, DISCARDED)]
    written = any(log.exists() and log.stat().st_size > 0 for log in logs)
    return written or any((directory / FOLDER).glob("step-*"))
