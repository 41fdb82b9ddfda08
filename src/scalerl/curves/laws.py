"""The laws a score may follow in log compute, behind one small interface: value, gradient, inverse.

Every law here is R(C) = R0 + (A - R0) * rise(z) with z = B * log(C / C_mid), so a law is only its `rise`, the
derivative and the inverse of it. The sigmoid is eq. 1 of the paper; the others are the alternatives that the
forecast averages over, because an early piece of a curve cannot tell them apart while their ends differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

FloatArray = NDArray[np.float64]
_LN2 = float(np.log(2.0))
# exp(±700) is the edge of float64; the rise has saturated long before.
_Z_MAX = 700.0


@dataclass(frozen=True)
class Law:
    """A rise from R0 to A in log compute.

    Attributes:
        name: as printed.
        rise: z -> share of the gain reached, in [0, 1], increasing.
        slope: z -> d rise / d z.
        inverse_rise: share in (0, 1) -> z.
    """

    name: str
    rise: Callable[[FloatArray], FloatArray]
    slope: Callable[[FloatArray], FloatArray]
    inverse_rise: Callable[[FloatArray], FloatArray]

    def share(self, compute: ArrayLike, B: ArrayLike, C_mid: ArrayLike) -> FloatArray:
        """Share of the gain A - R0 reached at `compute`; broadcasts. Compute 0 gives the limit, R0."""
        return self.rise(_z(compute, B, C_mid))

    def value(self, compute: ArrayLike, R0: float, A: float, B: float, C_mid: float) -> FloatArray:
        """Score at `compute`, shape of `compute`."""
        score: FloatArray = R0 + (A - R0) * self.share(compute, B, C_mid)
        return score

    def gradient(self, compute: ArrayLike, R0: float, A: float, B: float, C_mid: float) -> FloatArray:
        """(n, 4): derivatives of `value` by R0, A, log B and log C_mid.

        By the logarithms because both are positive and act multiplicatively; divide by B and C_mid for the
        plain derivatives.
        """
        z = _z(np.atleast_1d(np.asarray(compute, dtype=np.float64)), B, C_mid)
        share, slope = self.rise(z), self.slope(z)
        # z * slope has the limit 0 at z = -inf (compute 0), where the product itself would be NaN.
        z_slope = np.where(slope > 0, z * slope, 0.0)
        return np.stack([1 - share, share, (A - R0) * z_slope, -(A - R0) * B * slope], axis=1)

    def inverse(self, score: ArrayLike, R0: float, A: float, B: float, C_mid: float) -> FloatArray:
        """Compute at which the law reaches `score`; 0 at or below R0, inf at or above A."""
        share = (np.asarray(score, dtype=np.float64) - R0) / (A - R0)
        inside = (share > 0) & (share < 1)
        z = self.inverse_rise(np.where(inside, share, 0.5))
        return np.where(inside, C_mid * np.exp(z / B), np.where(share >= 1, np.inf, 0.0))


def _z(compute: ArrayLike, B: ArrayLike, C_mid: ArrayLike) -> FloatArray:
    with np.errstate(divide="ignore"):
        log_ratio = np.log(np.asarray(compute, dtype=np.float64)) - np.log(C_mid)
    z: FloatArray = np.clip(np.asarray(B) * log_ratio, -_Z_MAX, _Z_MAX)
    return z


def _sigmoid_slope(z: FloatArray) -> FloatArray:
    return expit(z) * expit(-z)


def _weibull_rise(z: FloatArray) -> FloatArray:
    return -np.expm1(-_LN2 * np.exp(z))


def _weibull_slope(z: FloatArray) -> FloatArray:
    return _LN2 * np.exp(np.minimum(z, 50.0) - _LN2 * np.exp(np.minimum(z, 50.0)))


def _gompertz_rise(z: FloatArray) -> FloatArray:
    return np.exp(-_LN2 * np.exp(-z))


def _gompertz_slope(z: FloatArray) -> FloatArray:
    return _LN2 * np.exp(-np.maximum(z, -50.0) - _LN2 * np.exp(-np.maximum(z, -50.0)))


def _power_rise(z: FloatArray) -> FloatArray:
    return -np.expm1(-np.maximum(z, 0.0))


def _power_slope(z: FloatArray) -> FloatArray:
    return np.where(z >= 0, np.exp(-np.maximum(z, 0.0)), 0.0)


def _weibull_inverse(share: FloatArray) -> FloatArray:
    return np.log(-np.log1p(-share) / _LN2)


def _gompertz_inverse(share: FloatArray) -> FloatArray:
    return -np.log(-np.log(share) / _LN2)


def _power_inverse(share: FloatArray) -> FloatArray:
    return -np.log1p(-share)


SIGMOID = Law("sigmoid", expit, _sigmoid_slope, logit)
"""Eq. 1: rise = 1 / (1 + (C_mid / C)^B); half the gain at C_mid."""

WEIBULL = Law("weibull", _weibull_rise, _weibull_slope, _weibull_inverse)
"""rise = 1 - 2^-(C / C_mid)^B: saturates faster than the sigmoid; half the gain at C_mid."""

GOMPERTZ = Law("gompertz", _gompertz_rise, _gompertz_slope, _gompertz_inverse)
"""rise = 2^-(C_mid / C)^B, a Gompertz curve in log C: starts sharper, ends slower; half the gain at C_mid."""

POWER_LAW = Law("power law", _power_rise, _power_slope, _power_inverse)
"""rise = 1 - (C_mid / C)^B from C_mid on (section 2.1): here C_mid is where the score is R0, not half the gain."""

LAWS = {law.name: law for law in (SIGMOID, WEIBULL, GOMPERTZ, POWER_LAW)}
