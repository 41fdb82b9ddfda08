"""Options that several commands share, in one place: how to read a log, how to answer."""

from __future__ import annotations

import functools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scalerl.cli.output import say
from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.curves.calibration import Calibration
    from scalerl.runs import Curve, RunLog

Command = TypeVar("Command", bound=Callable[..., Any])
PICTURES = (".png", ".svg", ".pdf")
STDIN = "-"


class Number(click.ParamType):
    """A finite number within bounds; 100,000 and 100_000 and 1e5 are the same."""

    name = "number"

    def __init__(self, above: float = -math.inf, below: float = math.inf, least: float = -math.inf) -> None:
        self.above, self.below, self.least = above, below, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value).replace(",", "").replace("_", ""))
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not (math.isfinite(number) and self.above < number < self.below and number >= self.least):
            self.fail(f"{value!r} is out of range: {self._range()}", param, ctx)
        return number

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "NUMBER"

    def _range(self) -> str:
        parts = []
        if math.isfinite(self.above):
            parts.append(f"above {self.above:g}")
        if math.isfinite(self.least):
            parts.append(f"at least {self.least:g}")
        if math.isfinite(self.below):
            parts.append(f"below {self.below:g}")
        return "it must be " + (" and ".join(parts) or "finite")


class Picture(click.ParamType):
    """Path of a picture to write: its folder exists and its ending is one that can be drawn."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = Path(str(value))
        if path.suffix.lower() not in PICTURES:
            self.fail(f"{str(path)!r} does not end in .png, .svg or .pdf; name the picture so", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r}; make it first", param, ctx)
        return str(path)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "FILE.png|svg|pdf"


class Since(Number):
    """`auto`, or the compute before which points are warm-up."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "auto" if str(value).strip().lower() == "auto" else super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "COMPUTE|auto"


@dataclass(frozen=True)
class Reading:
    """How a log is to be read, as the user asked; None where the reader is to guess."""

    x: str | None = None
    y: str | None = None
    run: str | None = None
    run_column: str | None = None
    devices: float | None = None
    factor: float | None = None
    trials: str | None = None
    unit: str | None = None
    scale: str | None = None
    runs: tuple[str, ...] = ()

    def log(self, path: str) -> RunLog:
        """Read a log; "-" is stdin."""
        from scalerl.runs import read_run

        if path != STDIN:
            log = read_run(path, run=self.run, run_column=self.run_column)
            return log.run(self.y) if self.y and log.is_run(self.y) else log
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "stdin"
            file.write_bytes(_stdin())
            try:
                log = read_run(file, run=self.run, run_column=self.run_column)
            except InputError as error:
                raise InputError(str(error).replace(str(file), "stdin")) from error
            log.path = "stdin"
            return log

    def curve(self, log: RunLog, run: str | None = None) -> Curve:
        """The curve of a log, or of one of its runs."""
        return log.curve(x=self.x, y=self.y, devices=self.devices, factor=self.factor, trials=self.trials,
                         run=run or self.run, unit=self.unit, scale=self.scale)  # fmt: skip

    def curves(self, log: RunLog) -> list[Curve]:
        """The curve of each run of a log, or of those that were asked for."""
        if self.runs:
            return [self.curve(log, run) for run in self.runs]
        if self.run is None and len(log.runs) > 1:
            return [self.curve(log, run) for run in log.runs]
        return [self.curve(log)]


_READING = (
    click.option("--x", metavar="COLUMN", help="Column of the compute axis (steps, tokens, GPU-hours, time); guessed."),
    click.option("--y", metavar="COLUMN", help="Column of the score (pass rate); 'a,b' joins a renamed one; guessed."),
    click.option("--run-column", metavar="COLUMN", help="Column that names the runs."),
    click.option("--devices", type=Number(above=0), help="Number of GPUs: compute is wall time x GPUs."),
    click.option("--factor", type=Number(above=0), help="Compute of one unit of x, e.g. GPU-hours a step."),
    click.option("--trials", metavar="N|COLUMN", help="Graded answers behind each score: their noise is then known."),
    click.option("--unit", metavar="NAME", help="Name of the unit of compute, e.g. gpu-hour."),
    click.option("--scale", metavar="RANGE", help="Range of the score: percent, signed, none, or LOW:HIGH."),
)  # fmt: skip


_RUN = click.option("--run", metavar="NAME", help="The run to take where the file holds several.")
_RUNS = click.option(
    "--run", "runs", multiple=True, metavar="NAME", help="A run to take where a file holds several. Repeatable."
)


def reading_options(command: Command) -> Command:
    """Add the options of `Reading`, and hand them to the command as `reading`."""
    return _with_reading(command, (_RUN, *_READING))


def reading_many_options(command: Command) -> Command:
    """The same for a command on many runs: --run may be repeated."""
    return _with_reading(command, (_RUNS, *_READING))


def _with_reading(command: Command, options: tuple[Callable[[Any], Any], ...]) -> Command:
    @functools.wraps(command)
    def with_reading(*args: Any, **given: Any) -> Any:
        reading = Reading(**{f.name: given.pop(f.name) for f in fields(Reading) if f.name in given})
        return command(*args, reading=reading, **given)

    for option in reversed(options):
        with_reading = option(with_reading)
    return with_reading  # type: ignore[return-value]


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; notes go to stderr.")
level_option = click.option(
    "--level", type=Number(above=0, below=1), default=0.9, show_default=True, help="Coverage of the intervals."
)
since_option = click.option(
    "--from", "since", type=Since(least=0), default="auto", show_default=True,
    help="Leave out points before this compute as warm-up; auto proposes it, 0 keeps all.",
)  # fmt: skip
upto_option = click.option(
    "--upto", type=Number(above=0), help="Forget everything after this compute: what would it have said then?"
)
plot_option = click.option("--plot", type=Picture(), help="Draw the answer.")


calibration_option = click.option(
    "--calibration", metavar="FILE|none", help="Another table from scalerl calibrate; none: raw intervals."
)


def calibration_of(path: str | None) -> Calibration | None:
    """The table of --calibration; None is the one that ships with the package."""
    from scalerl.curves.calibration import NO_CALIBRATION, load

    if path is None:
        return None
    return NO_CALIBRATION if path.strip().lower() == "none" else load(Path(path))


def draw(plot: Callable[[str], Any], path: str) -> None:
    """Write a picture.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        plot(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); choose another --plot") from error


def _stdin() -> bytes:
    if sys.stdin is None:  # what Python makes of `<&-`
        raise InputError("stdin: is closed; pipe a log into it, or name a file instead of '-'")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise InputError(f"stdin: cannot be read ({error.strerror or error}); name a file instead of '-'") from error


def each_once(files: Sequence[str]) -> tuple[str, ...]:
    """The files without those that are given twice, which would count as two runs; says which."""
    seen: dict[str, str] = {}
    for file in files:
        place = os.path.realpath(file)
        if place in seen and file != STDIN:
            say(f"note: {file}: given twice; it is one run and counts once")
        else:
            seen[file if file == STDIN else place] = file
    return tuple(seen.values())


def stdin_is_free(files: tuple[str, ...]) -> None:
    """Refuse "-" twice.

    Raises:
        InputError: stdin is named more than once.
    """
    if files.count(STDIN) > 1:
        raise InputError("stdin: '-' can stand for one file only; name the others")
