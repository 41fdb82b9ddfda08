"""Simple forecasters that ours is measured against: what people do today.

Each takes the early curve and one compute and returns (low, score, high) at a nominal level, or raises
`ForecastRefused` where its own fit fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.special import ndtri

from scalerl.curves.laws import SIGMOID
from scalerl.curves.paper import A_MARGIN, grids_for, paper_fit
from scalerl.errors import ForecastRefused
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
Interval = tuple[float, float, float]


def paper_grid(early: Curve, compute: float, level: float) -> Interval:
    """The paper's grid fit with its margin of .02 (which the paper states for A, whatever the level)."""
    found = paper_fit(early, float(early.score[0]), *grids_for(early))
    score = float(SIGMOID.value(compute, found.R0, found.A, found.B, found.C_mid))
    return score - A_MARGIN, score, score + A_MARGIN


def three_parameters(early: Curve, compute: float, level: float) -> Interval:
    """SciPy's curve_fit of (A, B, C_mid), R0 the first score, interval by the delta method."""
    R0 = float(early.score[0])

    def law(c: FloatArray, A: float, log_B: float, log_C_mid: float) -> FloatArray:
        return SIGMOID.value(c, R0, A, float(np.exp(log_B)), float(np.exp(log_C_mid)))

    positive = early.compute > 0
    start = [float(early.score.max()) + 0.02, 0.4, float(np.log(early.compute[positive].mean()))]
    return _by_delta(law, early.compute[positive], early.score[positive], start, compute, level)


def power_law(early: Curve, compute: float, level: float) -> Interval:
    """curve_fit of R = A - D / C^B (section 2.1), interval by the delta method."""
    positive = early.compute > 0
    x, y = early.compute[positive], early.score[positive]

    def law(c: FloatArray, A: float, gap: float, B: float) -> FloatArray:
        value: FloatArray = A - gap * (np.asarray(c) / x[0]) ** -B
        return value

    return _by_delta(law, x, y, [float(y.max()) + 0.05, float(np.ptp(y)) + 0.05, 0.5], compute, level)


def last_five(early: Curve, compute: float, level: float) -> Interval:
    """The mean of the last five points, as if the run had stopped rising."""
    tail = early.score[-5:]
    score = float(tail.mean())
    half = float(ndtri((1 + level) / 2) * tail.std(ddof=1) / np.sqrt(tail.size)) if tail.size > 1 else 0.0
    return score - half, score, score + half


BASELINES: dict[str, Callable[[Curve, float, float], Interval]] = {
    "paper": paper_grid,
    "curve_fit": three_parameters,
    "power law": power_law,
    "last five": last_five,
}


def _by_delta(
    law: Callable[..., FloatArray], x: FloatArray, y: FloatArray, start: list[float], compute: float, level: float
) -> Interval:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", OptimizeWarning)
            best, cov = curve_fit(law, x, y, p0=start, maxfev=600)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ForecastRefused(f"curve_fit failed: {error}") from None
    if not np.isfinite(cov).all():
        raise ForecastRefused("curve_fit found no finite covariance")
    at = np.array([compute])
    step = 1e-5 * (1 + np.abs(best))
    slope = np.array([(law(at, *(best + d)) - law(at, *(best - d)))[0] for d in np.diag(step)]) / (2 * step)
    score = float(law(at, *best)[0])
    half = float(ndtri((1 + level) / 2) * np.sqrt(max(slope @ cov @ slope, 0.0)))
    return score - half, score, score + half
