"""A sign of life on stderr from what takes longer than a moment."""

from __future__ import annotations

import time
from collections.abc import Callable

from scalerl.cli.output import say

FIRST, NEXT = 2.0, 5.0
"""Seconds before the first line, and between it and each further one."""


class Progress:
    """Called with a few words after each step, says some of them; quick commands stay silent."""

    def __init__(self, doing: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.doing = doing
        self.clock = clock
        self.due = clock() + FIRST

    def __call__(self, done: str) -> None:
        now = self.clock()
        if now >= self.due:
            say(f"{self.doing}: {done}")
            self.due = now + NEXT
