"""Whether somebody writes a run; `claim.py` is for who does. Apart from it, so that watching needs no torch."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = "run.lock"


def held(directory: Path) -> bool | None:
    """Whether a process writes this run now; None where nobody can say."""
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # some network file systems have no locks
        return None
    finally:
        os.close(handle)
    return False
