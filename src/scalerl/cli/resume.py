"""`scalerl resume`: go on with a run that was stopped or killed."""

from __future__ import annotations

from pathlib import Path

import click

from scalerl.cli.training_options import json_option, need_torch, quiet_option, shown, tell


@click.command("resume")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=0), help="Another end than the run was started with.")
@quiet_option
@json_option
def command(directory: Path, steps: int | None, quiet: bool, as_json: bool) -> int:
    """Go on with the run in DIRECTORY from its newest checkpoint, as if nothing had happened.

    Its settings are those of config.yaml there.
    """
    from scalerl.training.resolve import read

    wanted = read(directory).steps if steps is None else steps
    need_torch()
    from scalerl.training.resume import resume
    from scalerl.training.watch import Follower, begun

    with shown(wanted, as_json, quiet) as progress:
        for row in Follower(directory).rows() if begun(directory) else ():
            progress.state.feed(row)
        finished = resume(directory, steps, progress.row, progress.warm_start)
    return tell(finished, as_json)
