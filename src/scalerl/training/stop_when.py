"""`--stop-when "gain_high < 0.01 at 2x"`: when a run has no more to bring."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from scalerl.errors import InputError

QUANTITIES = ("gain", "gain_low", "gain_high", "score", "low", "high")
"""Of a forecast at one compute: as in the table of `scalerl forecast --json`."""
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*(\S+?)\s+at\s+(\S+)\s*")
_EXAMPLE = '"gain_high < 0.01 at 2x"'


@dataclass(frozen=True)
class StopWhen:
    """A quantity of the forecast `at` a multiple of the compute so far, compared with a number."""

    quantity: str
    sign: str
    value: float
    at: str

    @classmethod
    def parse(cls, text: str) -> StopWhen:
        """From the words of the option.

        Raises:
            InputError: beginning with `stop_when`, naming the nearest that can be said.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise InputError(f"stop_when = {text!r}: write quantity < number at multiple, e.g. {_EXAMPLE}")
        quantity, sign, number, at = match.groups()
        if quantity not in QUANTITIES:
            near = get_close_matches(quantity, QUANTITIES, n=1, cutoff=0.0)[0]
            raise InputError(
                f"stop_when = {text!r}: no quantity {quantity!r}, the nearest is {near!r} (of {', '.join(QUANTITIES)})"
            )
        try:
            value, reach = float(number), float(at.removesuffix("x"))
        except ValueError:
            raise InputError(f"stop_when = {text!r}: {number} and {at} must be numbers, e.g. {_EXAMPLE}") from None
        if not math.isfinite(value):
            raise InputError(f"stop_when = {text!r}: {number} is not finite and never decides; e.g. {_EXAMPLE}")
        if not at.endswith("x") or not 1 < reach <= 100:
            raise InputError(f"stop_when = {text!r}: {at} must be a multiple of the compute so far, from 1.1x to 100x")
        return cls(quantity, sign, value, at)

    def holds(self, row: Any) -> bool:
        """For a `curves.forecast.Row` at `self.at`."""
        return _COMPARE[self.sign](float(getattr(row, self.quantity)), self.value)

    def __str__(self) -> str:
        return f"{self.quantity} {self.sign} {self.value:g} at {self.at}"
