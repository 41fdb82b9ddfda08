"""Pictures of recipes side by side: overlaid on one axis, straightened (figure 7), and methods in a backtest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from scalerl.curves.backtest import Backtest
from scalerl.curves.compare import Comparison
from scalerl.curves.fit import Fit
from scalerl.curves.pairs import Pair
from scalerl.curves.recipe_fit import RecipeFit
from scalerl.errors import InputError
from scalerl.report import marks
from scalerl.report.axis import ComputeAxis, compute_axis, dress, dress_score
from scalerl.report.page import FRAME, LEFT, Frame, Page, arrange, new_axes, new_figure
from scalerl.report.straightened import Straight, draw_straight, of_pair, of_recipes, straighten, which_A
from scalerl.report.style import (
    BLACK,
    FONT,
    Series,
    amount,
    check_path,
    house_style,
    name_of,
    plain,
    plural,
    score_text,
    series,
    to,
)
from scalerl.report.table import Table

FloatArray = NDArray[np.float64]
_MOST_PAIRS = 5


def plot_compare(comparison: Comparison, path: str | Path | None = None) -> Figure:
    """Draw the recipes of a comparison over each other, with bands and a table; two recipes also straightened.

    Args:
        comparison: what `scalerl.compare` returned.
        path: where to write it, as .png, .svg or .pdf; None writes nothing.

    Raises:
        InputError: unknown suffix, or the file cannot be written.
    """
    target = check_path(path)
    recipes = list(comparison.recipes.values())
    with house_style():
        fig = new_figure()
        ax = new_axes(fig)
        axis = compute_axis([f.curve.compute for r in recipes for f in r.fits])
        scores = [_draw_recipe(ax, axis, r, series(i), comparison.level) for i, r in enumerate(recipes)]
        dress(ax, axis, comparison.unit)
        dress_score(ax, recipes[0].fits[0].curve.score_name, scores)
        _draw_ceilings(ax, recipes, comparison.level)
        page = Page(_title(comparison), _pair_lines(comparison))
        pair = comparison.pairs[0] if len(comparison.pairs) == 1 else None
        page.table = _table(recipes, pair, comparison.level, comparison.unit)
        frames = [Frame(ax)]
        lines = of_pair(pair) if pair else []
        if pair and _drawable(lines):
            below = new_axes(fig)
            page.entries = draw_straight(below, lines, comparison.unit)
            below.set_title(f"Straightened. {which_A(recipes, pair)}.", loc="left", fontsize=FONT)
            frames.append(Frame(below, top=frames[0].height + 0.9, height=2.2))
        elif pair:
            page.lines.append(f"Not straightened. {which_A(recipes, pair)}.")
        return arrange(fig, frames, page, target)


def plot_straightened(
    source: Fit | Pair | Sequence[Fit] | Sequence[RecipeFit], path: str | Path | None = None
) -> Figure:
    """Figure 7: log F(R) against log C is a straight line of slope B where the law holds.

    F(R) = C_mid^B / ((A - R0) / (R - R0) - 1); points outside (R0, A) have no F: they are left out and counted.
    Recipes whose ceiling is not known are left out, and named.

    Args:
        source: a fit, several fits or recipes (each with its own A), or a pair of a comparison (with the shared A
            where the two agree).
        path: where to write it, as .png, .svg or .pdf; None writes nothing.

    Raises:
        InputError: no point lies inside (R0, A), unknown suffix, or the file cannot be written.
    """
    target = check_path(path)
    lines, unit, note = _straightened(source)
    if not _drawable(lines):
        raise InputError(f"nothing can be straightened: {note}; no score lies between R0 and a known A; plot the fit")
    with house_style():
        fig = new_figure()
        ax = new_axes(fig)
        page = Page("Straightened: log F(R) is a line of slope B in log C", [f"{note}."])
        page.entries = draw_straight(ax, lines, unit)
        return arrange(fig, [Frame(ax)], page, target)


def _straightened(
    source: Fit | Pair | Sequence[Fit] | Sequence[RecipeFit],
) -> tuple[list[Straight | None], str, str]:
    """The lines, their unit of compute, and whose A they stand on."""
    if isinstance(source, Pair):
        recipes = [source.first, source.second]
        return of_pair(source), source.first.unit, which_A(recipes, source)
    items: list[Fit | RecipeFit] = [source] if isinstance(source, Fit) else list(source)
    recipes = [item for item in items if isinstance(item, RecipeFit)]
    if recipes:
        return of_recipes(recipes), recipes[0].unit, which_A(recipes)
    fits = [item for item in items if isinstance(item, Fit)]
    one = f"{fits[0].curve.name}: A = {fits[0].A:.3f}, R0 = {fits[0].R0:.3f}"
    lines: list[Straight | None] = [straighten(f) for f in fits]
    return lines, fits[0].curve.unit, one if len(fits) == 1 else "Each run with its own A"


def _drawable(lines: Sequence[Straight | None]) -> bool:
    return any(s is not None and s.log_C.size for s in lines)


def plot_backtest(report: Backtest, path: str | Path | None = None) -> Figure:
    """Draw the error and the coverage of each method at each cut of a backtest.

    Args:
        report: what `scalerl.backtest` returned.
        path: where to write it, as .png, .svg or .pdf; None writes nothing.

    Raises:
        InputError: no case was forecast, unknown suffix, or the file cannot be written.
    """
    target = check_path(path)
    rows = [s for s in report.summaries() if s.cases]
    if not rows:
        raise InputError("no curve of this backtest could be forecast, so there is nothing to draw; give longer curves")
    methods = list(dict.fromkeys(s.method for s in rows))
    fractions = sorted({s.fraction for s in rows}, reverse=True)
    with house_style():
        fig = new_figure()
        errors, held = new_axes(fig), new_axes(fig)
        handles = []
        for i, method in enumerate(methods):
            own = [s for s in rows if s.method == method]
            x = np.array([fractions.index(s.fraction) for s in own]) + 0.11 * (i - (len(methods) - 1) / 2)
            look = series(i)
            spread = [_quartiles(report, s.method, s.fraction) for s in own]
            _whiskers(errors, x, [s.median_error for s in own], spread, look)
            covered = np.array([s.coverage_of_mean for s in own])
            low, high = marks.wilson(covered, np.array([float(s.cases) for s in own]), report.level)
            handles.append(_whiskers(held, x, 100 * covered, list(zip(100 * low, 100 * high, strict=True)), look))
        held.axhline(100 * report.level, color=BLACK, lw=1.0, ls=(0, (6, 3)), zorder=1)
        names = [f"{1 / f:.2g}x\n(cut at {100 * f:.3g} %)" for f in fractions]
        for ax, label in (
            (errors, "|error| of the forecast: median, quartiles"),
            (held, "ends inside the interval, %"),
        ):
            ax.set_xticks(range(len(fractions)), names)
            ax.set_xlim(-0.6, len(fractions) - 0.4)
            ax.set_ylabel(label)
            ax.set_ylim(bottom=0)
            ax.grid(axis="y", color="#ececec", lw=0.7)
            ax.set_axisbelow(True)
        held.set_ylim(-3, 103)
        curves = len({c.curve for c in report.cases})
        page = Page(f"Backtest of {curves} {'curve' if curves == 1 else 'curves'}", [
            f"Each curve is cut and its end forecast. Dashed: the nominal {100 * report.level:g} %; its bars are "
            f"{100 * report.level:g} % intervals (Wilson) for that many curves."
        ])  # fmt: skip
        page.entries = list(zip(handles, map(plain, methods), strict=True))
        half = (FRAME - 0.65) / 2
        frames = [Frame(errors, width=half, height=2.6), Frame(held, LEFT + half + 0.65, width=half, height=2.6)]
        return arrange(fig, frames, page, target)


def _draw_recipe(ax: Axes, axis: ComputeAxis, recipe: RecipeFit, look: Series, level: float) -> FloatArray:
    """Points, laws and bands of all seeds of a recipe; returns the scores that must fit on the axis."""
    shown = []
    for fit in recipe.fits:
        marks.evaluations(ax, axis, fit.curve, look.color, look.marker, errors=False)
        x = marks.smooth_grid(fit.curve.compute)
        low, high = marks.law_band(fit, x, level)
        ax.fill_between(x, low, high, color=look.color, alpha=0.13, lw=0, zorder=1.5)
        ax.plot(x, fit.predict(x), color=look.color, ls=look.line, lw=1.8, zorder=3)
        shown += [fit.curve.score, low, high]
    return np.concatenate([*shown, [recipe.estimate("A")] if recipe.known else []])


def _draw_ceilings(ax: Axes, recipes: Sequence[RecipeFit], level: float) -> None:
    """The interval of each known ceiling as a bar on the right margin."""
    known = [(i, r) for i, r in enumerate(recipes) if r.known]
    step = min(0.012, 0.045 / max(len(known), 1))
    for place, (i, recipe) in enumerate(known):
        marks.margin_bar(ax, recipe.estimate("A"), *recipe.interval("A", level), series(i).color, 1.01 + step * place)
    if known:
        ax.annotate("A", (1.03, 1.0), xycoords="axes fraction", ha="center", va="bottom", fontsize=FONT)


def _title(comparison: Comparison) -> str:
    """Places with their recipes; equals stand behind one place."""
    placed = [r for r in comparison.ranking if r.place is not None]
    if not placed:
        return f"{len(comparison.recipes)} recipes, none of which can be ranked yet"
    if len(placed) == 1:
        return f"{name_of(placed[0].name, 40)} alone can be ranked, of {len(comparison.recipes)} recipes"
    tiers: dict[str, list[str]] = {}
    for r in placed:
        tiers.setdefault(r.places, []).append(name_of(r.name, 28))
    if len(tiers) == 1 and len(placed) == len(comparison.recipes):
        return f"Equal in rank: {', '.join(*tiers.values())}"
    # A place stays on the line of its first recipe.
    return "Ranking: " + ", ".join(f"{places}.\u00a0{', '.join(names)}" for places, names in tiers.items())


def _pair_lines(comparison: Comparison) -> list[str]:
    """The verdict on each recipe against the baseline, with the difference in A; the first few."""
    lines = [
        f"{name_of(p.second.name, 28)} against {name_of(p.first.name, 28)}: {plain(p.verdict)}"
        + (f" (A {score_text(p.A.estimate, True)}, {to(p.A.low, p.A.high, True)})" if _both_known(p) else "")
        for p in comparison.shown()
    ]
    more = len(lines) - _MOST_PAIRS
    return lines if more <= 1 else [*lines[:_MOST_PAIRS], f"and {more} more; `scalerl compare` prints them all."]


def _both_known(pair: Pair) -> bool:
    return pair.first.known and pair.second.known


def _table(recipes: Sequence[RecipeFit], pair: Pair | None, level: float, unit: str) -> Table:
    """A row a recipe. B and C_mid are those of the straightened lines: given the shared A where there is one."""
    percent, tag = f"{100 * level:g} %", ""
    rows = []
    for i, recipe in enumerate(recipes):
        B, C_mid = ((recipe.estimate(name), *recipe.interval(name, level)) for name in ("B", "C_mid"))
        if pair and pair.shares_A:
            tag, side = ", shared A", "first" if i == 0 else "second"
            B, C_mid = ((getattr(d, side), *getattr(d, f"{side}_interval")) for d in pair.efficiency)
        rows.append((series(i), _row(recipe, level, B, C_mid)))
    star = "; * provisional" if any(r.known and r.provisional for r in recipes) else ""
    head = ["recipe", "seeds", f"A ({percent}{star})", f"B{tag} ({percent})", f"C_mid{tag}, {plural(plain(unit))}",
            "C/C_mid", ""]  # fmt: skip
    if all(r.seeds == 1 for r in recipes):  # then the names need the room more
        head, rows = [head[0], *head[2:]], [(look, [row[0], *row[2:]]) for look, row in rows]
    return Table(head, rows)


def _row(
    recipe: RecipeFit, level: float, B: tuple[float, float, float], C_mid: tuple[float, float, float]
) -> list[str]:
    low, high = recipe.interval("A", level)
    unknown = "cannot be judged" if recipe.vetoes else "" if recipe.known else "not known yet"
    star = "*" if recipe.provisional else ""
    ceiling = unknown or f"{recipe.estimate('A'):.3f}{star} ({low:.3f}–{high:.3f})"
    return [
        name_of(recipe.name),
        str(recipe.seeds),
        ceiling,
        "{:.2f} ({:.2f}–{:.2f})".format(*B),
        "{} ({}–{})".format(*map(amount, C_mid)),
        f"{recipe.C_over_C_mid:.2g}",
        "",
    ]


def _quartiles(report: Backtest, method: str, fraction: float) -> tuple[float, float]:
    errors = [abs(c.error) for c in report.cases if (c.method, c.fraction) == (method, fraction) and not c.failure]
    low, high = np.quantile(errors, [0.25, 0.75])
    return float(low), float(high)


def _whiskers(
    ax: Axes, x: FloatArray, middle: Sequence[float] | FloatArray, ends: Sequence[tuple[float, float]], look: Series
) -> Any:
    low, high = np.array(ends).T
    center = np.asarray(middle)
    reach = np.maximum([center - low, high - center], 0)
    return ax.errorbar(x, center, reach, ls="none", marker=look.marker, ms=5, color=look.color, mec="white", mew=0.4,
                       elinewidth=1.3, zorder=3)  # fmt: skip
