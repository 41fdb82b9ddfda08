"""A recipe as `compare` sees it: the fits of its seeds, and draws of its own A, B and C_mid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import diagnostics
from scalerl.curves.calibration import shipped
from scalerl.curves.fit import MIN_POINTS, Fit, fit
from scalerl.curves.observations import observe
from scalerl.curves.pooling import A_SPREAD, SHAPE_SPREAD, Mixture, Pooled, law_mixture, pool
from scalerl.curves.posterior import Prior, posterior
from scalerl.errors import InputError
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
IDENTIFIED, SETTLED = 1.5, 3.0
"""C / C_mid below which the ceiling is unknown, and below which it is provisional."""
_SPREAD = np.array([A_SPREAD, SHAPE_SPREAD, SHAPE_SPREAD])


@dataclass(frozen=True)
class RecipeFit:
    """What is known of one recipe.

    Attributes:
        name: of the recipe; fits: one a seed that was used; left_out: why other seeds were not, a sentence each.
        vetoes: why nothing may be said of this recipe (every seed is vetoed); empty otherwise.
        A, log_B, log_C_mid: (n,) draws of the recipe's own parameters, the mean over seeds.
        seed_sd: typical difference of one seed's A from the recipe's, as far as known (posterior median).
    """

    name: str
    fits: list[Fit]
    left_out: list[str]
    vetoes: list[str]
    A: FloatArray = field(repr=False)
    log_B: FloatArray = field(repr=False)
    log_C_mid: FloatArray = field(repr=False)
    seed_sd: float

    @property
    def seeds(self) -> int:
        """Number of seeds that were used."""
        return len(self.fits)

    @property
    def last(self) -> float:
        """Compute of the last point of the longest seed."""
        return max(float(f.curve.compute[-1]) for f in self.fits)

    @property
    def unit(self) -> str:
        """Of compute."""
        return self.fits[0].curve.unit

    @property
    def C_over_C_mid(self) -> float:
        """How far the longest seed got, by the median of the recipe's C_mid."""
        return float(self.last / np.exp(np.median(self.log_C_mid)))

    @property
    def too_short(self) -> bool:
        """Below 1.5 C_mid, where the ceiling is not identified."""
        return self.C_over_C_mid < IDENTIFIED

    @property
    def provisional(self) -> bool:
        """Between 1.5 and 3 C_mid."""
        return IDENTIFIED <= self.C_over_C_mid < SETTLED

    def estimate(self, name: str) -> float:
        """Median of "A", "B" or "C_mid"."""
        return float(np.median(self._draws(name)))

    def interval(self, name: str, level: float = 0.9) -> tuple[float, float]:
        """Equal-tailed interval of "A", "B" or "C_mid" of the recipe, seed spread included."""
        low, high = np.quantile(self._draws(name), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def compute_for(self, share: float) -> float:
        """Median compute at which this share of the gain is reached: the lower, the more efficient."""
        return float(np.exp(np.median(self.log_C_mid + np.log(share / (1 - share)) * np.exp(-self.log_B))))

    def to_dict(self, level: float) -> dict[str, Any]:
        """The recipe's object in the JSON of schema 1."""
        names = ("A", "B", "C_mid")
        return {
            "name": self.name,
            "seeds": self.seeds,
            "left_out": self.left_out,
            "vetoes": self.vetoes,
            **{name: self.estimate(name) for name in names},
            **{f"{name}_interval": list(self.interval(name, level)) for name in names},
            "compute_last": self.last,
            "C_over_C_mid": self.C_over_C_mid,
            "too_short": self.too_short,
            "provisional": self.provisional,
            "seed_sd_A": self.seed_sd,
            "fits": [f.to_dict() for f in self.fits],
        }

    def _draws(self, name: str) -> FloatArray:
        if name == "A":
            return self.A
        if name not in ("B", "C_mid"):
            raise InputError(f"no parameter {name!r}; one of A, B, C_mid")
        return np.exp(self.log_B if name == "B" else self.log_C_mid)


def fit_recipe(
    name: str, curves: Sequence[Curve], since: float | Literal["auto"], rng: np.random.Generator
) -> RecipeFit:
    """Fit each seed, leave out those that the law cannot describe, and pool the rest.

    Raises:
        ForecastRefused: a seed has too few points or a constant score.
    """
    fits = [fit(curve, since=since) for curve in curves]
    complaints = [diagnostics.vetoes(curve, fitted) for curve, fitted in zip(curves, fits, strict=True)]
    sound = [f for f, found in zip(fits, complaints, strict=True) if not found]
    left_out = [f"{f.curve.name} left out: {found[0]}" for f, found in zip(fits, complaints, strict=True) if found]
    used, vetoes = (sound, []) if sound else (fits, [found[0] for found in complaints])
    pooled = _within_bounds(pool([law_mixture(f) for f in used], _SPREAD, rng), rng)
    A, log_B, log_C_mid = pooled.values.T
    return RecipeFit(
        name, used, left_out if sound else [], vetoes, A, log_B, log_C_mid, float(np.median(pooled.seed_sd[:, 0]))
    )


def score_draws(recipe: RecipeFit, at: float, rng: np.random.Generator) -> FloatArray | None:
    """(n,) draws of the recipe's mean score at a compute; None where a seed has too few points before it.

    Points after `at` are not looked at, so that a long run is judged there by the same means as a short one.
    """
    seeds, spread = [], []
    for fitted in recipe.fits:
        if (fitted.curve.compute <= at).sum() < MIN_POINTS:
            return None
        known = fitted.curve.upto(at)
        post = posterior(observe(known, R0_known=fitted.dropped == 0), Prior())
        mean, sd = post.score(np.array([at]))
        if at > 1.05 * known.compute[-1]:  # a forecast: as wide as the calibration says
            factor = float(shipped().multiplier(known, np.array([at]))[0])
            middle = post.weight @ mean
            mean, sd = middle + factor * (mean - middle), factor * sd
        seeds.append(Mixture(post.weight, mean, sd**2))
        _, by_A, by_B, by_C_mid = fitted.law.gradient(at, fitted.R0, fitted.A, fitted.B, fitted.C_mid)[0]
        spread.append(np.square([by_A, by_B, by_C_mid]) @ _SPREAD**2)
    return pool(seeds, np.sqrt([np.mean(spread)]), rng).values[:, 0]


def _within_bounds(pooled: Pooled, rng: np.random.Generator) -> Pooled:
    """A score's ceiling is at most 1: draws beyond are replaced by others within."""
    inside = np.flatnonzero((pooled.values[:, 0] <= 1) & (pooled.values[:, 0] >= 0))
    if inside.size == 0:  # everything beyond: the ceiling is 1
        values = pooled.values.copy()
        values[:, 0] = 1.0
        return Pooled(values, pooled.seed_sd)
    fill = rng.permutation(np.resize(inside, pooled.values.shape[0]))
    return Pooled(pooled.values[fill], pooled.seed_sd[fill])
