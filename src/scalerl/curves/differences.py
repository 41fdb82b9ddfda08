"""A difference of two recipes, with the interval that is shown and the one that the words rest on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
TESTS = {"difference": 1, "ratio": 2}
"""Efficiency is looked at twice, in B and in C_mid, so there each interval must hold at half the error."""


@dataclass(frozen=True)
class Difference:
    """Second recipe minus first, or second over first for `kind` "ratio".

    Attributes:
        name: what differs; first, second: each recipe's median; estimate: median of the difference.
        low, high: interval at the level asked for.
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

    def __str__(self) -> str:
        form = "{:.3g}x ({:.3g}x to {:.3g}x)" if self.kind == "ratio" else "{:+.3f} ({:+.3f} to {:+.3f})"
        return form.format(self.estimate, self.low, self.high)


def between(name: str, a: FloatArray, b: FloatArray, kind: str, level: float) -> Difference:
    """Difference of two recipes from independent draws of each, (n,): b minus a, or b over a for `kind` "ratio"."""
    drawn = b / a if kind == "ratio" else b - a
    joint = 1 - (1 - level) / TESTS[kind]
    tails = [0.5, (1 - level) / 2, (1 + level) / 2, (1 - joint) / 2, (1 + joint) / 2]
    return Difference(name, kind, float(np.median(a)), float(np.median(b)), *map(float, np.quantile(drawn, tails)))
