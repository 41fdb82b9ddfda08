"""Mathematical answers, judged by Math-Verify in a process of its own: `\\boxed{\\frac12}` equals `0.5`.

What a hostile answer is worth, and when a rollout is excluded, is said in `judge.py`.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from functools import lru_cache
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.judge import Judge

SECONDS = 1.0
_MARKS = ("$", r"\boxed", r"\(", r"\[", r"\begin")
_WORD = re.compile(r"[A-Za-z]{4,}")
_COMMAND = re.compile(r"\\[A-Za-z]+(?:\{[A-Za-z ]*\})?")
_PLAIN = re.compile(r"[A-Za-z]{2,}[\s,:]+(?:[A-Za-z]{2,}|[^A-Za-z]*\d)|####|\*\*")


class Maths:
    """Verifier: 1 where the answer equals the reference mathematically, else 0.

    Args:
        seconds, memory_mb, workers: limits of the judging processes, see `Judge`.
    """

    def __init__(self, seconds: float = SECONDS, memory_mb: int = 1024, workers: int = 1) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise InputError("verifier maths: Math-Verify is not installed; pip install 'scalerl[train]'")
        self.judge = Judge(
            "scalerl.tasks.maths:grade",
            2,
            seconds=seconds,
            prepare="scalerl.tasks.maths:prepare",
            memory_mb=memory_mb,
            workers=workers,
        )

    def __call__(self, prompt: str, completion: str, answer: Any) -> float:
        """Reward of a completion without its thinking; VerifierError where the reference is no mathematics."""
        reference = str(answer)
        return self.judge.reward((completion, reference), (reference, reference))

    def problem(self, answer: Any) -> str | None:
        """Why a reference cannot be used, as far as it can be seen without parsing."""
        return None if str(answer).strip() else "is empty"

    def close(self) -> None:
        self.judge.close()


def grade(completion: str, reference: str) -> float:
    """Runs in the worker. Raises where the reference cannot be parsed."""
    from math_verify import parse, verify

    gold = _gold(reference)
    if not gold:
        raise ValueError(f"Math-Verify finds no mathematics in the reference answer {reference[:80]!r}")
    return float(verify(gold, parse(delimited(completion), parsing_timeout=None), timeout_seconds=None))


def delimited(text: str) -> str:
    """A bare formula between dollars; prose, `9**9` and what has delimiters stay as they are.

    Outside of delimiters Math-Verify looks for plain numbers only: it reads `2\\sqrt{2}` as 2.
    """
    text = text.strip()
    if _WORD.fullmatch(text):
        return f"$\\text{{{text}}}$"  # as a product of letters, `Pairs` would equal `Paris`
    plain = _PLAIN.search(_COMMAND.sub(" ; ", text)) is not None
    return text if not text or plain or "\n" in text or any(mark in text for mark in _MARKS) else f"${text}$"


def prepare() -> None:
    """Runs in the worker before the first answer: loads the parser and its grammar."""
    # Math-Verify warns that its own limits are off. They work by alarms and cannot break into C code; ours can.
    logging.disable(logging.WARNING)
    grade(r"$\frac{1}{2}$", "0.5")


@lru_cache(maxsize=4096)
def _gold(reference: str) -> Any:
    from math_verify import parse

    return parse(delimited(reference), parsing_timeout=None) or parse(reference, parsing_timeout=None)
