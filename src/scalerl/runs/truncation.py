"""The rate of truncated rollouts, if the log tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from scalerl.runs import aliases
from scalerl.runs.table import FloatArray, Table

CLIP_RATIO_WARNING = (
    "verl's clip_ratio counts responses at the length limit and is wrong in both directions in some versions: "
    "take this truncation rate as a hint, not as a fact."
)

_LIKELY = re.compile(
    r"/(?:is_truncated/mean|truncat(?:ed|ion)_(?:rate|ratio|fraction))$"
)  # below any prefix, as in prime-rl


@dataclass(frozen=True)
class Truncation:
    """Truncation along a run.

    Args:
        compute: (n,) as in `Curve`.
        rate: (n,) share of rollouts that ran out of length, 0 to 1.
        source: the column it came from.
        warning: why the source is not to be trusted, or None.
    """

    compute: FloatArray
    rate: FloatArray
    source: str
    warning: str | None = None


def find_truncation(table: Table) -> tuple[str, FloatArray, str | None] | None:
    """Source, (rows,) rate and warning; None if no column tells it."""
    known_names = aliases.find(table.columns, aliases.TRUNCATION)
    for name in known_names + [n for n in table.columns if _LIKELY.search(n) and not aliases.is_held_out(n)]:
        rate = table.columns[name]
        known = rate[np.isfinite(rate)]
        if known.size and known.min() >= 0 and known.max() <= 1:
            doubtful = name.endswith("clip_ratio") and "response_length" in name
            return name, rate, CLIP_RATIO_WARNING if doubtful else None
    for part in aliases.find(table.columns, ("truncated_count", "num_truncated", "n_truncated")):
        for whole in aliases.find(table.columns, ("rollout_count", "num_rollouts", "num_samples", "n_samples")):
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = table.columns[part] / table.columns[whole]
            if np.isfinite(rate).any():
                return f"{part} / {whole}", np.where(np.isfinite(rate), rate, np.nan), None
    for name in aliases.find(
        table.columns, ("val/stop_rate", "stop_rate")
    ):  # open-instruct: share that ended by itself
        return f"1 - {name}", 1.0 - table.columns[name], None
    return None
