"""Train and held-out prompts, told apart by a hash of their content.

A prompt's side depends on nothing but itself and the share: adding rows, reordering a file or another seed never moves
a prompt from one side to the other, so what was held out once was never trained on.
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from scalerl.errors import InputError
from scalerl.tasks.nearest import suggestion

Split = Literal["train", "held-out"]


def is_held_out(content: str, share: float) -> bool:
    """Whether a prompt's content falls into the held-out share, in [0, 1]."""
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def known_split(split: str) -> Split:
    """The split's name, or InputError with the nearest one."""
    for name in get_args(Split):
        if split == name:
            return name  # type: ignore[no-any-return]
    raise InputError(f'no split "{split}": {suggestion(split, get_args(Split))}')
