"""Backtest: cut known curves early, forecast their ends by several methods, and compare with what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from scalerl.curves.baselines import BASELINES
from scalerl.curves.calibration import Calibration, shipped
from scalerl.curves.fit import check_fittable
from scalerl.curves.forecast import conditioned
from scalerl.curves.observations import end_of
from scalerl.curves.posterior import Prior
from scalerl.curves.predict import predict
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve

OURS = "scalerl"
METHODS = (OURS, *BASELINES)


@dataclass(frozen=True)
class Case:
    """One curve, cut at one fraction of its compute, forecast by one method.

    Attributes:
        reach: compute of the end over compute of the last known point; points: known points.
        low, score, high: the interval at the nominal level; NaN where the method failed.
        actual: mean score of the end (`end_of`); actual_se: standard error of that mean.
        failure: why the method gave nothing, else "".
    """

    curve: str
    method: str
    fraction: float
    reach: float
    points: int
    low: float
    score: float
    high: float
    actual: float
    actual_se: float
    failure: str = ""

    @property
    def error(self) -> float:
        return self.score - self.actual

    @property
    def inside(self) -> bool:
        return self.low <= self.actual <= self.high

    def miss(self, level: float) -> float:
        """|error| in half-widths of the interval, the noise of the observed end included."""
        side = self.high - self.score if self.error < 0 else self.score - self.low
        return abs(self.error) / max(math.hypot(side, float(ndtri((1 + level) / 2)) * self.actual_se), 1e-9)

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "error": self.error, "inside": self.inside}


@dataclass(frozen=True)
class Summary:
    """Over the curves of one method at one fraction.

    Attributes:
        coverage: share of ends inside the interval as they were observed; coverage_of_mean: the same, allowing for
            the noise of the observed end, which is the figure to compare with the nominal level.
        width, median_error, rms_error, bias: of interval and median; failures: cases without a forecast.
    """

    method: str
    fraction: float
    cases: int
    failures: int
    coverage: float
    coverage_of_mean: float
    width: float
    median_error: float
    rms_error: float
    bias: float


@dataclass(frozen=True)
class Backtest:
    """All cases and their summaries; `skipped` names curves and fractions that could not be cut, with the reason."""

    cases: list[Case]
    level: float
    skipped: list[str]

    def summaries(self) -> list[Summary]:
        """One row per method and fraction, in the order they were asked for."""
        keys = list(dict.fromkeys((c.method, c.fraction) for c in self.cases))
        return [self._summary(m, f, [c for c in self.cases if (c.method, c.fraction) == (m, f)]) for m, f in keys]

    def _summary(self, method: str, fraction: float, cases: list[Case]) -> Summary:
        done = [c for c in cases if not c.failure]
        if not done:
            return Summary(method, fraction, 0, len(cases), *[math.nan] * 6)
        error = np.array([c.error for c in done])
        return Summary(
            method, fraction, len(done), len(cases) - len(done),
            coverage=float(np.mean([c.inside for c in done])),
            coverage_of_mean=float(np.mean([c.miss(self.level) <= 1 for c in done])),
            width=float(np.mean([c.high - c.low for c in done])),
            median_error=float(np.median(np.abs(error))),
            rms_error=float(np.sqrt(np.mean(error**2))),
            bias=float(error.mean()),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """JSON of schema 1."""
        rows = [{k: _null(v) for k, v in s.__dict__.items()} for s in self.summaries()]
        cases = [{k: _null(v) for k, v in c.to_dict().items()} for c in self.cases]
        return {"schema": 1, "level": self.level, "summaries": rows, "cases": cases, "skipped": self.skipped}


def backtest(
    curves: Sequence[Curve],
    fractions: Sequence[float] = (0.25, 0.5),
    methods: Sequence[str] = METHODS,
    level: float = 0.9,
    prior: Prior | None = None,
    calibration: Calibration | None = None,
) -> Backtest:
    """Cut each curve at fractions of its last compute and forecast its end.

    Args:
        curves: whole runs. Runs of the calibration's bank get the multipliers learnt without their source.
        fractions: each in (0, 1); 0.5 is a forecast over a factor of 2.
        methods: any of "scalerl", "paper", "curve_fit", "power law", "last five".
        level: nominal coverage.

    Raises:
        InputError: an unknown method, a fraction outside (0, 1), or no curve that can be cut.
    """
    for method in methods:
        if method not in METHODS:
            raise InputError(f"no method {method!r}; any of {', '.join(METHODS)}")
    for fraction in fractions:
        if not 0 < fraction < 1:
            raise InputError(f"a fraction must lie between 0 and 1, got {fraction}")
    cases: list[Case] = []
    skipped: list[str] = []
    for curve in curves:
        at, actual, se = end_of(curve)
        for fraction in fractions:
            try:
                early = curve.upto(fraction * curve.compute[-1])
                check_fittable(early)
            except (InputError, ForecastRefused) as reason:
                skipped.append(f"{curve.name} at {fraction:g}: {str(reason).removeprefix(curve.name + ': ')}")
                continue
            for method in methods:
                low, score, high, failure = _one(method, early, at, level, prior or Prior(), calibration or shipped())
                reach = at / float(early.compute[-1])
                cases.append(
                    Case(curve.name, method, fraction, reach, len(early), low, score, high, actual, se, failure)
                )
    if not cases:
        raise InputError(f"no curve could be cut: {'; '.join(skipped[:3]) or 'no curves given'}")
    return Backtest(cases, level, skipped)


def _one(
    method: str, early: Curve, at: float, level: float, prior: Prior, calibration: Calibration
) -> tuple[float, float, float, str]:
    try:
        if method != OURS:
            return *BASELINES[method](early, at, level), ""
        _, post = conditioned(early, "auto", prior)
        factor = calibration.multiplier(early, np.array([at]))
        p = predict(post, np.array([at]), level).widened(factor, factor)
        return float(p.low[0]), float(p.score[0]), float(p.high[0]), ""
    except ForecastRefused as reason:
        return math.nan, math.nan, math.nan, str(reason)


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
