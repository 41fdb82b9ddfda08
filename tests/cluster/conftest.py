"""The helpers of the other tests, and as many Ray CPUs as the tests ask for, whatever the machine has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in ("training", "engines", "pipeline"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


def pytest_configure(config: pytest.Config) -> None:
    """vLLM leaves its sockets to the end of the process, which pytest would take for an error."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore:Exception ignored in. <function Context.__del__")
