"""The helpers of the other tests, for the workers that Ray starts too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDERS = [str(Path(__file__).parents[1] / name) for name in ("cluster", "training", "engines", "pipeline")]
sys.path[:0] = FOLDERS
os.environ["PYTHONPATH"] = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])


def pytest_configure(config: pytest.Config) -> None:
    """vLLM leaves its sockets to the end of the process, which pytest would take for an error."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore:Exception ignored in. <function Context.__del__")
