"""`fit`: the sigmoid (or another law) of a curve, with intervals, and each number in a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scalerl.curves.laws import LAWS, POWER_LAW, SIGMOID, Law
from scalerl.curves.observations import observe
from scalerl.curves.paper import A_MARGIN, paper_fit
from scalerl.curves.posterior import Observations, Posterior, Prior, mixture_quantiles, posterior
from scalerl.curves.threads import single_threaded
from scalerl.curves.warmup import propose_warmup
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve
from scalerl.words import count, in_words

FloatArray = NDArray[np.float64]
Method = Literal["scalerl", "paper"]
Ceiling = Literal["identified", "provisional", "not identified"]
IDENTIFIED, SETTLED = 1.5, 3.0
"""C / C_mid below which there is no A, and below which it is provisional."""
WIDE = 0.3
"""Width of A's 90 % interval above which no A is stated, and half of it above which it is provisional."""
PARAMETERS = ("R0", "A", "B", "C_mid")
MIN_POINTS = 5
MIN_POINTS_FOR_VERDICT = 8
"""Four parameters and one point to check them by; a verdict asks for more (see diagnostics)."""


@dataclass(frozen=True, repr=False)
class Fit:
    """A law fitted to a curve. R0, A are scores; C_mid is in the curve's unit; B has none.

    Attributes:
        curve: the points that were fitted; dropped: how many before them were left out as warm-up.
        since: compute from which points were used.
        residual_sd: standard deviation of score - law; autocorrelation: of neighbouring residuals.
        method: "scalerl" (weighted least squares, intervals from the posterior) or "paper" (2.1, A.7).
    """

    curve: Curve
    law: Law
    R0: float
    A: float
    B: float
    C_mid: float
    residual_sd: float
    autocorrelation: float
    method: Method
    since: float
    dropped: int
    posterior: Posterior
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self, name):.4g}" for name in PARAMETERS)
        return f"Fit({self.curve.name}: {self.law.name}, {numbers}, {count(len(self.curve), 'point')})"

    @property
    def C_over_C_mid(self) -> float:
        """How far the run got: compute of the last point over C_mid. Below 1.5 the ceiling is unknown."""
        return float(self.curve.compute[-1] / self.C_mid)

    @property
    def ceiling(self) -> Ceiling:
        """Whether A is "identified", "provisional" or "not identified".

        By how far the run got (1.5 and 3 C_mid), and by A's 90 % interval, since among noise C_mid itself is a guess.
        """
        low, high = self.interval("A")
        if self.C_over_C_mid < IDENTIFIED or high - low > WIDE:
            return "not identified"
        return "identified" if self.C_over_C_mid >= SETTLED and high - low <= WIDE / 2 else "provisional"

    @property
    def ceiling_reason(self) -> str:
        """Why the ceiling is not simply identified; empty if it is."""
        low, high = self.interval("A")
        if self.C_over_C_mid < IDENTIFIED:
            return f"the run has reached {self.C_over_C_mid:.2f} C_mid, below {IDENTIFIED:g}"
        if high - low > WIDE / 2:
            return f"its interval runs from {low:.3f} to {high:.3f}"
        return (
            f"the run has reached {self.C_over_C_mid:.2f} C_mid, below {SETTLED:g}"
            if self.C_over_C_mid < SETTLED
            else ""
        )

    def predict(self, compute: Any) -> FloatArray:
        """The law's score at `compute`."""
        return self.law.value(compute, self.R0, self.A, self.B, self.C_mid)

    def interval(self, name: str, level: float = 0.9) -> tuple[float, float]:
        """Interval of a parameter ("R0", "A", "B", "C_mid") at a level in (0, 1)."""
        if name not in PARAMETERS:
            raise InputError(f"no parameter {name!r}; one of {', '.join(PARAMETERS)}")
        if not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, got {level}")
        tails = ((1 - level) / 2, (1 + level) / 2)
        if self.method == "paper":  # the paper states a margin for A and none for the others
            return (self.A - A_MARGIN, self.A + A_MARGIN) if name == "A" else (math.nan, math.nan)
        post, column = self.posterior, PARAMETERS.index(name)
        if column < 2:
            mean, sd = post.mean[:, column, None], np.sqrt(post.cov[:, column, column])[:, None]
            low, high = np.clip(mixture_quantiles(post.weight, mean, sd, tails)[:, 0], 0.0, 1.0)
        else:
            low, high = _grid_interval(post.B if name == "B" else post.C_mid, post.weight, tails)
        # The estimate knows no drift; where it falls outside, the two disagree and both count.
        estimate = getattr(self, name)
        return min(float(low), estimate), max(float(high), estimate)

    def summary(self, level: float = 0.9) -> str:
        """A table as a statistics package prints it, and what each number means."""
        percent = f"{100 * level:g}%"
        lines = [
            f"{self.law.name} fit of {self.curve.name}: {count(len(self.curve), 'point')}, "
            f"{self.dropped} left out as warm-up",
            f"{'parameter':<10}{'estimate':>12}{'low':>12}{'high':>12}   ({percent} interval)",
        ]
        for name in PARAMETERS:
            low, high = self.interval(name, level)
            ends = "" if math.isnan(low) else f"{low:>12.4g}{high:>12.4g}"
            lines.append(f"{name:<10}{getattr(self, name):>12.4g}{ends}")
        lines.append(f"C/C_mid {self.C_over_C_mid:.2f}   residual sd {self.residual_sd:.4f}"
                     f"   autocorrelation {self.autocorrelation:+.2f}   method {self.method}")  # fmt: skip
        return "\n".join([*lines, *self.explain(level), *self.notes])

    def explain(self, level: float = 0.9) -> list[str]:
        """One sentence for each number."""
        unit = self.curve.unit
        low, high = self.interval("A", level)
        reach = self.C_over_C_mid
        if self.ceiling == "not identified":
            ceiling = f"A: the ceiling is not identified: {self.ceiling_reason}."
        else:
            tag = f"provisional: {self.ceiling_reason}" if self.ceiling_reason else f"the run is at {reach:.2f} C_mid"
            ceiling = (
                f"A: with unlimited compute the score would approach {self.A:.3f} ({low:.3f} to {high:.3f}; {tag})."
            )
        return [
            f"R0: the score before training counts as {self.R0:.3f}.",
            ceiling,
            f"C_mid: half of the gain is there after {in_words(self.C_mid, unit)}; the run is at {reach:.2f} C_mid.",
            f"B: the gain's odds multiply by {2**self.B:.2g} with every doubling of compute."
            if self.law is SIGMOID
            else f"B: the steepness in log compute is {self.B:.2f}.",
            f"residual sd: evaluations scatter by {self.residual_sd:.4f} around the curve{self._noise_floor()}.",
            f"autocorrelation: neighbouring residuals correlate by {self.autocorrelation:+.2f}"
            + (": the points carry less than their number suggests." if self.autocorrelation > 0.3 else "."),
        ]

    def plot(self, path: str | None = None) -> Any:
        """Draw points and law; see `scalerl.report.plots.plot_fit`."""
        from importlib import import_module  # the report sits on a higher floor

        return import_module("scalerl.report.plots").plot_fit(self, path)

    def to_dict(self) -> dict[str, Any]:
        """The `fit` object of the JSON schema."""
        return {
            "law": self.law.name,
            "method": self.method,
            **{name: getattr(self, name) for name in PARAMETERS},
            **{f"{name}_interval": list(self.interval(name)) for name in PARAMETERS},
            "C_over_C_mid": self.C_over_C_mid,
            "residual_sd": self.residual_sd,
            "autocorrelation": self.autocorrelation,
        }

    def _noise_floor(self) -> str:
        if self.curve.trials is None:
            return ""
        p = np.clip(self.predict(self.curve.compute), 0, 1)
        floor = float(np.sqrt(np.mean(p * (1 - p) / self.curve.trials)))
        return f" (the trials alone explain {floor:.4f})"


@single_threaded
def fit(
    curve: Curve,
    law: str = "sigmoid",
    method: Method = "scalerl",
    since: float | Literal["auto"] = "auto",
    R0: float | None = None,
    prior: Prior | None = None,
) -> Fit:
    """Fit a law to a curve.

    Args:
        curve: at least 5 points.
        law: "sigmoid" (eq. 1), "weibull", "gompertz" or "power law".
        method: "scalerl", or "paper" for the paper's grid (sigmoid only).
        since: compute below which points are warm-up and left out; "auto" proposes it from the data.
        R0: fixes the score before RL (method "paper").
        prior: replaces the default beliefs.

    Raises:
        ForecastRefused: too few points, or a constant score.
        InputError: unknown law or method.
    """
    if not isinstance(curve, Curve):
        raise InputError(f"fit takes a Curve, not {type(curve).__name__}; make one with scalerl.read_curve(path)")
    if law not in LAWS:
        raise InputError(f"no law {law!r}; one of {', '.join(LAWS)}")
    if method not in ("scalerl", "paper"):
        raise InputError(f"no method {method!r}; one of scalerl, paper")
    if R0 is not None and not 0 <= R0 < 1:
        raise InputError(f"R0 is a score before training, from 0 to 1, got {R0}")
    check_fittable(curve)
    prior = prior or Prior()
    cut = warmup_cut(curve, since)
    used = curve.since(cut) if cut > 0 else curve
    check_fittable(used)
    dropped = len(curve) - len(used)
    rule = LAWS[law]
    data = observe(used, R0_known=dropped == 0)
    post = posterior(data, _only(prior, rule))
    if method == "paper":
        if rule is not SIGMOID:
            raise InputError("the paper's method fits the sigmoid; leave --law out")
        found = paper_fit(used, R0=_score_before(curve) if R0 is None else R0)
        parameters = (found.R0, found.A, found.B, found.C_mid)
    else:
        parameters = _most_likely(data, rule, post, prior)
    residual = used.score - rule.value(used.compute, *parameters)
    notes = (f"warm-up: {count(dropped, 'point')} below {in_words(cut, curve.unit)} left out",) if dropped else ()
    return Fit(
        used, rule, *parameters,
        residual_sd=float(np.sqrt(np.mean(residual**2) * residual.size / max(residual.size - 4, 1))),
        autocorrelation=lag_one(residual),
        method=method, since=cut, dropped=dropped, posterior=post, notes=notes,
    )  # fmt: skip


def warmup_cut(curve: Curve, since: float | Literal["auto"]) -> float:
    """Compute below which points are left out: as asked, or proposed from the data for "auto".

    Raises:
        InputError: neither "auto" nor a number.
    """
    if since == "auto":
        return propose_warmup(curve)
    try:
        cut = float(since)
    except (TypeError, ValueError):
        cut = math.nan
    if math.isnan(cut):
        raise InputError(f'since takes a compute or "auto", got {since!r}')
    return cut


def check_fittable(curve: Curve) -> None:
    """Refuse what no law can be fitted to.

    Raises:
        ForecastRefused: with the condition that failed.
    """
    positive = int((curve.compute > 0).sum())
    if len(curve) < MIN_POINTS or positive < MIN_POINTS - 1:
        raise ForecastRefused(
            f"{curve.name}: {count(len(curve), 'point')}; a fit needs at least {MIN_POINTS}, "
            f"a verdict {MIN_POINTS_FOR_VERDICT}"
        )
    if np.ptp(curve.score) == 0:
        raise ForecastRefused(f"{curve.name}: the score {curve.score_name!r} is constant at {curve.score[0]:g}")


def lag_one(residual: FloatArray) -> float:
    """Correlation of neighbouring residuals, 0 where it is undefined."""
    power = float(residual @ residual)
    return float(residual[1:] @ residual[:-1] / power) if power > 0 else 0.0


def _only(prior: Prior, law: Law) -> Prior:
    return replace(prior, laws=(law,), law_weights=(1.0,))


def _score_before(curve: Curve) -> float:
    """R0 for the paper's grid: measured where the run has a point at (nearly) no compute, else the free fit's."""
    if curve.compute[0] <= 0.005 * curve.compute[-1]:
        return float(curve.score[0])
    return fit(curve).R0


def _most_likely(data: Observations, law: Law, post: Posterior, prior: Prior) -> tuple[float, float, float, float]:
    """Weighted least squares with the prior's pull: where the points say little, as among noise, it decides.

    The parameters are (R0 / A, A, log B, log C_mid), so that 0 <= R0 <= A <= 1: a rising law is not fitted to a
    falling run, and a pass rate has no ceiling above 1.
    """
    weight = 1 / (data.sigma * np.sqrt(data.noise))
    reach = np.log(data.compute[data.compute > 0][[0, -1]])
    lower = np.array([0.0, 1e-3, np.log(0.15), reach[0] - 2.0])
    upper = np.array([1.0, 1.0, np.log(20.0), reach[1] + 3.0])
    if law is POWER_LAW:  # there C_mid only says where the score is R0: the first point
        lower[2:], upper[3] = [np.log(0.05), reach[0] - 1e-6], reach[0]
    R0, A = np.clip(post.mean[0], 1e-3, 1.0)
    start = np.clip([R0 / A, A, np.log(post.B[0]), np.log(post.C_mid[0])], lower + 1e-9, upper - 1e-9)
    beyond = prior.C_mid_decay / (1 + reach[1] - reach[0])

    def residual(p: FloatArray) -> FloatArray:
        model = law.value(data.compute, p[0] * p[1], p[1], float(np.exp(p[2])), float(np.exp(p[3])))
        pull = [
            (p[1] - prior.A_mean) / prior.A_sd,
            (p[2] - prior.log_B_mean) / prior.log_B_sd,
            beyond * max(p[3] - reach[1], 0.0),
        ]
        return np.concatenate([weight * (model - data.score), pull])

    def jacobian(p: FloatArray) -> FloatArray:
        by = law.gradient(data.compute, p[0] * p[1], p[1], float(np.exp(p[2])), float(np.exp(p[3])))
        by[:, 1] += by[:, 0] * p[0]  # A moves R0 along with it here
        by[:, 0] *= p[1]
        pull = np.zeros((3, 4))
        pull[0, 1], pull[1, 2], pull[2, 3] = 1 / prior.A_sd, 1 / prior.log_B_sd, beyond * (p[3] > reach[1])
        return np.concatenate([weight[:, None] * by, pull])

    p = least_squares(residual, start, jac=jacobian, bounds=(lower, upper), max_nfev=60).x
    return float(p[0] * p[1]), float(p[1]), float(np.exp(p[2])), float(np.exp(p[3]))


def _grid_interval(values: FloatArray, weight: FloatArray, tails: tuple[float, float]) -> tuple[float, float]:
    """Weighted quantiles of positive grid values, each grid value spread evenly to halfway its neighbours."""
    grid, index = np.unique(np.log(values), return_inverse=True)
    mass = np.bincount(index, weights=weight)
    if grid.size == 1:
        return float(np.exp(grid[0])), float(np.exp(grid[0]))
    edges = np.concatenate(
        [[1.5 * grid[0] - 0.5 * grid[1]], (grid[1:] + grid[:-1]) / 2, [1.5 * grid[-1] - 0.5 * grid[-2]]]
    )
    low, high = np.exp(np.interp(tails, np.concatenate([[0.0], np.cumsum(mass)]), edges))
    return float(low), float(high)
