"""Association of two series along a run, with intervals that know that neighbouring points repeat each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

FloatArray = NDArray[np.float64]
SPEARMAN_VARIANCE = 1.06
"""Variance of Fisher's z of a rank correlation over that of a linear one (Fieller, Hartley and Pearson 1957)."""


@dataclass(frozen=True)
class Association:
    """Linear and rank correlation of two series.

    Attributes:
        kind: "levels" (the scores themselves; two rising scores always correlate), "increments" (gains from stretch
            to stretch) or "detrended" (what is left without a straight line in log compute).
        pearson, spearman: with intervals; n: pairs; effective_n: what they are worth after autocorrelation.
    """

    kind: str
    pearson: float
    pearson_low: float
    pearson_high: float
    spearman: float
    spearman_low: float
    spearman_high: float
    n: int
    effective_n: float

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def associate(kind: str, x: FloatArray, y: FloatArray, level: float) -> Association:
    """Correlations of (n,) and (n,) with Fisher intervals at the effective number of pairs; 0 where one is constant."""
    ranks = rankdata(x), rankdata(y)
    n_linear, n_rank = effective_n(x, y), effective_n(*ranks)
    linear, rank = _correlation(x, y), _correlation(*ranks)
    return Association(
        kind,
        linear,
        *_fisher(linear, n_linear, 1.0, level),
        rank,
        *_fisher(rank, n_rank, SPEARMAN_VARIANCE, level),
        n=x.size,
        effective_n=n_linear,
    )


def effective_n(x: FloatArray, y: FloatArray) -> float:
    """Number of independent pairs with the same spread of correlation (Bartlett; Pyper and Peterman 1998).

    Products of the two autocorrelations are summed up to the first that is not positive, over a quarter of the pairs.
    """
    n = x.size
    total = 1.0
    for lag in range(1, max(2, n // 4 + 1)):
        product = autocorrelation(x, lag) * autocorrelation(y, lag)
        if product <= 0:
            break
        total += 2 * (1 - lag / n) * product
    return n / total


def autocorrelation(x: FloatArray, lag: int) -> float:
    """At one lag, corrected for the bias (1 + 3 r) / n of short series (Kendall 1954), in [-.95, .95]."""
    centred = x - x.mean()
    power = float(centred @ centred)
    if power <= 0 or lag >= x.size:
        return 0.0
    raw = float(centred[lag:] @ centred[:-lag]) / power
    return float(np.clip((raw * x.size + 1) / max(x.size - 3, 1), -0.95, 0.95))


def _correlation(x: FloatArray, y: FloatArray) -> float:
    a, b = x - x.mean(), y - y.mean()
    power = float((a @ a) * (b @ b))
    return float(np.clip(a @ b / np.sqrt(power), -1, 1)) if power > 0 else 0.0


def _fisher(r: float, n: float, variance: float, level: float) -> tuple[float, float]:
    """Interval of a correlation; everything where fewer than about 3 independent pairs are left."""
    if n <= 3.5:
        return -1.0, 1.0
    half = float(ndtri((1 + level) / 2)) * np.sqrt(variance / (n - 3))
    z = np.arctanh(np.clip(r, -0.999999, 0.999999))
    return float(np.tanh(z - half)), float(np.tanh(z + half))
