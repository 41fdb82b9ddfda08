"""The compute axis: time with and without gaps, durations, factors, counters that start again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_samples import close, lines, said, save

from scalerl.errors import InputError
from scalerl.runs import Curve, read_curve

HOUR = 3600.0


def curve_of(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> Curve:
    return read_curve(save(tmp_path, lines(rows)), **options)


def rows_with(**columns: Any) -> list[dict[str, Any]]:
    return [{"step": n, "acc": n / 100, **{k: f(n) for k, f in columns.items()}} for n in range(1, 61)]


def test_factor(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, rows_with(), factor=2.5)
    assert curve.unit == "step x 2.5"
    assert close(curve.compute, [2.5 * n for n in range(1, 61)])
    assert curve_of(tmp_path, rows_with(), factor=2.5, unit="gpu-hour").unit == "gpu-hour"


def test_trap_31_gaps_between_allocations_are_no_compute(tmp_path: Path) -> None:
    rows = rows_with(_timestamp=lambda n: 1.7e9 + 60 * n + (10 * HOUR if n > 30 else 0))
    curve = curve_of(tmp_path, rows, devices=60)
    assert curve.unit == "gpu-hour"
    assert close(curve.compute, range(1, 61))
    assert said(curve.notes, "1 gap longer than 30 minutes", "10.0 hours")


def test_long_steps_are_no_gaps(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, rows_with(timestamp=lambda n: 1.7e9 + HOUR * n), devices=1)
    assert close(curve.compute, range(1, 61))
    assert not said(curve.notes, "gap")


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e9])
def test_time_stamps_in_smaller_units(tmp_path: Path, factor: float) -> None:
    curve = curve_of(tmp_path, rows_with(timestamp=lambda n: (1.7e9 + 60 * n) * factor), devices=60)
    assert np.allclose(curve.compute, range(1, 61), rtol=1e-3)


def test_dates_as_text(tmp_path: Path) -> None:
    rows = rows_with(date=lambda n: f"2024-05-01T{n // 60:02d}:{n % 60:02d}:00")
    assert close(curve_of(tmp_path, rows, devices=60).compute, range(1, 61))


def test_elapsed_time_that_starts_again(tmp_path: Path) -> None:
    rows = rows_with(_runtime=lambda n: 60.0 * (n if n <= 30 else n - 30))
    curve = curve_of(tmp_path, rows, devices=60)
    assert close(curve.compute, range(1, 61))
    assert said(curve.notes, "falls back 1 time")


def test_durations_are_summed(tmp_path: Path) -> None:
    for name in ("time/total", "timing_s/step", "perf/time_per_step", "step_time"):
        curve = curve_of(tmp_path, rows_with(**{name: lambda n: 60.0 + n % 2}), x=name)
        assert curve.unit == "second"
        assert close(curve.compute[-1], 60 * 60.5)
        assert said(curve.notes, "summed up")


def test_a_running_total_under_the_name_of_a_duration(tmp_path: Path) -> None:
    curve = curve_of(tmp_path, rows_with(**{"time/total": lambda n: 60.0 * n}), x="time/total")
    assert close(curve.compute, [60 * n for n in range(1, 61)])


def test_durations_count_the_rows_without_the_score(tmp_path: Path) -> None:
    rows = [{"step": n, "time/total": 60.0, "eval/acc" if n % 10 == 0 else "loss": 0.5} for n in range(1, 61)]
    assert close(curve_of(tmp_path, rows, devices=60).compute, range(10, 61, 10))


def test_evaluation_at_step_zero_costs_nothing(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": 0, "eval/acc": 0.1}]
    for n in range(1, 41):
        rows.append({"step": n, "tokens": 1000 * n, "loss": 1.0})
        if n % 10 == 0:
            rows.append({"step": n, "eval/acc": n / 100})
    assert close(curve_of(tmp_path, rows, x="tokens").compute, [0, 10_000, 20_000, 30_000, 40_000])


def test_counter_that_starts_again_is_counted_on(tmp_path: Path) -> None:
    rows = rows_with(num_tokens=lambda n: 100 * (n if n <= 30 else n - 30))
    curve = curve_of(tmp_path, rows, x="num_tokens")
    assert close(curve.compute, [100 * n for n in range(1, 61)])
    assert said(curve.notes, "starts again 1 time")


def test_time_of_overwritten_rows_is_not_the_runs_own(tmp_path: Path) -> None:
    first = [{"step": n, "acc": 0.1, "timestamp": 1.7e9 + 60 * n} for n in range(1, 41)]
    later = [{"step": n, "acc": 0.2, "timestamp": 1.7e9 + 60 * (n + 15)} for n in range(31, 61)]
    curve = curve_of(tmp_path, first + later, devices=60)
    assert close(curve.compute, range(1, 61))


def test_what_goes_up_and_down_is_no_axis(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'loss' goes up and down"):
        curve_of(tmp_path, rows_with(loss=lambda n: n * 7 % 5), x="loss")


@pytest.mark.parametrize("column", ["flops", "tokens", "device_hours"])
def test_evaluations_beside_training_count_what_their_policy_had_cost(tmp_path: Path, column: str) -> None:
    """Their rows come later than those of the steps that were taken meanwhile, and are no counter that starts again."""

    def row(kind: str, step: int, **more: float) -> dict[str, Any]:
        hours = {"generate": 0.01 * step, "train": 0.004 * step, "idle": 0.001 * step}
        compute = {"device_hours": hours, "tokens": 100 * step, "flops": 1e6 * step}
        return {"kind": kind, "step": step, "policy_version": step, "compute": compute, **more}

    rows = []
    for step in range(61):
        rows.append(row("train", step, train_pass_rate=0.3))
        if step >= 3 and (step - 3) % 5 == 0:
            rows.append(row("eval", step - 3, pass_rate=step / 100, trials=100))
    curve = read_curve(save(tmp_path, lines(rows)), x=f"compute/{column}")
    of_a_step = {"flops": 1e6, "tokens": 100.0, "device_hours": 0.015}[column]
    np.testing.assert_allclose(curve.compute, of_a_step * np.arange(0, 60, 5), rtol=1e-12)
    np.testing.assert_allclose(curve.score, np.arange(3, 63, 5) / 100)


def test_devices_without_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--devices needs a column of time"):
        curve_of(tmp_path, rows_with(), devices=8)
    with pytest.raises(InputError, match="'step' is no time"):
        curve_of(tmp_path, rows_with(), devices=8, x="step")


@pytest.mark.parametrize("option", ["devices", "factor"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_unusable_numbers(tmp_path: Path, option: str, value: float) -> None:
    with pytest.raises(InputError, match=f"--{option} must be a number above 0"):
        curve_of(tmp_path, rows_with(timestamp=lambda n: n), **{option: value})


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("gpu_hours", "gpu-hour"),
        ("compute/flops", "flop"),
        ("num_tokens", "token"),
        ("episode", "sample"),
        ("epoch", "epoch"),
    ],
)
def test_units(tmp_path: Path, column: str, unit: str) -> None:
    assert curve_of(tmp_path, rows_with(**{column: lambda n: n / 2}), x=column).unit == unit
