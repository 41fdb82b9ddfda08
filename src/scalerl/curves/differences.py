"""A difference of two recipes, with the interval that is shown and the one that the words rest on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.words import signed

FloatArray = NDArray[np.float64]
TESTS = {"difference": 1, "ratio": 2}
"""Efficiency is looked at twice, in B and in C_mid, so there each interval must hold at half the error."""


@dataclass(frozen=True)
class Difference:
    """Second recipe minus first, or second over first for `kind` "ratio".

    Attributes:
        name: what differs; first, second: each recipe's median; estimate: median of the difference.
        low, high: interval at the level asked for; first_interval, second_interval: the same of each recipe.
        joint_low, joint_high: what the words use. As low, high for differences; for the ratios of B and C_mid, of which
            either would mean "changes efficiency", at the higher level at which both hold together.
    """

    name: str
    kind: str
    first: float
    second: float
    estimate: float
    low: float
    high: float
    joint_low: float
    joint_high: float
    first_interval: tuple[float, float]
    second_interval: tuple[float, float]

    @property
    def null(self) -> float:
        """The value that means "no difference"."""
        return 1.0 if self.kind == "ratio" else 0.0

    @property
    def clear(self) -> bool:
        """Whether the joint interval leaves out "no difference"."""
        return not self.joint_low <= self.null <= self.joint_high

    @property
    def hinted(self) -> bool:
        """Whether only the single interval does."""
        return not self.clear and not self.low <= self.null <= self.high

    def reversed(self) -> Difference:
        """First minus second, or first over second."""
        estimate, low, high, joint_low, joint_high = (
            1 / v if self.kind == "ratio" else -v
            for v in (self.estimate, self.high, self.low, self.joint_high, self.joint_low)
        )
        return Difference(self.name, self.kind, self.second, self.first, estimate, low, high, joint_low, joint_high,
                          self.second_interval, self.first_interval)  # fmt: skip

    def __str__(self) -> str:
        write = (lambda v: f"{v:.2f}x") if self.kind == "ratio" else signed
        return f"{write(self.estimate)} ({write(self.low)} to {write(self.high)})"


def between(name: str, a: FloatArray, b: FloatArray, kind: str, level: float) -> Difference:
    """Difference of two recipes from independent draws of each, (n,): b minus a, or b over a for `kind` "ratio"."""
    drawn = b / a if kind == "ratio" else b - a
    joint = 1 - (1 - level) / TESTS[kind]
    ends = [(1 - level) / 2, (1 + level) / 2]
    estimate, low, high, joint_low, joint_high = map(
        float, np.quantile(drawn, [0.5, *ends, (1 - joint) / 2, (1 + joint) / 2])
    )
    of_first, of_second = ((float(v[0]), float(v[1])) for v in (np.quantile(draws, ends) for draws in (a, b)))
    return Difference(name, kind, float(np.median(a)), float(np.median(b)), estimate, low, high, joint_low, joint_high,
                      of_first, of_second)  # fmt: skip
