"""`forecast`: what the rest of a run will bring, with intervals, a verdict and everything that speaks against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalerl.curves import diagnostics
from scalerl.curves.calibration import Calibration, shipped
from scalerl.curves.fit import Fit, check_fittable, fit, warmup_cut
from scalerl.curves.observations import observe
from scalerl.curves.posterior import Posterior, Prior, posterior
from scalerl.curves.predict import Prediction, chance_above, crossing, marginal_gain, predict
from scalerl.curves.rolling import Replay, rolling_backtest
from scalerl.curves.threads import single_threaded
from scalerl.curves.verdict import UNSURE, Judgement, compute_to_decide, judge
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve
from scalerl.words import count, in_words, plural

FloatArray = NDArray[np.float64]
DEFAULT_AT = ("1.5x", "2x", "4x")
TARGET_REACH = 100.0
"""A target is looked for up to this multiple of the compute spent."""
ROW_VALUES = ("score", "low", "high", "gain", "gain_low", "gain_high")
CAVEAT = "A collapse that has not begun cannot be forecast."
"""True of every forecast, so it is said with every one."""
HOURS = ("gpu-hour", "device-hour", "hour")


@dataclass(frozen=True)
class Row:
    """Forecast at one compute: mean score and gain over now, median and interval; marginal gain per unit; cost."""

    compute: float
    score: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float
    marginal: float
    cost: float | None = None


@dataclass(frozen=True)
class Target:
    """Compute at which the mean score reaches `score`: median and interval; inf is "not within 100x"."""

    score: float
    compute: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Forecast:
    """What a run will bring. `table` is one row per compute asked for; `to_dict()` is the JSON of schema 1."""

    curve: Curve
    fit: Fit
    posterior: Posterior = field(repr=False)
    table: list[Row]
    level: float
    threshold: float
    budget: float
    verdict: str
    reasons: list[str]
    vetoes: list[str]
    warnings: list[str]
    replays: list[Replay]
    calibration: Calibration = field(repr=False)
    target: Target | None = None
    marginal_now: float = 0.0
    decide_at: float | None = None
    chance: float = math.nan

    def __repr__(self) -> str:
        return f"Forecast({self.curve.name}: {self.verdict}; {self.reasons[0]})"

    def predict(self, compute: ArrayLike) -> Prediction:
        """Calibrated median and interval at any compute from the last point on.

        Raises:
            InputError: a compute before the last point, or one that is no finite number.
        """
        asked, last = np.atleast_1d(np.asarray(compute, dtype=np.float64)), self.curve.compute[-1]
        if not (np.isfinite(asked) & (asked >= last * (1 - 1e-9))).all():
            raise InputError(
                f"predict takes finite computes from the last point on ({in_words(last, self.curve.unit)})"
            )
        return calibrated(self.posterior, self.calibration, self.curve, asked, self.level)

    def plot(self, path: str | None = None) -> Any:
        """Draw points, fit and forecast; see `scalerl.report.plots.plot_forecast`."""
        from importlib import import_module  # the report sits on a higher floor

        return import_module("scalerl.report.plots").plot_forecast(self, path)

    def to_dict(self) -> dict[str, Any]:
        """JSON of schema 1; infinite and undefined numbers are null."""
        last = self.curve.compute[-1]
        found: dict[str, Any] = _finite(
            {
                "schema": 1,
                "run": self.curve.name,
                "data": {
                    "points_used": len(self.fit.curve),
                    "points_dropped": self.fit.dropped,
                    "compute_unit": self.curve.unit,
                    "compute_last": float(last),
                    "score_last": float(self.curve.score[-1]),
                    "score_column": self.curve.score_name,
                    "notes": list(self.curve.notes),
                },
                "fit": self.fit.to_dict(),
                "level": self.level,
                "forecast": [row.__dict__ for row in self.table],
                "marginal_now": self.marginal_now,
                "target": self.target.__dict__ if self.target else None,
                "families": self.families(),
                "backtest": [replay.to_dict() for replay in self.replays],
                "calibration": self.calibration_summary(),
                "threshold": self.threshold,
                "budget": self.budget,
                "verdict": self.verdict,
                "chance_above_threshold": self.chance,
                "decide_at": self.decide_at,
                "reasons": self.reasons,
                "vetoes": self.vetoes,
                "warnings": self.warnings,
                "caveat": CAVEAT,
            }
        )
        return found

    def families(self) -> list[dict[str, Any]]:
        """Per law: its weight, and its median score at the budget."""
        at = np.array([self.budget])
        mean, _ = self.posterior.score(at)
        rows = []
        for index, law in enumerate(self.posterior.laws):
            weight = np.where(self.posterior.law == index, self.posterior.weight, 0.0)
            total = float(weight.sum())
            score = float(weight @ mean[:, 0] / total) if total > 1e-9 else math.nan
            rows.append({"law": law.name, "weight": total, "score_at_budget": score})
        return rows

    def calibration_summary(self) -> dict[str, Any]:
        """The multipliers in force, their provenance and the coverage measured with them."""
        reach = self.budget / self.curve.compute[-1]
        computes = np.array([row.compute for row in self.table])
        return {
            "multipliers": self.calibration.multiplier(self.curve, computes).tolist(),
            "bank": {k: v for k, v in self.calibration.provenance.items() if k != "files"},
            "left_out_source": self.calibration.source_of(self.curve),
            "measured": self.calibration.measured_at(reach),
        }


@single_threaded
def forecast(
    curve: Curve,
    at: Sequence[float | str] | float | str = DEFAULT_AT,
    budget: float | str | None = None,
    level: float = 0.9,
    threshold: float = 0.01,
    since: float | Literal["auto"] = "auto",
    upto: float | None = None,
    target: float | None = None,
    price_per_hour: float | None = None,
    truncation: FloatArray | None = None,
    prior: Prior | None = None,
    calibration: Calibration | None = None,
) -> Forecast:
    """Forecast the mean score of a run.

    Args:
        curve: the run so far, at least 5 points (8 for a verdict).
        at: computes to forecast at, in the curve's unit, or multiples of the last compute such as "2x".
        budget: compute (or "2x") that the verdict is about; default 2x.
        level: coverage of the intervals.
        threshold: the gain that is worth spending the budget.
        since: warm-up cut, see `fit`.
        upto: forget everything after this compute first, to replay what would have been said then.
        target: a score; the compute needed to reach it is estimated.
        price_per_hour: adds the cost, where the curve's unit is device-hours.
        truncation: share of truncated generations along the run, None if unknown.
        prior, calibration: replace the defaults.

    Raises:
        ForecastRefused: no law can be fitted (too few points, a constant score).
        InputError: an argument makes no sense; the message says which.
    """
    if not isinstance(curve, Curve):
        raise InputError(f"forecast takes a Curve, not {type(curve).__name__}; make one with scalerl.read_curve(path)")
    at = [at] if isinstance(at, (str, int, float)) else at
    curve = curve.upto(upto) if upto is not None else curve
    check_fittable(curve)
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    if not math.isfinite(threshold):
        raise InputError(f"threshold must be a number, got {threshold}")
    if price_per_hour is not None and not price_per_hour >= 0:
        raise InputError(f"price_per_hour must be a number from 0 on, got {price_per_hour}")
    if price_per_hour is not None and curve.unit not in HOURS:
        raise InputError(f"a price per hour needs compute in device-hours, but this curve is in {plural(curve.unit)}")
    prior, table = prior or Prior(), calibration or shipped()
    computes = np.array([_compute_of(a, curve) for a in at])
    goal = _compute_of("2x" if budget is None else budget, curve)
    used, post = conditioned(curve, since, prior)
    fitted = fit(curve, since=float(used.compute[0]) if len(used) < len(curve) else 0.0, prior=prior)
    predicted = calibrated(post, table, curve, np.append(computes, goal), level)
    vetoes = diagnostics.vetoes(curve, fitted)
    replays = rolling_backtest(fitted.curve, prior, level)
    warned = diagnostics.warnings(
        curve, fitted, None if truncation is None else np.asarray(truncation, dtype=np.float64)
    ) + _replay_warnings(replays, goal, curve)
    chance = chance_above(post, goal, threshold, float(table.multiplier(curve, np.array([goal]))[0]))
    judgement = judge(
        predicted.gain[-1], predicted.gain_low[-1], predicted.gain_high[-1], threshold, vetoes, level,
        f"going on to {in_words(goal, curve.unit)}", chance,
    )  # fmt: skip
    decide_at = None
    if judgement.verdict == UNSURE:
        decide_at, judgement = _what_decides(post, table, curve, goal, threshold, level, judgement)
    return Forecast(
        curve, fitted, post, _rows(predicted, post, computes, price_per_hour), level, threshold, goal,
        judgement.verdict, judgement.reasons, vetoes, warned, replays, table,
        None if target is None else _target(post, table, curve, target, level),
        float(marginal_gain(post, curve.compute[-1:])[0]), decide_at, chance,
    )  # fmt: skip


def conditioned(curve: Curve, since: float | Literal["auto"], prior: Prior) -> tuple[Curve, Posterior]:
    """The points after the warm-up, and the posterior given them."""
    cut = warmup_cut(curve, since)
    used = curve.since(cut) if cut > 0 else curve
    check_fittable(used)
    return used, posterior(observe(used, R0_known=len(used) == len(curve)), prior)


def _compute_of(value: float | str, curve: Curve) -> float:
    """A compute, or a multiple such as "2x" of the last one."""
    last = float(curve.compute[-1])
    try:
        text = str(value).strip().lower().replace(",", "").replace("_", "")
        compute = float(text[:-1]) * last if text.endswith("x") else float(text)
    except ValueError:
        raise InputError(f"cannot read {value!r} as a compute; write 100000 or 2x") from None
    if not math.isfinite(compute) or compute < last * (1 - 1e-9):
        raise InputError(
            f"{value} lies before the last point of the run ({in_words(last, curve.unit)}); "
            "use --upto to replay the past"
        )
    return max(compute, last)


def calibrated(post: Posterior, table: Calibration, curve: Curve, compute: FloatArray, level: float) -> Prediction:
    factor = table.multiplier(curve, compute)
    return predict(post, np.asarray(compute, dtype=np.float64), level).widened(factor, factor)


def _rows(predicted: Prediction, post: Posterior, computes: FloatArray, price: float | None) -> list[Row]:
    marginal = marginal_gain(post, computes)

    def row(i: int) -> Row:
        values = {name: float(getattr(predicted, name)[i]) for name in ROW_VALUES}
        cost = None if price is None else price * float(computes[i] - post.compute_last)
        return Row(compute=float(computes[i]), **values, marginal=float(marginal[i]), cost=cost)

    return [row(i) for i in range(computes.size)]


def _target(post: Posterior, table: Calibration, curve: Curve, score: float, level: float) -> Target:
    if not 0 < score < 1:
        raise InputError(f"the target must be a score between 0 and 1, got {score}")
    start, reach = float(curve.compute[-1]), float(curve.compute[-1]) * TARGET_REACH

    def edge(name: str) -> float:
        return crossing(lambda c: getattr(calibrated(post, table, curve, c, level), name), score, start, reach)

    # The band's upper edge reaches the target first: that is the least compute that may do.
    return Target(score, edge("score"), edge("high"), edge("low"))


def _replay_warnings(replays: list[Replay], goal: float, curve: Curve) -> list[str]:
    found = [
        f"window instability: the forecast made at {in_words(r.cut, curve.unit)} for now said {r.score:.3f} "
        f"({r.low:.3f} to {r.high:.3f}), the run came to {r.actual:.3f}"
        for r in [r for r in replays if abs(r.z) > 1.5][-1:]
    ]
    tested = max((r.ratio for r in replays), default=1.0)
    reach = goal / curve.compute[-1]
    if reach > tested * 1.05:
        found.append(f"the forecast reaches {reach:.1f}x; this run's own past tests it only up to {tested:.1f}x")
    return found


def _what_decides(
    post: Posterior,
    table: Calibration,
    curve: Curve,
    goal: float,
    threshold: float,
    level: float,
    so_far: Judgement,
) -> tuple[float | None, Judgement]:
    spacing = float(np.median(np.diff(curve.compute)))
    widening = float(table.multiplier(curve, np.array([goal]))[0])
    found = compute_to_decide(post, goal, spacing, threshold, widening, level)
    if found is None:
        more = "further evaluations up to the budget are unlikely to decide it; ask about a larger --budget"
    else:
        evaluations = count(max(1, round((found - curve.compute[-1]) / spacing)), "more evaluation")
        more = f"{evaluations}, up to {in_words(found, curve.unit)}, have about even odds of deciding it"
    return found, Judgement(so_far.verdict, [*so_far.reasons, more])


def _finite(value: Any) -> Any:
    """The same structure with null for what JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value


__all__ = ["DEFAULT_AT", "Forecast", "ForecastRefused", "Row", "Target", "forecast"]
