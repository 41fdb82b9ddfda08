"""The example logs: committed as the script writes them, small, and read as what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import make_logs
from make_logs import LOGS, RECIPES, TEXT_LOGS, TRUTH, Law
from scalerl.runs import read_curve, read_run

FORMATS = {
    "run.jsonl": "scalerl metrics.jsonl",
    "recipe_a.csv": "CSV",
    "recipes_wide.csv": "CSV",
    "recipes_long.csv": "CSV",
    "trainer_state.json": "HF trainer_state",
    "hf_console.log": "HF console",
    "verl_console.log": "verl console",
    "free_text.log": "free text log",
    "tinker.jsonl": "Tinker metrics.jsonl",
    "downstream.jsonl": "JSON lines",
}
SINGLE = [name for name in TEXT_LOGS if not name.startswith("recipes_") and name in TRUTH]


@pytest.mark.parametrize("name", TEXT_LOGS)
def test_committed_logs_are_what_the_script_writes(name: str) -> None:
    assert (LOGS / name).read_bytes() == TEXT_LOGS[name]().encode()


def test_nothing_else_is_committed_and_all_is_small() -> None:
    assert {path.name for path in LOGS.iterdir()} == set(TEXT_LOGS)
    assert all(path.stat().st_size < 30_000 for path in LOGS.iterdir())


@pytest.mark.parametrize("name", TEXT_LOGS)
def test_each_log_states_its_law_at_its_start(name: str) -> None:
    head = (LOGS / name).read_text(encoding="utf-8")[:700]
    assert make_logs.MADE in head
    assert "R(C) =" in head


@pytest.mark.parametrize(("name", "form"), FORMATS.items())
def test_the_format_is_found_by_content(name: str, form: str) -> None:
    assert read_run(LOGS / name).format == form


@pytest.mark.parametrize("name", SINGLE)
def test_scores_scatter_around_the_law_by_binomial_noise(name: str) -> None:
    curve = read_curve(LOGS / name)
    truth = np.array([TRUTH[name](c) for c in curve.compute])
    trials = {"hf_console.log": 1_024, "free_text.log": 256, "tinker.jsonl": 400}.get(name, 2_000)
    z = (curve.score - truth) / np.sqrt(truth * (1 - truth) / trials)
    assert len(curve) >= 30
    assert np.abs(z).max() < 4.5


def test_wide_and_long_hold_the_same_runs_as_the_files_of_their_own() -> None:
    for name in ("recipe_a", "recipe_b"):
        alone = read_curve(LOGS / f"{name}.csv")
        for file in ("recipes_wide.csv", "recipes_long.csv"):
            curve = read_curve(LOGS / file, run=name)
            assert (curve.name, curve.unit) == (name, "gpu-hour")
            np.testing.assert_array_equal(curve.compute, alone.compute)
            np.testing.assert_array_equal(curve.score, alone.score)
    assert len(read_curve(LOGS / "recipes_wide.csv", run="recipe_c")) == 20


def test_the_main_run_counts_gpu_hours_of_all_roles_and_knows_its_trials() -> None:
    curve = read_curve(LOGS / "run.jsonl")
    assert (curve.unit, curve.compute[-1], len(curve)) == ("gpu-hour", 80_000, 81)
    assert curve.trials is not None
    assert (curve.trials == make_logs.RUN_TRIALS).all()


def test_every_fault_of_the_messy_log_is_told() -> None:
    curve = read_curve(LOGS / "messy.jsonl")
    for said in ("2 NaN", "cut off", "skipped", "restart at step 240", "percent"):
        assert any(said in note for note in curve.notes), said


def test_logs_that_need_a_package_are_read_too(tmp_path: Path) -> None:
    assert read_run(make_logs.write_parquet(tmp_path)).format == "Parquet"
    for _ in range(2):  # a second demo must not add to what the first left
        board = make_logs.write_tensorboard(tmp_path)
        assert board is not None
        assert len(read_curve(board)) == 41


def test_the_law_is_the_sigmoid_of_the_package() -> None:
    from scalerl.curves.laws import SIGMOID

    law = RECIPES["recipe_b"]
    for compute in (0.0, 10.0, 2_000.0, 1e6):
        expected = SIGMOID.value(compute, law.R0, law.A, law.B, law.C_mid)
        assert law(compute) == pytest.approx(float(expected))


def test_a_law_says_itself() -> None:
    assert str(Law(0.4, 0.65, 1.6, 10_000, "GPU-hours")) == (
        "R(C) = 0.4 + 0.25 / (1 + (10,000 / C)^1.6), C in GPU-hours; ceiling A = 0.65"
    )
