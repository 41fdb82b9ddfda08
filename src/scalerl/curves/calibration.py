"""The shipped calibration: by how much the raw intervals are widened, learnt from a bank of real runs.

For each curve of the bank and each reach r = end / cut, the raw interval's miss is z, the distance of the actual end
from the median in half-widths. The multiplier at r is the conformal quantile of |z| over the bank, smoothed over
neighbouring r and averaged over levels: one number a reach, so that a wider level is a wider interval.
`scalerl calibrate` makes the table; a curve of the bank is recognised by its points and gets the multipliers learnt
without its source, so that no curve calibrates itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]
LEVELS = (0.8, 0.9, 0.95)
"""Levels whose multipliers are averaged."""
REACHES = (1.5, 2.0, 3.0, 4.0, 6.0)
_BANDWIDTH = 0.2
"""Of the smoothing over log reach: half the way from 2x to 3x."""
_TABLE = Path(__file__).with_name("calibration.json")


@dataclass(frozen=True)
class Calibration:
    """Multipliers of the half-widths by reach, with what they were learnt from.

    Attributes:
        multipliers: (reaches,). provenance: how, from what and when the table was made.
        without: source -> multipliers learnt from all other sources.
        fingerprints: fingerprint of a bank curve -> its source.
        measured: reach -> coverage and errors that were measured, leaving each curve's source out.
    """

    multipliers: FloatArray
    provenance: dict[str, Any]
    without: dict[str, FloatArray]
    fingerprints: dict[str, str]
    measured: dict[str, Any]

    def multiplier(self, curve: Curve, compute: FloatArray) -> FloatArray:
        """(k,) factor for the half-widths of a forecast of `curve` at each compute."""
        source = self.source_of(curve)
        table = self.without.get(source, self.multipliers) if source else self.multipliers
        reach = np.log(np.maximum(compute / curve.compute[-1], 1.0))
        factor: FloatArray = np.interp(reach, np.log(REACHES), table)
        return factor

    def source_of(self, curve: Curve) -> str | None:
        """The bank's source that `curve` (or the run it is the beginning of) belongs to."""
        return self.fingerprints.get(fingerprint(curve))

    def measured_at(self, reach: float) -> dict[str, Any] | None:
        """What was measured at the nearest reach of the table."""
        if not self.measured:
            return None
        nearest = min(self.measured, key=lambda r: abs(np.log(float(r) / max(reach, 1.0))))
        return {"reach": float(nearest), **self.measured[nearest]}


NO_CALIBRATION = Calibration(np.ones(len(REACHES)), {"curves": 0}, {}, {}, {})


def fingerprint(curve: Curve) -> str:
    """Names a run by its first points (relative compute, score), whatever the unit and the length."""
    head = np.column_stack([curve.compute[:5] / max(curve.compute[min(4, len(curve) - 1)], 1e-300), curve.score[:5]])
    return hashlib.sha1(np.round(head, 4).tobytes()).hexdigest()[:12]


def conformal_multipliers(
    misses: Sequence[tuple[float, float]], level: float, reaches: Sequence[float] = REACHES
) -> FloatArray:
    """(len(reaches),) conformal quantile of |z| at `level` around each reach.

    Args:
        misses: (reach, |z|) of each backtest.
        level: nominal coverage; z is in half-widths of the raw interval at this level.
    """
    if not misses:
        raise InputError("no backtest to calibrate from: give curves with at least 12 points")
    reach_of, z = np.array(sorted(misses, key=lambda miss: miss[1])).T
    found = []
    for reach in reaches:
        kernel = np.exp(-0.5 * (np.log(reach_of / reach) / _BANDWIDTH) ** 2)
        # The +1 of the conformal quantile: the run to come is one more draw.
        rank = np.cumsum(kernel) / (kernel.sum() + 1)
        found.append(z[min(int(np.searchsorted(rank, level)), z.size - 1)])
    return np.array(found)


@lru_cache(maxsize=1)
def shipped() -> Calibration:
    """The table that came with the package."""
    return load(_TABLE)


def load(path: Path) -> Calibration:
    """Read a table written by `save`."""
    try:
        raw = json.loads(path.read_text())
        if not isinstance(raw, dict):
            raise ValueError(f"it holds a {type(raw).__name__}, not an object")
        multipliers = np.array(raw["multipliers"], dtype=np.float64)
        if multipliers.shape != (len(REACHES),):
            raise ValueError(f"multipliers must be {len(REACHES)} numbers, one for each of the reaches {REACHES}")
        return Calibration(
            multipliers,
            raw["provenance"],
            {source: np.array(table) for source, table in raw["without"].items()},
            raw["fingerprints"],
            raw["measured"],
        )
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{path}: not a calibration table ({reason}); write one with `scalerl calibrate`") from None


def save(table: Calibration, path: Path) -> None:
    """Write a table as JSON."""
    content = {
        "schema": 1,
        "reaches": REACHES,
        "multipliers": table.multipliers.round(3).tolist(),
        "provenance": table.provenance,
        "measured": table.measured,
        "without": {source: m.round(3).tolist() for source, m in table.without.items()},
        "fingerprints": table.fingerprints,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
