"""`scalerl backtest`: cut whole runs early, forecast their ends, and count how often the interval held."""

from __future__ import annotations

import click

from scalerl.cli import options
from scalerl.cli.options import Number, Reading
from scalerl.cli.output import print_json, print_view, say

METHODS = ("scalerl", "paper", "curve_fit", "power law", "last five")


class Fractions(click.ParamType):
    """Shares of a run, such as 0.25,0.5."""

    name = "fractions"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        number = Number(above=0, below=1)
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        if not parts:
            self.fail(f"{value!r} names no fraction; write 0.25,0.5", param, ctx)
        return tuple(number.convert(part, param, ctx) for part in parts)


@click.command("backtest")
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--fractions", type=Fractions(), metavar="F,F...", default="0.25,0.5", show_default=True,
    help="Cut each run at these shares of its compute; 0.5 is a forecast over a factor of 2.",
)  # fmt: skip
@click.option("--method", "methods", type=click.Choice(METHODS), multiple=True, help="Only these.  [default: all]")
@options.level_option
@options.calibration_option
@options.reading_many_options
@options.json_option
def command(
    files: tuple[str, ...],
    reading: Reading,
    fractions: tuple[float, ...],
    methods: tuple[str, ...],
    level: float,
    calibration: str | None,
    as_json: bool,
) -> int:
    """Cut each run in FILES early, forecast its end by several methods, and compare with what came.

    A file with several runs gives one curve a run, unless --run chooses.
    """
    from scalerl.curves.backtest import backtest

    table = options.calibration_of(calibration)
    options.stdin_is_free(files)
    files = options.each_once(files)
    curves = [(file, curve) for file in files for curve in reading.curves(reading.log(file))]
    found = backtest([c for _, c in curves], fractions, methods or METHODS, level, calibration=table)
    if as_json:
        for file, curve in curves:
            for note in curve.notes:
                say(f"note: {file}, {curve.name}: {note}")
        print_json(found.to_dict())
        return 0
    from scalerl.report.bench import backtest_view, curves_view

    print_view(curves_view(curves), *backtest_view(found))
    return 0
