"""`scalerl calibrate`: learn by how much raw intervals must be widened, from a bank of whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalerl.cli import options
from scalerl.cli.options import Reading
from scalerl.cli.output import print_json, print_view, say
from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.curves.calibration import Calibration
    from scalerl.runs import Curve


@click.command("calibrate")
@click.argument("files", nargs=-1, required=True)
@click.option("--out", metavar="FILE.json", help="Write the table here; then scalerl forecast --calibration FILE.json.")
@click.option("--about", metavar="TEXT", help="Where the runs come from, kept in the table.")
@options.reading_many_options
@options.json_option
def command(files: tuple[str, ...], reading: Reading, out: str | None, about: str | None, as_json: bool) -> int:
    """Learn the multipliers of the intervals from the whole runs in FILES.

    Runs in one folder count as one source. For a run of the bank the table without its source is used, so that no curve
    calibrates itself; at least two sources are needed.
    """
    from scalerl.curves.calibrate import BankCurve, calibrate

    options.stdin_is_free(files)
    files = options.each_once(files)
    curves = [(file, curve) for file in files for curve in reading.curves(reading.log(file))]
    table = calibrate([BankCurve(source_of(file), curve) for file, curve in curves], provenance(files, about))
    if out:
        _save(table, Path(out))
    if as_json:
        _notes(curves, out)
        print_json({"schema": 1, **_answer(table), "written": out})
        return 0
    from scalerl.report.bench import calibration_view, curves_view

    print_view(curves_view(curves), *calibration_view(table, out))
    return 0


def source_of(file: str) -> str:
    """The source of a run: the folder its file lies in."""
    return Path(file).resolve().parent.name or "root"


def provenance(files: Sequence[str], about: str | None) -> dict[str, Any]:
    """What is kept in the table beside the counts: which files, by which version, and the user's own words."""
    from scalerl import __version__

    named = sorted({f"{source_of(file)}/{Path(file).name}" for file in files})
    return {"scalerl": __version__, "files": named, **({"about": about} if about else {})}


def _save(table: Calibration, path: Path) -> None:
    from scalerl.curves.calibration import save

    try:
        save(table, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); choose another --out") from error


def _notes(curves: Sequence[tuple[str, Curve]], out: str | None) -> None:
    for file, curve in curves:
        for note in curve.notes:
            say(f"note: {file}, {curve.name}: {note}")
    if out:
        say(f"note: table written to {out}")


def _answer(table: Calibration) -> dict[str, Any]:
    from scalerl.curves.calibration import REACHES

    return {
        "reaches": list(REACHES),
        "multipliers": table.multipliers.tolist(),
        "measured": table.measured,
        "provenance": table.provenance,
        "without": {source: m.tolist() for source, m in table.without.items()},
    }
