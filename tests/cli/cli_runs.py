"""What the tests of the command line share: runs on disk, and a runner that keeps stdout and stderr apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from scalerl.cli.app import application

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """`run("forecast", file, "--json")` -> click's result."""
    return lambda *args, **extra: CliRunner().invoke(application, [str(a) for a in args], **extra)


def sigmoid(compute: np.ndarray, R0: float = 0.3, A: float = 0.7, B: float = 2.0, C_mid: float = 200.0) -> np.ndarray:
    return R0 + (A - R0) / (1 + (C_mid / np.maximum(compute, 1e-9)) ** B)


def write_csv(path: Path, compute: np.ndarray, score: np.ndarray, header: str = "step,val/pass_rate") -> Path:
    rows = [header, *(f"{c:g},{s:.5f}" for c, s in zip(compute, score, strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def risen(tmp_path: Path) -> Path:
    """A run that is at 5 C_mid, with a little noise."""
    compute = np.arange(25.0, 1001.0, 25.0)
    noise = np.random.default_rng(0).normal(0, 0.004, compute.size)
    return write_csv(tmp_path / "risen.csv", compute, sigmoid(compute) + noise)


@pytest.fixture
def rising(tmp_path: Path) -> Path:
    """A run that is at 0.9 C_mid: no ceiling can be told."""
    compute = np.arange(6.0, 181.0, 6.0)
    noise = np.random.default_rng(1).normal(0, 0.003, compute.size)
    return write_csv(tmp_path / "rising.csv", compute, sigmoid(compute) + noise)


@pytest.fixture
def constant(tmp_path: Path) -> Path:
    compute = np.arange(10.0, 301.0, 10.0)
    return write_csv(tmp_path / "constant.csv", compute, np.zeros_like(compute))


@pytest.fixture
def collapsed(tmp_path: Path) -> Path:
    """A run that falls back in its last third."""
    compute = np.arange(25.0, 1001.0, 25.0)
    score = sigmoid(compute) - 0.25 * np.clip((compute - 700) / 60, 0, 1)
    return write_csv(
        tmp_path / "collapsed.csv", compute, score + np.random.default_rng(2).normal(0, 0.004, compute.size)
    )
