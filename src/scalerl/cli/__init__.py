"""Floor 8: the command line. One file a command: parse, call, print."""

from scalerl.cli.app import main

__all__ = ["main"]
