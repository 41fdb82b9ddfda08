"""The verdict: is more compute worth it? And if that cannot be said, what would decide it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from scalerl.curves.posterior import Posterior

FloatArray = NDArray[np.float64]
CONTINUE, STOP, UNSURE, NO_FORECAST = "CONTINUE", "STOP-THIS-RECIPE", "UNSURE", "NO-FORECAST"
VERDICTS = (CONTINUE, STOP, UNSURE, NO_FORECAST)
_PARTICLES = 128


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reasons, one sentence each."""

    verdict: str
    reasons: list[str]


def judge(
    gain: float,
    gain_low: float,
    gain_high: float,
    threshold: float,
    vetoes: list[str],
    level: float,
    spend: str,
    chance: float,
) -> Judgement:
    """Decide by the chance that the gain exceeds the threshold: CONTINUE from `level` on, STOP from 1 - `level` down.

    That is the one-sided bound of the gain at `level`. The two-sided interval would ask for half of the risk, and
    leave a sixth more of the runs undecided without fewer wrong verdicts worth the name (docs/decisions).

    Args:
        gain, gain_low, gain_high: median and interval of the gain if the budget is spent.
        threshold: the gain that is worth the budget.
        vetoes: reasons against any verdict.
        level: the certainty that a verdict needs; also of the interval, for the sentence.
        spend: the budget in words, e.g. "going on to 50,000 gpu-hours".
        chance: probability that the gain exceeds the threshold.
    """
    found = (
        f"{spend} should gain {gain:+.3f} ({gain_low:+.3f} to {gain_high:+.3f}, {100 * level:g} %); the chance that it "
        f"gains more than {threshold:g} is {100 * chance:.0f} %"
    )
    if vetoes:
        return Judgement(NO_FORECAST, [f"no verdict: {vetoes[0]}"])
    if chance >= level:
        return Judgement(CONTINUE, [found])
    if 1 - chance >= level:
        return Judgement(STOP, [found, "another recipe may still gain"])
    return Judgement(UNSURE, [found])


def compute_to_decide(
    post: Posterior, budget: float, spacing: float, threshold: float, widening: float, level: float
) -> float | None:
    """Compute at which a forecast is expected to leave UNSURE for good odds; None if not before the budget.

    Curves are drawn from the posterior; each in turn plays the truth, is evaluated on at every `spacing` with its
    own noise, and the others are weighted by how well they explain those evaluations (a preposterior analysis).
    The first look-ahead at which half of the truths yield a decision is returned.
    """
    rng = np.random.default_rng(0)
    draw = rng.choice(post.weight.size, _PARTICLES, p=post.weight)
    looks = post.compute_last * np.array([1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0])
    looks = looks[looks < 0.9 * budget]
    if looks.size == 0:
        return None
    computes = np.append(looks, budget)
    gain = _draw_gains(post, draw, computes, rng)
    now_mean, now_sd = post.score(np.array([post.compute_last]))
    now = now_mean[draw, 0] + now_sd[draw, 0] * rng.standard_normal(_PARTICLES)
    for i, look in enumerate(looks):
        evaluations = max((look - post.compute_last) / spacing, 1.0)
        seen = now[:, None] + gain[:, : i + 1]
        # Evaluations between two looks act like one with their averaged noise.
        sd = post.sigma[draw].mean() * np.sqrt((i + 1) / evaluations) + 1e-4
        data = seen + sd * rng.standard_normal(seen.shape)
        # |data - seen|^2 without its data^2 term, which no weight depends on
        distance = ((seen**2).sum(axis=1)[None, :] - 2 * data @ seen.T) / (2 * sd**2)
        weight = np.exp(-(distance - distance.min(axis=1, keepdims=True)))
        weight /= weight.sum(axis=1, keepdims=True)
        rest = gain[:, -1] - gain[:, i]
        middle = weight @ rest
        half = widening * float(ndtri(level)) * np.sqrt(np.maximum(weight @ rest**2 - middle**2, 0.0))
        decided = (middle - half > threshold) | (middle + half < threshold)
        if decided.mean() >= 0.5:
            return float(look)
    return None


def _draw_gains(post: Posterior, draw: NDArray[np.intp], compute: FloatArray, rng: np.random.Generator) -> FloatArray:
    """(particles, k) gains along one coherent curve a particle: its own (R0, A) and a drift that accumulates."""
    rise = post.shares(compute)[draw] - post.shares(np.array([post.compute_last]))[draw]
    normal = rng.standard_normal((draw.size, 2))
    root = np.linalg.cholesky(post.cov[draw] + 1e-12 * np.eye(2))
    R0, A = (post.mean[draw] + np.einsum("mij,mj->mi", root, normal)).T
    edges = np.log(np.append(post.compute_last, compute))
    drift = np.cumsum(np.sqrt(np.diff(edges)) * rng.standard_normal((draw.size, compute.size)), axis=1)
    gains: FloatArray = (A - R0)[:, None] * rise + post.tau[draw][:, None] * drift
    return gains
