"""From a posterior to intervals of the future mean score and of the gain, raw or calibrated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from scalerl.curves.posterior import Posterior, mixture_quantiles

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Median and interval of the mean score, and of the gain over `now`, at k computes; all others (k,) arrays."""

    compute: FloatArray
    score: FloatArray
    low: FloatArray
    high: FloatArray
    gain: FloatArray
    gain_low: FloatArray
    gain_high: FloatArray
    now: float

    def widened(self, down: FloatArray, up: FloatArray) -> Prediction:
        """Both sides' half-widths multiplied by `down` and `up`, (k,); scores stay within [0, 1]."""
        return replace(
            self,
            low=np.clip(self.score - down * (self.score - self.low), 0.0, 1.0),
            high=np.clip(self.score + up * (self.high - self.score), 0.0, 1.0),
            gain_low=np.maximum(self.gain - down * (self.gain - self.gain_low), -self.now),
            gain_high=np.minimum(self.gain + up * (self.gain_high - self.gain), 1.0 - self.now),
        )


def predict(post: Posterior, compute: FloatArray, level: float) -> Prediction:
    """Equal-tailed interval at `level` of the mean score at each compute, which is at or after the last point."""
    tails = ((1 - level) / 2, 0.5, (1 + level) / 2)
    low, score, high = np.clip(mixture_quantiles(post.weight, *post.score(compute), tails), 0.0, 1.0)
    now = np.clip(mixture_quantiles(post.weight, *post.score(np.array([post.compute_last])), (0.5,))[0, 0], 0.0, 1.0)
    # What is left above and below: a score cannot leave [0, 1].
    gain_low, gain, gain_high = np.clip(mixture_quantiles(post.weight, *post.gain(compute), tails), -now, 1.0 - now)
    return Prediction(compute, score, low, high, gain, gain_low, gain_high, float(now))


def chance_above(post: Posterior, compute: float, threshold: float, widening: float) -> float:
    """Probability that the gain at `compute` exceeds `threshold`, its spread widened as that of intervals is."""
    now = float(mixture_quantiles(post.weight, *post.score(np.array([post.compute_last])), (0.5,))[0, 0])
    if threshold >= 1.0 - now:
        return 0.0  # a score cannot rise above 1
    mean, sd = post.gain(np.array([compute]))
    median = float(mixture_quantiles(post.weight, mean, sd, (0.5,))[0, 0])
    moved = median + (threshold - median) / widening
    return float(post.weight @ ndtr((mean[:, 0] - moved) / sd[:, 0]))


def marginal_gain(post: Posterior, compute: FloatArray) -> FloatArray:
    """Expected gain per further unit of compute at each compute, (k,)."""
    step = 1e-3
    ahead, _ = post.gain(compute * (1 + step))
    here, _ = post.gain(compute)
    return post.weight @ (ahead - here) / (step * compute)


def crossing(edge: Callable[[FloatArray], FloatArray], target: float, start: float, reach: float) -> float:
    """First compute from `start` on at which `edge` is at or above `target`; inf if not before `reach`."""
    grid = np.geomspace(start, reach, 80)
    above = edge(grid) >= target
    if not above.any():
        return float("inf")
    i = int(np.argmax(above))
    if i == 0:
        return float(grid[0])
    fine = np.geomspace(grid[i - 1], grid[i], 20)
    return float(fine[int(np.argmax(edge(fine) >= target))])
