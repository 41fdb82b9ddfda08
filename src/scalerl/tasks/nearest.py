"""Refusals that name the nearest valid spelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: object, known: Iterable[str]) -> str:
    """`did you mean "numeric"?`, or the whole list where nothing is near."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), names, 1, 0.5)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(names) or 'none'}"
