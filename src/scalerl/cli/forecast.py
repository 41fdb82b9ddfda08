"""`scalerl forecast`: what more compute will bring, with intervals and a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from scalerl.cli import options
from scalerl.cli.options import Number, Reading
from scalerl.cli.output import print_json, print_view, say
from scalerl.cli.refusal import refused

if TYPE_CHECKING:
    import numpy as np

    from scalerl.curves import Forecast
    from scalerl.runs import Curve, RunLog


@click.command("forecast")
@click.argument("file")
@click.option(
    "--at",
    multiple=True,
    metavar="COMPUTE|Nx",
    help="Forecast there: 100000, or 2x the compute so far. Repeatable.  [default: 1.5x, 2x, 4x]",
)
@click.option("--budget", metavar="COMPUTE|Nx", help="Compute the verdict is about.  [default: 2x]")
@options.level_option
@click.option(
    "--threshold", type=Number(), default=0.01, show_default=True, help="Gain in score that is worth the budget."
)
@options.since_option
@options.upto_option
@click.option("--target", type=Number(above=0, below=1), help="Also estimate the compute to reach this score.")
@click.option("--price-per-hour", type=Number(least=0), help="Adds the cost, where compute is in device-hours.")
@options.calibration_option
@options.reading_options
@options.plot_option
@options.json_option
def command(
    file: str,
    reading: Reading,
    at: tuple[str, ...],
    upto: float | None,
    calibration: str | None,
    plot: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Forecast the score of the run logged in FILE and say whether more compute is worth it.

    FILE is a log of any known kind (see `scalerl formats`), a folder, wandb://entity/project/run, or - for stdin.
    """
    from scalerl.curves import forecast
    from scalerl.errors import ForecastRefused

    table = options.calibration_of(calibration)
    log = reading.log(file)
    curve = reading.curve(log)
    rate, doubt = _truncation(log, curve, reading, upto)
    try:
        fc = forecast(curve, **({"at": at} if at else {}), upto=upto, truncation=rate, calibration=table, **settings)
    except ForecastRefused as error:
        return refused(error, log, curve, as_json, plot)
    if doubt:
        fc = replace(fc, warnings=[*fc.warnings, doubt])
    if plot:
        from scalerl.report.plots import plot_forecast

        options.draw(lambda path: plot_forecast(fc, path, actual=None if upto is None else curve), plot)
    _show(fc, log, as_json, plot)
    return ForecastRefused.exit_code if fc.verdict == "NO-FORECAST" else 0


def _truncation(
    log: RunLog, curve: Curve, reading: Reading, upto: float | None
) -> tuple[np.ndarray | None, str | None]:
    """The truncation rate as far as the run is known, and why its source is doubtful."""
    found = log.truncation(x=reading.x, run=reading.run)
    if found is None:
        return None, None
    # Its compute lacks --factor and --devices; the share of the run is the same on both axes.
    share = 1.0 if upto is None else min(upto / max(float(curve.compute[-1]), 1e-300), 1.0)
    known = found.compute <= share * found.compute[-1] * (1 + 1e-9)
    return found.rate[known] if known.any() else None, found.warning


def _show(fc: Forecast, log: RunLog, as_json: bool, plot: str | None) -> None:
    wrote = f"picture written to {plot}" if plot else ""
    if as_json:
        for note in [*fc.curve.notes, *([wrote] if wrote else [])]:
            say(f"note: {note}")
        print_json({**fc.to_dict(), "source": {"file": log.path, "format": log.format}})
        return
    from scalerl.report.terminal import forecast_view, lines, reading_view

    print_view(reading_view(log.path, log.format, log.table.rows, fc.curve), *forecast_view(fc))
    if wrote:
        print_view("", lines([wrote]))
