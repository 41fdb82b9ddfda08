"""Closed-form posterior of (R0, A, sigma^2) for all shapes at once, given the correlation of the noise.

With S the covariance of the AR(1) noise and M that of the drift (min(s_i, s_j), s = log C since the start), the
points have covariance sigma^2 (S + r M), r = (tau / sigma)^2. Whitening by S is a difference of neighbours, and one
eigendecomposition of the whitened M then serves every r: each only rescales the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.special import ndtr

FloatArray = NDArray[np.float64]
LEAST_SIGMA = 3e-4
"""No run follows its law more closely than this, however smooth its log."""


@dataclass(frozen=True)
class LinearPrior:
    """Independent normal priors of R0 and A: (2,) means and standard deviations."""

    mean: FloatArray
    sd: FloatArray


@dataclass(frozen=True)
class Conditional:
    """Posteriors for t drift strengths and p shapes, scores in their own units.

    Attributes:
        log_evidence: (t, p) of the points; mean: (t, p, 2) of (R0, A); cov: (t, p, 2, 2).
        sigma: (t, p) noise standard deviation.
        drift_coef (t, p, 2), drift_offset (t, p), drift_var (t, p): of the drift at the last point, see `Posterior`.
    """

    log_evidence: FloatArray
    mean: FloatArray
    cov: FloatArray
    sigma: FloatArray
    drift_coef: FloatArray
    drift_offset: FloatArray
    drift_var: FloatArray


def condition(
    score: FloatArray,
    share: FloatArray,
    since_start: FloatArray,
    noise: FloatArray,
    rho: float,
    drift_ratio: FloatArray,
    sigma: float,
    sigma_weight: float,
    prior: LinearPrior,
) -> Conditional:
    """Integrate out (R0, A, sigma^2).

    Args:
        score: (n,). share: (n, p) share of the gain at each point under each shape.
        since_start: (n,) log compute since the first point, increasing. noise: (n,) relative noise variance.
        rho: correlation of neighbouring noise. drift_ratio: (t,) r as above.
        sigma, sigma_weight: prior guess of sigma and the degrees of freedom it is worth.
    """
    n = score.size
    y, one, s, v, spectrum = _whiten(score, share, since_start, noise, rho)
    u = one[:, None] - v
    d = 1 / (1 + np.outer(drift_ratio, spectrum))  # (t, n)
    p0 = (sigma / prior.sd) ** 2
    R0_part, A_part = d @ (u * u) + p0[0], d @ (v * v) + p0[1]
    both = d @ (u * v)
    rhs_R0, rhs_A = (d * y) @ u + p0[0] * prior.mean[0], (d * y) @ v + p0[1] * prior.mean[1]
    det = R0_part * A_part - both**2
    R0, A = (A_part * rhs_R0 - both * rhs_A) / det, (R0_part * rhs_A - both * rhs_R0) / det

    dof = sigma_weight + n
    left = sigma_weight * sigma**2 + (d @ y**2 + p0 @ prior.mean**2)[:, None] - R0 * rhs_R0 - A * rhs_A
    # Shapes that fit better than a law can be believed to hold are all equally good.
    left = np.maximum(left, dof * LEAST_SIGMA**2)
    log_det = np.log(noise).sum() + (n - 1) * np.log1p(-(rho**2)) - np.log(d).sum(axis=1)
    log_evidence = 0.5 * (np.log(p0).sum() - log_det[:, None] - np.log(det) - dof * np.log(left))
    scale = left / max(dof - 2, 1.0)
    cov = np.empty((*det.shape, 2, 2))
    cov[..., 0, 0], cov[..., 1, 1] = A_part / det * scale, R0_part / det * scale
    cov[..., 0, 1] = cov[..., 1, 0] = -both / det * scale
    mean = np.stack([R0, A], axis=-1)

    r = drift_ratio[:, None]
    return Conditional(
        log_evidence + _log_plausible(mean, cov),
        mean,
        cov,
        np.sqrt(scale),
        np.stack([r * ((d * s) @ u), r * ((d * s) @ v)], axis=-1),
        np.broadcast_to(r * ((d * s) @ y)[:, None], det.shape),
        np.maximum(r * since_start[-1] - r**2 * (d @ s**2)[:, None], 0.0) * scale,
    )


def _whiten(
    score: FloatArray, share: FloatArray, since_start: FloatArray, noise: FloatArray, rho: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Score, ones, s and shares in coordinates where noise is white and the drift diagonal, and its spectrum."""
    root = np.sqrt(noise)

    def difference(columns: FloatArray) -> FloatArray:
        scaled = columns / root[:, None]
        white = scaled.copy()
        white[1:] = (scaled[1:] - rho * scaled[:-1]) / np.sqrt(1 - rho**2)
        return white

    drift = difference(difference(np.minimum.outer(since_start, since_start)).T)
    spectrum, basis = eigh(0.5 * (drift + drift.T), check_finite=False, driver="evd")
    columns = np.concatenate([score[:, None], np.ones((score.size, 1)), since_start[:, None], share], axis=1)
    turned = basis.T @ difference(columns)
    return turned[:, 0], turned[:, 1], turned[:, 2], turned[:, 3:], np.maximum(spectrum, 0.0)


def _log_plausible(mean: FloatArray, cov: FloatArray) -> FloatArray:
    """log probability that A <= 1 and A >= R0: the normal prior knows neither."""
    gain = mean[..., 1] - mean[..., 0]
    gain_sd = np.sqrt(np.maximum(cov[..., 0, 0] + cov[..., 1, 1] - 2 * cov[..., 0, 1], 1e-12))
    chance = ndtr((1.0 - mean[..., 1]) / np.sqrt(cov[..., 1, 1])) * ndtr(gain / gain_sd)
    log_chance: FloatArray = np.log(np.maximum(chance, 1e-12))
    return log_chance
