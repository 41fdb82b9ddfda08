"""Keep freed memory in the process. glibc gives large blocks back to the kernel and gets them again, page by page and
zeroed, for every activation: up to a fifth of a small model's training step."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt, from malloc.h


def keep_freed_memory() -> bool:
    """Set glibc's allocator so; for the whole process, which stays as large as it once was.

    Returns:
        Whether it was done: not with another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 64 << 20}
    return all(mallopt(name, value) == 1 for name, value in settings.items())
