"""What a judging process prints: kept off the terminal and bounded.

A verifier that prints a line per answer would bury the trainer's own output, or fill a disk under `2> log`. So it
prints into a pipe, of which only the end is kept, for the message where it fails.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import IO

KEPT_BYTES = 4096
SHOWN_CHARACTERS = 200

_log = logging.getLogger("scalerl.tasks")


class Notices:
    """Says each kind of thing about one verifier once, whichever of its processes it comes from."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def once(self, kind: str, text: str) -> None:
        """Log a warning about the verifier unless one of this kind was given before."""
        with self._lock:
            if kind in self._said:
                return
            self._said.add(kind)
        _log.warning("verifier %s %s", self.target, text)


class Printed:
    """The reading end of a process's stdout and stderr; the last `KEPT_BYTES` bytes of what it printed.

    Args:
        pipe: read without waiting.
        notices: told that the verifier prints.
    """

    def __init__(self, pipe: IO[bytes], notices: Notices) -> None:
        self.pipe, self.notices, self.ended = pipe, notices, False
        self._tail = b""
        os.set_blocking(pipe.fileno(), False)

    def forget(self) -> None:
        """A new call begins: what was printed before says nothing of it."""
        self.drain()
        self._tail = b""

    def drain(self) -> bool:
        """Take what is there, or a good part of it, so that nobody waits at a full pipe; whether there was anything."""
        try:
            part = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # closed by another thread
            part = b""
        self.ended = not part
        if self.ended:
            return False
        self._tail = (self._tail + part)[-KEPT_BYTES:]
        first = part[:400].decode(errors="replace").strip().partition("\n")[0][:60]
        self.notices.once(
            "printing", f"prints ({first!r}): only the end of it is kept, and shown where the verifier fails"
        )
        return True

    def end(self) -> str:
        """The end of what was printed since the call began, in one line, for a message; empty where nothing was."""
        self.drain()
        text = " ".join(self._tail.decode(errors="replace").split())
        if not text:
            return ""
        return f"; it printed: {'...' if len(text) > SHOWN_CHARACTERS else ''}{text[-SHOWN_CHARACTERS:]}"
