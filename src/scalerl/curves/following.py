"""Regression of a downstream score on the held-out one: slope, lag, and whether anything is left unexplained.

Model: downstream(C) = a + slope * held_out(C - lag) + noise, the noise AR(1). Everything is linear but the lag, which
is profiled over a grid. `Regression.misfit` tests whether a smooth trend of the downstream score's own explains what
the held-out score leaves; `line_odds` whether the held-out score explains more than a straight line would. Both are
needed because any two rising scores correlate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import chi2, f, t

from scalerl.curves.association import autocorrelation

FloatArray = NDArray[np.float64]
LAG_GRID = np.linspace(-0.3, 0.6, 91)
"""Lags that are tried, in spans of the downstream points' compute."""
_LEAST_DOF = 1.5


@dataclass(frozen=True)
class Regression:
    """Least squares of downstream on held-out at one lag.

    Attributes:
        slope: gain downstream per gain held-out, with interval; intercept.
        squared: sum of squared residuals; effective_n: points after the residuals' autocorrelation.
        misfit: p value of "nothing smooth is left"; 1 where too few points are left to test it.
        line_odds: log likelihood ratio over the better of two straight lines, in compute and in log compute.
    """

    slope: float
    slope_low: float
    slope_high: float
    intercept: float
    squared: float
    effective_n: float
    misfit: float
    line_odds: float


@dataclass(frozen=True)
class Lag:
    """Compute by which the downstream score trails the held-out one (negative: runs ahead), with interval.

    `bounded`: whether the interval ends inside the lags that were tried.
    """

    compute: float
    low: float
    high: float
    bounded: bool


def regress(
    compute: FloatArray, held_out: FloatArray, redrawn: FloatArray, downstream: FloatArray, level: float
) -> Regression:
    """Regression of (n,) downstream on (n,) held-out scores at the same computes, n >= 6.

    `redrawn`, (k, n), are held-out scores that its points allow as well; k may be 0.
    """
    n = compute.size
    design = np.column_stack([np.ones(n), held_out])
    coef, residual = _solve(design, downstream)
    squared = max(float(residual @ residual), 1e-12)
    worth = _worth(residual)
    centred = held_out - held_out.mean()
    power = max(float(centred @ centred), 1e-12)
    dof = max(n * worth - 2, _LEAST_DOF)
    half = float(t.ppf((1 + level) / 2, dof)) * np.sqrt(squared / (n - 2) / worth / power)
    log_c = np.log(np.maximum(compute, compute[compute > 0][0]))
    lines = [_solve(np.column_stack([np.ones(n), axis]), downstream)[1] for axis in (compute, log_c)]
    line = max(min(float(r @ r) for r in lines), 1e-12)
    return Regression(
        float(coef[1]), float(coef[1] - half), float(coef[1] + half), float(coef[0]), squared, n * worth,
        _misfit(held_out, redrawn, log_c, downstream, worth), 0.5 * n * worth * float(np.log(line / squared)),
    )  # fmt: skip


def find_lag(
    compute: FloatArray,
    held_out: Callable[[FloatArray], FloatArray],
    redrawn: Sequence[Callable[[FloatArray], FloatArray]],
    downstream: FloatArray,
    level: float,
) -> Lag:
    """Profile likelihood of the lag, widened by what the held-out score's own uncertainty moves it.

    Args:
        compute, downstream: (n,) points.
        held_out: the smooth held-out score at any compute.
        redrawn: other held-out scores that its points allow; none if that uncertainty is unknown.
        level: of the interval.
    """
    span = float(np.ptp(compute))
    shifted = np.maximum(compute[None, :] - LAG_GRID[:, None] * span, 0.0)

    def profile(score: Callable[[FloatArray], FloatArray]) -> tuple[FloatArray, float]:
        squared = _squared(score(shifted.ravel()).reshape(shifted.shape), downstream)
        return squared, _minimum(squared)

    squared, best = profile(held_out)
    at_best = held_out(np.maximum(compute - best * span, 0.0))
    worth = _worth(_solve(np.column_stack([np.ones(compute.size), at_best]), downstream)[1])
    count = compute.size * worth
    drop = count * np.log(squared / squared.min())
    allowed = drop <= chi2.ppf(level, 1) * count / max(count - 3, 1.0)
    low, high = _edges(allowed, best)
    moved = float(np.std([profile(score)[1] for score in redrawn])) if redrawn else 0.0
    extra = moved * float(ndtri((1 + level) / 2))
    low, high = best - float(np.hypot(best - low, extra)), best + float(np.hypot(high - best, extra))
    bounded = bool(low > LAG_GRID[0] and high < LAG_GRID[-1])
    low, high = max(low, float(LAG_GRID[0])), min(high, float(LAG_GRID[-1]))
    return Lag(best * span, low * span, high * span, bounded)


def _squared(score: FloatArray, y: FloatArray) -> FloatArray:
    """(lags,) squared residuals of y on each row of score; a falling relation is no following, it explains nothing."""
    x, c = score - score.mean(axis=1, keepdims=True), y - y.mean()
    product = np.maximum(x @ c, 0.0)
    explained = product**2 / np.maximum(np.einsum("ln,ln->l", x, x), 1e-12)
    squared: FloatArray = np.maximum(c @ c - explained, 1e-12)
    return squared


def _minimum(squared: FloatArray) -> float:
    """Lag of the least value, between the grid's lags by a parabola."""
    i = int(np.argmin(squared))
    if i in (0, squared.size - 1):
        return float(LAG_GRID[i])
    left, middle, right = np.log(squared[i - 1 : i + 2])
    curvature = left - 2 * middle + right
    step = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(LAG_GRID[i] + step * (LAG_GRID[1] - LAG_GRID[0]))


def _edges(allowed: NDArray[np.bool_], best: float) -> tuple[float, float]:
    """Outermost lags allowed, at least half a step of the grid from the best."""
    half = 0.5 * float(LAG_GRID[1] - LAG_GRID[0])
    inside = LAG_GRID[allowed]
    return min(float(inside[0]), best - half), max(float(inside[-1]), best + half)


def _solve(design: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    coef = np.asarray(np.linalg.lstsq(design, y, rcond=None)[0], dtype=np.float64)
    return coef, y - design @ coef


def _worth(residual: FloatArray) -> float:
    """Share of the points that are left after autocorrelation of the residuals."""
    rho = max(autocorrelation(residual, 1), 0.0)
    return (1 - rho) / (1 + rho)


def _misfit(held_out: FloatArray, redrawn: FloatArray, log_c: FloatArray, y: FloatArray, worth: float) -> float:
    """Test of a parabola in log compute beside the held-out score (Wald, as F).

    The noise's autocorrelation is taken from the fuller model: what the parabola explains is what is tested. What the
    parabola would mend for the held-out score, whose own points leave its bend open, counts as variance.
    """
    n = y.size
    scaled = (log_c - log_c.mean()) / max(float(log_c.std()), 1e-12)

    def design(score: FloatArray) -> FloatArray:
        return np.column_stack([np.ones(n), score, scaled, scaled**2])

    full = design(held_out)
    coef, residual = _solve(full, y)
    worth = max(worth, _worth(residual))
    dof = n * worth - 4
    if dof < _LEAST_DOF:
        return 1.0
    variance = max(float(residual @ residual), 1e-12) / max(n - 4, 1) / worth
    cov = variance * np.linalg.pinv(full.T @ full)[2:, 2:]
    if len(redrawn) > 2:
        cov = cov + np.cov([_solve(design(score), y)[0][2:] for score in redrawn], rowvar=False)
    ratio = float(coef[2:] @ np.linalg.pinv(cov) @ coef[2:]) / 2
    return float(f.sf(ratio, 2, dof))
