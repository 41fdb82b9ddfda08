"""A recipe as `compare` sees it: the fits of its seeds, and draws of its own A, B and C_mid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import diagnostics
from scalerl.curves.calibration import shipped
from scalerl.curves.fit import IDENTIFIED, MIN_POINTS, SETTLED, WIDE, Ceiling, Fit, fit
from scalerl.curves.observations import observe
from scalerl.curves.pooling import A_SPREAD, SHAPE_SPREAD, Mixture, Pooled, law_mixture, pool
from scalerl.curves.posterior import Prior, posterior
from scalerl.errors import InputError
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
_STATES: tuple[Ceiling, ...] = ("not identified", "provisional", "identified")
_SPREAD = np.array([A_SPREAD, SHAPE_SPREAD, SHAPE_SPREAD])


@dataclass(frozen=True)
class RecipeFit:
    """What is known of one recipe.

    Attributes:
        name: of the recipe; fits: one a seed that was used; left_out: why other seeds were not, a sentence each.
        vetoes: why nothing may be said of this recipe (every seed is vetoed); empty otherwise.
        A, log_B, log_C_mid: (n,) draws of the recipe's own parameters, the mean over seeds.
        seed_sd: typical difference of one seed's A from the recipe's, as far as known (posterior median).
        scores: draws of the mean score by compute, as far as they were asked for; see `score_at`.
    """

    name: str
    fits: list[Fit]
    left_out: list[str]
    vetoes: list[str]
    A: FloatArray = field(repr=False)
    log_B: FloatArray = field(repr=False)
    log_C_mid: FloatArray = field(repr=False)
    seed_sd: float
    scores: dict[float, FloatArray | None] = field(default_factory=dict, repr=False, compare=False)

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
    def ceiling(self) -> Ceiling:
        """Whether A is known: what the best known seed says (`Fit.ceiling`), and no better than the recipe's own A."""
        return self._ceiling[0]

    @property
    def ceiling_reason(self) -> str:
        """Why the ceiling is not simply identified; empty if it is."""
        return self._ceiling[1]

    @property
    def known(self) -> bool:
        """Whether a ceiling may be stated: the recipe is not vetoed, and A is identified or provisional."""
        return not self.vetoes and self.ceiling != "not identified"

    @property
    def reach(self) -> float:
        """C/C_mid as far as it is sure: of the recipe or of its best known seed, whichever is less."""
        return min(self.C_over_C_mid, self._best_seed.C_over_C_mid)

    @property
    def too_short(self) -> bool:
        """Whether the ceiling is unknown because the run has not reached 1.5 C_mid."""
        return self.reach < IDENTIFIED

    @property
    def provisional(self) -> bool:
        """Whether A is known, but may still move: below 3 C_mid, or with a wide interval."""
        return self.ceiling == "provisional"

    @property
    def standing(self) -> str:
        """Why nothing, or nothing final, can be said of the ceiling; empty if it is identified."""
        if self.vetoes:
            return "cannot be judged"
        if self.too_short:
            return "too short to say"
        return {"identified": "", "provisional": "provisional", "not identified": "ceiling unknown"}[self.ceiling]

    def estimate(self, name: str) -> float:
        """Median of "A", "B" or "C_mid"."""
        return float(np.median(self._draws(name)))

    def interval(self, name: str, level: float = 0.9) -> tuple[float, float]:
        """Equal-tailed interval of "A", "B" or "C_mid" of the recipe, seed spread included."""
        low, high = np.quantile(self._draws(name), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def score_at(self, compute: float) -> FloatArray | None:
        """(n,) draws of the mean score at a compute, made once; None where a seed has too few points before it."""
        if compute not in self.scores:
            self.scores[compute] = score_draws(self, compute, stream(self.name, 13))
        return self.scores[compute]

    def straightened(self, A: float, B: float, C_mid: float) -> tuple[FloatArray, FloatArray]:
        """Figure 7: log C and log F(R) of the points of all seeds under a law; a line of slope B where it holds.

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1), R0 by least squares. Points outside (R0, A) have no F and are left
        out.
        """
        x, y = [], []
        for fitted in self.fits:
            compute, score = fitted.curve.compute, fitted.curve.score
            rise = fitted.law.value(compute, 0.0, 1.0, B, C_mid)
            R0 = float((1 - rise) @ (score - A * rise) / ((1 - rise) @ (1 - rise)))
            inside = (score > R0) & (score < A) & (compute > 0)
            x.append(np.log(compute[inside]))
            y.append(B * np.log(C_mid) + fitted.law.inverse_rise((score[inside] - R0) / (A - R0)))
        return np.concatenate(x), np.concatenate(y)

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
            "ceiling": self.ceiling,
            "ceiling_reason": self.ceiling_reason,
            "too_short": self.too_short,
            "provisional": self.provisional,
            "seed_sd_A": self.seed_sd,
            "fits": [f.to_dict() for f in self.fits],
        }

    @cached_property
    def _best_seed(self) -> Fit:
        return max(self.fits, key=lambda f: (_STATES.index(f.ceiling), f.C_over_C_mid))

    @cached_property
    def _ceiling(self) -> tuple[Ceiling, str]:
        own = self._own_ceiling()
        return min((own, (self._best_seed.ceiling, self._best_seed.ceiling_reason)), key=lambda c: _STATES.index(c[0]))

    def _own_ceiling(self) -> tuple[Ceiling, str]:
        """By the rules of `Fit.ceiling`, from the recipe's own C/C_mid and A, and the reason."""
        low, high = self.interval("A")
        wide = f"its interval runs from {low:.3f} to {high:.3f}"
        short = f"the run has reached {self.C_over_C_mid:.2f} C_mid, below"
        if self.C_over_C_mid < IDENTIFIED:
            return "not identified", f"{short} {IDENTIFIED:g}"
        if high - low > WIDE:
            return "not identified", wide
        if self.C_over_C_mid < SETTLED:
            return "provisional", f"{short} {SETTLED:g}"
        return ("provisional", wide) if high - low > WIDE / 2 else ("identified", "")

    def _draws(self, name: str) -> FloatArray:
        if name == "A":
            return self.A
        if name not in ("B", "C_mid"):
            raise InputError(f"no parameter {name!r}; one of A, B, C_mid")
        return np.exp(self.log_B if name == "B" else self.log_C_mid)


def stream(name: str, purpose: int) -> np.random.Generator:
    """A recipe's own random numbers, by its name: what is drawn for it does not depend on which others there are."""
    return np.random.default_rng([purpose, *name.encode()])


def fit_recipe(name: str, curves: Sequence[Curve], since: float | Literal["auto"]) -> RecipeFit:
    """Fit each seed, leave out those that the law cannot describe, and pool the rest.

    Raises:
        ForecastRefused: a seed has too few points or a constant score.
    """
    rng = stream(name, 7)
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
