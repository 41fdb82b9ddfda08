"""One recipe from several seeds: posteriors of single runs, pooled with the spread that seeds have among themselves.

Model: a seed's parameters are the recipe's plus a normal deviation, theta_s ~ N(theta, sd^2), each parameter with its
own sd, and sd^2 ~ scaled inverse chi-square with `SEED_DOF` degrees of freedom. So a single seed already carries the
spread that seeds are known to have, and several seeds teach their own. A run's posterior is a mixture of normals
(see posterior.py), so its convolution with the deviation is exact; the recipe is drawn by importance sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from scalerl.curves.fit import Fit

FloatArray = NDArray[np.float64]
A_SPREAD = 0.0075
"""Standard deviation of A among seeds: the paper's three seeds differ by at most .015 (2.1), which is a standard
deviation of about half of that; it makes the 90 % interval of two single seeds +-.022, near the paper's +-.02."""
SHAPE_SPREAD = 0.1
"""Standard deviation of log B and of log C_mid among seeds, about 10 %. The paper gives no number; this is ours."""
SEED_DOF = 4.0
DRAWS = 4000


@dataclass(frozen=True)
class Mixture:
    """m normal components in d parameters with diagonal covariance: weight (m,), mean and var (m, d)."""

    weight: FloatArray
    mean: FloatArray
    var: FloatArray


@dataclass(frozen=True)
class Pooled:
    """Draws of a recipe's parameters, (n, d), and of the seeds' standard deviations around them, (n, d)."""

    values: FloatArray
    seed_sd: FloatArray


def law_mixture(fit: Fit) -> Mixture:
    """Posterior of (A, log B, log C_mid) of one run; a grid cell's own width counts as variance."""
    found = fit.posterior
    log_B, log_C_mid = np.log(found.B), np.log(found.C_mid)
    var = np.column_stack([found.cov[:, 1, 1], *(np.full(log_B.size, _cell(v) ** 2 / 12) for v in (log_B, log_C_mid))])
    return Mixture(found.weight, np.column_stack([found.mean[:, 1], log_B, log_C_mid]), var)


def _cell(value: FloatArray) -> float:
    """Spacing of the grid that the values lie on, 0 for a single one."""
    return float(np.diff(np.unique(value.round(9))).min(initial=np.inf)) if np.ptp(value) > 0 else 0.0


def pool(seeds: Sequence[Mixture], spread: FloatArray, rng: np.random.Generator, draws: int = DRAWS) -> Pooled:
    """Draw the recipe's parameters given the posterior of each seed.

    Args:
        seeds: one mixture a seed, over the same d parameters.
        spread: (d,) prior scale of the seeds' standard deviation.
        rng: the only source of randomness.
        draws: number of draws returned.

    The prior of a run enters once a seed; it is broad beside what a run past 1.5 C_mid says.
    """
    if len(seeds) == 1:
        sd = spread * np.sqrt(SEED_DOF / rng.chisquare(SEED_DOF, (draws, spread.size)))
        return Pooled(_sample(seeds[0], draws, rng) + sd * rng.standard_normal(sd.shape), sd)
    within, between = _moments(seeds)
    # Half of the proposals for the seeds' variance come from its prior, half from what the seeds show.
    dof, learnt = SEED_DOF + len(seeds) - 1, spread**2 * SEED_DOF
    learnt = (learnt + (len(seeds) - 1) * between) / dof
    variance = np.where(
        rng.random((draws, spread.size)) < 0.5,
        spread**2 * SEED_DOF / rng.chisquare(SEED_DOF, (draws, spread.size)),
        learnt * dof / rng.chisquare(dof, (draws, spread.size)),
    )
    log_prior = _log_inverse_chi2(variance, spread**2, SEED_DOF)
    log_proposed = np.logaddexp(log_prior, _log_inverse_chi2(variance, learnt, dof)) - np.log(2)

    centre = np.mean([s.weight @ s.mean for s in seeds], axis=0)
    scale = np.sqrt(within / len(seeds) + (between + spread**2) / len(seeds))
    broad = rng.random(draws) < 0.5
    which = rng.integers(len(seeds), size=draws)
    value = centre + scale * rng.standard_normal((draws, spread.size)) * 1.3
    for index, seed in enumerate(seeds):
        rows = ~broad & (which == index)
        own = _sample(seed, int(rows.sum()), rng)
        value[rows] = own + np.sqrt(variance[rows]) * rng.standard_normal(own.shape)
    each = np.stack([_log_density(seed, value, variance) for seed in seeds])
    normal = -0.5 * (((value - centre) / (1.3 * scale)) ** 2 + np.log(2 * np.pi * (1.3 * scale) ** 2)).sum(axis=1)
    log_value = np.logaddexp(normal, np.logaddexp.reduce(each, axis=0) - np.log(len(seeds))) - np.log(2)
    log_weight = each.sum(axis=0) + (log_prior - log_proposed).sum(axis=1) - log_value
    kept = _resample(np.exp(log_weight - log_weight.max()), draws, rng)
    return Pooled(value[kept], np.sqrt(variance[kept]))


def _sample(seed: Mixture, n: int, rng: np.random.Generator) -> FloatArray:
    component = rng.choice(seed.weight.size, n, p=seed.weight)
    drawn: FloatArray = seed.mean[component] + np.sqrt(seed.var[component]) * rng.standard_normal(
        (n, seed.mean.shape[1])
    )
    return drawn


def _moments(seeds: Sequence[Mixture]) -> tuple[FloatArray, FloatArray]:
    """(d,) mean variance within a seed's posterior, and variance of the seeds' means."""
    means = np.array([s.weight @ s.mean for s in seeds])
    within = np.mean([s.weight @ (s.var + (s.mean - m) ** 2) for s, m in zip(seeds, means, strict=True)], axis=0)
    return within, means.var(axis=0, ddof=1)


def _log_inverse_chi2(variance: FloatArray, scale: FloatArray, dof: float) -> FloatArray:
    """Log density of the scaled inverse chi-square."""
    half = 0.5 * dof
    log_density: FloatArray = (
        half * np.log(half * scale) - gammaln(half) - (half + 1) * np.log(variance) - half * scale / variance
    )
    return log_density


def _log_density(seed: Mixture, value: FloatArray, variance: FloatArray) -> FloatArray:
    """(n,) log density at each value of the mixture convolved with a seed's deviation of this variance, (n, d)."""
    log_term = np.broadcast_to(np.log(seed.weight), (value.shape[0], seed.weight.size)).copy()
    for j in range(value.shape[1]):
        var = variance[:, j, None] + seed.var[None, :, j]
        log_term -= 0.5 * ((value[:, j, None] - seed.mean[None, :, j]) ** 2 / var + np.log(2 * np.pi * var))
    top = log_term.max(axis=1, keepdims=True)
    found: FloatArray = np.log(np.exp(log_term - top).sum(axis=1)) + top[:, 0]
    return found


def _resample(weight: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Systematic resampling, shuffled so that draws of two recipes pair up at random."""
    edges = np.cumsum(weight) / weight.sum()
    kept = np.minimum(np.searchsorted(edges, (np.arange(n) + rng.random()) / n), weight.size - 1)
    return rng.permutation(kept)
