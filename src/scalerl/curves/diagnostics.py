"""What speaks against a forecast: vetoes (no verdict is given) and warnings (it is, with the reservation)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from scalerl.curves.fit import MIN_POINTS_FOR_VERDICT, Fit, lag_one
from scalerl.curves.observations import bin_curve, difference_sd
from scalerl.runs import Curve
from scalerl.words import in_words

FloatArray = NDArray[np.float64]
COLLAPSE_SIGMAS = 4.0
COLLAPSE_MIN = 0.02
TRUNCATION_LIMIT = 0.10
"""Truncated generations above 10-15 % announced collapse (A.15)."""


@dataclass(frozen=True)
class Collapse:
    """The score fell from a smoothed peak and has not come back.

    Attributes:
        peak, last: smoothed scores; peak_compute: where the peak was; sigmas: size of the fall in its own noise.
    """

    peak: float
    last: float
    peak_compute: float
    sigmas: float

    @property
    def found(self) -> bool:
        return self.sigmas > COLLAPSE_SIGMAS and self.peak - self.last > COLLAPSE_MIN


def find_collapse(curve: Curve) -> Collapse | None:
    """Largest fall from a smoothed peak to the smoothed end, in units of its standard error; None below 6 points.

    The window of smoothing is a twelfth of the run (3 points at least); several windows are tried so that both a
    long decline and a sudden drop at the end are seen. Noise and its correlation are taken from the rise before the
    peak (around a monotone fit), so that the fall does not hide itself by inflating them.
    """
    x, y, _, _ = bin_curve(curve)
    n = y.size
    if n < 6:
        return None
    best: Collapse | None = None
    for window in sorted({1, 2, 3, max(3, n // 12), max(3, n // 6)}):
        if n < 2 * window:
            continue
        smooth = np.convolve(y, np.ones(window) / window, "valid")
        last = float(smooth[-1])
        if window == 1:  # one high evaluation is no peak to have fallen from: a neighbour must be as high
            smooth = np.minimum(y, np.maximum(np.append(y[1:], y[-2]), np.append(y[1], y[:-1])))
        i = int(np.argmax(smooth[:-window] if n > 2 * window else smooth[:1]))
        sd = _rise_noise(x[: i + window], y[: i + window], x, y, window)
        # The peak is the largest of many windows: expected to stand out by about this much from noise alone.
        selection = np.sqrt(2 * np.log(max(n / window, 2.0)))
        sigmas = (smooth[i] - last) / sd - 0.5 * selection
        if best is None or sigmas > best.sigmas:
            best = Collapse(float(smooth[i]), last, float(x[i : i + window].mean()), float(sigmas))
    return best


def _rise_noise(x: FloatArray, y: FloatArray, all_x: FloatArray, all_y: FloatArray, window: int) -> float:
    """Standard error of the difference of two window means."""
    sd = difference_sd(all_x, all_y)
    if (
        y.size >= 5
    ):  # the fall itself may be what is rough: then the rise, with its own uncertainty, speaks for the noise
        sd = min(sd, max(difference_sd(x, y) * (1 + 3 / y.size), difference_sd(all_x, all_y, robust=True)))
    rho = 0.0
    if y.size >= 8:
        monotone = isotonic_regression(y).x
        residual, levels = y - monotone, np.unique(monotone).size
        power = float(residual @ residual)
        if power > 0:
            # The monotone fit follows slow noise, so both the spread and the correlation come out too small.
            sd = max(sd, float(np.sqrt(power / max(y.size - levels, y.size / 3))))
            seen = max(lag_one(residual), 0.0)
            rho = min(seen + (1 + 4 * seen) / y.size, 0.85)
    mean_factor = (1 + rho) / (1 - rho) / window
    return max(sd * float(np.sqrt(2 * min(mean_factor, 1.0))), 1e-4)


def vetoes(curve: Curve, fitted: Fit) -> list[str]:
    """Reasons for which no verdict may be given, one sentence each."""
    found = []
    fall = find_collapse(fitted.curve)
    if fall is not None and fall.found:
        found.append(
            f"collapse: the score fell from {fall.peak:.3f} (around {in_words(fall.peak_compute, curve.unit)}) to "
            f"{fall.last:.3f}, {fall.sigmas:.1f} sigma; the law does not describe a falling run"
        )
    if curve.missing_tail:
        found.append(
            f"the run ends in {curve.missing_tail} evaluations without a score (NaN): it may have diverged; "
            "find out why before spending more"
        )
    if len(fitted.curve) < MIN_POINTS_FOR_VERDICT:
        found.append(
            f"too few points: {len(fitted.curve)} after warm-up, at least {MIN_POINTS_FOR_VERDICT} are needed; "
            "evaluate more often"
        )
    low, high = float(curve.score.min()), float(curve.score.max())
    if low < -0.02 or high > 1.02:
        found.append(
            f"mixed scales: scores run from {low:.3g} to {high:.3g}, but a pass rate lies in [0, 1]; "
            "choose another column or rescale this one"
        )
    tail = fitted.curve.score[-max(4, len(fitted.curve) // 2) :]
    if np.ptp(tail) == 0 and 0 < tail[0] < 1:
        found.append(f"the last {tail.size} scores are all {tail[0]:g}: the metric looks stuck")
    return found


def warnings(curve: Curve, fitted: Fit, truncation: FloatArray | None) -> list[str]:
    """Reservations that do not stop a verdict, one sentence each."""
    found = []
    if fitted.ceiling != "identified":
        found.append(f"the ceiling A is {fitted.ceiling}: {fitted.ceiling_reason}")
    if fitted.A > 0.995 and curve.score.max() < 0.95:
        found.append("A lies at its bound of 1: the curve has not bent yet")
    slope, error = _recent_slope(fitted.curve)
    if slope < -4 * error and slope < -0.005:
        found.append(
            f"the score has been falling over the last half of the points, by {-slope:.3f} a doubling of compute: "
            "no law here falls, so the forecast holds it where it is"
        )
    if fitted.autocorrelation > 0.4:
        found.append(
            f"residuals are strongly autocorrelated ({fitted.autocorrelation:+.2f}): "
            "the curve strays from the law or evaluations repeat each other"
        )
    found.extend(note for note in curve.notes if "did not increase" in note)
    return found + _truncation_warning(truncation)


def _recent_slope(curve: Curve) -> tuple[float, float]:
    """Change of the score a doubling of compute over the last half of the points, and its standard error."""
    half = len(curve) // 2
    x, y = np.log2(np.maximum(curve.compute[half:], 1e-300)), curve.score[half:]
    x = x - x.mean()
    power = float(x @ x)
    if y.size < 5 or power == 0:
        return 0.0, 1.0
    slope = float(x @ y) / power
    residual = y - y.mean() - slope * x
    rho = float(np.clip(lag_one(residual), 0.0, 0.8))
    error = np.sqrt(residual @ residual / (y.size - 2) / power * (1 + rho) / (1 - rho))
    return slope, float(max(error, 1e-9))


def _truncation_warning(truncation: FloatArray | None) -> list[str]:
    if truncation is None or not np.isfinite(truncation).any():
        return ["truncation rate unknown (not zero): above 10 % it has announced collapse; log it"]
    rate = truncation[np.isfinite(truncation)]
    recent = float(rate[-max(1, rate.size // 5) :].mean())
    early = float(rate[: max(1, rate.size // 2)].mean())
    if recent > TRUNCATION_LIMIT:
        return [f"{100 * recent:.0f} % of generations are truncated: above 10 % this has announced collapse"]
    if recent > early + 0.02:
        return [f"the truncation rate is rising ({100 * early:.1f} % to {100 * recent:.1f} %)"]
    return []
