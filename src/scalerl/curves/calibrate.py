"""`scalerl calibrate`: learn the conformal multipliers from a bank of curves (see calibration.py for what they are)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalerl.curves.backtest import OURS, Case
from scalerl.curves.calibration import LEVELS, REACHES, Calibration, conformal_multipliers, fingerprint
from scalerl.curves.fit import check_fittable
from scalerl.curves.forecast import conditioned
from scalerl.curves.observations import end_of
from scalerl.curves.posterior import Prior
from scalerl.curves.predict import predict
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve


@dataclass(frozen=True)
class BankCurve:
    """A whole run and the source it comes from: runs of one source share their set-up."""

    source: str
    curve: Curve


def calibrate(
    bank: Sequence[BankCurve], provenance: dict[str, Any] | None = None, prior: Prior | None = None
) -> Calibration:
    """Learn the table from a bank.

    Args:
        bank: whole runs of at least 12 points; the same run twice counts once.
        provenance: kept in the table beside the counts.
        prior: the forecaster's; default its own.

    Raises:
        InputError: fewer than 2 sources, or no run that can be cut.
    """
    unique = list({fingerprint(b.curve): b for b in bank}.values())
    sources = sorted({b.source for b in unique})
    if len(sources) < 2:
        raise InputError("calibration needs curves from at least 2 sources, or a curve would calibrate itself")
    cases = {level: _raw_cases(unique, level, prior or Prior()) for level in LEVELS}
    if not cases[0.9]:
        raise InputError("no curve of the bank can be cut: each needs at least 12 points")
    table = _multipliers(cases, leave_out=None)
    without = {source: _multipliers(cases, leave_out=source) for source in sources}
    about = {
        "method": "conformal quantile of |miss| by reach, mean over the levels 80, 90 and 95 %, never below 1",
        "curves": len(unique),
        "sources": {s: sum(b.source == s for b in unique) for s in sources},
        **(provenance or {}),
    }
    found = Calibration(table, about, without, {fingerprint(b.curve): b.source for b in unique}, {})
    return replace(found, measured=_measure(cases[0.9], found))


def _raw_cases(bank: Sequence[BankCurve], level: float, prior: Prior) -> list[tuple[str, Case]]:
    """(source, case) with uncalibrated intervals for every curve and reach that leaves enough points."""
    found = []
    for entry in bank:
        at, actual, se = end_of(entry.curve)
        for reach in REACHES:
            try:
                early = entry.curve.upto(entry.curve.compute[-1] / reach)
                check_fittable(early)
                _, post = conditioned(early, "auto", prior)
            except (InputError, ForecastRefused):
                continue
            p = predict(post, np.array([at]), level)
            interval = (float(p.low[0]), float(p.score[0]), float(p.high[0]))
            case = Case(entry.curve.name, OURS, 1 / reach, reach, len(early), *interval, actual, se)
            found.append((entry.source, case))
    return found


def _multipliers(cases: dict[float, list[tuple[str, Case]]], leave_out: str | None) -> np.ndarray[Any, Any]:
    """(reaches,) mean over the levels of the conformal multipliers, each at least 1.

    Never narrower than the posterior itself: the bank is small, and a model that has seen the points is not.
    """
    rows = []
    for level, pairs in cases.items():
        misses = [(case.reach, case.miss(level)) for source, case in pairs if source != leave_out]
        rows.append(np.maximum(conformal_multipliers(misses, level), 1.0))
    mean: np.ndarray[Any, Any] = np.mean(rows, axis=0)
    return mean


def _measure(pairs: list[tuple[str, Case]], table: Calibration) -> dict[str, Any]:
    """Per reach: what the calibrated 90 % intervals would have done, each source's own curves left out."""
    found = {}
    for j, reach in enumerate(REACHES):
        done = []
        for source, case in pairs:
            if case.reach == reach:
                m = table.without[source][j]
                low, high = case.score - m * (case.score - case.low), case.score + m * (case.high - case.score)
                done.append(replace(case, low=max(low, 0.0), high=min(high, 1.0)))
        if not done:
            continue
        found[f"{reach:g}"] = {
            "curves": len(done),
            "sources": len({source for source, case in pairs if case.reach == reach}),
            "coverage": round(float(np.mean([c.miss(0.9) <= 1 for c in done])), 3),
            "coverage_as_observed": round(float(np.mean([c.inside for c in done])), 3),
            "width": round(float(np.mean([c.high - c.low for c in done])), 4),
            "median_width": round(float(np.median([c.high - c.low for c in done])), 4),
            "median_error": round(float(np.median([abs(c.error) for c in done])), 4),
        }
    return found
