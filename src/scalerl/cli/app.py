"""The `scalerl` command: finds the subcommands and turns every error into one line and an exit code.

Subcommands are imported when they are needed, and import what they compute with only when they run, so that
`scalerl --help` answers at once.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from importlib import import_module
from typing import Any

import click

from scalerl import __version__
from scalerl.cli.guard import guarded

COMMANDS = ("forecast", "fit", "backtest", "calibrate", "compare", "transfer", "formats", "train", "resume", "watch")
"""In the order of the help; each is a module of this package with a click command named `command`."""


class Application(click.Group):
    """A group that loads its commands on first use and never shows a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"scalerl.cli.{cmd_name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(_unknown(name), ctx)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        extra.setdefault("prog_name", "scalerl")
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        sys.exit(guarded(lambda: super(Application, self).main(*args, standalone_mode=False, **extra)))


def _unknown(name: str) -> str:
    """A mistyped command, or a file where a command belongs."""
    near = difflib.get_close_matches(name, COMMANDS, 1)
    if near:
        return f"no command {name!r}; did you mean {near[0]!r}?"
    if os.path.exists(name) or "://" in name:
        return f"{name!r} is no command; to forecast it: scalerl forecast {name}"
    return f"no command {name!r}; one of {', '.join(COMMANDS)}"


@click.group(
    "scalerl",
    cls=Application,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 answered, 2 unusable input or settings, 3 a forecast was refused.",
)
@click.version_option(__version__, "-V", "--version", message="scalerl %(version)s")
@click.pass_context
def application(ctx: click.Context) -> None:
    """Forecast RL post-training: from a training log to a fitted sigmoid, intervals and a verdict.

    \b
    scalerl forecast metrics.jsonl                 what will twice the compute bring?
    scalerl forecast run.csv --y val/acc --at 4x   another column, further ahead
    scalerl compare a.csv b.csv                    which recipe has the higher ceiling?
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Entry point of the `scalerl` script."""
    if not (sys.warnoptions or os.environ.get("SCALERL_DEBUG")):
        warnings.simplefilter("ignore")  # numpy's remarks belong to developers; what users must know is in the answer
    application()
