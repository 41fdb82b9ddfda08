"""`Curve`: a bounded score against compute, the one thing that readers give and the forecaster takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalerl.errors import InputError
from scalerl.words import count

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """A score between 0 and 1 measured along a run.

    Args:
        compute: (n,) compute spent at each evaluation, finite, >= 0, strictly increasing after
            construction (points are sorted; points of equal compute are averaged, weighted by trials).
        score: (n,) pass rate or another bounded score; points whose score is NaN are dropped.
        trials: Bernoulli trials behind each score, one number or (n,); None if unknown. With it the
            fit knows the binomial floor of the noise.
        unit: of `compute`: "step", "gpu-hour", "token", "flop", "second", ...
        name: of the run, for tables and legends.
        score_name: the column that the score came from.
        notes: what was done to the data on the way, one sentence each.
        missing_tail: how many evaluations after the last point have no score (NaN): a run may end in them.

    Raises:
        InputError: lengths differ, compute is negative or not finite, a score is infinite,
            or no point is left.
    """

    compute: FloatArray
    score: FloatArray
    trials: FloatArray | None = None
    unit: str = "step"
    name: str = "run"
    score_name: str = "score"
    notes: tuple[str, ...] = field(default=(), repr=False)
    missing_tail: int = 0

    def __init__(
        self,
        compute: ArrayLike,
        score: ArrayLike,
        trials: ArrayLike | None = None,
        unit: str = "step",
        name: str = "run",
        score_name: str = "score",
        notes: tuple[str, ...] = (),
        missing_tail: int = 0,
    ) -> None:
        x = np.asarray(compute, dtype=np.float64).ravel()
        y = np.asarray(score, dtype=np.float64).ravel()
        if x.size != y.size:
            raise InputError(f"{name}: compute has {x.size} values and score {y.size}; give one score per compute")
        n = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=np.float64), x.shape)
        if n is not None and not (np.isfinite(n).all() and (n > 0).all()):
            raise InputError(f"{name}: trials must be positive numbers; leave them out if unknown")
        if np.isinf(y).any():
            raise InputError(
                f"{name}: score {score_name!r} holds an infinite value; drop that row or choose another column"
            )
        keep = ~np.isnan(y)
        if not keep.all():
            missing_tail += int((x > x[keep].max(initial=-np.inf)).sum())
            notes = (
                *notes,
                f"{count(int((~keep).sum()), 'score')} of {score_name!r} without a number left out",
            )
        x, y, n = x[keep], y[keep], None if n is None else n[keep]
        if x.size == 0:
            raise InputError(f"{name}: no point of {score_name!r} is a number; choose another column")
        if not np.isfinite(x).all() or (x < 0).any():
            raise InputError(f"{name}: compute must be finite and >= 0, found {x[~(np.isfinite(x) & (x >= 0))][0]}")
        size = x.size
        if (np.diff(x) < 0).any():
            notes = (*notes, "compute did not increase from row to row: points were sorted by it")
        x, y, n = _merge_equal_compute(x, y, n)
        if x.size < size:
            notes = (
                *notes,
                f"{count(size - x.size, 'point')} of equal compute averaged with another",
            )
        fields = {
            "compute": x,
            "score": y,
            "trials": n,
            "unit": unit,
            "name": name,
            "score_name": score_name,
            "notes": tuple(notes),
            "missing_tail": missing_tail,
        }
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        span = f"{self.compute[0]:g} to {self.compute[-1]:g}"
        return f"Curve({self.name}: {count(len(self), 'point')} of {self.score_name}, {span} {self.unit})"

    def __len__(self) -> int:
        return int(self.compute.size)

    def upto(self, compute: float) -> Curve:
        """The curve as it was known when `compute` had been spent (points at exactly `compute` included)."""
        return replace(self, missing_tail=0)._where(
            self.compute <= compute, f"after {compute:g} {self.unit}: nothing is left"
        )

    def since(self, compute: float) -> Curve:
        """The curve without the points below `compute`."""
        return self._where(self.compute >= compute, f"from {compute:g} {self.unit} on: nothing is left")

    def with_notes(self, *notes: str) -> Curve:
        """The same points with further notes."""
        return replace(self, notes=self.notes + notes)

    def _where(self, mask: NDArray[np.bool_], complaint: str) -> Curve:
        if not mask.any():
            first, last = self.compute[0], self.compute[-1]
            raise InputError(f"{self.name}: {complaint}; the points span {first:g} to {last:g}")
        trials = None if self.trials is None else self.trials[mask]
        return replace(self, compute=self.compute[mask], score=self.score[mask], trials=trials)


def _merge_equal_compute(
    x: FloatArray, y: FloatArray, n: FloatArray | None
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Sort by compute and average points of equal compute (weights: trials, or 1)."""
    unique, inverse = np.unique(x, return_inverse=True)
    if unique.size == x.size:
        order = np.argsort(x, kind="stable")
        return x[order], y[order], None if n is None else n[order]
    weight = np.ones_like(y) if n is None else n
    total = np.bincount(inverse, weights=weight)
    mean = np.bincount(inverse, weights=weight * y) / total
    return unique, mean, None if n is None else total.astype(np.float64)
