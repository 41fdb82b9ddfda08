"""Whole runs on a real Ray: the same controller, engines in actors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("ray")

from small_runs import rows, settings

from scalerl.training.train import train


def test_a_run_in_actors_trains_evaluates_and_exports(tmp_path: Path) -> None:
    own = settings("engines.launch=ray", "engines.generators=2", "recipe.learning_rate=1e-5")
    done = train(own, tmp_path)
    assert done.outcome.step == 6
    train_rows = rows(tmp_path, "train")
    assert [row["step"] for row in train_rows] == list(range(1, 7))
    assert max(int(s) for row in train_rows for s in row["staleness_histogram"]) <= 2
    assert all(abs(row.get("mismatch_kl", 0.0)) < 1e-3 for row in train_rows)
    evaluated = [row["step"] for row in rows(tmp_path, "eval")]
    events = Counter(row["event"] for row in rows(tmp_path, "event"))
    assert (evaluated[0], evaluated[-1]) == (0, 6)
    assert (
        len(evaluated) + events.pop("evaluation skipped", 0) == 4
    )  # on a fast machine one still runs when the next is due
    assert events == {"end": 1}
