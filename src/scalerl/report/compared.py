"""Terminal view of a comparison: recipes, ranking, and each pair in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from scalerl import words as n
from scalerl.report.terminal import grid, heading, lines

if TYPE_CHECKING:
    from scalerl.curves.compare import Comparison
    from scalerl.curves.pairs import Difference, Pair
    from scalerl.curves.recipe_fit import RecipeFit

_STYLE = {
    "moves the ceiling": "green",
    "changes efficiency": "cyan",
    "cannot say": "magenta",
    "too short to say": "yellow",
}
MOST_PAIRS = 15
"""Pairs shown with numbers; of more recipes each is shown against the first only."""


def comparison_view(found: Comparison, unfit: Sequence[str] = ()) -> list[RenderableType]:
    """Recipes with their parameters, the ranking, the pairs."""
    level, unit = n.nominal(found.level), n.plural(found.unit)
    parts: list[RenderableType] = [Text(""), heading("Recipes", f"{level} intervals; C_mid in {unit}")]
    parts.append(_recipes(found))
    parts += [Text(""), heading("Ranking", "ceiling first, then efficiency"), _ranking(found)]
    pairs = found.pairs
    if len(pairs) > MOST_PAIRS:
        first = next(iter(found.recipes))
        pairs = [p for p in found.pairs if first in (p.first.name, p.second.name)]
        parts += [Text(""), lines([f"{len(found.pairs)} pairs: shown are those with {first}; --json has them all."])]
    for pair in pairs:
        parts += _pair(pair, level, unit)
    left_out = [*unfit, *(f"{r.name}: {note}" for r in found.recipes.values() for note in r.left_out)]
    if left_out:
        parts += [Text(""), heading("Left out"), lines(left_out, "-", "dim")]
    return parts


def _recipes(found: Comparison) -> RenderableType:
    rows = []
    for recipe in found.recipes.values():
        ceiling = [n.NEVER, _why_not(recipe)]
        if not (recipe.too_short or recipe.vetoes):
            low, high = recipe.interval("A", found.level)
            ceiling = [n.score(recipe.estimate("A")), n.between(low, high)]
        rows.append([n.short(recipe.name), str(recipe.seeds), *ceiling, f"{recipe.estimate('B'):.2f}",
                     n.amount(recipe.estimate("C_mid")), f"{recipe.C_over_C_mid:.2f}"])  # fmt: skip
    columns = [("recipe", "left"), ("seeds", "right"), ("A", "right"), ("", "left"), ("B", "right"), ("C_mid", "right"),
               ("C/C_mid", "right")]  # fmt: skip
    return grid(columns, rows)


def _why_not(recipe: RecipeFit) -> str:
    return "cannot be judged" if recipe.vetoes else "too short"


def _ranking(found: Comparison) -> RenderableType:
    unit, said = n.plural(found.unit), []
    for rank in found.ranking:
        place = "-" if rank.place is None else f"{rank.place}."
        text = f"{place} {rank.name}"
        if rank.place is not None:
            text += f": 90 % of its gain after {n.amount(rank.compute)} {unit}"
        if rank.tied_with:
            text += f"; not told apart from {', '.join(rank.tied_with)}"
        said.append(text + (f"; {rank.note}" if rank.note else ""))
    return lines(said)


def _pair(pair: Pair, level: str, unit: str) -> list[RenderableType]:
    title = Text(f"{pair.second.name} against {pair.first.name}: ", style="bold")
    title.append(pair.words, style=f"bold {_STYLE.get(pair.words, '')}".strip())
    rows, where = [], [f"score compared at {n.amount(pair.at)} {unit}"] if pair.score else []
    # Where a ceiling is not identified there is no A to print, nor what hangs on it.
    if not any(r.too_short or r.vetoes for r in (pair.first, pair.second)):
        rows += _parameters(pair)
    if pair.score:
        rows.append(_difference("score", pair.score))
    columns = [("", "left"), (n.short(pair.first.name, 14), "right"), (n.short(pair.second.name, 14), "right"),
               ("difference", "right"), (level, "left")]  # fmt: skip
    return [Text(""), title, *([grid(columns, rows)] if rows else []), lines([*where, *pair.reasons], "-", "dim")]


def _parameters(pair: Pair) -> list[list[str]]:
    rows = [_difference("A", pair.A)]
    if pair.B_shared and pair.C_mid_shared:
        rows += [_difference("B, shared A", pair.B_shared), _difference("C_mid, shared A", pair.C_mid_shared)]
    else:
        rows += [_difference("B", pair.B), _difference("C_mid", pair.C_mid)]
    return rows


def _difference(name: str, d: Difference) -> list[str]:
    """A row: both medians, and the second minus the first, or over it for what acts by its ratio."""
    values = [n.amount(v) if name.startswith("C_mid") else f"{v:.2f}" if name.startswith("B") else n.score(v)
              for v in (d.first, d.second)]  # fmt: skip
    if d.kind == "ratio":
        return [name, *values, f"{d.estimate:.2f}x", f"[{d.low:.2f}x, {d.high:.2f}x]"]
    if name == "B":
        return [name, *values, f"{d.estimate:+.2f}", f"[{d.low:+.2f}, {d.high:+.2f}]"]
    return [name, *values, n.signed(d.estimate), n.between(d.low, d.high, "signed")]
