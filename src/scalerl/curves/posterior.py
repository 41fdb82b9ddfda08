"""Bayesian average over laws, shapes and kinds of noise: the engine under `fit` and `forecast`.

For a fixed law, (B, C_mid) and noise structure the model is linear in (R0, A):

    y_i = R0 (1 - g_i) + A g_i + drift_i + noise_i,     g_i = rise(B log(C_i / C_mid))

- noise: AR(1) over evaluations (rho), its variance following the binomial p (1 - p) and the trials;
- drift: Brownian motion in log C (tau). Runs do leave their law slowly and for good (a second rise, a data
  switch); a drift lets the forecast start from where the run is and widens it with every doubling.

So (R0, A, sigma^2) are integrated in closed form (normal - inverse gamma), and the rest is a sum over a grid of
laws x C_mid x B x rho x tau. The result is a mixture, predicted from as normals with the
Student distributions' variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from scalerl.curves.conditional import Conditional, LinearPrior, condition
from scalerl.curves.laws import GOMPERTZ, SIGMOID, WEIBULL, Law
from scalerl.curves.mixture import Posterior, mixture_quantiles
from scalerl.curves.threads import single_threaded

__all__ = ["Observations", "Posterior", "Prior", "mixture_quantiles", "posterior"]

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
    R0_free_sd: float = 0.15
    log_B_mean: float = 0.35
    log_B_sd: float = 0.7
    coarse: tuple[int, int] = (20, 10)
    fine: tuple[int, int] = (22, 16)
    C_mid_below: float = 1.5
    C_mid_beyond: float = 3.0
    C_mid_decay: float = 1.0
    rho: tuple[float, ...] = (0.0, 0.4, 0.75)
    rho_weights: tuple[float, ...] = (0.5, 0.3, 0.2)
    # No run follows its law exactly: without the least of these, smooth curves get intervals of a thousandth.
    tau: tuple[float, ...] = (0.002, 0.008, 0.025, 0.07)
    tau_weights: tuple[float, ...] = (0.2, 0.3, 0.3, 0.2)


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


@single_threaded
def posterior(data: Observations, prior: Prior) -> Posterior:
    """Posterior of the law of a curve given its points: some 13,000 components, thinned to 400.

    Two passes: a coarse grid of shapes finds where the mass lies for each law, a fine one resolves it there. A
    precise, long run is hundreds of times narrower in (C_mid, B) than what is possible beforehand.
    """
    boxes = [_Box.everything(data.compute, prior)] * len(prior.laws)
    coarse = _shape_grid(data.compute, prior, boxes, prior.coarse)
    middle = len(prior.rho) // 2
    found = _condition(data, prior, coarse, prior.rho[middle])
    weight = logsumexp(found.log_evidence + np.log(prior.tau_weights)[:, None], axis=0) + coarse.log_prior
    boxes = [box.around(coarse, weight, index) for index, box in enumerate(boxes)]
    shapes = _shape_grid(data.compute, prior, boxes, prior.fine)
    return _mixture(data, prior, shapes, [_condition(data, prior, shapes, rho) for rho in prior.rho])


def _condition(data: Observations, prior: Prior, shapes: _Shapes, rho: float) -> Conditional:
    log_compute = np.log(np.maximum(data.compute, data.compute[data.compute > 0][0]))
    R0_sd = min(prior.R0_sd, 3 * data.sigma + 0.005) if data.R0_known else prior.R0_free_sd
    linear = LinearPrior(np.array([data.score[0], prior.A_mean]), np.array([R0_sd, prior.A_sd]))
    drift_ratio = (np.asarray(prior.tau) / data.sigma) ** 2
    since_start = log_compute - log_compute[0]
    return condition(
        data.score, shapes.share, since_start, data.noise, rho, drift_ratio, data.sigma, data.sigma_weight, linear
    )


@dataclass(frozen=True)
class _Shapes:
    """p shapes: (p,) law, B, C_mid and log prior mass; (n, p) share of the gain at each point."""

    law: NDArray[np.intp]
    B: FloatArray
    C_mid: FloatArray
    share: FloatArray
    log_prior: FloatArray


@dataclass(frozen=True)
class _Box:
    """Range of (log C_mid, log B): (2,) low and high."""

    low: FloatArray
    high: FloatArray

    @staticmethod
    def everything(compute: FloatArray, prior: Prior) -> _Box:
        reach = np.log(compute[compute > 0][[0, -1]])
        half = 2.8 * prior.log_B_sd
        low = np.array([reach[0] - prior.C_mid_below, prior.log_B_mean - half])
        return _Box(low, np.array([reach[1] + prior.C_mid_beyond, prior.log_B_mean + half]))

    def around(self, shapes: _Shapes, log_weight: FloatArray, law: int) -> _Box:
        """The part of the box where a law has nearly all its mass, one coarse step wider on each side."""
        rows = shapes.law == law
        at = np.log(np.stack([shapes.C_mid[rows], shapes.B[rows]]))
        kept = at[:, log_weight[rows] > log_weight[rows].max() - 6.5]
        step = np.array([np.diff(np.unique(axis.round(9))).min() for axis in at])
        return _Box(np.maximum(self.low, kept.min(axis=1) - step), np.minimum(self.high, kept.max(axis=1) + step))

    def grid(self, size: tuple[int, int]) -> tuple[FloatArray, FloatArray, float]:
        """log C_mid, log B of the cells' centres, (size product,) each, and the log of a cell's area."""
        width = (self.high - self.low) / size
        axes = [low + w * (np.arange(k) + 0.5) for low, w, k in zip(self.low, width, size, strict=True)]
        C_mid, B = np.meshgrid(*axes, indexing="ij")
        return C_mid.ravel(), B.ravel(), float(np.log(width).sum())


def _shape_grid(compute: FloatArray, prior: Prior, boxes: list[_Box], size: tuple[int, int]) -> _Shapes:
    last = np.log(compute[-1])
    parts = []
    for index, (law, box) in enumerate(zip(prior.laws, boxes, strict=True)):
        log_C_mid, log_B, log_area = box.grid(size)
        B, C_mid = np.exp(log_B), np.exp(log_C_mid)
        log_prior = (
            np.log(prior.law_weights[index])
            + log_area
            - 0.5 * ((log_B - prior.log_B_mean) / prior.log_B_sd) ** 2
            - prior.C_mid_decay * np.maximum(log_C_mid - last, 0.0)
        )
        parts.append(_Shapes(np.full(B.size, index), B, C_mid, law.share(compute[:, None], B, C_mid), log_prior))
    joined = {f: np.concatenate([getattr(p, f) for p in parts], axis=-1) for f in _Shapes.__dataclass_fields__}
    return _Shapes(**joined)


def _mixture(data: Observations, prior: Prior, shapes: _Shapes, parts: list[Conditional]) -> Posterior:
    log_noise = np.log(np.outer(prior.rho_weights, prior.tau_weights))
    log_weight = np.stack([p.log_evidence for p in parts]) + log_noise[:, :, None] + shapes.log_prior
    log_evidence = float(logsumexp(log_weight))
    (rho, tau, shape), weight = _thin(np.exp(log_weight - log_evidence))

    def pick(name: str) -> FloatArray:
        return np.stack([getattr(p, name) for p in parts])[rho, tau, shape]

    sigma = pick("sigma")
    return Posterior(
        laws=prior.laws,
        law=shapes.law[shape],
        weight=weight,
        B=shapes.B[shape],
        C_mid=shapes.C_mid[shape],
        rho=np.asarray(prior.rho)[rho],
        # The drift was fixed relative to the prior's sigma; here in score units again.
        tau=np.asarray(prior.tau)[tau] * sigma / data.sigma,
        mean=pick("mean"),
        cov=pick("cov"),
        sigma=sigma,
        drift_coef=pick("drift_coef"),
        drift_offset=pick("drift_offset"),
        drift_var=pick("drift_var"),
        compute_last=float(data.compute[-1]),
        log_evidence=log_evidence,
    )


def _thin(weight: FloatArray) -> tuple[tuple[NDArray[np.intp], ...], FloatArray]:
    """Indices into `weight` and new weights of at most 400 components, heaviest first.

    Systematic resampling in grid order, where neighbours are alike: heavy components keep their weight, light ones
    stand for their neighbourhood. Cutting the light ones off instead would narrow diffuse posteriors.
    """
    flat = weight.ravel()
    edges = np.minimum(np.searchsorted(np.cumsum(flat), (np.arange(_COMPONENTS) + 0.5) / _COMPONENTS), flat.size - 1)
    kept, count = np.unique(edges, return_counts=True)
    order = np.argsort(-count, kind="stable")
    return np.unravel_index(kept[order], weight.shape), count[order] / _COMPONENTS
