"""`compare`: which recipe has the higher ceiling, which is only faster, and where that cannot be said.

The paper's rule (2.1): recipes whose A agree within .02 are re-fitted with the mean A and compared by B. Here the
margin is an interval of the difference: it holds what the points leave open and what seeds of one recipe differ by,
and the re-fit with a shared A averages over that A.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.differences import Difference
from scalerl.curves.pair_words import CEILING, EFFICIENCY
from scalerl.curves.pairs import Pair, compare_pair
from scalerl.curves.pooling import A_SPREAD
from scalerl.curves.recipe_fit import RecipeFit, fit_recipe
from scalerl.errors import InputError
from scalerl.runs import Curve
from scalerl.words import in_words, plural

FloatArray = NDArray[np.float64]
SHARE = 0.9
"""Recipes with the same ceiling are ranked by the compute that brings them to this share of their gain."""


@dataclass(frozen=True)
class Rank:
    """Place of a recipe: by ceiling first, then by efficiency. Place is None where nothing can be said of it.

    Attributes:
        tied_with: recipes of about the same ceiling and no detectable difference in efficiency.
        A: ceiling; compute: what brings it to 90 % of its gain.
    """

    place: int | None
    name: str
    A: float
    compute: float
    tied_with: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`. `to_dict()` is the JSON of schema 1.

    Attributes:
        recipes: name -> what is known of it; pairs: one for each two recipes, in the order given.
        ranking: best first; level: of the intervals; unit: of compute.
    """

    recipes: dict[str, RecipeFit]
    pairs: list[Pair]
    ranking: list[Rank]
    level: float
    unit: str

    def pair(self, first: str, second: str) -> Pair:
        """The pair of two recipes, in the order in which they were given to `compare`."""
        for pair in self.pairs:
            if {pair.first.name, pair.second.name} == {first, second}:
                return pair
        raise InputError(f"no pair {first!r}, {second!r}; recipes are {', '.join(self.recipes)}")

    def summary(self) -> str:
        """Recipes, ranking and pairs in words and numbers."""
        percent = f"{100 * self.level:g} %"
        width = max(8, *(len(name) for name in self.recipes))
        lines = [f"{'recipe':<{width}}  seeds  {'A':>6} {f'({percent})':>16}  {'B':>5}  {'C_mid':>9}  {'C/C_mid':>7}"]
        for name, r in self.recipes.items():
            low, high = r.interval("A", self.level)
            tag = _standing(r)
            lines.append(
                f"{name:<{width}}  {r.seeds:>5}  {r.estimate('A'):>6.3f} {f'{low:.3f} to {high:.3f}':>16}"
                f"  {r.estimate('B'):>5.2f}  {r.estimate('C_mid'):>9.4g}  {r.C_over_C_mid:>7.2f}{tag and '  ' + tag}"
            )
        lines += ["", "ranking (ceiling first, then efficiency):"]
        for rank in self.ranking:
            place = "-" if rank.place is None else str(rank.place)
            tie = f"; not told apart from {', '.join(rank.tied_with)}" if rank.tied_with else ""
            reached = f"{100 * SHARE:g} % of its gain after {in_words(rank.compute, self.unit)}"
            lines.append(f"  {place}. {rank.name}: A {rank.A:.3f}, {reached}{tie}{rank.note and '; ' + rank.note}")
        for pair in self.pairs:
            lines += ["", *pair.lines()]
        return "\n".join([*lines, "", *(f"note: {note}" for note in self.notes)])

    @property
    def notes(self) -> list[str]:
        """How many seeds there are, what spread among them is assumed or found, and which were left out."""
        found = []
        single = [name for name, r in self.recipes.items() if r.seeds == 1]
        if single:
            found.append(
                f"one seed of {', '.join(single)}: its A is taken to stray from the recipe's by about {A_SPREAD} as "
                "the paper's seeds do, so a difference smaller than that is none"
            )
        found += [
            f"{r.seeds} seeds of {name}: their A stray by about {r.seed_sd:.4f}"
            for name, r in self.recipes.items()
            if r.seeds > 1
        ]
        return found + [f"{name}: {note}" for name, r in self.recipes.items() for note in r.left_out]

    def plot(self, path: str | None = None) -> Any:
        """Draw the recipes on one axis, and straightened (figure 7); see `scalerl.report.plots.plot_compare`."""
        from importlib import import_module  # the report sits on a higher floor

        return import_module("scalerl.report.plots").plot_compare(self, path)

    def to_dict(self) -> dict[str, Any]:
        """JSON of schema 1."""
        return {
            "schema": 1,
            "level": self.level,
            "compute_unit": self.unit,
            "recipes": [r.to_dict(self.level) for r in self.recipes.values()],
            "pairs": [pair.to_dict() for pair in self.pairs],
            "notes": self.notes,
            "ranking": [{**rank.__dict__, "tied_with": list(rank.tied_with)} for rank in self.ranking],
        }


def compare(
    runs: Mapping[str, Curve | Sequence[Curve]],
    level: float = 0.9,
    at: float | None = None,
    since: float | Literal["auto"] = "auto",
) -> Comparison:
    """Compare recipes by ceiling and efficiency.

    Args:
        runs: name -> its curve, or the curves of its seeds; at least two recipes, all in one unit of compute.
        level: of the intervals, and of the words: recipes that are the same are called so at least that often.
        at: compute at which scores are compared; default the smaller last compute of each pair, inside both runs.
        since: warm-up cut, see `fit`.

    Raises:
        InputError: fewer than two recipes, different units, level or `at` out of range.
        ForecastRefused: a run to which no law can be fitted.
    """
    seeds = {name: _seed_curves(name, given) for name, given in runs.items()}
    unit = _check(seeds, level, at)
    # One stream a recipe: the answer for two recipes does not depend on which others are compared with them.
    recipes = {name: fit_recipe(name, curves, since, np.random.default_rng([7, i]))
               for i, (name, curves) in enumerate(seeds.items())}  # fmt: skip
    pairs = [compare_pair(a, b, level, at, np.random.default_rng(11)) for a, b in combinations(recipes.values(), 2)]
    return Comparison(recipes, pairs, _ranking(recipes, pairs), level, unit)


def _seed_curves(name: str, given: Curve | Sequence[Curve]) -> list[Curve]:
    curves = [given] if isinstance(given, Curve) else list(given)
    if not curves:
        raise InputError(f"{name}: no curve was given; give at least one run of this recipe")
    return curves


def _check(seeds: Mapping[str, list[Curve]], level: float, at: float | None) -> str:
    if len(seeds) < 2:
        raise InputError(f"compare needs at least two recipes, got {len(seeds)}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    if at is not None and not (math.isfinite(at) and at > 0):
        raise InputError(f"at must be a positive compute, got {at}")
    units = {curve.unit: f"{name} ({plural(curve.unit)})" for name, curves in seeds.items() for curve in curves}
    if len(units) > 1:
        raise InputError(
            f"curves in different units of compute: {', '.join(units.values())}; read them with the same x"
        )
    return next(iter(units))


def _ranking(recipes: dict[str, RecipeFit], pairs: list[Pair]) -> list[Rank]:
    """By ceiling; recipes whose ceiling is not told apart from the best remaining one, by efficiency."""
    words = {frozenset((p.first.name, p.second.name)): p.words for p in pairs}

    def told_apart(a: RecipeFit, b: RecipeFit) -> bool:
        return words[frozenset((a.name, b.name))] == CEILING

    able = sorted((r for r in recipes.values() if not (r.too_short or r.vetoes)), key=lambda r: -r.estimate("A"))
    order: list[Rank] = []
    while able:
        group = [able[0], *(r for r in able[1:] if not told_apart(able[0], r))]
        able = [r for r in able if r not in group]
        for r in sorted(group, key=lambda r: r.compute_for(SHARE)):
            tied = tuple(
                o.name for o in group if o is not r and words[frozenset((o.name, r.name))] not in (CEILING, EFFICIENCY)
            )
            order.append(_rank(r, len(order) + 1, tied))
    return order + [_rank(r, None, ()) for r in recipes.values() if r.too_short or r.vetoes]


def _rank(recipe: RecipeFit, place: int | None, tied: tuple[str, ...]) -> Rank:
    return Rank(place, recipe.name, recipe.estimate("A"), recipe.compute_for(SHARE), tied, _standing(recipe))


def _standing(recipe: RecipeFit) -> str:
    if recipe.vetoes:
        return "cannot be judged"
    if recipe.too_short:
        return "too short to say"
    return "provisional, below 3 C_mid" if recipe.provisional else ""


__all__ = ["Comparison", "Difference", "Pair", "Rank", "RecipeFit", "compare"]
