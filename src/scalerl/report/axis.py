"""The log compute axis: ticks as 1k, 10k, 100k; compute 0 left of a break; labels over the frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import blended_transform_factory
from numpy.typing import ArrayLike, NDArray

from scalerl.report.style import SMALL, amount, name_within, plural, width_of

FloatArray = NDArray[np.float64]
_SUBS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
_MOST_TICKS = 9
_ROW = 0.15
"""Inches between two rows of labels over the frame."""


@dataclass(frozen=True)
class ComputeAxis:
    """Where computes lie on the log axis.

    Attributes:
        low, high: smallest positive and largest compute shown. zero: where compute 0 is drawn, None if none is.
    """

    low: float
    high: float
    zero: float | None

    def place(self, compute: ArrayLike) -> FloatArray:
        """Positions on the axis: computes themselves, with 0 put at the left edge."""
        x = np.asarray(compute, dtype=np.float64)
        return x if self.zero is None else np.where(x > 0, x, self.zero)

    def inside(self, compute: float) -> bool:
        """Whether a compute falls on the drawn part of the axis."""
        return self.low <= compute <= self.high

    @property
    def log_span(self) -> float:
        """Length of the axis in natural log units."""
        return float(np.log(self.high / self.low))

    @property
    def limits(self) -> tuple[float, float]:
        span = self.log_span
        left = self.low * np.exp(-0.02 * span) if self.zero is None else self.zero * np.exp(-0.025 * span)
        return float(left), float(self.high * np.exp(0.02 * span))


def compute_axis(computes: Sequence[ArrayLike]) -> ComputeAxis:
    """The axis that holds all of the given computes, at least one of which is positive."""
    values = np.concatenate([np.ravel(np.asarray(c, dtype=np.float64)) for c in computes])
    positive = values[values > 0]
    low, high = float(positive.min()), float(positive.max())
    high = max(high, 1.05 * low)
    zero = low * float(np.exp(-0.07 * np.log(high / low))) if (values == 0).any() else None
    return ComputeAxis(low, high, zero)


def dress(ax: Axes, axis: ComputeAxis, unit: str) -> None:
    """Scale, limits, ticks, the break before compute 0, and the label with the unit."""
    ax.set_xscale("log")
    low, high = axis.limits
    ax.set_xlim(low, high)
    major = log_ticks(axis.low, axis.high)
    places = [axis.zero, *major] if axis.zero is not None else major
    labels = ["0", *map(_tick, major)] if axis.zero is not None else [_tick(m) for m in major]
    # The tick next to compute 0 would run into it.
    if axis.zero is not None and major and np.log(major[0] / axis.zero) < 0.045 * np.log(high / low):
        places, labels = [places[0], *places[2:]], [labels[0], *labels[2:]]
    ax.xaxis.set_major_locator(FixedLocator(places))
    ax.xaxis.set_major_formatter(FixedFormatter(labels))
    ax.xaxis.set_minor_locator(FixedLocator([m for m in _minor(axis.low, axis.high) if m not in major]))
    ax.xaxis.set_minor_formatter(NullFormatter())
    note = "log scale; 0 drawn left of the break" if axis.zero is not None else "log scale"
    ax.set_xlabel(f"compute ({name_within(plural(unit), 3.0)}, {note})")
    if axis.zero is not None:
        _break(ax, float(np.sqrt(axis.zero * axis.low)))


def dress_score(ax: Axes, name: str, scores: Sequence[ArrayLike]) -> None:
    """The score axis: limits that hold all of the given scores, even ticks, pale lines across, the column's name."""
    values = np.concatenate([np.ravel(np.asarray(s, dtype=np.float64)) for s in scores])
    low, high = float(values.min()), float(values.max())
    middle, span = 0.5 * (low + high), max(high - low, 0.04)
    ax.set_ylim(middle - 0.56 * span, middle + 0.56 * span)
    ax.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    ax.set_ylabel(name_within(name, 3.2))
    ax.grid(axis="y", color="#ececec", lw=0.7, zorder=0)
    ax.set_axisbelow(True)


def log_ticks(low: float, high: float) -> list[float]:
    """Round computes within [low, high]: the most of 1-2-5 and finer series that are at most nine."""
    decades = _multiples(low, high, (1,))
    if len(decades) > _MOST_TICKS:  # every second or third of them
        return decades[:: -(-len(decades) // _MOST_TICKS)]
    best = max((t for subs in _SUBS if len(t := _multiples(low, high, subs)) <= _MOST_TICKS), key=len)
    if len(best) >= 3:
        return best
    even = [float(s) for s in MaxNLocator(6).tick_values(low, high) if low <= s <= high]
    return even if len(even) > len(best) else best


def over_frame(ax: Axes, axis: ComputeAxis, labels: Sequence[tuple[float, str, str]], width: float) -> int:
    """Write (compute, text, colour) over the top edge, each in the lowest row where it touches none; returns the rows.

    Args:
        width: of the frame, in inches.
    """
    low, high = np.log(axis.limits)
    rows: list[float] = []
    for compute, text, color in sorted(labels):
        middle = float((np.log(compute) - low) / (high - low)) * width
        half = width_of(text, SMALL) / 2
        middle = min(max(middle, half), width - half)
        row = next((i for i, end in enumerate(rows) if middle - half > end + 0.08), len(rows))
        if row == len(rows):
            rows.append(0.0)
        rows[row] = middle + half
        ax.annotate(
            text, (middle / width, 1.0), xycoords="axes fraction", xytext=(0, 3 + 72 * _ROW * row),
            textcoords="offset points", ha="center", va="bottom", color=color, fontsize=SMALL,
        )  # fmt: skip
    return len(rows)


def label_height(rows: int) -> float:
    """Inches that the rows of labels over the frame take."""
    return 0.06 + _ROW * rows


def _tick(value: float) -> str:
    if value >= 1e15 or value < 1e-3:
        exponent = int(np.floor(np.log10(value) + 1e-9))
        mantissa = value / 10.0**exponent
        head = "" if abs(mantissa - 1) < 1e-6 else rf"{mantissa:.3g}\times"
        return rf"${head}10^{{{exponent}}}$"
    return amount(value, digits=6)


def _multiples(low: float, high: float, subs: Sequence[float]) -> list[float]:
    first, last = int(np.floor(np.log10(low))), int(np.floor(np.log10(high)))
    every = [float(f"{sub}e{k}") for k in range(first, last + 1) for sub in subs]
    return [v for v in every if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]


def _minor(low: float, high: float) -> list[float]:
    return _multiples(low, high, range(1, 10)) if high / low < 1e8 else []


def _break(ax: Axes, at: float) -> None:
    """Two strokes across the axis, with the axis line taken away between them."""
    low, high = np.log(ax.get_xlim())
    across = blended_transform_factory(ax.transAxes, ax.transAxes)
    middle = float((np.log(at) - low) / (high - low))
    ax.plot([middle - 0.005, middle + 0.005], [0, 0], color="white", lw=3, transform=across, clip_on=False, zorder=5)
    for shift in (-0.006, 0.006):
        x = [middle + shift - 0.004, middle + shift + 0.004]
        ax.plot(x, [-0.018, 0.018], color="#404040", lw=0.9, transform=across, clip_on=False, zorder=6)
