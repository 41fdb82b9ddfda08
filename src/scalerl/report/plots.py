"""Pictures of a fit and of a forecast: points, fit solid, forecast dashed with its band, and what speaks against it.

    scalerl forecast metrics.jsonl --plot forecast.png

Figures are plain `matplotlib.figure.Figure`s, made without pyplot: no window, no global state, safe in threads.
Those of several recipes and of backtests are made in `comparison.py` and reached from here as well.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from scalerl.curves.fit import Fit
from scalerl.curves.forecast import Forecast
from scalerl.curves.observations import end_of
from scalerl.curves.predict import Prediction
from scalerl.report import marks
from scalerl.report.axis import ComputeAxis, compute_axis, dress, dress_score, over_frame
from scalerl.report.comparison import plot_backtest, plot_compare, plot_straightened
from scalerl.report.page import FRAME, Frame, Page, arrange, new_frame
from scalerl.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    amount,
    check_path,
    house_style,
    name_of,
    plain,
    plural,
    score_text,
    to,
)  # fmt: skip
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
__all__ = ["plot_backtest", "plot_compare", "plot_fit", "plot_forecast", "plot_straightened"]


def plot_fit(fit: Fit, path: str | Path | None = None, run: Curve | None = None, level: float = 0.9) -> Figure:
    """Draw a fitted law over its points.

    Args:
        fit: what `scalerl.fit` returned.
        path: where to write it, as .png, .svg or .pdf; None writes nothing.
        run: the whole run; its points before the fit's first are drawn hollow, as warm-up.
        level: of the intervals.

    Raises:
        InputError: unknown suffix, or the file cannot be written.
    """
    target = check_path(path)
    curve = fit.curve
    warmup = _before(run, fit)
    with house_style():
        fig, ax = new_frame()
        axis = compute_axis([curve.compute, *([] if warmup is None else [warmup.compute])])
        page = Page(f"{name_of(curve.name)}: {fit.law.name} fit", [_parameters(fit, level)])
        page.entries += marks.evaluations(ax, axis, curve)
        if warmup is not None:
            page.entries += marks.hollow(ax, axis, warmup)
        elif fit.dropped:
            unit = plural(plain(curve.unit))
            page.lines.append(f"{fit.dropped} warm-up points before {amount(fit.since)} {unit} are left out.")
        x = marks.smooth_grid(curve.compute)
        line = ax.plot(x, fit.predict(x), color=BLUE, lw=1.9, zorder=3.2)[0]
        low, high = marks.law_band(fit, x, level)
        band = ax.fill_between(x, low, high, color=BLUE, alpha=0.18, lw=0, zorder=2)
        page.entries.append(((band, line), f"{fit.law.name}, {100 * level:g} % band"))
        _dress(
            ax,
            axis,
            curve,
            [*marks.extent(curve), low, high, *_ceiling(fit), *([] if warmup is None else [warmup.score])],
        )
        labels = _draw_parameters(ax, axis, page, fit, level)
        page.label_rows = over_frame(ax, axis, labels, FRAME)
        return arrange(fig, [Frame(ax)], page, target)


def plot_forecast(forecast: Forecast, path: str | Path | None = None, actual: Curve | None = None) -> Figure:
    """Draw a run, its fit (solid) and its forecast (dashed, with the calibrated interval of the mean score).

    Args:
        forecast: what `scalerl.forecast` returned.
        path: where to write it, as .png, .svg or .pdf; None writes nothing.
        actual: the run as it went on, for a replay: its points after the cut are drawn as crosses.

    Raises:
        InputError: unknown suffix, or the file cannot be written.
    """
    target = check_path(path)
    curve, fit = forecast.curve, forecast.fit
    last = float(curve.compute[-1])
    later = _after(actual, last)
    ends = [forecast.budget, 2 * last, *(row.compute for row in forecast.table)]
    with house_style():
        fig, ax = new_frame()
        axis = compute_axis([curve.compute, ends, *([] if later is None else [later.compute])])
        ahead = forecast.predict(np.geomspace(last, axis.high, marks.SMOOTH))
        page = Page(f"{forecast.verdict}: {name_of(curve.name, 60)}", _verdict_lines(forecast, later))
        page.entries += marks.evaluations(ax, axis, fit.curve)
        warmup = _before(curve, fit)
        if warmup is not None:
            page.entries += marks.hollow(ax, axis, warmup)
        x = marks.smooth_grid(fit.curve.compute)
        line = ax.plot(x, fit.predict(x), color=BLUE, lw=1.9, zorder=3.2)[0]
        page.entries.append((line, f"{fit.law.name} fit: R0 {score_text(fit.R0)}, B {fit.B:.2f}"))
        _draw_ahead(ax, page, forecast, ahead)
        if later is not None:
            page.entries += marks.crosses(ax, axis, later, VERMILLION)
        scores = [
            curve.score,
            *marks.extent(fit.curve),
            fit.predict(x),
            ahead.low,
            ahead.high,
            *_ceiling(fit),
            *_draw_target(ax, page, forecast),
        ]
        _dress(ax, axis, curve, [*scores, *([] if later is None else [later.score])])
        labels = _draw_parameters(ax, axis, page, fit, forecast.level) + _draw_budget(ax, page, forecast)
        labels.append((last, "now" if later is None else "cut", BLACK))
        ax.axvline(last, color=BLACK, lw=0.8, zorder=1)
        page.label_rows = over_frame(ax, axis, labels, FRAME)
        return arrange(fig, [Frame(ax)], page, target)


def _verdict_lines(forecast: Forecast, later: Curve | None) -> list[str]:
    """The score at the budget, the reasons (which speak of the gain there), and how a replay came out."""
    p, unit = forecast.predict([forecast.budget]), plural(forecast.curve.unit)
    says = "the fit, which is vetoed, comes to" if forecast.vetoes else "the score should be"
    lines = [
        f"At {amount(forecast.budget)} {unit} {says} {score_text(p.score[0])} "
        f"({to(p.low[0], p.high[0])}, {100 * forecast.level:g} %)."
    ]
    if not forecast.vetoes:  # else the box gives them
        lines += [_sentence(reason) for reason in forecast.reasons]
    if later is not None:
        lines.append(_outcome(forecast, later))
    return [plain(line) for line in lines]


def _outcome(forecast: Forecast, later: Curve) -> str:
    """Whether the end of the run, when it came, lay in the interval."""
    compute, score, *_ = end_of(later)
    p = forecast.predict([compute])
    where = "inside" if p.low[0] <= score <= p.high[0] else "outside"
    return (
        f"The run came to {score_text(score)} at {amount(compute)} {plural(later.unit)} (mean of its end): {where} "
        f"the interval ({to(p.low[0], p.high[0])})."
    )


def _draw_ahead(ax: Axes, page: Page, forecast: Forecast, ahead: Prediction) -> None:
    """The forecast and its band; grey, with the reasons in a box, where a veto forbids to believe it."""
    vetoed = bool(forecast.vetoes)
    color = GREY if vetoed else BLUE
    band = ax.fill_between(ahead.compute, ahead.low, ahead.high, color=color, alpha=0.2, lw=0, zorder=1.5)
    for edge in (ahead.low, ahead.high):  # a thin edge keeps the band visible in a pale print
        ax.plot(ahead.compute, edge, color=color, lw=0.6, alpha=0.7, zorder=2)
    line = ax.plot(ahead.compute, ahead.score, color=color, lw=1.9, ls=(0, (4, 2)), zorder=4.2)[0]
    curves = forecast.calibration.provenance.get("curves", 0)
    source = f"calibrated on {curves} runs" if curves else "not calibrated"
    tag = "vetoed forecast" if vetoed else "forecast"
    page.entries.append(((band, line), f"{tag} (median), {100 * forecast.level:g} % interval ({source})"))
    if vetoed:
        page.box_title = "No verdict; do not rely on the forecast:"
        page.box = [plain(_sentence(veto)) for veto in forecast.vetoes]


def _draw_budget(ax: Axes, page: Page, forecast: Forecast) -> list[tuple[float, str, str]]:
    """The budget as a diamond on the forecast, with a bar for the interval."""
    budget = forecast.budget
    p = forecast.predict([budget])
    ends = [[p.score[0] - p.low[0]], [p.high[0] - p.score[0]]]
    mark = ax.errorbar([budget], p.score, ends, marker="D", ms=6, color=BLACK, mec="white", mew=0.6, elinewidth=1.2,
                       capsize=3, ls="none", zorder=6)  # fmt: skip
    unit = plural(plain(forecast.curve.unit))
    words = f"budget {amount(budget)} {unit}: {p.score[0]:.3f} ({p.low[0]:.3f}–{p.high[0]:.3f})"
    page.entries.append((mark, words))
    return [(budget, "budget", BLACK)]


def _draw_target(ax: Axes, page: Page, forecast: Forecast) -> list[ArrayLike]:
    """A target score as a line; returns the scores that this puts on the axis."""
    target = forecast.target
    if target is None:
        return []
    line = ax.axhline(target.score, color=GREEN, lw=1.2, ls=(0, (6, 2, 1.2, 2)), zorder=1)
    unit = plural(plain(forecast.curve.unit))
    reach = f"{amount(target.compute)} ({amount(target.low)} to {amount(target.high)}) {unit}"
    page.entries.append((line, f"target {target.score:g}, reached at {reach}"))
    return [target.score]


def _draw_parameters(ax: Axes, axis: ComputeAxis, page: Page, fit: Fit, level: float) -> list[tuple[float, str, str]]:
    """A and C_mid; returns C_mid's label over the frame."""
    page.entries += marks.ceiling(ax, fit, level)
    entries, labels = marks.half_gain(ax, axis, fit, level)
    page.entries += entries
    return labels


def _dress(ax: Axes, axis: ComputeAxis, curve: Curve, scores: list[ArrayLike]) -> None:
    """Both axes: compute in its unit, and a score axis that holds everything drawn."""
    dress(ax, axis, curve.unit)
    dress_score(ax, curve.score_name, scores)


def _parameters(fit: Fit, level: float) -> str:
    R0, B = fit.interval("R0", level), fit.interval("B", level)
    return (
        f"R0 = {score_text(fit.R0)} ({to(*R0)}), B = {fit.B:.2f} ({B[0]:.2f} to {B[1]:.2f}), "
        f"residual sd {fit.residual_sd:.4f}; {100 * level:g} % intervals."
    )


def _ceiling(fit: Fit) -> list[ArrayLike]:
    """The score of the ceiling where it is drawn."""
    return [] if fit.ceiling == "not identified" else [fit.A]


def _before(run: Curve | None, fit: Fit) -> Curve | None:
    """The points of a run before the first that was fitted."""
    first = fit.curve.compute[0]
    return None if run is None or run.compute[0] >= first else run.upto(float(np.nextafter(first, 0.0)))


def _after(run: Curve | None, last: float) -> Curve | None:
    return None if run is None or run.compute[-1] <= last else run.since(float(np.nextafter(last, np.inf)))


def _sentence(reason: str) -> str:
    text = re.sub(r"(?<![\w.])-(?=\d)", "−", reason.rstrip("."))  # as the axes write it
    return f"{text[:1].upper()}{text[1:]}."
