"""Whole runs on a real Ray: the same controller, engines in actors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("ray")

from small_runs import WORDS, rows, settings

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


@pytest.mark.slow
def test_two_vllm_generators_and_two_ranks_train_with_updates_in_flight(tmp_path: Path) -> None:
    """By the command, as a user would. Keys that are kept over an update give the log-probabilities with which the
    rollout was sampled, and cleared ones others; `test_vllm_generator` compares both, token by token."""
    pytest.importorskip("vllm")
    own = [
        "engines.generator=vllm", "engines.generators=2", "engines.trainers=2", "engines.vllm.check=full",
        "engines.vllm.kv_cache_gib=0.25", "model.warm_start.head_dim=32", "evaluation.every=0", "steps=30",
        "recipe.learning_rate=1e-5", "task.train_prompts=100", "recipe.retire_at=1",
        "engines.ray.generator={CPU: 0.5}", "engines.ray.trainer={CPU: 0.5}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "scalerl", "train", *WORDS, *own, "--launch", "ray"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=500,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    trained = rows(tmp_path / "run", "train")
    assert [row["step"] for row in trained] == list(range(1, 31))
    assert max(row["versions_per_rollout"] for row in trained) > 1
    assert max(int(s) for row in trained for s in row["staleness_histogram"]) <= 2
    assert trained[-1]["generators_up"] == 2  # one may be up, and train, before the other
    # A tensor that differed from the trainer's after an update would have ended its generator, and an event told so.
    assert [row["event"] for row in rows(tmp_path / "run", "event")] == ["end"]
    # What generators report of an update stands in the next row; steps may be faster than updates.
    pauses = [row["update_pause_ms"] for row in trained if "update_pause_ms" in row]
    assert "update_pause_ms" in trained[0]  # of the update that brought the first weights
    assert all(0 < pause < 10_000 for pause in pauses)
    # The learning rate is small, so that generator and trainer agree, however many versions a rollout spans.
    assert all(abs(row.get("mismatch_kl", 0.0)) < 1e-3 for row in trained)
