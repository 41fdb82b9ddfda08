"""Figure 7's straightened plot: log F(R) against log C, a line of slope B where the law holds.

F(R) = C_mid^B / ((A - R0) / (R - R0) - 1), the odds of the gain made so far times C_mid^B. Points outside (R0, A) have
no F; they are left out and counted.
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
from scalerl.curves.recipe_fit import RecipeFit
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


def of_recipe(recipe: RecipeFit, A: float, B: float, C_mid: float) -> Straight:
    """All seeds of a recipe under one law, so that its slope is the B that stands in the tables."""
    log_C, log_F = recipe.straightened(A, B, C_mid)
    total = sum(len(f.curve) for f in recipe.fits)
    return Straight(recipe.name, log_C, log_F, (B,), total - log_C.size)


def of_recipes(recipes: Sequence[RecipeFit]) -> list[Straight | None]:
    """Each with its own A; None where that is not known."""
    return [of_recipe(r, r.estimate("A"), r.estimate("B"), r.estimate("C_mid")) if r.known else None for r in recipes]


def of_pair(pair: Pair) -> list[Straight | None]:
    """Both with the shared A where their A agree, the paper's rule (2.1), else each with its own; None without an A."""
    return [of_recipe(r, *pair.line_of(r)) if r.known else None for r in (pair.first, pair.second)]


def draw_straight(ax: Axes, lines: Sequence[Straight | None], unit: str) -> list[tuple[Any, str]]:
    """Points and lines of slope B; returns the legend's entries. log10 F on an even axis: F itself may overflow.

    None keeps the place of a recipe that is not drawn, so that the others look as elsewhere in the picture.
    """
    axis = compute_axis([np.exp(s.log_C) for s in lines if s and s.log_C.size])
    entries = []
    for i, s in enumerate(lines):
        if s is None:
            continue
        look = series(i)
        points = ax.plot(np.exp(s.log_C), s.log_F / np.log(10), ls="none", marker=look.marker, ms=4.2, mec="white",
                         mew=0.4, color=look.color, zorder=4)[0]  # fmt: skip
        ends = s.log_C[[s.log_C.argmin(), s.log_C.argmax()]] if s.log_C.size else np.zeros(0)
        for B in s.slopes:
            line = ax.plot(np.exp(ends), B * ends / np.log(10), color=look.color, ls=look.line, lw=1.6, zorder=3)[0]
        entries.append(((line, points), words(s)))
    dress(ax, axis, unit)
    ax.set_ylabel("log10 F(R)\nF: odds of the gain x C_mid^B", linespacing=1.3)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.grid(axis="y", color="#ececec", lw=0.7)
    ax.set_axisbelow(True)
    return entries


def words(line: Straight) -> str:
    """A legend entry: the slope, and how many points are shown or left out."""
    total = line.log_C.size + line.left_out
    lost = f"; {line.left_out} of {total} points outside (R0, A) left out" if line.left_out else f"; {total} points"
    slopes = ", ".join(f"{B:.2f}" for B in line.slopes)
    return f"{name_of(line.name)}: slope B = {slopes}{lost}"


def which_A(recipes: Sequence[RecipeFit], pair: Pair | None = None) -> str:
    """Whose A the straightened points stand on, and which recipes are left out for want of one."""
    missing = ", ".join(name_of(r.name, 28) for r in recipes if not r.known)
    left_out = f"; left out, as the ceiling is unknown: {missing}" if missing else ""
    if pair is not None and pair.shares_A:
        return f"Both with the shared A = {pair.shared_A:.3f}{left_out}"
    return f"{'Each with its' if sum(r.known for r in recipes) > 1 else 'With its'} own A{left_out}"
