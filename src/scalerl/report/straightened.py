"""Figure 7's straightened plot: log F(R) against log C, a line of slope B where the law holds.

F(R) = C_mid^B / ((A - R0) / (R - R0) - 1). Points outside (R0, A) have no F; they are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from scalerl.curves.fit import Fit
from scalerl.curves.pairs import Pair
from scalerl.curves.paper import A_MARGIN
from scalerl.report.axis import compute_axis, dress
from scalerl.report.style import name_of, series

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Straight:
    """A straightened recipe: (n,) log C and log F(R), the slope B of each seed, and how many points had no F."""

    name: str
    log_C: FloatArray
    log_F: FloatArray
    slopes: tuple[float, ...]
    left_out: int


def straighten(fit: Fit) -> Straight:
    """log F(R) of the points inside (R0, A): B log C_mid + z, where z is the law's inverse of the share of the gain."""
    compute, score = fit.curve.compute, fit.curve.score
    share = (score - fit.R0) / (fit.A - fit.R0)
    inside = (share > 0) & (share < 1) & (compute > 0)
    log_F = fit.B * np.log(fit.C_mid) + fit.law.inverse_rise(share[inside])
    return Straight(fit.curve.name, np.log(compute[inside]), log_F, (fit.B,), int((~inside).sum()))


def of_pair(pair: Pair) -> list[Straight]:
    """Both with the shared A where their A agree within .02, the paper's rule (2.1); else each with its own."""
    found = []
    for recipe, B in zip((pair.first, pair.second), pair.refit_B, strict=True):
        if pair.within_margin:
            log_C, log_F = pair.straightened()[recipe.name]
            slopes: tuple[float, ...] = (B,)
        else:
            seeds = [straighten(f) for f in recipe.fits]
            log_C, log_F = (np.concatenate([getattr(s, name) for s in seeds]) for name in ("log_C", "log_F"))
            slopes = tuple(f.B for f in recipe.fits)
        total = sum(len(f.curve) for f in recipe.fits)
        found.append(Straight(recipe.name, log_C, log_F, slopes, total - log_C.size))
    return found


def draw_straight(ax: Axes, lines: Sequence[Straight], unit: str) -> list[Any]:
    """Points and lines of slope B; returns the legend's pictures. log10 F on an even axis: F itself may overflow."""
    axis = compute_axis([np.exp(s.log_C) for s in lines if s.log_C.size])
    handles = []
    for i, s in enumerate(lines):
        look = series(i)
        points = ax.plot(np.exp(s.log_C), s.log_F / np.log(10), ls="none", marker=look.marker, ms=4.2, mec="white",
                         mew=0.4, color=look.color, zorder=4)[0]  # fmt: skip
        ends = s.log_C[[s.log_C.argmin(), s.log_C.argmax()]] if s.log_C.size else np.zeros(0)
        for B in s.slopes:
            line = ax.plot(np.exp(ends), B * ends / np.log(10), color=look.color, ls=look.line, lw=1.6, zorder=3)[0]
        handles.append((line, points))
    dress(ax, axis, unit)
    ax.set_ylabel("log10 F(R)")
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.grid(axis="y", color="#ececec", lw=0.7)
    ax.set_axisbelow(True)
    return handles


def words(line: Straight) -> str:
    """A legend entry: the slope, and how many points are shown or left out."""
    total = line.log_C.size + line.left_out
    lost = f"; {line.left_out} of {total} points outside (R0, A) left out" if line.left_out else f"; {total} points"
    slopes = ", ".join(f"{B:.2f}" for B in line.slopes)
    return f"{name_of(line.name)}: slope B = {slopes}{lost}"


def which_A(pair: Pair) -> str:
    """Whose A the straightened points of a pair stand on."""
    if pair.within_margin:
        return f"Refitted with the shared A = {pair.shared_A:.3f}"
    return f"Each with its own A, which differ by more than {A_MARGIN:g}"
