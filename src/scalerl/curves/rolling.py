"""The run's own rolling backtest: what earlier forecasts would have said about the points that are there now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalerl.curves.fit import MIN_POINTS
from scalerl.curves.observations import end_of, observe
from scalerl.curves.posterior import Prior, posterior
from scalerl.curves.predict import predict
from scalerl.runs import Curve

CUTS = (0.25, 0.4, 0.6)
REPLAY_GRID = (14, 10)
"""Of shapes: replays only warn, and three of them would take half of a forecast's time on the full grid."""


@dataclass(frozen=True)
class Replay:
    """A forecast made at `cut` for the end of the known run.

    Attributes:
        cut: compute at which it would have been made; ratio: reach, end / cut.
        low, score, high: raw (uncalibrated) interval; actual: mean of the last points; inside: whether it held.
        z: distance of the actual score in half-widths of the interval, signed.
    """

    cut: float
    ratio: float
    points: int
    low: float
    score: float
    high: float
    actual: float

    @property
    def inside(self) -> bool:
        return self.low <= self.actual <= self.high

    @property
    def z(self) -> float:
        side = self.high - self.score if self.actual > self.score else self.score - self.low
        return (self.actual - self.score) / max(side, 1e-6)

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "inside": self.inside, "z": self.z}


def rolling_backtest(curve: Curve, prior: Prior, level: float) -> list[Replay]:
    """Forecast the end of the known run from `CUTS` of it; cuts with too few points are skipped."""
    at, actual, _ = end_of(curve)
    light = replace(prior, fine=REPLAY_GRID)
    replays = []
    for fraction in CUTS:
        cut = fraction * curve.compute[-1]
        if (curve.compute <= cut).sum() < MIN_POINTS:
            continue
        early = curve.upto(cut)
        if np.ptp(early.score) == 0:
            continue
        p = predict(posterior(observe(early), light), np.array([at]), level)
        replays.append(Replay(float(cut), at / early.compute[-1], len(early), p.low[0], p.score[0], p.high[0], actual))
    return replays
