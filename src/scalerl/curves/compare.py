"""`compare`: which recipe has the higher ceiling, which is only faster, and where that cannot be said.

The paper's rule (2.1): recipes whose A agree within .02 are re-fitted with the mean A and compared by B. Here the
margin is an interval of the difference: it holds what the points leave open and what seeds of one recipe differ by,
and the re-fit with a shared A averages over that A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from scalerl.curves.differences import Difference
from scalerl.curves.pairs import Pair, compare_pair
from scalerl.curves.pooling import A_SPREAD
from scalerl.curves.ranking import Rank, rank
from scalerl.curves.recipe_fit import RecipeFit, fit_recipe
from scalerl.errors import InputError
from scalerl.runs import Curve
from scalerl.words import in_words, plural

Progress = Callable[[str], None]
NO_UNIT = "unit"
"""Unit of an axis that is called just "compute": it may be the other run's, or not."""


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`. `to_dict()` is the JSON of schema 1.

    Attributes:
        recipes: name -> what is known of it; pairs: one for each two recipes, in the order given.
        ranking: best first; at: compute at which its scores stand, reached by all that have a place.
        baseline: the recipe that the others are shown against: the one asked for, of two the first, else the best.
        level: of the intervals; unit: of compute; warnings: why the runs may not be comparable, a line each.
    """

    recipes: dict[str, RecipeFit]
    pairs: list[Pair]
    ranking: list[Rank]
    at: float
    baseline: str
    level: float
    unit: str
    warnings: list[str]

    def pair(self, first: str, second: str) -> Pair:
        """The pair of two recipes, in the order in which they were given to `compare`."""
        for pair in self.pairs:
            if {pair.first.name, pair.second.name} == {first, second}:
                return pair
        raise InputError(f"no pair {first!r}, {second!r}; recipes are {', '.join(self.recipes)}")

    def shown(self) -> list[Pair]:
        """Each recipe against the baseline, best first."""
        pairs = [self.pair(self.baseline, r.name) for r in self.ranking if r.name != self.baseline]
        return [pair if pair.first.name == self.baseline else pair.reversed() for pair in pairs]

    def summary(self) -> str:
        """Recipes, ranking and pairs in words and numbers."""
        percent = f"{100 * self.level:g} %"
        width = max(8, *(len(name) for name in self.recipes))
        lines = [f"{'recipe':<{width}}  seeds  {'A':>6} {f'({percent})':>16}  {'B':>5}  {'C_mid':>9}  {'C/C_mid':>7}"]
        for name, r in self.recipes.items():
            low, high = r.interval("A", self.level)
            A = f"{r.estimate('A'):>6.3f} {f'{low:.3f} to {high:.3f}':>16}" if r.known else f"{'-':>6} {'':>16}"
            lines.append(
                f"{name:<{width}}  {r.seeds:>5}  {A}  {r.estimate('B'):>5.2f}  {r.estimate('C_mid'):>9.4g}"
                f"  {r.C_over_C_mid:>7.2f}{r.standing and '  ' + r.standing}"
            )
        lines += ["", f"ranking (by A where it is known to differ, else by the score at {self._common}):"]
        for place in self.ranking:
            tie = f"; not told apart from {', '.join(place.tied_with)}" if place.tied_with else ""
            A, score = ("unknown" if v is None else f"{v:.3f}" for v in (place.A, place.score))
            note = place.note and "; " + place.note
            lines.append(f"  {place.places}. {place.name}: A {A}, score {score}{tie}{note}")
        for pair in self.shown():
            lines += ["", *pair.lines()]
        warnings = [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*warnings, *lines, "", *(f"note: {note}" for note in self.notes)])

    @property
    def _common(self) -> str:
        return in_words(self.at, self.unit)

    @property
    def notes(self) -> list[str]:
        """How many seeds there are, what spread among them is assumed or found, and which were left out."""
        found = []
        single = [name for name, r in self.recipes.items() if r.seeds == 1]
        if single:
            found.append(
                f"one seed of {_few(single)}: its A is taken to stray from the recipe's by about {A_SPREAD} as "
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
            "baseline": self.baseline,
            "pairs": [pair.to_dict() for pair in self.pairs],
            "notes": self.notes,
            "warnings": self.warnings,
            "ranking_at": self.at,
            "ranking": [place.to_dict() for place in self.ranking],
        }


def compare(
    runs: Mapping[str, Curve | Sequence[Curve]],
    level: float = 0.9,
    at: float | None = None,
    since: float | Literal["auto"] = "auto",
    baseline: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare recipes by ceiling and efficiency.

    What is said of two recipes does not depend on which others are compared with them.

    Args:
        runs: name -> its curve, or the curves of its seeds; at least two recipes, all in one unit of compute.
        level: of the intervals, and of the words: recipes that are the same are called so at least that often.
        at: compute at which scores are compared; default the smaller last compute of each pair, inside both runs.
        since: warm-up cut, see `fit`.
        baseline: name of the recipe to show the others against; default the first of two, the best of more.
        progress: called with a few words after each step.

    Raises:
        InputError: fewer than two recipes, different units, level or `at` out of range, unknown baseline.
        ForecastRefused: a run to which no law can be fitted.
    """
    seeds = {name: _seed_curves(name, given) for name, given in runs.items()}
    _check(seeds, level, at)
    unit, warnings = _unit(seeds)
    if baseline is not None and baseline not in seeds:
        raise InputError(f"no recipe {baseline!r} to be the baseline; one of {', '.join(seeds)}")
    report = progress or (lambda _: None)
    recipes: dict[str, RecipeFit] = {}
    for name, curves in seeds.items():
        recipes[name] = fit_recipe(name, curves, since)
        report(f"{len(recipes)} of {len(seeds)} recipes fitted")
    pairs = []
    couples = list(combinations(recipes.values(), 2))
    for first, second in couples:
        pairs.append(compare_pair(first, second, level, at))
        report(f"{len(pairs)} of {len(couples)} pairs compared")
    where = _common_compute(recipes) if at is None else at
    ranking = rank(recipes, pairs, where)
    best = next(iter(recipes)) if len(recipes) == 2 else ranking[0].name
    return Comparison(recipes, pairs, ranking, where, baseline or best, level, unit, warnings + _score_warnings(seeds))


def _common_compute(recipes: Mapping[str, RecipeFit]) -> float:
    """Reached by all that can be ranked."""
    able = [r.last for r in recipes.values() if not (r.too_short or r.vetoes)]
    return min(able or [r.last for r in recipes.values()])


def _seed_curves(name: str, given: Curve | Sequence[Curve]) -> list[Curve]:
    curves = [given] if isinstance(given, Curve) else list(given)
    if not curves:
        raise InputError(f"{name}: no curve was given; give at least one run of this recipe")
    return curves


def _check(seeds: Mapping[str, list[Curve]], level: float, at: float | None) -> None:
    if len(seeds) < 2:
        raise InputError(f"compare needs at least two recipes, got {len(seeds)}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    if at is not None and not (math.isfinite(at) and at > 0):
        raise InputError(f"at must be a positive compute, got {at}")


def _unit(seeds: Mapping[str, list[Curve]]) -> tuple[str, list[str]]:
    """The unit of compute, and a warning where some axes do not name theirs."""
    units = {curve.unit: f"{name} ({plural(curve.unit)})" for name, curves in seeds.items() for curve in curves}
    named = [unit for unit in units if unit != NO_UNIT]
    if len(named) > 1:
        raise InputError(
            f"curves in different units of compute: {', '.join(units.values())}; read them with the same x, or, if it "
            "is one unit under two names, name it with --unit"
        )
    if len(units) == 1:
        return next(iter(units)), []
    bare = [name for name, curves in seeds.items() if any(curve.unit == NO_UNIT for curve in curves)]
    return named[0], [
        f"the compute axis of {_few(bare)} names no unit, that of the others is in {plural(named[0])}: compared as if "
        "it were the same (--unit names it)"
    ]


def _score_warnings(seeds: Mapping[str, list[Curve]]) -> list[str]:
    """One line where the scores do not have one name."""
    names: dict[str, list[str]] = {}
    for name, curves in seeds.items():
        for curve in curves:
            names.setdefault(curve.score_name, []).append(name)
    if len(names) == 1:
        return []
    which = ", ".join(f"{score!r} ({_few(list(dict.fromkeys(of)))})" for score, of in names.items())
    return [f"the scores have different names: {which}; differences mean something only if they measure the same (--y)"]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


__all__ = ["Comparison", "Difference", "Pair", "Rank", "RecipeFit", "compare"]
