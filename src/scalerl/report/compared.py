"""Terminal view of a comparison: recipes, ranking, and each recipe against the baseline in words and numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from scalerl import words as n
from scalerl.report.terminal import grid, heading, lines

if TYPE_CHECKING:
    from scalerl.curves.compare import Comparison
    from scalerl.curves.differences import Difference
    from scalerl.curves.pairs import Pair
    from scalerl.curves.ranking import Rank

_STYLE = {
    "moves the ceiling": "green",
    "changes efficiency": "cyan",
    "cannot say": "magenta",
    "cannot say about the ceiling": "yellow",
    "too short to say": "yellow",
}
_BRIEF = {"too short to say": "too short", "ceiling unknown": "unknown"}
_RECIPES, _RANKING, _PAIR = 52, 50, 53
"""Columns that the tables need beside their names."""


def comparison_view(found: Comparison, unfit: Sequence[str] = (), width: int = 80) -> list[RenderableType]:
    """Recipes with their parameters, the ranking, and each recipe against the baseline."""
    level, unit = n.nominal(found.level), n.plural(found.unit)
    parts: list[RenderableType] = []
    if found.warnings:
        parts.append(lines(found.warnings, "!", "yellow"))
    parts += [Text(""), heading("Recipes", f"{level} intervals; C_mid in {unit}"), _recipes(found, width - _RECIPES)]
    parts += [Text(""), heading("Ranking", "by A where sure to differ, else by score; equals share places")]
    parts += _ranking(found, width - _RANKING)
    pairs = found.shown()
    if len(found.pairs) > len(pairs):
        chosen = f"Each against {found.baseline} (--baseline chooses another; --json has all {len(found.pairs)} pairs)."
        parts += [Text(""), lines([chosen])]
    for pair in pairs:
        parts += _pair(pair, level, unit, (width - _PAIR) // 2)
    left_out = [*unfit, *(f"{r.name}: {note}" for r in found.recipes.values() for note in r.left_out)]
    if left_out:
        parts += [Text(""), heading("Left out"), lines(left_out, "-", "dim")]
    return parts


def folded(name: str, width: int) -> str:
    """A name on as many lines of `width` as it needs, broken where its parts meet; only a longer part is cut."""
    rows = [""]
    for part in re.findall(r"[^_\-./\s]*[_\-./\s]?", name):
        if rows[-1] and len(rows[-1]) + len(part.rstrip()) > width:
            rows.append("")
        rows[-1] += n.short(part, width) if len(part) > width else part
    return "\n".join(row.strip() for row in rows)


def _recipes(found: Comparison, width: int) -> RenderableType:
    rows = []
    for recipe in found.recipes.values():
        ceiling = [n.NEVER, _BRIEF.get(recipe.standing, recipe.standing)]
        if recipe.known:
            low, high = recipe.interval("A", found.level)
            ceiling = [n.score(recipe.estimate("A")), n.between(low, high)]
        rows.append([n.short(recipe.name, width), str(recipe.seeds), *ceiling, f"{recipe.estimate('B'):.2f}",
                     n.amount(recipe.estimate("C_mid")), f"{recipe.C_over_C_mid:.2f}"])  # fmt: skip
    columns = [("recipe", "left"), ("seeds", "right"), ("A", "right"), ("", "left"), ("B", "right"), ("C_mid", "right"),
               ("C/C_mid", "right")]  # fmt: skip
    return grid(columns, rows)


def _ranking(found: Comparison, width: int) -> list[RenderableType]:
    rows = [
        [rank.places, n.short(rank.name, width), *(n.NEVER if v is None else n.score(v) for v in (rank.A, rank.score)),
         rank.note]
        for rank in found.ranking
    ]  # fmt: skip
    score = f"score at {n.amount(found.at)} {n.short(n.plural(found.unit), 10)}"
    columns = [("", "right"), ("recipe", "left"), ("A", "right"), (score, "right"), ("", "left")]
    return [grid(columns, rows), lines(_across(found.ranking), "-", "dim")]


def _across(ranking: Sequence[Rank]) -> list[str]:
    """Recipes that are not told apart although others between them give them different places."""
    places = {rank.name: rank.place for rank in ranking}
    said = []
    for rank in ranking:
        lower = [name for name in rank.tied_with if (places[name] or 0) > (rank.place or 0)]
        if lower:
            said.append(f"{rank.name} and {', '.join(lower)} are not told apart; others decide their places.")
    return said


def _pair(pair: Pair, level: str, unit: str, width: int) -> list[RenderableType]:
    title = Text(f"{pair.second.name} against {pair.first.name}: ", style="bold")
    title.append(pair.verdict, style=f"bold {_STYLE.get(pair.words, '')}".strip())
    rows, where = [], [f"score compared at {n.amount(pair.at)} {unit}"]
    if not pair.score or any(reason.startswith("at ") for reason in pair.reasons):  # then a reason names the place
        where = []
    # Where a ceiling is not identified there is no A to print, nor what hangs on it.
    if pair.first.known and pair.second.known:
        rows += _parameters(pair)
    if pair.score:
        rows.append(_difference("score", pair.score))
    names = [folded(recipe.name, width) for recipe in (pair.first, pair.second)]
    columns = [("", "left"), *((name, "right") for name in names), ("difference", "right"), (level, "left")]
    return [Text(""), title, *([grid(columns, rows)] if rows else []), lines([*where, *pair.reasons], "-", "dim")]


def _parameters(pair: Pair) -> list[list[str]]:
    B, C_mid = pair.efficiency
    tag = ", shared A" if B is pair.B_shared else ""
    return [_difference("A", pair.A), _difference(f"B{tag}", B), _difference(f"C_mid{tag}", C_mid)]


def _difference(name: str, d: Difference) -> list[str]:
    """A row: both medians, and the second minus the first, or over it for what acts by its ratio."""
    values = [n.amount(v) if name.startswith("C_mid") else f"{v:.2f}" if name.startswith("B") else n.score(v)
              for v in (d.first, d.second)]  # fmt: skip
    if d.kind == "ratio":
        return [name, *values, f"{d.estimate:.2f}x", f"[{d.low:.2f}x, {d.high:.2f}x]"]
    if name == "B":
        return [name, *values, f"{d.estimate:+.2f}", f"[{d.low:+.2f}, {d.high:+.2f}]"]
    return [name, *values, n.signed(d.estimate), n.between(d.low, d.high, "signed")]
