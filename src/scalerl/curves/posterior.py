"""Bayesian average over laws, shapes and kinds of noise: the engine under `fit` and `forecast`.

For a fixed law, (B, C_mid) and noise structure the model is linear in (R0, A):

    y_i = R0 (1 - g_i) + A g_i + drift_i + noise_i,     g_i = rise(B log(C_i / C_mid))

- noise: AR(1) over evaluations (rho), its variance following the binomial p (1 - p) and the trials;
- drift: Brownian motion in log C (tau). Runs do leave their law slowly and for good (a second rise, a data
  switch); a drift lets the forecast start from where the run is and widens it with every doubling.

So (R0, A, sigma^2) are integrated in closed form (normal - inverse gamma), and the rest is a sum over a grid of
laws x C_mid x B x rho x tau. The result is a mixture of Student distributions, kept as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import logsumexp, ndtr

from scalerl.curves.laws import GOMPERTZ, SIGMOID, WEIBULL, Law

FloatArray = NDArray[np.float64]
_COMPONENTS = 400


@dataclass(frozen=True)
class Prior:
    """What is believed before a run is seen. Scales are in score units and natural log units."""

    laws: tuple[Law, ...] = (SIGMOID, WEIBULL, GOMPERTZ)
    law_weights: tuple[float, ...] = (0.5, 0.25, 0.25)
    A_mean: float = 0.65
    A_sd: float = 0.35
    R0_sd: float = 0.15
    log_B_mean: float = 0.35
    log_B_sd: float = 0.7
    n_B: int = 14
    n_C_mid: int = 26
    C_mid_below: float = 1.5
    C_mid_beyond: float = 3.0
    C_mid_decay: float = 1.0
    rho: tuple[float, ...] = (0.0, 0.4, 0.75)
    rho_weights: tuple[float, ...] = (0.5, 0.3, 0.2)
    tau: tuple[float, ...] = (0.0, 0.008, 0.025, 0.07)
    tau_weights: tuple[float, ...] = (0.3, 0.3, 0.25, 0.15)


@dataclass(frozen=True)
class Observations:
    """Points as the posterior takes them: at most some hundred, with a relative noise variance.

    Attributes:
        compute, score: (n,).
        noise: (n,) noise variance relative to sigma^2, mean about 1.
        sigma: prior guess of the noise's standard deviation.
        sigma_weight: how many degrees of freedom that guess is worth.
        R0_known: whether the first point was measured before training brought anything, so that R0 is near it.
    """

    compute: FloatArray
    score: FloatArray
    noise: FloatArray
    sigma: float
    sigma_weight: float
    R0_known: bool


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
    low = np.broadcast_to((mean - 9 * sd).min(axis=0), (wanted.size, mean.shape[1])).copy()
    high = np.broadcast_to((mean + 9 * sd).max(axis=0), low.shape).copy()
    for _ in range(26):
        middle = 0.5 * (low + high)
        below = np.einsum("m,mlk->lk", weight, ndtr((middle[None] - mean[:, None]) / sd[:, None])) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def posterior(data: Observations, prior: Prior) -> Posterior:
    """Posterior of the law of a curve given its points.

    Cost: a Cholesky factor per kind of noise and one triangular solve with all shapes at once, about
    10 ms for 75 points on one core.
    """
    shapes = _shape_grid(data.compute, prior)
    parts = []
    for rho, rho_weight in zip(prior.rho, prior.rho_weights, strict=True):
        for tau, tau_weight in zip(prior.tau, prior.tau_weights, strict=True):
            log_prior = shapes.log_prior + np.log(rho_weight * tau_weight)
            parts.append(_condition(data, prior, shapes, log_prior, rho, tau))
    return _mixture(data, prior, shapes, parts)


@dataclass(frozen=True)
class _Shapes:
    law: NDArray[np.intp]
    B: FloatArray
    C_mid: FloatArray
    share: FloatArray
    log_prior: FloatArray


def _shape_grid(compute: FloatArray, prior: Prior) -> _Shapes:
    positive = compute[compute > 0]
    low, high = np.log(positive[0]) - prior.C_mid_below, np.log(positive[-1]) + prior.C_mid_beyond
    log_C_mid = np.linspace(low, high, prior.n_C_mid)
    log_B = prior.log_B_mean + prior.log_B_sd * np.linspace(-2.2, 2.2, prior.n_B)
    law_index, c, b = (a.ravel() for a in np.meshgrid(np.arange(len(prior.laws)), log_C_mid, log_B, indexing="ij"))
    law = law_index.astype(np.intp)
    share = np.concatenate(
        [rule.share(compute[:, None], np.exp(b[law == i]), np.exp(c[law == i])) for i, rule in enumerate(prior.laws)],
        axis=1,
    )
    beyond = np.maximum(c - np.log(positive[-1]), 0.0)
    log_prior = (
        np.log(np.asarray(prior.law_weights))[law]
        - 0.5 * ((b - prior.log_B_mean) / prior.log_B_sd) ** 2
        - beyond * prior.C_mid_decay
    )
    return _Shapes(law, np.exp(b), np.exp(c), share, log_prior)


@dataclass(frozen=True)
class _Conditional:
    """Closed-form posterior of (R0, A, sigma^2) for every shape, at one kind of noise."""

    log_weight: FloatArray
    mean: FloatArray
    cov: FloatArray
    sigma: FloatArray
    drift_coef: FloatArray
    drift_offset: float
    drift_var: FloatArray
    rho: float
    tau: float


def _condition(
    data: Observations, prior: Prior, shapes: _Shapes, log_prior: FloatArray, rho: float, tau: float
) -> _Conditional:
    n = data.compute.size
    log_c = np.log(np.maximum(data.compute, data.compute[data.compute > 0][0]))
    since_start = log_c - log_c[0]
    root = np.sqrt(data.noise)
    lag = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    ratio = (tau / data.sigma) ** 2
    cov = np.outer(root, root) * (rho**lag if rho > 0 else np.eye(n))
    cov = cov + ratio * np.minimum.outer(since_start, since_start) + 1e-9 * np.eye(n)
    factor = cholesky(cov, lower=True, check_finite=False)
    columns = np.concatenate(
        [data.score[:, None], np.ones((n, 1)), (ratio * since_start)[:, None], shapes.share], axis=1
    )
    white = solve_triangular(factor, columns, lower=True, check_finite=False)
    y, one, k, v = white[:, 0], white[:, 1], white[:, 2], white[:, 3:]
    u = one[:, None] - v

    R0_sd = prior.R0_sd if not data.R0_known else min(prior.R0_sd, 3 * data.sigma + 0.005)
    scale = np.array([R0_sd, prior.A_sd]) / data.sigma
    p0 = 1 / scale**2
    m0 = np.array([data.score[0], prior.A_mean])

    a, b, d = (
        np.einsum("np,np->p", u, u) + p0[0],
        np.einsum("np,np->p", u, v),
        np.einsum("np,np->p", v, v) + p0[1],
    )
    rhs = np.stack([u.T @ y + p0[0] * m0[0], v.T @ y + p0[1] * m0[1]], axis=1)
    det = a * d - b * b
    inverse = np.stack([np.stack([d, -b], axis=1), np.stack([-b, a], axis=1)], axis=1) / det[:, None, None]
    mean = np.einsum("pij,pj->pi", inverse, rhs)
    dof = data.sigma_weight + n
    s = data.sigma_weight * data.sigma**2 + y @ y + p0 @ m0**2 - np.einsum("pi,pi->p", mean, rhs)
    s = np.maximum(s, 1e-12)
    log_det = 2 * np.log(np.diag(factor)).sum()
    log_evidence = -0.5 * log_det - 0.5 * np.log(det) - 0.5 * dof * np.log(s)
    sigma2 = s / max(dof - 2, 1.0)
    cov_beta = inverse * sigma2[:, None, None]

    sd_A = np.sqrt(cov_beta[:, 1, 1])
    gain = mean[:, 1] - mean[:, 0]
    sd_gain = np.sqrt(np.maximum(cov_beta[:, 0, 0] + cov_beta[:, 1, 1] - 2 * cov_beta[:, 0, 1], 1e-12))
    plausible = ndtr((1.0 - mean[:, 1]) / sd_A) * ndtr(gain / sd_gain)
    log_weight = log_prior + log_evidence + np.log(np.maximum(plausible, 1e-12))

    return _Conditional(
        log_weight,
        mean,
        cov_beta,
        np.sqrt(sigma2),
        np.stack([u.T @ k, v.T @ k], axis=1),
        float(k @ y),
        np.maximum(ratio * since_start[-1] - k @ k, 0.0) * sigma2,
        rho,
        tau,
    )


def _mixture(data: Observations, prior: Prior, shapes: _Shapes, parts: list[_Conditional]) -> Posterior:
    log_weight = np.stack([p.log_weight for p in parts])
    log_evidence = float(logsumexp(log_weight))
    log_weight = log_weight - log_evidence
    part, shape, weight = _thin(np.exp(log_weight))

    def pick(name: str) -> FloatArray:
        return np.stack([getattr(p, name) for p in parts])[part, shape]

    sigma = pick("sigma")
    return Posterior(
        laws=prior.laws,
        law=shapes.law[shape],
        weight=weight,
        B=shapes.B[shape],
        C_mid=shapes.C_mid[shape],
        rho=np.array([p.rho for p in parts])[part],
        # The drift was fixed relative to the prior's sigma; here in score units again.
        tau=np.array([p.tau for p in parts])[part] * sigma / data.sigma,
        mean=pick("mean"),
        cov=pick("cov"),
        sigma=sigma,
        drift_coef=pick("drift_coef"),
        drift_offset=np.array([p.drift_offset for p in parts])[part],
        drift_var=pick("drift_var"),
        compute_last=float(data.compute[-1]),
        log_evidence=log_evidence,
    )


def _thin(weight: FloatArray) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
    """Indices and new weights of at most some hundred of the (parts, shapes) components, heaviest first.

    Systematic resampling in grid order, where neighbours are alike: heavy components keep their weight, light ones
    stand for their neighbourhood. Cutting the light ones off instead would narrow diffuse posteriors.
    """
    flat = weight.ravel()
    edges = np.minimum(np.searchsorted(np.cumsum(flat), (np.arange(_COMPONENTS) + 0.5) / _COMPONENTS), flat.size - 1)
    kept, count = np.unique(edges, return_counts=True)
    order = np.argsort(-count, kind="stable")
    part, shape = np.unravel_index(kept[order], weight.shape)
    return part, shape, count[order] / _COMPONENTS
