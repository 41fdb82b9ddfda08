"""`scalerl transfer`: does a downstream score follow the held-out score of the same run?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from scalerl.cli import options
from scalerl.cli.options import Reading
from scalerl.cli.output import print_json, print_view, say
from scalerl.cli.refusal import NO_FORECAST
from scalerl.errors import ForecastRefused, InputError

if TYPE_CHECKING:
    from scalerl.runs import Curve, RunLog


@click.command("transfer")
@click.argument("file")
@click.option("--downstream", required=True, metavar="COLUMN", help="The downstream score, e.g. val/aime24/mean@32.")
@options.level_option
@options.upto_option
@options.reading_options
@options.json_option
def command(file: str, reading: Reading, downstream: str, level: float, upto: float | None, as_json: bool) -> int:
    """Say whether the downstream score of the run in FILE follows its held-out score.

    --y names the held-out score; --trials and --scale are about it alone.
    """
    from scalerl.curves.transfer import transfer

    log = reading.log(file)
    heldout, other = _both(log, reading, downstream, upto)
    try:
        found = transfer(heldout, other, level)
    except ForecastRefused as error:
        return _refused(error, log, heldout, other, as_json)
    if as_json:
        _notes(heldout, other)
        print_json({**found.to_dict(), "source": {"file": log.path, "format": log.format}})
        return 0
    from scalerl.report.terminal import reading_view
    from scalerl.report.transferred import transfer_view

    rows = log.table.rows
    print_view(reading_view(log.path, log.format, rows, heldout, [other]), *transfer_view(found))
    return 0


def _both(log: RunLog, reading: Reading, downstream: str, upto: float | None) -> tuple[Curve, Curve]:
    heldout = reading.curve(log)
    other = replace(reading, y=downstream, trials=None, scale=None).curve(log)
    if heldout.score_name == other.score_name:
        guessed = "" if reading.y else ", as guessed"
        raise InputError(
            f"{log.path}: {other.score_name!r} is also the held-out score{guessed}; name that one with --y"
        )
    if upto is None:
        return heldout, other
    return heldout.upto(upto), other.upto(upto)


def _notes(*curves: Curve) -> None:
    for note in dict.fromkeys(note for curve in curves for note in curve.notes):
        say(f"note: {note}")


def _refused(error: ForecastRefused, log: RunLog, heldout: Curve, other: Curve, as_json: bool) -> int:
    reason = str(error).removeprefix(f"{other.name}: ")
    if as_json:
        _notes(heldout, other)
        print_json({"schema": 1, "heldout": heldout.score_name, "downstream": other.score_name, "words": "cannot say",
                    "reasons": [reason], "fit": None, "source": {"file": log.path, "format": log.format}})  # fmt: skip
        return error.exit_code
    from scalerl.report.terminal import reading_view, verdict_view

    rows = log.table.rows
    print_view(reading_view(log.path, log.format, rows, heldout, [other]), verdict_view(NO_FORECAST, [reason], []))
    return error.exit_code
