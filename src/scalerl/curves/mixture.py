"""`Posterior`: a mixture of laws, shapes and kinds of noise, and the quantiles of what it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from scalerl.curves.laws import Law

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Posterior:
    """Mixture of m components, heaviest first; each is a law, a shape and a kind of noise.

    Attributes:
        law: (m,) index into `laws`; weight: (m,) sums to 1; B, C_mid, rho, tau: (m,).
        mean: (m, 2) of (R0, A); cov: (m, 2, 2) of them, scale included.
        sigma: (m,) noise standard deviation.
        drift_coef, drift_offset, drift_var: the drift at the last point is drift_offset - drift_coef @ (R0, A),
            with this variance; shapes (m, 2), (m,), (m,).
        compute_last: compute of the last point.
        log_evidence: log probability of the points, up to a constant that depends on their number alone.
    """

    laws: tuple[Law, ...]
    law: NDArray[np.intp]
    weight: FloatArray
    B: FloatArray
    C_mid: FloatArray
    rho: FloatArray
    tau: FloatArray
    mean: FloatArray
    cov: FloatArray
    sigma: FloatArray
    drift_coef: FloatArray
    drift_offset: FloatArray
    drift_var: FloatArray
    compute_last: float
    log_evidence: float

    def shares(self, compute: FloatArray) -> FloatArray:
        """(m, k) share of the gain at each of k computes."""
        z_share = np.empty((self.weight.size, compute.size))
        for index, law in enumerate(self.laws):
            rows = self.law == index
            z_share[rows] = law.share(compute[None, :], self.B[rows, None], self.C_mid[rows, None])
        return z_share

    def score(self, compute: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(m, k) mean and sd of the future mean score at each compute >= compute_last."""
        share = self.shares(compute)
        coef = np.stack([1 - share, share], axis=2) - self.drift_coef[:, None, :]
        extra = self.drift_var[:, None] + self._drift_growth(compute)
        return self._combine(coef, extra, self.drift_offset[:, None])

    def gain(self, compute: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(m, k) mean and sd of the gain from compute_last to each compute."""
        rise = self.shares(compute) - self.shares(np.array([self.compute_last]))
        coef = np.stack([-rise, rise], axis=2)
        return self._combine(coef, self._drift_growth(compute), np.zeros((1, 1)))

    def _drift_growth(self, compute: FloatArray) -> FloatArray:
        growth: FloatArray = self.tau[:, None] ** 2 * np.log(np.maximum(compute, self.compute_last) / self.compute_last)
        return growth

    def _combine(self, coef: FloatArray, extra: FloatArray, offset: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean = np.einsum("mkp,mp->mk", coef, self.mean) + offset
        var = np.einsum("mkp,mpq,mkq->mk", coef, self.cov, coef) + extra
        return mean, np.sqrt(np.maximum(var, 1e-12))


def mixture_quantiles(weight: FloatArray, mean: FloatArray, sd: FloatArray, levels: Sequence[float]) -> FloatArray:
    """(len(levels), k) quantiles of k normal mixtures with m components; `mean`, `sd` are (m, k)."""
    wanted = np.asarray(levels)[:, None]
    low = np.broadcast_to(np.maximum((mean - 6 * sd).min(axis=0), -2.0), (wanted.size, mean.shape[1]))
    high = np.broadcast_to(np.minimum((mean + 6 * sd).max(axis=0), 3.0), low.shape)
    for _ in range(18):
        middle = 0.5 * (low + high)
        reached = np.einsum("m,mlk->lk", weight, ndtr((middle[None] - mean[:, None]) / sd[:, None]))
        low, high = np.where(reached < wanted, middle, low), np.where(reached < wanted, high, middle)
    found: FloatArray = 0.5 * (low + high)
    return found
