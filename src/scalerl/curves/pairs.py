"""Two recipes side by side: the differences with intervals, the re-fit with shared A, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scalerl.curves.differences import Difference, between
from scalerl.curves.fit import Fit
from scalerl.curves.laws import SIGMOID
from scalerl.curves.pair_words import CANNOT, CEILING, EFFICIENCY, NONE, TOO_SHORT, UNKNOWN, ahead, judge
from scalerl.curves.paper import A_MARGIN
from scalerl.curves.recipe_fit import RecipeFit, stream
from scalerl.words import in_words

FloatArray = NDArray[np.float64]
_A_WINDOW = 0.0035
"""A of two draws count as shared when they agree this well; small beside the spread of seeds."""
_FEWEST = 1e-4
"""Share of all pairs of draws that must agree for a shared A to be possible at all."""


@dataclass(frozen=True)
class Pair:
    """Comparison of two recipes.

    Attributes:
        A, B, C_mid: differences of the recipes' own parameters (C_mid as a ratio).
        B_shared, C_mid_shared: the same, both as ratios, given that the ceilings are equal; averaged over that
            shared A. None where the ceilings cannot be equal.
        score: difference of the mean scores at compute `at`; None where a run has too few points before it.
        at: where the score is compared; level: of the intervals.
        words: one of `pair_words.WORDS`; reasons: a sentence each.
    """

    first: RecipeFit
    second: RecipeFit
    A: Difference
    B: Difference
    C_mid: Difference
    B_shared: Difference | None
    C_mid_shared: Difference | None
    score: Difference | None
    at: float
    words: str
    reasons: list[str]
    level: float

    @property
    def within_margin(self) -> bool:
        """The paper's rule: A agree within .02."""
        return abs(self.A.estimate) <= A_MARGIN

    @property
    def shared_A(self) -> float:
        """Mean of the two A."""
        return 0.5 * (self.first.estimate("A") + self.second.estimate("A"))

    @property
    def shares_A(self) -> bool:
        """Whether one A is taken for both: the ceilings are known, agree within the margin and are not told apart."""
        return self.within_margin and self.B_shared is not None and self.words in (EFFICIENCY, NONE)

    @property
    def refit_B(self) -> tuple[float, float]:
        """B of the paper's re-fit with the shared A: (first, second)."""
        return self._refits[0][0], self._refits[1][0]

    @property
    def refit_C_mid(self) -> tuple[float, float]:
        """C_mid of the same re-fit."""
        return self._refits[0][1], self._refits[1][1]

    @cached_property
    def _refits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return _refit_recipe(self.first, self.shared_A), _refit_recipe(self.second, self.shared_A)

    @property
    def ahead(self) -> str | None:
        """Name of the recipe whose score is higher at compute `at`, None where that is not sure."""
        return ahead(self.first, self.second, self.score)

    @property
    def better(self) -> str | None:
        """Name of the better recipe: by A where the ceilings differ, else by the score at `at`; None for equals."""
        if self.words == CEILING:
            return self.second.name if self.A.estimate > 0 else self.first.name
        return None if self.words in (CANNOT, TOO_SHORT) else self.ahead

    @property
    def verdict(self) -> str:
        """The words, and where they leave the question open, who scores higher so far."""
        if self.words not in (UNKNOWN, TOO_SHORT) or self.score is None:
            return self.words
        so_far = f"{self.ahead} scores higher" if self.ahead else "the scores are not told apart"
        return f"{self.words}; at {in_words(self.at, self.first.unit)} {so_far}"

    @property
    def sentence(self) -> str:
        """The verdict with its subject."""
        return f"{self.second.name} against {self.first.name}: {self.verdict}"

    def reversed(self) -> Pair:
        """The same comparison, first against second."""
        differences = [d and d.reversed() for d in (self.A, self.B, self.C_mid, self.B_shared, self.C_mid_shared)]
        return _pair(self.second, self.first, differences, self.score and self.score.reversed(), self.at, self.level)

    def line_of(self, recipe: RecipeFit) -> tuple[float, float, float]:
        """A, B, C_mid with which a recipe of the pair is straightened: those given the shared A, or its own."""
        if self.shares_A and self.B_shared and self.C_mid_shared:
            side = "first" if recipe is self.first else "second"
            return self.shared_A, getattr(self.B_shared, side), getattr(self.C_mid_shared, side)
        return recipe.estimate("A"), recipe.estimate("B"), recipe.estimate("C_mid")

    def straightened(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Figure 7: per recipe of known ceiling (log C, log F(R)); see `RecipeFit.straightened`."""
        return {r.name: r.straightened(*self.line_of(r)) for r in (self.first, self.second) if r.known}

    @property
    def efficiency(self) -> tuple[Difference, Difference]:
        """B and C_mid to be shown: with shared A where the words rest on them, else the recipes' own."""
        if self.B_shared and self.C_mid_shared and self.words in (EFFICIENCY, NONE):
            return self.B_shared, self.C_mid_shared
        return self.B, self.C_mid

    def lines(self) -> list[str]:
        """The pair for the terminal."""
        percent = f"{100 * self.level:g} %"
        rows = []
        if self.first.known and self.second.known:
            tag = " with shared A" if self.efficiency[0] is self.B_shared else ""
            B, C_mid = self.efficiency
            rows = [f"  A          {self.A}", f"  B          {B}{tag}", f"  C_mid      {C_mid}{tag}"]
        if self.score:
            rows.append(f"  score      {self.score} at {in_words(self.at, self.first.unit)}")
        head = f"{self.sentence}   (second minus or over first, {percent})"
        return [head, *rows, *(f"  - {reason}" for reason in self.reasons)]

    def to_dict(self) -> dict[str, Any]:
        """The pair's object in the JSON of schema 1."""
        names = ("A", "B", "C_mid", "B_shared", "C_mid_shared", "score")
        return {
            "first": self.first.name,
            "second": self.second.name,
            "words": self.words,
            "verdict": self.verdict,
            "better": self.better,
            "reasons": self.reasons,
            "at": self.at,
            **{name: None if getattr(self, name) is None else dict(getattr(self, name).__dict__) for name in names},
            "paper": {
                "within_margin": self.within_margin,
                "margin": A_MARGIN,
                "shared_A": self.shared_A,
                "B": list(self.refit_B),
                "C_mid": list(self.refit_C_mid),
            },
        }


def compare_pair(first: RecipeFit, second: RecipeFit, level: float, at: float | None) -> Pair:
    """All differences of two recipes and the words for them."""
    one, other = (
        {"A": r.A, "B": np.exp(r.log_B), "C_mid": np.exp(r.log_C_mid)} for r in (first, second)
    )  # fmt: skip
    compute = min(first.last, second.last) if at is None else at
    differences: list[Any] = [
        between("A", one["A"], other["A"], "difference", level),
        between("B", one["B"], other["B"], "difference", level),
        between("C_mid", one["C_mid"], other["C_mid"], "ratio", level),
    ]
    shared = _share_A(first, second)
    differences += [
        None if shared is None else between(f"{name} with shared A", one[name][shared[0]], other[name][shared[1]],
                                            "ratio", level)
        for name in ("B", "C_mid")
    ]  # fmt: skip
    a, b = first.score_at(compute), second.score_at(compute)
    score = None if a is None or b is None else between("score", a, b, "difference", level)
    return _pair(first, second, differences, score, compute, level)


def _pair(
    first: RecipeFit,
    second: RecipeFit,
    differences: Sequence[Any],
    score: Difference | None,
    at: float,
    level: float,
) -> Pair:
    A, B, C_mid, B_shared, C_mid_shared = differences
    words, reasons = judge(first, second, A, B_shared, C_mid_shared, score, at, level)
    return Pair(first, second, A, B, C_mid, B_shared, C_mid_shared, score, at, words, reasons, level)


def _share_A(first: RecipeFit, second: RecipeFit) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Pairs of draws whose A agree: the joint posterior given one shared A. None where hardly any do."""
    if first.name > second.name:  # the same draws, whichever is named first
        swapped = _share_A(second, first)
        return swapped and (swapped[1], swapped[0])
    order = np.argsort(second.A)
    begin, end = (np.searchsorted(second.A[order], first.A + side) for side in (-_A_WINDOW, _A_WINDOW))
    total = np.cumsum(end - begin)
    if total[-1] < _FEWEST * first.A.size * second.A.size:
        return None
    chosen = stream(f"{first.name}\0{second.name}", 11).integers(total[-1], size=first.A.size)
    i = np.searchsorted(total, chosen, side="right")
    return i, order[end[i] - (total[i] - chosen)]


def _refit_recipe(recipe: RecipeFit, A: float) -> tuple[float, float]:
    """B and C_mid of the paper's re-fit with a given A; geometric mean over seeds."""
    found = np.array([_refit(fitted, A)[1:] for fitted in recipe.fits])
    B, C_mid = np.exp(np.log(found).mean(axis=0))
    return float(B), float(C_mid)


def _refit(fitted: Fit, A: float) -> tuple[float, float, float]:
    """R0, B, C_mid by least squares with A fixed."""
    x, y = fitted.curve.compute, fitted.curve.score
    positive = np.log(x[x > 0][[0, -1]])
    lower = np.array([-0.1, np.log(0.1), positive[0] - 3.0])
    upper = np.array([min(A, float(y.max())), np.log(20.0), positive[1] + 4.0])
    start = np.clip([fitted.R0, np.log(fitted.B), np.log(fitted.C_mid)], lower + 1e-9, upper - 1e-9)

    def residual(p: FloatArray) -> FloatArray:
        return SIGMOID.value(x, p[0], A, float(np.exp(p[1])), float(np.exp(p[2]))) - y

    def jacobian(p: FloatArray) -> FloatArray:
        return SIGMOID.gradient(x, p[0], A, float(np.exp(p[1])), float(np.exp(p[2])))[:, [0, 2, 3]]

    R0, log_B, log_C_mid = least_squares(residual, start, jac=jacobian, bounds=(lower, upper), max_nfev=60).x
    return float(R0), float(np.exp(log_B)), float(np.exp(log_C_mid))
