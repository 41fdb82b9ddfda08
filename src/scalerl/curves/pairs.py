"""Two recipes side by side: the differences with intervals, the re-fit with shared A, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scalerl.curves.differences import Difference, between
from scalerl.curves.fit import Fit
from scalerl.curves.laws import SIGMOID
from scalerl.curves.pair_words import CEILING, judge
from scalerl.curves.paper import A_MARGIN
from scalerl.curves.recipe_fit import RecipeFit, score_draws
from scalerl.words import in_words

FloatArray = NDArray[np.float64]
_MATCHED = 1500
_A_WINDOW = 0.002
"""A of two draws count as shared when they agree about this well; small beside the spread of seeds."""


@dataclass(frozen=True)
class Pair:
    """Comparison of two recipes.

    Attributes:
        A, B, C_mid: differences of the recipes' own parameters (C_mid as a ratio).
        B_shared, C_mid_shared: the same, both as ratios, given that the ceilings are equal; averaged over that
            shared A. None where the ceilings cannot be equal.
        score: difference of the mean scores at compute `at`; None where a run has too few points before it.
        shared_A: mean of the two A; refit_B, refit_C_mid: the paper's re-fit with it, (first, second); its verdict by
            the margin of .02 is `within_margin`.
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
    shared_A: float
    refit_B: tuple[float, float]
    refit_C_mid: tuple[float, float]
    words: str
    reasons: list[str]
    level: float

    @property
    def within_margin(self) -> bool:
        """The paper's rule: A agree within .02."""
        return abs(self.A.estimate) <= A_MARGIN

    @property
    def sentence(self) -> str:
        """The words with their subject."""
        return f"{self.second.name} against {self.first.name}: {self.words}"

    def straightened(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Figure 7: per recipe (log C, log F(R)) with the shared A; a straight line of slope B where the law holds.

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1). Points outside (R0, A) have no F and are left out.
        """
        found = {}
        for recipe in (self.first, self.second):
            x, y = [], []
            for fitted in recipe.fits:
                R0, B, C_mid = _refit(fitted, self.shared_A)
                compute, score = fitted.curve.compute, fitted.curve.score
                inside = (score > R0) & (score < self.shared_A) & (compute > 0)
                share = (score[inside] - R0) / (self.shared_A - R0)
                x.append(np.log(compute[inside]))
                y.append(B * np.log(C_mid) + np.log(share / (1 - share)))
            found[recipe.name] = (np.concatenate(x), np.concatenate(y))
        return found

    def lines(self) -> list[str]:
        """The pair for the terminal."""
        percent = f"{100 * self.level:g} %"
        rows = [f"  A          {self.A}"]
        if self.B_shared and self.C_mid_shared and self.words != CEILING:
            rows += [f"  B          {self.B_shared} with shared A", f"  C_mid      {self.C_mid_shared} with shared A"]
        else:
            rows += [f"  B          {self.B}", f"  C_mid      {self.C_mid}"]
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


def compare_pair(first: RecipeFit, second: RecipeFit, level: float, at: float | None, rng: np.random.Generator) -> Pair:
    """All differences of two recipes and the words for them."""

    def difference(name: str, a: FloatArray, b: FloatArray, kind: str = "difference") -> Difference:
        return between(name, a, b, kind, level)

    compute = min(first.last, second.last) if at is None else at
    shared = _share_A(first, second, rng)
    B_shared = C_mid_shared = None
    if shared is not None:
        i, j = shared
        B_shared = difference("B with shared A", np.exp(first.log_B[i]), np.exp(second.log_B[j]), "ratio")
        C_mid_shared = difference(
            "C_mid with shared A", np.exp(first.log_C_mid[i]), np.exp(second.log_C_mid[j]), "ratio"
        )
    scores = score_draws(first, compute, rng), score_draws(second, compute, rng)
    shared_A = 0.5 * (first.estimate("A") + second.estimate("A"))
    refit = [_refit_recipe(recipe, shared_A) for recipe in (first, second)]
    A = difference("A", first.A, second.A)
    score = None if scores[0] is None or scores[1] is None else difference("score", scores[0], scores[1])
    words, reasons = judge(first, second, A, B_shared, C_mid_shared, score, compute, level)
    return Pair(
        first, second, A,
        difference("B", np.exp(first.log_B), np.exp(second.log_B)),
        difference("C_mid", np.exp(first.log_C_mid), np.exp(second.log_C_mid), "ratio"),
        B_shared, C_mid_shared, score, compute, shared_A,
        (refit[0][0], refit[1][0]), (refit[0][1], refit[1][1]), words, reasons, level,
    )  # fmt: skip


def _share_A(
    first: RecipeFit, second: RecipeFit, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Pairs of draws whose A agree: the joint posterior given one shared A. None where hardly any do."""
    a, b = first.A[:_MATCHED], second.A[:_MATCHED]
    closeness = np.exp(-0.5 * (np.subtract.outer(a, b) / _A_WINDOW) ** 2).ravel()
    total = np.cumsum(closeness)
    if total[-1] ** 2 < 200 * (closeness @ closeness):
        return None
    count = first.A.size
    chosen = np.searchsorted(total, rng.random(count) * total[-1])
    i, j = np.unravel_index(np.minimum(chosen, closeness.size - 1), (a.size, b.size))
    return i, j


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
