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
    log_ratio = np.log(x)[None, :] - np.log(C_mid_grid)[:, None]
    best: PaperFit | None = None
    # One A at a time keeps the arrays in cache; neighbouring A have nearly the same B, but the paper's start is 1.
    for A in A_grid:
        B, squared = _fit_B(log_ratio, y, start, float(A))
        i = int(np.argmin(squared))
        if best is None or squared[i] < best.squared_residuals:
            best = PaperFit(start, float(A), float(B[i]), float(C_mid_grid[i]), float(squared[i]))
    assert best is not None
    return best


def _fit_B(log_ratio: FloatArray, y: FloatArray, R0: float, A: float) -> tuple[FloatArray, FloatArray]:
    """Levenberg-Marquardt in B for every row of `log_ratio` (k, n) at once -> B (k,), squared residuals (k,)."""
    B = np.ones(log_ratio.shape[0])
    damping = np.full_like(B, 1e-3)
    share = expit(B[:, None] * log_ratio)
    residual = R0 + (A - R0) * share - y
    squared = np.einsum("kn,kn->k", residual, residual)
    for _ in range(60):
        slope = (A - R0) * share * (1 - share) * log_ratio
        curvature = np.einsum("kn,kn->k", slope, slope)
        gradient = np.einsum("kn,kn->k", slope, residual)
        step = -gradient / np.maximum(curvature * (1 + damping), 1e-300)
        trial = B + np.clip(step, -2.0, 2.0)
        trial_share = expit(trial[:, None] * log_ratio)
        trial_residual = R0 + (A - R0) * trial_share - y
        trial_squared = np.einsum("kn,kn->k", trial_residual, trial_residual)
        better = trial_squared < squared
        damping = np.where(better, damping * 0.3, damping * 8.0)
        moved = np.abs(trial - B) > 1e-7 * (1 + np.abs(B))
        B = np.where(better, trial, B)
        share[better], residual[better] = trial_share[better], trial_residual[better]
        squared = np.where(better, trial_squared, squared)
        if not (moved & (better | (damping < 1e6))).any():
            break
    return B, squared
