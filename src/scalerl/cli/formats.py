"""`scalerl formats`: the logs that can be read."""

from __future__ import annotations

import click

from scalerl.cli.options import json_option
from scalerl.cli.output import print_json


@click.command("formats")
@json_option
def command(as_json: bool) -> None:
    """List the log formats that are read."""
    from scalerl.runs.detect import KNOWN

    names = [name.strip() for name in KNOWN.split(", ")]
    if as_json:
        print_json({"schema": 1, "formats": names})
        return
    click.echo("Found by content, never by extension alone:")
    for name in names:
        click.echo(f"  {name}")
