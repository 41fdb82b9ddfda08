"""`scalerl transfer`: a downstream column of the same log."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runs import Run, sigmoid


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A held-out score and a downstream one that follows it."""
    rng = np.random.default_rng(0)
    compute = np.arange(10.0, 601.0, 10.0)
    held = sigmoid(compute, R0=0.2, C_mid=150.0)
    down = 0.05 + 0.6 * held + rng.normal(0, 0.01, compute.size)
    held = held + rng.normal(0, 0.005, compute.size)
    rows = [f"{c:g},{h:.4f},{d:.4f}" for c, h, d in zip(compute, held, down, strict=True)]
    file = tmp_path / "both.csv"
    file.write_text("\n".join(["step,val/heldout/acc,val/aime24/acc", *rows]))
    return file


def test_follows(run: Run, both: Path) -> None:
    result = run("transfer", both, "--downstream", "val/aime24/acc", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["schema"] == 1
    assert answer["words"] == "follows"
    assert (answer["heldout"], answer["downstream"]) == ("val/heldout/acc", "val/aime24/acc")
    assert answer["fit"]["A"] == pytest.approx(0.05 + 0.6 * 0.7, abs=0.03)
    assert "y = 'val/heldout/acc' (guessed" in result.stderr


def test_view(run: Run, both: Path) -> None:
    text = run("transfer", both, "--downstream", "val/aime24/acc").stdout
    for word in (
        "val/aime24/acc against val/heldout/acc: follows",
        "levels",
        "increments",
        "detrended",
        "Slope",
        "Lag",
        "Fit",
    ):
        assert word in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_upto_leaves_too_little(run: Run, both: Path) -> None:
    result = run("transfer", both, "--downstream", "val/aime24/acc", "--upto", "40", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["words"] == "cannot say"
    assert "at least 6" in run("transfer", both, "--downstream", "val/aime24/acc", "--upto", "40").stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--downstream", "aime24"], "val/aime24/acc"),
        (["--downstream", "val/heldout/acc"], "--y"),
        ([], "--downstream"),
    ],
)
def test_unusable(run: Run, both: Path, options: list[str], word: str) -> None:
    result = run("transfer", both, *options)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr
