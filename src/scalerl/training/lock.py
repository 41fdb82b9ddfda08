"""Whether somebody writes a run; `claim.py` is for who does. Apart from it, so that watching needs no torch."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = "run.lock"


def held(directory: Path) -> bool:
    """Whether a process writes this run now."""
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here, so nobody can say
        return False
    finally:
        os.close(handle)
    return False
