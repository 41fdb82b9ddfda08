"""Train and held-out prompts, told apart by a hash of their content: no order of a file and no seed moves one.

A stream has no end, so each prompt falls to a side by itself, and the share holds on average. A file is known whole:
the smallest hashes are held out, exactly the share of them. Rows added later can only move the few at the border.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, get_args

from scalerl.errors import InputError
from scalerl.tasks.nearest import suggestion

Split = Literal["train", "held-out"]


def is_held_out(content: str, share: float) -> bool:
    """Whether a prompt's content falls into the held-out share, in [0, 1]."""
    return int.from_bytes(_digest(content)[:8], "big") < share * 2**64


def held_out_part(contents: Iterable[str], share: float) -> set[str]:
    """Which are held out: `share` of the distinct ones, to the nearest whole number; of several never none or all."""
    distinct = sorted(set(contents), key=_digest)
    return set(distinct[: max(1, min(round(share * len(distinct)), len(distinct) - 1))])


def _digest(content: str) -> bytes:
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


def known_split(split: str) -> Split:
    """The split's name, or InputError with the nearest one."""
    for name in get_args(Split):
        if split == name:
            return name  # type: ignore[no-any-return]
    raise InputError(f'no split "{split}": {suggestion(split, get_args(Split))}')
