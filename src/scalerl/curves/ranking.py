"""Places of recipes, from who is better than whom in each pair.

A recipe is better than another if the ceilings are known to differ and its is the higher, or else if its score at the
common compute is known to be the higher. Equals share places: the first tier holds those that no other is better than,
the next tier those that only the first is better than, and so on. So whoever is better in a pair never stands below,
whichever recipes are compared with the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves.pairs import Pair
from scalerl.curves.recipe_fit import RecipeFit


@dataclass(frozen=True)
class Rank:
    """Place of a recipe. None where nothing can be said of it.

    Attributes:
        place, last: first and last place that its tier takes: equals of a tier share them.
        A: ceiling, None where it is not identified.
        score: mean score at the compute that all recipes have reached; None with too few points before it.
        tied_with: all recipes from which it is not told apart, those of other tiers too.
        note: why its ceiling is not known, or not for sure.
    """

    place: int | None
    last: int | None
    name: str
    A: float | None
    score: float | None
    tied_with: tuple[str, ...]
    note: str = ""

    @property
    def places(self) -> str:
        """ "2", "1-3" for three equals, "-" without a place."""
        if self.place is None:
            return "-"
        return str(self.place) if self.place == self.last else f"{self.place}-{self.last}"

    def to_dict(self) -> dict[str, Any]:
        """The rank's object in the JSON of schema 1."""
        return {**self.__dict__, "tied_with": list(self.tied_with)}


def rank(recipes: Mapping[str, RecipeFit], pairs: Sequence[Pair], at: float) -> list[Rank]:
    """Best first, those without a place last; equals by their score at `at`."""
    able = [name for name, r in recipes.items() if not (r.too_short or r.vetoes)]
    better: dict[str, set[str]] = {name: set() for name in able}
    apart: dict[str, set[str]] = {name: {name} for name in able}
    for pair in pairs:
        first, second = pair.first.name, pair.second.name
        if pair.better and first in better and second in better:
            better[first if pair.better == second else second].add(pair.better)
            apart[first].add(second)
            apart[second].add(first)
    scores = {name: _middle(recipes[name], at) for name in recipes}
    order: list[Rank] = []
    for tier in tiers(better):
        last = len(order) + len(tier)
        for name in sorted(tier, key=lambda n: -(scores[n] or 0.0)):
            tied = tuple(other for other in able if other not in apart[name])
            order.append(_rank(recipes[name], last - len(tier) + 1, last, scores[name], tied))
    return order + [_rank(r, None, None, scores[r.name], ()) for r in recipes.values() if r.name not in better]


def tiers(better: Mapping[str, set[str]]) -> list[list[str]]:
    """Names in tiers, given the names that are better than each; names that beat each other in a circle share one."""
    left, found = {name: set(above) for name, above in better.items()}, []
    while left:
        above = {name: _all_above(name, left) for name in left}
        fewest = min(map(len, above.values()))  # 0, unless the best go in a circle
        found.append([name for name in left if len(above[name]) == fewest])
        left = {name: names - set(found[-1]) for name, names in left.items() if name not in found[-1]}
    return found


def _all_above(name: str, better: Mapping[str, set[str]]) -> set[str]:
    """Those that are better than a recipe, those better than them, and so on."""
    seen: set[str] = set()
    ahead = set(better[name])
    while ahead:
        seen |= ahead
        ahead = set().union(*(better[other] for other in ahead)) - seen
    return seen - {name}


def _middle(recipe: RecipeFit, at: float) -> float | None:
    draws = recipe.score_at(at)
    return None if draws is None else float(np.median(draws))


def _rank(recipe: RecipeFit, place: int | None, last: int | None, score: float | None, tied: tuple[str, ...]) -> Rank:
    A = recipe.estimate("A") if recipe.known else None
    return Rank(place, last, recipe.name, A, score, tied, recipe.standing)
