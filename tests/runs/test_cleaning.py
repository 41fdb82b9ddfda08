"""TRAPS 31, 34 and 35: restarts, repeats, order and scale. Every action must be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import close, lines, run_of, said, save

from scalerl.errors import InputError
from scalerl.runs import Curve, cleaning, read_curve


def curve_of(tmp_path: Path, rows: list[dict[str, float]], **options: object) -> Curve:
    return read_curve(save(tmp_path, lines(rows)), **options)  # type: ignore[arg-type]


def series(steps: range | list[int], shift: float = 0.0) -> list[dict[str, float]]:
    return [{"step": n, "reward": round(n / 1000 + shift, 6), "loss": 1.0} for n in steps]


def test_trap_31_restart_the_later_run_wins(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series(range(352)) + series(range(340, 400), shift=0.1))
    assert said(curve.notes, "12 rows repeated by a restart at step 340: the later run wins.")
    assert close(curve.compute, range(400))
    assert close(curve.score, [n / 1000 + (0.1 if n >= 340 else 0) for n in range(400)])


def test_trap_31_several_restarts(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series(range(52)) + series(range(40, 80), 0.1) + series(range(60, 100), 0.2))
    assert said(curve.notes, "32 rows repeated by 2 restarts at step 40, 60")
    assert close(curve.score[[39, 59, 60]], [0.039, 0.159, 0.26])


def test_trap_31_restart_seen_in_training_rows_decides_evaluations(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = []
    for steps, shift in ((range(352), 0.0), (range(320, 400), 0.1)):
        for n in steps:
            rows.append({"step": n, "loss": 1.0})
            if n % 50 == 0:
                rows.append({"step": n, "eval/acc": n / 1000 + shift})
    curve = curve_of(tmp_path, rows)
    assert close(curve.compute, range(0, 400, 50))
    assert close(curve.score[-1], 0.45)
    assert said(curve.notes, "1 row repeated by a restart at step 320")


def test_trap_31_restart_with_a_step_column_for_each_kind_of_row(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = []
    for steps, shift in ((range(352), 0.0), (range(320, 400), 0.1)):
        for n in steps:
            rows.append({"train/global_step": n, "train/loss": 1.0})
            if n % 50 == 0:
                rows.append({"eval/global_step": n, "eval/acc": n / 1000 + shift})
    curve = curve_of(tmp_path, rows)
    assert close(curve.compute, range(0, 400, 50))
    assert close(curve.score[-1], 0.45)


def test_trap_31_block_that_stands_twice(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series(range(50)) * 2)
    assert len(curve) == 50
    assert said(curve.notes, "50 rows repeated exactly")


def test_trap_31_micro_batches_are_averaged(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, [{"step": n // 4, "reward": (n % 4) / 4} for n in range(40)])
    assert close(curve.score, [0.375] * 10)
    assert said(curve.notes, "Up to 4 rows a step", "40 rows averaged to 10 points")


def test_every_rank_prints_the_same(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, [row for row in series(range(20)) for _ in range(8)], trials=64)
    assert curve.trials is not None
    assert close(curve.trials, [64] * 20)
    assert said(curve.notes, "140 rows repeated exactly")


def test_trap_31_log_that_begins_at_step_101(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series(range(101, 140)))
    assert close(curve.compute, range(101, 140))
    assert said(curve.notes, "begins at step 101")


def test_restart_from_scratch_that_stops_earlier_is_told(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series(range(100)) + series(range(30), 0.1))
    assert close(curve.compute, range(30))
    assert said(curve.notes, "had reached step 99", "two runs")


def test_parts_in_the_wrong_order_lose_nothing(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series(range(100, 200)) + series(range(100)))
    assert len(curve) == 200
    assert said(curve.notes, "sorted")


def test_trap_35_unsorted_and_reversed(tmp_path: Path) -> None:
    shuffled = [5, 3, 9, 1, 7, 2, 8, 4, 6, 0]
    for steps in (shuffled, list(range(50, 0, -1))):
        curve = curve_of(tmp_path, series(steps))
        assert close(curve.compute, sorted(steps))
        assert said(curve.notes, "sorted")
        assert not said(curve.notes, "restart")


def test_evaluation_logged_late_is_no_restart(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = []
    for n in range(100):
        rows.append({"step": n, "reward": n / 200})
        if n % 10 == 9:
            rows.append({"step": n - 7, "eval/acc": n / 100})
    curve = curve_of(tmp_path, rows)
    assert close(curve.compute, range(2, 100, 10))
    assert not said(curve.notes, "restart")
    assert len(read_curve(tmp_path / "log", y="reward")) == 100


def test_steps_that_start_again_in_each_epoch(tmp_path: Path) -> None:
    rows = [{"epoch": e, "step": s, "acc": (50 * e + s) / 200} for e in range(3) for s in range(1, 51)]
    curve = curve_of(tmp_path, rows)
    assert close(curve.compute, range(1, 151))
    assert said(curve.notes, "3 epochs")


def test_trap_35_step_zero_irregular_and_short(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series([0, 1, 7, 30, 100]))
    assert close(curve.compute, [0, 1, 7, 30, 100])


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_trap_35_constants_are_read(tmp_path: Path, value: float) -> None:
    assert close(curve_of(tmp_path, [{"step": n, "acc": value} for n in range(20)]).score, [value] * 20)


def test_negative_steps_are_left_out(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, series([-1, 0, 1, 2]))
    assert close(curve.compute, [0, 1, 2])
    assert said(curve.notes, "1 row", "left out")


def test_trap_34_percent(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, [{"step": n, "accuracy": 10.0 + n} for n in range(50)])
    assert close(curve.score, [(10 + n) / 100 for n in range(50)])
    assert said(curve.notes, "read as percent")


def test_trap_34_two_scales_in_one_column(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"jumps from 0\.6 to 61"):
        curve_of(tmp_path, [{"step": n, "accuracy": n / 50 if n <= 30 else n + 30.0} for n in range(60)])


def test_trap_34_rewards_of_minus_one_and_one(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, [{"step": n, "critic/score/mean": n / 25 - 1} for n in range(40)])
    assert close(curve.score, [n / 50 for n in range(40)])
    assert said(curve.notes, "reward of -1 or 1")


def test_a_pass_rate_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be negative"):
        curve_of(tmp_path, [{"step": n, "accuracy": n / 25 - 1} for n in range(40)])


def test_trap_34_shaped_rewards_are_no_pass_rate(tmp_path: Path) -> None:
    rows = [{"step": n, "reward": n / 10} for n in range(20)]
    with pytest.raises(InputError, match=r"from 0 to 1.9, so it is a shaped reward and not a pass rate.*--scale 0:2"):
        curve_of(tmp_path, rows)
    assert close(curve_of(tmp_path, rows, scale="0:2").score, [n / 20 for n in range(20)])
    assert close(curve_of(tmp_path, rows, scale=2).score, [n / 20 for n in range(20)])
    with pytest.raises(InputError, match="outside the range"):
        curve_of(tmp_path, rows, scale=(0.0, 1.0))


def test_a_pass_rate_is_preferred_to_a_shaped_reward(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, [{"step": n, "reward": n / 10, "pass_rate": n / 40} for n in range(20)])
    assert curve.score_name == "pass_rate"


@pytest.mark.parametrize("scale", ["", "x", "1:0", "0:0", "nan", "1:2:3", 0, -1, float("inf"), (1.0, 1.0)])
def test_unusable_scale(tmp_path: Path, scale: object) -> None:
    with pytest.raises(InputError, match="--scale must be"):
        curve_of(tmp_path, series(range(5)), scale=scale)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("eval/accuracy", "eval/acc"),
        ("val/test_score/gsm8k", "val-core/gsm8k/reward/mean@1"),
        ("reward", "mean_reward"),
    ],
)
def test_trap_34_renamed_mid_run(tmp_path: Path, old: str, new: str) -> None:
    rows: list[dict[str, float]] = [{"step": n, (old if n < 50 else new): n / 200} for n in range(100)]
    curve = curve_of(tmp_path, rows)
    assert len(curve) == 100
    assert said(curve.notes, "goes on as", "joined")
    chosen = curve_of(tmp_path, rows, y=old)
    assert len(chosen) == 50
    assert said(chosen.notes, "renamed", f"{old},{new}")
    assert len(curve_of(tmp_path, rows, y=f"{old},{new}")) == 100
    assert len(curve_of(tmp_path, rows, y=[old, new])) == 100


def test_two_metrics_that_follow_each_other_with_a_jump_are_not_joined(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = [
        {"step": n, "eval/acc": n / 200} if n < 50 else {"step": n, "eval/accuracy": 0.9} for n in range(100)
    ]
    curve = curve_of(tmp_path, rows)
    assert len(curve) == 50
    assert said(curve.notes, "not joined")


steps = st.lists(st.integers(0, 60), min_size=1, max_size=60)


@given(steps)
def test_no_step_is_lost_and_none_twice_after_ordering(values: list[int]) -> None:
    step = np.array(values, dtype=float)
    score = np.linspace(0, 1, step.size)
    order = cleaning.order_rows(step, [score, score], score, "step", [])
    kept = step[order.index]
    assert (np.diff(kept) >= 0).all()
    assert np.unique(order.index).size == order.index.size
    assert step[-1] in kept  # the last row written is never the one that loses


@given(steps)
def test_averaging_keeps_the_mean(values: list[int]) -> None:
    x = np.array(values, dtype=float)
    y = np.linspace(0, 1, x.size)
    unique, mean, trials = cleaning.merge_equal(x, y, np.ones(x.size), [])
    assert trials is not None
    assert (np.diff(np.sort(unique)) > 0).all()
    assert np.isclose((mean * trials).sum(), y.sum())


def test_a_reward_that_once_dips_below_zero_is_not_rescaled(tmp_path: Path) -> None:
    scores = [0.02 * n for n in range(40)]
    scores[3] = -0.01
    curve = run_of(tmp_path, lines({"step": n, "reward": r} for n, r in enumerate(scores))).curve()
    assert close(curve.score, scores)
    assert said(curve.notes, "kept as it is", "--scale signed")


@pytest.mark.parametrize("low", [[-0.3], [-0.1, -0.1, -0.1]])
def test_a_reward_well_below_zero_is_one_of_minus_one_to_one(tmp_path: Path, low: list[float]) -> None:
    scores = [*low, *(0.02 * n for n in range(40 - len(low)))]
    curve = run_of(tmp_path, lines({"step": n, "reward": r} for n, r in enumerate(scores))).curve()
    assert close(curve.score, [(r + 1) / 2 for r in scores])
