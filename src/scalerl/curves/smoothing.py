"""The held-out score between its evaluations: smooth, measured around a compute, or redrawn within its uncertainty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.fit import Fit
from scalerl.curves.observations import bin_curve
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
Score = Callable[[FloatArray], FloatArray]


def smooth_score(curve: Curve, law: Fit | None) -> Score:
    """The curve's mean score at any compute: its law, bent towards the local mean of what the law leaves.

    Without a law (a fit was refused) the points themselves are interpolated.
    """
    if law is None:
        return lambda at: np.interp(at, curve.compute, curve.score)
    width = max(float(np.ptp(curve.compute)) / 10, 1e-12)
    x, y, count, _ = bin_curve(curve)
    residual = y - law.predict(x)

    def score(at: FloatArray) -> FloatArray:
        weight = count * np.exp(-0.5 * ((at[:, None] - x[None, :]) / width) ** 2)
        # One point's worth of "the law is right" keeps lone residuals and the outside of the run on the law.
        bend: FloatArray = weight @ residual / (weight.sum(axis=1) + 1.0)
        return law.predict(at) + bend

    return score


def local_score(curve: Curve, at: FloatArray, smooth: Score) -> FloatArray:
    """(k,) held-out score measured around each compute: the mean of the points nearer to it than to its neighbours.

    The points are moved along the smooth score to the compute wanted; where there is none, the smooth score stands.
    """
    nearest = np.abs(curve.compute[:, None] - at[None, :]).argmin(axis=1)
    residual = curve.score - smooth(curve.compute)
    count = np.bincount(nearest, minlength=at.size)
    mean = np.bincount(nearest, weights=residual, minlength=at.size) / np.maximum(count, 1)
    return smooth(at) + mean


def redrawn_scores(law: Fit | None, count: int = 24) -> list[Score]:
    """Other laws that the held-out points allow, by the covariance of least squares."""
    if law is None:
        return []
    rng = np.random.default_rng(3)
    parameters = np.array([law.R0, law.A, np.log(law.B), np.log(law.C_mid)])
    slope = law.law.gradient(law.curve.compute, law.R0, law.A, law.B, law.C_mid)
    rho = min(max(law.autocorrelation, 0.0), 0.9)
    variance = law.residual_sd**2 * (1 + rho) / (1 - rho)
    # A weak prior of half a unit keeps directions that the points leave open from running away.
    precision = slope.T @ slope / max(variance, 1e-12) + np.diag([1.0, 1.0, 4.0, 4.0])
    root = np.linalg.cholesky(np.linalg.inv(precision))

    def score(p: FloatArray) -> Score:
        return lambda at: law.law.value(at, float(p[0]), float(p[1]), float(np.exp(p[2])), float(np.exp(p[3])))

    return [score(parameters + root @ rng.standard_normal(4)) for _ in range(count)]
