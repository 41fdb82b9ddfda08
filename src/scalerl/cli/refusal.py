"""What a command still says when a fit or forecast is refused: what was read, and why nothing follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalerl.cli.output import print_json, print_view, say
from scalerl.errors import ForecastRefused

if TYPE_CHECKING:
    from scalerl.runs import Curve, RunLog

NO_FORECAST = "NO-FORECAST"
ONLY_WITH_A_FORECAST = (
    "level", "marginal_now", "target", "threshold", "budget", "chance_above_threshold", "decide_at"
)  # fmt: skip


def refused(error: ForecastRefused, log: RunLog, curve: Curve, as_json: bool, plot: str | None = None) -> int:
    """Print the refusal in the form of an answer and return its exit code."""
    reason = str(error).removeprefix(f"{curve.name}: ")
    if plot:
        say(f"note: {plot} was not drawn, as there is nothing to draw")
    if as_json:
        for note in curve.notes:
            say(f"note: {note}")
        print_json(_answer(reason, log, curve))
    else:
        from scalerl.report.terminal import reading_view, verdict_view

        print_view(reading_view(log.path, log.format, log.table.rows, curve), verdict_view(NO_FORECAST, [reason], []))
    return error.exit_code


def _answer(reason: str, log: RunLog, curve: Curve) -> dict[str, object]:
    """Schema 1 with everything that a refused forecast lacks empty."""
    from scalerl.curves.forecast import CAVEAT

    return {
        "schema": 1,
        "run": curve.name,
        "data": {
            "points_used": len(curve),
            "points_dropped": 0,
            "compute_unit": curve.unit,
            "compute_last": float(curve.compute[-1]),
            "score_last": float(curve.score[-1]),
            "score_column": curve.score_name,
            "notes": list(curve.notes),
        },
        "fit": None,
        "forecast": [],
        "families": [],
        "backtest": [],
        "calibration": None,
        **dict.fromkeys(ONLY_WITH_A_FORECAST),
        "caveat": CAVEAT,
        "verdict": NO_FORECAST,
        "reasons": [reason],
        "vetoes": [reason],
        "warnings": [],
        "source": {"file": log.path, "format": log.format},
    }
