"""Fixtures of the command line's tests; the helpers themselves are in cli_runs.py."""

from cli_runs import collapsed, constant, risen, rising, run

__all__ = ["collapsed", "constant", "risen", "rising", "run"]
