"""`scalerl fit`: the sigmoid of a run, with intervals, and each number in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scalerl.cli import options
from scalerl.cli.options import Number, Reading
from scalerl.cli.output import print_json, print_view, say
from scalerl.cli.refusal import refused

if TYPE_CHECKING:
    from scalerl.curves import Fit
    from scalerl.runs import RunLog

LAWS = ("sigmoid", "weibull", "gompertz", "power law")


@click.command("fit")
@click.argument("file")
@click.option("--law", type=click.Choice(LAWS), default="sigmoid", show_default=True, help="The law to fit.")
@click.option(
    "--method",
    type=click.Choice(["scalerl", "paper"]),
    default="scalerl",
    show_default=True,
    help="paper: the paper's own grid, to the letter.",
)
@click.option(
    "--r0",
    "R0",
    type=Number(least=0, below=1),
    help="Score before RL, for --method paper; measured or fitted if left out.",
)
@options.level_option
@options.since_option
@options.upto_option
@options.reading_options
@options.plot_option
@options.json_option
def command(
    file: str,
    reading: Reading,
    law: str,
    method: str,
    R0: float | None,
    level: float,
    since: float | str,
    upto: float | None,
    plot: str | None,
    as_json: bool,
) -> int:
    """Fit the law to the run logged in FILE and explain each number.

    FILE is a log of any known kind (see `scalerl formats`), a folder, wandb://entity/project/run, or - for stdin.
    """
    from scalerl.curves import fit
    from scalerl.errors import ForecastRefused

    if R0 is not None and method != "paper":
        raise click.UsageError("--r0 belongs to --method paper; the other method fits R0", click.get_current_context())
    log = reading.log(file)
    curve = reading.curve(log)
    curve = curve.upto(upto) if upto is not None else curve
    try:
        found = fit(curve, law=law, method=method, since=since, R0=R0)
    except ForecastRefused as error:
        return refused(error, log, curve, as_json, plot)
    if plot:
        from scalerl.report.plots import plot_fit

        options.draw(lambda path: plot_fit(found, path, run=curve, level=level), plot)
    wrote = [f"picture written to {plot}"] if plot else []
    if as_json:
        for note in [*curve.notes, *wrote]:
            say(f"note: {note}")
        print_json(_answer(found, log, level))
        return 0
    from scalerl.report.terminal import fit_view, lines, reading_view

    print_view(reading_view(log.path, log.format, log.table.rows, curve), *fit_view(found, level))
    if wrote:
        print_view("", lines(wrote))
    return 0


def _answer(found: Fit, log: RunLog, level: float) -> dict[str, object]:
    curve = found.curve
    return {
        "schema": 1,
        "run": curve.name,
        "data": {
            "points_used": len(curve),
            "points_dropped": found.dropped,
            "compute_unit": curve.unit,
            "compute_last": float(curve.compute[-1]),
            "score_last": float(curve.score[-1]),
            "score_column": curve.score_name,
            "notes": list(curve.notes),
        },
        "fit": found.to_dict(),
        "explain": found.explain(level),
        "source": {"file": log.path, "format": log.format},
    }
