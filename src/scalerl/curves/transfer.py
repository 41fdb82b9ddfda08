"""`transfer`: does a downstream score follow the held-out score of the same run?

Two scores that both rise correlate, whatever they have to do with each other; so association is given for the levels,
for the increments and without the trend, and "follows" asks that the held-out score explain the downstream one better
than a straight line does, with nothing smooth left over. Paper: section on downstream tasks (AIME-24 and
LiveCodeBench follow the held-out trend).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.association import Association, associate
from scalerl.curves.fit import Fit, fit
from scalerl.curves.following import Lag, Regression, find_lag, regress
from scalerl.curves.observations import bin_curve, difference_sd
from scalerl.curves.smoothing import local_score, redrawn_scores, smooth_score
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve
from scalerl.words import amount, in_words, plural

FloatArray = NDArray[np.float64]
FOLLOWS, LAGS, CANNOT, NOT = "follows", "follows with a lag", "cannot say", "does not follow"
WORDS = (FOLLOWS, LAGS, CANNOT, NOT)
MIN_PAIRS = 6
STRETCHES = 9
LINE_ODDS = 1.0
"""Log likelihood ratio over a straight line that "follows" asks for, about 3 to 1: lines were not taken for it."""
MISFIT = 0.25
"""Share of the error 1 - level that the test for "does not follow" may use: its word weighs more than "cannot say"."""
SMALL_GAIN = 0.02
"""A downstream gain below this (the paper's margin on scores) over all that the held-out score moved is none."""


@dataclass(frozen=True)
class Transfer:
    """Result of `transfer`. `to_dict()` is the JSON of schema 1.

    Attributes:
        heldout, downstream: the curves; compute, heldout_at, downstream_at: (n,) matched pairs.
        levels, increments, detrended: see `Association`.
        regression: downstream on held-out at no lag; lagged: at the best lag; lag: with interval.
        fit: the downstream score's own fit, None where refused (`fit_refused` says why).
        words: one of `WORDS`; reasons, notes: a sentence each.
    """

    heldout: Curve
    downstream: Curve
    compute: FloatArray
    heldout_at: FloatArray
    downstream_at: FloatArray
    levels: Association
    increments: Association
    detrended: Association
    regression: Regression
    lagged: Regression
    lag: Lag
    fit: Fit | None
    fit_refused: str | None
    words: str
    reasons: list[str]
    notes: list[str]
    level: float

    def summary(self) -> str:
        """The answer in words and numbers."""
        unit, percent = self.downstream.unit, f"{100 * self.level:g} %"
        head = f"{self.downstream.score_name} against {self.heldout.score_name}: {self.words}"
        lines = [head, *(f"  - {reason}" for reason in self.reasons), ""]
        lines.append(
            f"{'association':<12}{'linear':>8}{f'({percent})':>18}{'rank':>8}{f'({percent})':>18}{'worth':>16}"
        )
        for a in (self.levels, self.increments, self.detrended):
            linear, rank = _range(a.pearson_low, a.pearson_high), _range(a.spearman_low, a.spearman_high)
            worth = f"{a.effective_n:.0f} of {a.n}"
            lines.append(f"{a.kind:<12}{a.pearson:>+8.2f}{linear:>18}{a.spearman:>+8.2f}{rank:>18}{worth:>16}")
        r, lag = self.regression, self.lag
        edge = "" if lag.bounded else "; not bounded by these points"
        lines += [
            f"slope       {r.slope:.2f} ({r.slope_low:.2f} to {r.slope_high:.2f}) gained downstream per gain held out",
            f"lag         {lag.compute:+.4g} ({lag.low:+.4g} to {lag.high:+.4g}) {plural(unit)}{edge}",
            "",
            self.fit.summary(self.level) if self.fit else f"no fit of its own: {self.fit_refused}",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """JSON of schema 1."""
        return {
            "schema": 1,
            "heldout": self.heldout.score_name,
            "downstream": self.downstream.score_name,
            "compute_unit": self.downstream.unit,
            "level": self.level,
            "pairs": int(self.compute.size),
            "words": self.words,
            "reasons": self.reasons,
            "notes": self.notes,
            "association": [a.to_dict() for a in (self.levels, self.increments, self.detrended)],
            "regression": dict(self.regression.__dict__),
            "regression_at_lag": dict(self.lagged.__dict__),
            "lag": dict(self.lag.__dict__),
            "fit": self.fit.to_dict() if self.fit else None,
            "fit_refused": self.fit_refused,
        }


def transfer(heldout: Curve, downstream: Curve, level: float = 0.9) -> Transfer:
    """Whether a downstream score follows the held-out one.

    Args:
        heldout: the held-out score of the run.
        downstream: another score of the same run, perhaps evaluated at other computes, in the same unit.
        level: of the intervals and of the words.

    Raises:
        InputError: units differ, or level out of range.
        ForecastRefused: fewer than 6 downstream points within the held-out score's span of compute.
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    if heldout.unit != downstream.unit:
        raise InputError(
            f"{heldout.score_name} is measured in {plural(heldout.unit)} and {downstream.score_name} in "
            f"{plural(downstream.unit)}; read both with the same x"
        )
    x, y, notes = _within(heldout, downstream)
    law = _own_fit(heldout)[0]
    smooth = smooth_score(heldout, law)
    local = local_score(heldout, x, smooth)
    own, refused = _own_fit(downstream)
    redrawn = redrawn_scores(law)
    lag = find_lag(x, smooth, redrawn, y, level)

    def regression(shift: float) -> Regression:
        at = np.maximum(x - shift, 0.0)
        return regress(x, smooth(at), np.array([score(at) for score in redrawn]), y, level)

    straight, lagged = regression(0.0), regression(lag.compute)
    stretch = [_stretch_means(v) for v in (local, y)]
    levels = associate("levels", local, y, level)
    detrended = associate("detrended", _detrend(x, local), _detrend(x, y), level)
    words, reasons = _judge(heldout, smooth(x), straight, lagged, lag, level)
    reasons.append(_on_levels(levels))
    return Transfer(
        heldout, downstream, x, local, y, levels,
        associate("increments", np.diff(stretch[0]), np.diff(stretch[1]), level), detrended,
        straight, lagged, lag, own, refused, words, reasons, notes, level,
    )  # fmt: skip


def _within(heldout: Curve, downstream: Curve) -> tuple[FloatArray, FloatArray, list[str]]:
    """Downstream points at computes that the held-out score covers, give or take one of its evaluations; notes."""
    spacing = float(np.median(np.diff(heldout.compute))) if len(heldout) > 1 else 0.0
    x = downstream.compute
    inside = (x >= heldout.compute[0] - spacing) & (x <= heldout.compute[-1] + spacing)
    if inside.sum() < MIN_PAIRS:
        raise ForecastRefused(
            f"{downstream.name}: {int(inside.sum())} points of {downstream.score_name} lie within the compute of "
            f"{heldout.score_name} ({amount(heldout.compute[0])} to {in_words(heldout.compute[-1], heldout.unit)}); "
            f"whether it follows takes at least {MIN_PAIRS}: evaluate it more often"
        )
    left = int((~inside).sum())
    notes = [f"{left} points of {downstream.score_name} outside the held-out score's compute left out"] if left else []
    known = replace(
        downstream,
        compute=x[inside],
        score=downstream.score[inside],
        trials=None if downstream.trials is None else downstream.trials[inside],
    )
    compute, score, _, _ = bin_curve(known)
    if compute.size < len(known):
        notes.append(f"{len(known)} points of {downstream.score_name} averaged to {compute.size}")
    return compute, score, notes


def _own_fit(curve: Curve) -> tuple[Fit | None, str | None]:
    """The fit, or why there is none: a refused fit must not stop the comparison."""
    try:
        return fit(curve), None
    except ForecastRefused as refusal:
        return None, str(refusal)


def _stretch_means(value: FloatArray) -> FloatArray:
    """Means over up to 9 stretches of equally many points, whose differences rise above the noise."""
    return np.array([part.mean() for part in np.array_split(value, min(STRETCHES, value.size))])


def _detrend(compute: FloatArray, value: FloatArray) -> FloatArray:
    log_c = np.log(np.maximum(compute, compute[compute > 0][0]))
    return value - np.polyval(np.polyfit(log_c, value, 1), log_c)


def _judge(
    heldout: Curve, held: FloatArray, straight: Regression, lagged: Regression, lag: Lag, level: float
) -> tuple[str, list[str]]:
    moved, noise = float(np.ptp(held)), difference_sd(heldout.compute, heldout.score)
    if moved < 3 * noise / np.sqrt(max(len(heldout) / 6, 1.0)) or moved < 1e-6:
        return CANNOT, [f"the held-out score hardly moves ({moved:.3f}, its noise is {noise:.3f}): nothing to follow"]
    trailing, ahead = lag.low > 0, lag.high < 0
    shifted = trailing or ahead
    used = lagged if shifted else straight
    slope = f"{used.slope:.2f} ({used.slope_low:.2f} to {used.slope_high:.2f}, {100 * level:g} %)"
    strays = used.misfit < MISFIT * (1 - level)
    if used.slope_low <= 0:
        return _without_rise(used, moved, slope, strays)
    if strays:
        why = f"both rise, but at different times: what the held-out score leaves has a trend (p = {used.misfit:.2g})"
        return NOT, [why]
    reasons = [f"slope {slope}: gained downstream per gain held out"]
    # A lag is one more number to fit, and that costs one unit of log likelihood.
    if used.line_odds < LINE_ODDS + shifted:
        return CANNOT, [
            "both scores rise, but a straight line explains the downstream score as well: any two rising scores "
            "correlate; more evaluations, or less noisy ones, would tell",
            *reasons,
        ]
    times = f"{np.exp(used.line_odds):,.0f}" if used.line_odds < np.log(1e6) else "more than a million"
    reasons.append(f"the held-out score explains it {times} times better than a line")
    where = f"{in_words(abs(lag.compute), heldout.unit)} ({lag.low:+.4g} to {lag.high:+.4g})"
    if trailing:
        return LAGS, [f"it trails by {where}", *reasons]
    return FOLLOWS, [*([f"it runs ahead by {where}"] if ahead else []), *reasons]


def _without_rise(used: Regression, moved: float, slope: str, strays: bool) -> tuple[str, list[str]]:
    if used.slope_high < 0:
        return NOT, [f"it falls while the held-out score rises: slope {slope}"]
    if used.slope_high * moved < SMALL_GAIN:
        most = used.slope_high * moved
        return NOT, [f"of the {moved:.3f} gained held out, at most {most:.3f} came with it downstream: slope {slope}"]
    if strays:
        return NOT, [
            f"it has a trend of its own (p = {used.misfit:.2g}), which the held-out score lacks: slope {slope}"
        ]
    return CANNOT, [f"the noise hides whether it rises with the held-out score: slope {slope}"]


def _on_levels(levels: Association) -> str:
    return (
        f"the levels correlate by {levels.pearson:+.2f} ({_range(levels.pearson_low, levels.pearson_high)}), which "
        "alone says little: two rising scores always do"
    )


def _range(low: float, high: float) -> str:
    return f"{low:+.2f} to {high:+.2f}"
