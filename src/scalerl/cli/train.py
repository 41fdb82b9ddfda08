"""`scalerl train`: a run from settings, to a run directory."""

from __future__ import annotations

from pathlib import Path

import click

from scalerl.cli.training_options import json_option, need_torch, quiet_option, shown, tell


@click.command("train")
@click.argument("words", nargs=-1, metavar="[SETTINGS.yaml] [KEY=VALUE]...")
@click.option("--preset", metavar="NAME", help="Recipe to begin with.  [default: scalerl]")
@click.option("--set", "also", multiple=True, metavar="KEY=VALUE", help="A setting, as without --set. Repeatable.")
@click.option("--steps", type=click.IntRange(min=0), help="Optimizer steps.  [default: 100]")
@click.option("--seed", type=click.IntRange(min=0), help="Of prompts and sampling.  [default: 0]")
@click.option("--launch", metavar="HOW", help="process, ray or inline: where engines run.  [default: process]")
@click.option("--stop-when", metavar="CONDITION", help='End early, e.g. "gain_high < 0.01 at 2x".')
@click.option("--out", type=click.Path(path_type=Path), help="Run directory to write.  [default: runs/DATE-TIME]")
@click.option("--show", is_flag=True, help="Print the resolved settings and do nothing.")
@quiet_option
@json_option
def command(
    words: tuple[str, ...], preset: str | None, also: tuple[str, ...], steps: int | None, seed: int | None,
    launch: str | None, stop_when: str | None, out: Path | None, show: bool, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Train a model with the ScaleRL recipe, or another, and forecast the rest beside it.

    Settings come from the preset, a YAML file and KEY=VALUE words, each later one winning. Without any of them a small
    model learns chains of digits. SIGTERM or Ctrl-C writes a checkpoint; `scalerl resume` goes on.
    """
    from scalerl.training.resolve import resolve

    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise click.UsageError(
            f"one settings file, and KEY=VALUE words: {files[1]!r} is neither", click.get_current_context()
        )
    settings = resolve(
        Path(files[0]) if files else None, preset, [*(w for w in words if "=" in w), *also],
        steps, stop_when, seed, launch,
    )  # fmt: skip
    if show:
        click.echo(settings.to_yaml(), nl=False)
        return 0
    need_torch()
    from scalerl.training.train import train

    directory = out if out is not None else _unused()
    with shown(settings.steps, as_json, quiet) as progress:
        finished = train(settings, directory, progress.row, progress.warm_start)
    return tell(finished, as_json)


def _unused() -> Path:
    from datetime import datetime

    return Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
