"""The paper's own fit, to the letter (2.1, A.5, A.7): the reference that everything else is compared with.

R0 is given, not fitted. A runs over {0.450, 0.455, ..., 0.800}, C_mid over 100 linearly spaced values of
[100, 40000]; for each pair B is fitted by least squares from SciPy's default start B = 1; the pair with the least
sum of squared residuals wins. The 7,100 one-parameter fits are independent, so they are done here side by side by
the same damped Gauss-Newton iteration instead of 7,100 calls of `curve_fit` (a test holds the two together).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from scalerl.errors import ForecastRefused
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]

A_GRID = np.linspace(0.450, 0.800, 71)
C_MID_GRID = np.linspace(100.0, 40_000.0, 100)
_MAX_ITERATIONS = 60
A_MARGIN = 0.02
"""The paper's margin on A: three seeds of one recipe differed by at most 0.015."""


@dataclass(frozen=True)
class PaperFit:
    """Winner of the grid: the parameters of eq. 1 and the sum of squared residuals."""

    R0: float
    A: float
    B: float
    C_mid: float
    squared_residuals: float


def paper_fit(
    curve: Curve, R0: float | None = None, A_grid: FloatArray = A_GRID, C_mid_grid: FloatArray = C_MID_GRID
) -> PaperFit:
    """Fit by the paper's protocol.

    Args:
        curve: the points to fit, warm-up already left out; compute in GPU-hours for the published C_mid grid.
        R0: score before RL; default the score of the first point.
        A_grid, C_mid_grid: replace the published grids for other units or scores.

    Raises:
        ForecastRefused: fewer than 3 points of positive compute.
    """
    positive = curve.compute > 0
    x, y = curve.compute[positive], curve.score[positive]
    if x.size < 3:
        raise ForecastRefused(f"{curve.name}: the paper's fit needs 3 points of positive compute, found {x.size}")
    start = float(curve.score[0]) if R0 is None else R0
    A, C_mid = (g.ravel() for g in np.meshgrid(A_grid, C_mid_grid, indexing="ij"))
    B, squared = _fit_B(np.log(x), y, start, A, np.log(C_mid))
    best = int(np.argmin(squared))
    return PaperFit(start, float(A[best]), float(B[best]), float(C_mid[best]), float(squared[best]))


def grids_for(curve: Curve) -> tuple[FloatArray, FloatArray]:
    """The published grids where they apply; else grids of the same size around this curve.

    They apply to GPU-hours whose last point lies within 1 to 5 times the published C_mid range, and to scores that
    end inside the published range of A. Elsewhere C_mid runs linearly from 1/400 of the last compute to all of it,
    and A from just below the best score up to 1.
    """
    top, last = float(curve.score.max()), float(curve.compute[-1])
    A_grid = A_GRID if A_GRID[0] + 0.02 < top < A_GRID[-1] - 0.02 else np.linspace(top - 0.02, 1.0, A_GRID.size)
    in_hours = curve.unit in ("gpu-hour", "device-hour") and 2_000 <= last <= 200_000
    return A_grid, C_MID_GRID if in_hours else np.linspace(last / 400, last, C_MID_GRID.size)


def _fit_B(
    log_x: FloatArray, y: FloatArray, R0: float, A: FloatArray, log_C_mid: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Levenberg-Marquardt in B for k pairs (A, C_mid) at once -> B (k,), squared residuals (k,).

    Pairs leave the iteration as they converge.
    """
    B_found, squared_found = np.ones_like(A), np.empty_like(A)
    rows, B, damping = np.arange(A.size), np.ones_like(A), np.full_like(A, 1e-3)
    log_ratio, gain = log_x[None, :] - log_C_mid[:, None], (A - R0)[:, None]
    share = expit(B[:, None] * log_ratio)
    residual = R0 + gain * share - y
    squared = np.einsum("kn,kn->k", residual, residual)
    for _ in range(_MAX_ITERATIONS):
        slope = gain * share * (1 - share) * log_ratio
        curvature = np.einsum("kn,kn->k", slope, slope) * (1 + damping)
        step = -np.einsum("kn,kn->k", slope, residual) / np.maximum(curvature, 1e-300)
        trial = B + np.clip(step, -2.0, 2.0)
        trial_share = expit(trial[:, None] * log_ratio)
        trial_residual = R0 + gain * trial_share - y
        trial_squared = np.einsum("kn,kn->k", trial_residual, trial_residual)
        better = trial_squared < squared
        # SciPy stops at a relative change of 1.5e-8 in the parameter or in the sum of squares; a hundredth of it here.
        done = np.abs(trial - B) < 1e-10 * (1 + np.abs(B))
        done |= better & (squared - trial_squared < 1e-10 * squared)
        damping = np.where(better, damping * 0.3, damping * 8.0)
        B, squared = np.where(better, trial, B), np.where(better, trial_squared, squared)
        share = np.where(better[:, None], trial_share, share)
        residual = np.where(better[:, None], trial_residual, residual)
        B_found[rows], squared_found[rows] = B, squared
        keep = ~done & (damping < 1e8)
        if not keep.any():
            break
        if keep.sum() < 0.7 * keep.size:
            rows, B, damping, squared = rows[keep], B[keep], damping[keep], squared[keep]
            log_ratio, gain, share, residual = log_ratio[keep], gain[keep], share[keep], residual[keep]
    return B_found, squared_found
