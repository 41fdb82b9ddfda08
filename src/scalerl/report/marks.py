"""Marks on a frame: evaluations, the law, bands, lines at a compute or a score. Each returns its legend entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from scalerl.curves.fit import Fit
from scalerl.curves.posterior import mixture_quantiles
from scalerl.report.axis import ComputeAxis
from scalerl.report.page import Entry
from scalerl.report.style import BLACK, FONT, GREY, amount, plain, plural
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
MOST_MARKERS = 120
"""With more points than this, single points become faint dots under their binned means."""
_BINS, _FEWEST = 30, 4
"""Bins over the whole axis, and the fewest points in one."""
_ONE_SIGMA = 0.683
SMOOTH = 200


def evaluations(
    ax: Axes, axis: ComputeAxis, curve: Curve, color: str = BLACK, marker: str = "o", errors: bool = True
) -> list[Entry]:
    """Points of a run: with error bars where trials are known, or dots and binned means where they are many."""
    label = "evaluations"
    if len(curve) > MOST_MARKERS:
        return _many(ax, axis, curve, color, marker, label)
    x = axis.place(curve.compute)
    size = 4.0 if len(curve) <= 60 else 3.2
    points = ax.plot(x, curve.score, ls="none", marker=marker, ms=size, mfc=color, mec="white", mew=0.4, zorder=4)[0]
    if curve.trials is None or not errors:
        return [(points, f"{label} ({len(curve)})")]
    low, high = wilson(curve.score, curve.trials)
    ax.vlines(x, low, high, color=color, lw=0.7, alpha=0.7, zorder=3)
    return [(points, f"{label} ({len(curve)}); bars: 68 % by their trials")]


def extent(curve: Curve) -> list[ArrayLike]:
    """Scores that `evaluations` puts on the axis, error bars included."""
    if curve.trials is None or len(curve) > MOST_MARKERS:
        return [curve.score]
    return [curve.score, *wilson(curve.score, curve.trials)]


def hollow(ax: Axes, axis: ComputeAxis, curve: Curve, color: str = BLACK) -> list[Entry]:
    """Warm-up points that the fit left out."""
    size = 4.0 if len(curve) <= MOST_MARKERS else 2.5
    points = ax.plot(
        axis.place(curve.compute),
        curve.score,
        ls="none",
        marker="o",
        ms=size,
        mfc="white",
        mec=color,
        mew=0.8,
        zorder=3,
    )[0]
    return [(points, f"warm-up, left out of the fit ({len(curve)})")]


def crosses(ax: Axes, axis: ComputeAxis, curve: Curve, color: str) -> list[Entry]:
    """Points that came after the cut of a replay."""
    many = len(curve) > MOST_MARKERS
    x = axis.place(curve.compute)
    every = ax.plot(
        x, curve.score, ls="none", marker="x", ms=3.0 if many else 4.5, mew=0.8 if many else 1.2,
        color=color, alpha=0.3 if many else 1.0, zorder=3.5,
    )[0]  # fmt: skip
    if not many:
        return [(every, f"what came later ({len(curve)})")]
    middle, mean, error = binned(curve, axis.log_span / _BINS)
    means = ax.errorbar(middle, mean, error, ls="none", marker="X", ms=5.5, mec="white", mew=0.5, color=color,
                        elinewidth=0.9, zorder=4.5)  # fmt: skip
    return [(means, f"what came later ({len(curve)}), means of bins ± 1 s.e.")]


def smooth_grid(compute: FloatArray) -> FloatArray:
    """Computes to draw a law at, from the first positive point to the last."""
    positive = compute[compute > 0]
    return np.geomspace(positive[0], positive[-1], SMOOTH)


def law_band(fit: Fit, compute: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """Interval of the fitted law's score at each compute, from the posterior of its parameters; two (k,) arrays."""
    post, share = fit.posterior, fit.posterior.shares(compute)
    coef = np.stack([1 - share, share], axis=2)
    mean = np.einsum("mkp,mp->mk", coef, post.mean)
    sd = np.sqrt(np.maximum(np.einsum("mkp,mpq,mkq->mk", coef, post.cov, coef), 1e-12))
    low, high = mixture_quantiles(post.weight, mean, sd, ((1 - level) / 2, (1 + level) / 2))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def ceiling(ax: Axes, fit: Fit, level: float) -> list[Entry]:
    """A as a dashed line, its interval as a bar on the right margin; only words below 1.5 C_mid (no A is known there).

    Call it after the score axis has its limits: a bar that runs past the frame ends in an arrowhead.
    """
    if fit.ceiling == "not identified":
        return [(None, f"no ceiling A: {fit.ceiling_reason}")]
    reach = fit.C_over_C_mid
    low, high = fit.interval("A", level)
    line = ax.axhline(fit.A, color=GREY, lw=1.1, ls=(0, (7, 3)), zorder=1)
    margin_bar(ax, fit.A, low, high, GREY)
    ax.annotate("A", (1.0, fit.A), xycoords=("axes fraction", "data"), xytext=(14, 0), textcoords="offset points",
                va="center", color=GREY, fontsize=FONT)  # fmt: skip
    tag = "provisional; run at " if fit.ceiling == "provisional" else "run at "
    bar = Line2D([], [], color=GREY, lw=5, alpha=0.45)
    return [((bar, line), f"A = {fit.A:.3f} (bar: {low:.3f}–{high:.3f}), {tag}{amount(reach, 2)} C_mid")]


def margin_bar(ax: Axes, middle: float, low: float, high: float, color: str, place: float = 1.012) -> None:
    """An interval of a score as a bar right of the frame."""
    bottom, top = ax.get_ylim()
    across = ax.get_yaxis_transform()
    ends = [max(low, bottom), min(high, top)]
    ax.plot([place, place], ends, color=color, lw=3.5, alpha=0.55, transform=across, clip_on=False,
            solid_capstyle="butt", zorder=3)  # fmt: skip
    for end, outside, marker in ((ends[0], low < bottom, "v"), (ends[1], high > top, "^")):
        if outside:
            ax.plot([place], [end], marker=marker, ms=5, color=color, mew=0, transform=across, clip_on=False, zorder=4)
    ax.plot([place], [middle], marker="_", ms=7, mew=1.5, color=color, transform=across, clip_on=False, zorder=4)


def half_gain(ax: Axes, axis: ComputeAxis, fit: Fit, level: float) -> tuple[list[Entry], list[tuple[float, str, str]]]:
    """C_mid as a dotted line; the legend entry, and the label over the frame. Outside the axis: only words."""
    low, high = fit.interval("C_mid", level)
    unit = plural(plain(fit.curve.unit))
    words = f"C_mid = {amount(fit.C_mid)} ({amount(low)}–{amount(high)}) {unit}"
    if not axis.inside(fit.C_mid):
        side = "left" if fit.C_mid < axis.low else "right"
        return [(None, f"{words}: {side} of the axis")], []
    line = ax.axvline(fit.C_mid, color=GREY, lw=1.0, ls=(0, (1.2, 1.8)), zorder=1)
    return [(line, words)], [(fit.C_mid, "C_mid", GREY)]


def binned(curve: Curve, step: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means of bins that are `step` wide in log compute, or wider where fewer than 4 points would fall in.

    Returns:
        compute, score and the standard error of the score; (bins,) each. Points of compute 0 are left to themselves.
    """
    positive = curve.compute > 0
    x, y = curve.compute[positive], curve.score[positive]
    wanted = np.searchsorted(x, np.exp(np.arange(np.log(x[0]), np.log(x[-1]), step)))
    starts: list[int] = [0]
    for start in wanted:
        if start - starts[-1] >= _FEWEST and x.size - start >= _FEWEST:
            starts.append(int(start))
    count = np.diff([*starts, x.size]).astype(np.float64)
    mean_x, mean_y, square = (np.add.reduceat(v, starts) / count for v in (np.log(x), y, y**2))
    variance = np.maximum(square - mean_y**2, 0.0) * count / (count - 1)
    return np.exp(mean_x), mean_y, np.sqrt(variance / count)


def wilson(score: FloatArray, trials: FloatArray, level: float = _ONE_SIGMA) -> tuple[FloatArray, FloatArray]:
    """Wilson's interval of a pass rate: unlike the plain one it has a width at 0 and 1; two (n,) arrays."""
    z = float(ndtri(0.5 + level / 2))
    p = np.clip(score, 0.0, 1.0)
    middle = (p + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return middle - half, middle + half


def _many(ax: Axes, axis: ComputeAxis, curve: Curve, color: str, marker: str, label: str) -> list[Entry]:
    ax.plot(axis.place(curve.compute), curve.score, ls="none", marker=".", ms=3, mec="none", color=color, alpha=0.35,
            zorder=2, rasterized=len(curve) > 5000)  # fmt: skip
    x, mean, error = binned(curve, axis.log_span / _BINS)
    means: Any = ax.errorbar(x, mean, error, ls="none", marker=marker, ms=4.5, color=color, mec="white", mew=0.4,
                             elinewidth=0.9, zorder=4)  # fmt: skip
    return [(means, f"{label} ({len(curve)}, faint), means of bins ± 1 s.e.")]
