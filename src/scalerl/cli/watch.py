"""`scalerl watch`: follow a run live, from another terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from scalerl.cli.options import Number

_PATIENCE = 30.0
"""Seconds for a run to appear: `scalerl train` has much to load before it makes its directory."""


@click.command("watch")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show how it stands, and end.")
@click.option(
    "--interval", type=Number(least=0.05, below=1e6), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--json", "as_json", is_flag=True, help="How it stands, as one JSON object.")
def command(directory: Path, once: bool, interval: float, as_json: bool) -> int:
    """Follow the run in DIRECTORY until it ends, or until Ctrl-C. It only reads."""
    from rich.console import Console

    from scalerl.training.lock import held
    from scalerl.training.progress import Progress, State
    from scalerl.training.watch import Follower

    if not (once or as_json):
        _wait(directory, interval)
    writing = held(directory)  # before its rows are read: one that ends meanwhile has written how
    follower, steps = Follower(directory), _steps(directory)
    if once or as_json:
        state = State(steps)
        for row in follower.rows():
            state.feed(row)
        _show(state, directory, writing, as_json)
        return 0
    with Progress(steps, Console()) as progress:
        while True:
            writing = held(directory)
            for row in follower.rows():
                progress.row(row)
            # Beside a resume that has not cut off the old end yet, that end is not the run's.
            if progress.state.ended is not None and not writing:
                return 0
            if writing is False:
                break
            time.sleep(interval)
    click.echo(_dead(directory))
    return 0


def _wait(directory: Path, interval: float) -> None:
    """Until a run that starts has a row; one of which there is no trace soon was never started."""
    from scalerl.training.lock import held
    from scalerl.training.watch import begun

    if not begun(directory):
        click.echo(f"waiting for the first row of a run in {directory}", err=True)
    last = time.monotonic() + _PATIENCE
    while not begun(directory) and (held(directory) or time.monotonic() < last):
        time.sleep(interval)


def _dead(directory: Path) -> str:
    return f"no process writes this run any more, and it has not ended: `scalerl resume {directory}` goes on"


def _steps(directory: Path) -> int:
    from scalerl.training.resolve import read
    from scalerl.training.settings import CONFIG

    return read(directory).steps if (directory / CONFIG).is_file() else 0


def _show(state: Any, directory: Path, writing: bool | None, as_json: bool) -> None:
    from rich.console import Console

    from scalerl.cli.output import print_json

    if not as_json:
        Console().print(state.view())
        if writing is False and state.ended is None:
            click.echo(_dead(directory))
        return
    evals = {task: rows[-1] for task, rows in state.evals.items()}
    print_json(
        {
            "schema": 1, "directory": str(directory), "steps": state.steps, "train": dict(state.train), "eval": evals,
            "forecast": state.answers, "ended": state.ended, "writing": writing,
        }
    )  # fmt: skip
