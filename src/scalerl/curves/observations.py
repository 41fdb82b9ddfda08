"""From a curve to the points that the posterior takes: thinned to some hundred, with their relative noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.posterior import Observations
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
MAX_POINTS = 96


def observe(curve: Curve, R0_known: bool = True) -> Observations:
    """Bin a long curve, estimate its noise and the noise's profile along the curve."""
    x, y, count, trials = bin_curve(curve)
    smooth = _smooth(y)
    # A pass rate's noise is binomial in shape even where its trials are unknown: little near 0 and 1.
    profile = np.clip(smooth, 0.0, 1.0) * (1 - np.clip(smooth, 0.0, 1.0)) + 0.01
    if trials is not None:
        variance = profile / trials
        floor = float(np.sqrt(variance.mean()))
        noise = variance / variance.mean()
        sigma = max(floor, difference_sd(x, y))
        return Observations(x, y, noise, sigma, 3.0, R0_known)
    noise = profile / count
    return Observations(x, y, noise / noise.mean(), max(difference_sd(x, y), 1e-3), 1.0, R0_known)


def end_of(curve: Curve) -> tuple[float, float, float]:
    """Mean compute, mean score and its standard error at the end of a run: points within 5 % of it, at least 3.

    One evaluation is too noisy to judge a forecast of the mean by.
    """
    count = min(max(3, int((curve.compute >= 0.95 * curve.compute[-1]).sum())), len(curve))
    tail = curve.score[-count:]
    spread = float(tail.std(ddof=1)) if count > 1 else 0.0
    return float(curve.compute[-count:].mean()), float(tail.mean()), spread / math.sqrt(count)


def difference_sd(x: FloatArray, y: FloatArray, robust: bool = False) -> float:
    """Noise sd from each point's distance to the line through its neighbours (Gasser, Sroka and Jennen-Steinmetz 1986).

    Needs no model of the curve; a smooth trend cancels. `robust`: by the median, so that a jump does not count.
    """
    if x.size < 3:
        return 0.02
    left = (x[2:] - x[1:-1]) / (x[2:] - x[:-2])
    residual = left * y[:-2] + (1 - left) * y[2:] - y[1:-1]
    scaled = residual / np.sqrt(left**2 + (1 - left) ** 2 + 1)
    return float(1.4826 * np.median(np.abs(scaled)) if robust else np.sqrt(np.mean(scaled**2)))


def bin_curve(curve: Curve) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | None]:
    x, y, n = curve.compute, curve.score, curve.trials
    if x.size <= MAX_POINTS:
        return x, y, np.ones_like(y), n
    # Half of the bins equal in log compute, half in number, so that neither the early rise nor the end is blurred.
    logs = np.log(np.maximum(x, x[x > 0][0]))
    by_log = np.interp(np.linspace(logs[0], logs[-1], MAX_POINTS // 2), logs, np.arange(x.size))
    by_count = np.linspace(0, x.size, MAX_POINTS // 2 + 1)
    edges = np.unique(np.concatenate([by_log, by_count]).round().astype(int))
    starts = edges[edges < x.size]
    count = np.diff(np.append(starts, x.size)).astype(np.float64)
    weight = np.ones_like(y) if n is None else n
    total = np.add.reduceat(weight, starts)
    mean = [np.add.reduceat(weight * v, starts) / total for v in (x, y)]
    return mean[0], mean[1], count, None if n is None else total


def _smooth(y: FloatArray) -> FloatArray:
    window = min(5, y.size)
    return np.convolve(np.pad(y, window // 2, mode="edge"), np.ones(window) / window, "valid")[: y.size]
