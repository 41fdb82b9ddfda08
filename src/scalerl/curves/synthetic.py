"""Runs simulated from a stated law with noise: for the demo, the benches, the calibration and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.laws import GOMPERTZ, SIGMOID, WEIBULL, Law
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
KINDS = ("iid", "ar1", "warm-up", "other family")


@dataclass(frozen=True)
class Simulated:
    """A simulated run: its points, and the noise-free score at any compute."""

    curve: Curve
    mean_score: Callable[[FloatArray], FloatArray]
    C_mid: float
    noise_sd: float


def simulate(kind: str, rng: np.random.Generator, points: int = 60, reach: float | None = None) -> Simulated:
    """A run that is known up to `reach` C_mid (random from 1 to 8 if None), evaluated at even steps.

    Args:
        kind: "iid" (sigmoid, independent noise), "ar1" (noise correlated .5 to .8), "warm-up" (a fast, nearly
            linear first phase before the sigmoid, over the first 5 to 12 % of the points), "other family"
            (Weibull, Gompertz, a generalised logistic, or a sigmoid with a later, smaller second rise).
        rng: the only source of randomness.
        points: number of evaluations.
    """
    R0, gain = rng.uniform(0.02, 0.5), rng.uniform(0.1, 0.45)
    A, B = min(R0 + gain, 0.97), float(np.exp(rng.normal(0.5, 0.35)))
    C_mid = float(np.exp(rng.uniform(np.log(50), np.log(5000))))
    last = C_mid * (reach or float(np.exp(rng.uniform(0.0, np.log(8.0)))))
    mean_score = _mean_score(kind, rng, R0, A, B, C_mid, last)
    compute = np.linspace(last / points, last, points)
    sd = float(np.exp(rng.uniform(np.log(0.003), np.log(0.02))))
    rho = rng.uniform(0.5, 0.8) if kind == "ar1" else 0.0
    score = mean_score(compute) + ar1_noise(rng, points, sd, rho)
    return Simulated(Curve(compute, np.clip(score, 0, 1), name=kind), mean_score, C_mid, sd)


def sigmoid_run(
    rng: np.random.Generator,
    R0: float,
    A: float,
    B: float,
    C_mid: float,
    last: float,
    sd: float = 0.004,
    rho: float = 0.0,
    points: int = 60,
) -> Curve:
    """A run of a stated sigmoid up to compute `last`, evaluated at even steps, with AR(1) noise."""
    compute = np.linspace(last / points, last, points)
    score = SIGMOID.value(compute, R0, A, B, C_mid) + ar1_noise(rng, points, sd, rho)
    return Curve(compute, np.clip(score, 0, 1), name="sigmoid")


def ar1_noise(rng: np.random.Generator, n: int, sd: float, rho: float) -> FloatArray:
    """(n,) stationary AR(1) noise of standard deviation `sd`."""
    noise = rng.normal(0.0, sd, n)
    for i in range(1, n):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return noise


def collapsed(run: Simulated, rng: np.random.Generator, share: tuple[float, float] = (0.3, 0.9)) -> Curve:
    """The run's curve with a collapse inside: from a random point in its second half the gain so far is lost.

    `share` bounds the part of the gain that is lost; the fall takes 5 to 20 % of the run, and lasts.
    """
    curve = run.curve
    x, last = curve.compute, curve.compute[-1]
    begin, length = rng.uniform(0.5, 0.8) * last, rng.uniform(0.05, 0.2) * last
    lost = rng.uniform(*share) * (run.mean_score(np.array([begin]))[0] - run.mean_score(x[:1] * 0.01)[0])
    return Curve(x, np.clip(curve.score - lost * np.clip((x - begin) / length, 0, 1), 0, 1), name="collapse")


def _mean_score(
    kind: str, rng: np.random.Generator, R0: float, A: float, B: float, C_mid: float, last: float
) -> Callable[[FloatArray], FloatArray]:
    if kind in ("iid", "ar1"):
        return lambda c: SIGMOID.value(c, R0, A, B, C_mid)
    if kind == "warm-up":
        early, end = rng.uniform(0.15, 0.4) * (A - R0), rng.uniform(0.05, 0.12) * last
        return lambda c: SIGMOID.value(c, R0, A, B, C_mid) - early * np.clip(1 - c / end, 0, 1)
    if kind != "other family":
        raise ValueError(f"no kind {kind!r}; one of {', '.join(KINDS)}")
    choice = rng.integers(4)
    if choice < 2:
        law: Law = (WEIBULL, GOMPERTZ)[choice]
        return lambda c: law.value(c, R0, A, B, C_mid)
    if choice == 2:  # generalised logistic (Richards) in log C
        nu = float(np.exp(rng.normal(0.0, 0.7)))
        return lambda c: R0 + (A - R0) * _richards(c, B, C_mid, nu)
    second, at = rng.uniform(0.1, 0.3), C_mid * float(np.exp(rng.uniform(0.5, 2.0)))
    return lambda c: R0 + (A - R0) * ((1 - second) * SIGMOID.share(c, B, C_mid) + second * SIGMOID.share(c, 2 * B, at))


def _richards(c: FloatArray, B: float, C_mid: float, nu: float) -> FloatArray:
    """(1 + (2^nu - 1) (C_mid / c)^B)^(-1/nu): half the gain at C_mid; nu = 1 is the sigmoid."""
    return (1 + (2**nu - 1) * (C_mid / np.maximum(c, 1e-12)) ** B) ** (-1 / nu)
