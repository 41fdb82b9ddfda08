"""JSON in all its shapes: TRAPS 31 to 33."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_samples import close, lines, run_of, said, save

from scalerl.errors import InputError
from scalerl.runs import read_curve, read_run

ROWS = [{"step": n, "reward": n / 40, "loss": 1.0} for n in range(20)]


def trainer_state() -> dict[str, Any]:
    history: list[dict[str, Any]] = []
    for step in range(10, 310, 10):
        history.append(
            {"loss": 0.1, "reward": step / 600, "num_tokens": step * 1000.0, "step": step, "epoch": step / 300}
        )
        if step % 50 == 0:
            history.append(
                {"eval_loss": 0.1, "eval_reward": step / 500, "eval_runtime": 3.0, "step": step, "epoch": step / 300}
            )
    return {"best_metric": None, "global_step": 300, "log_history": history, "max_steps": 300}


def test_json_lines(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, lines(ROWS)))
    assert close(curve.score, [n / 40 for n in range(20)])


def test_trap_31_rows_without_the_metric(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": 1.0} if n % 3 else {"step": n, "eval/acc": n / 40, "note": "x"} for n in range(20)]
    curve = read_curve(save(tmp_path, lines(rows)))
    assert close(curve.compute, range(0, 20, 3))
    assert said(curve.notes, "7 of 20 rows hold 'eval/acc'")


def test_trap_32_keys_with_slashes_and_at(tmp_path: Path) -> None:
    rows = [
        {"training/global_step": n, "val-core/gsm8k/acc/mean@8": n / 40, "val-core/gsm8k/acc/best@8/mean": 0.9}
        for n in range(9)
    ]
    curve = read_curve(save(tmp_path, lines(rows)))
    assert (curve.score_name, curve.unit) == ("val-core/gsm8k/acc/mean@8", "step")


def test_trap_33_nan_and_infinity(tmp_path: Path) -> None:
    text = '{"step": 1, "acc": NaN}\n{"step":2,"acc":-Infinity}\n'
    text += '{"step": 3, "acc": 0.5, "x": [NaN, 1]}\n{"step": 4, "acc": 0.6}\n'
    curve = read_curve(save(tmp_path, text))
    assert close(curve.compute, [3, 4])
    assert said(curve.notes, "2 NaN or Infinity values read as missing")


def test_a_text_that_speaks_of_nan_is_no_number(tmp_path: Path) -> None:
    log = run_of(tmp_path, lines([{"step": n, "acc": 0.5, "why": 'loss ": NaN'} for n in range(3)]))
    assert close(log.columns["acc"], [0.5] * 3)


def test_trap_33_last_line_cut(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, lines(ROWS) + '{"step": 20, "reward": 0.4'))
    assert len(curve) == 20
    assert said(curve.notes, "cut off", "(21)")


def test_broken_lines_in_the_middle_are_counted(tmp_path: Path) -> None:
    text = lines(ROWS[:5]) + '{"step": 5, "rew{"step": 6}\nWARNING: slow\n' + lines(ROWS[7:])
    curve = read_curve(save(tmp_path, text))
    assert len(curve) == 18
    assert said(curve.notes, "2 lines", "skipped: 6, 7")


def test_crlf_bom_and_blank_lines(tmp_path: Path) -> None:
    assert len(read_curve(save(tmp_path, "\ufeff" + lines(ROWS).replace("\n", "\r\n\r\n")))) == 20


def test_quoted_numbers(tmp_path: Path) -> None:
    rows = [{"step": str(n), "reward": f"{n / 40}"} for n in range(20)]
    assert close(read_curve(save(tmp_path, lines(rows))).score, [n / 40 for n in range(20)])


def test_nested_objects_are_flattened(tmp_path: Path) -> None:
    log = run_of(tmp_path, lines([{"step": n, "eval": {"math": {"acc": n / 9}}} for n in range(9)]))
    assert close(log.series("eval/math/acc"), [n / 9 for n in range(9)])


def test_lists_are_averaged_and_long_texts_left_out(tmp_path: Path) -> None:
    rows = [{"step": n, "rewards": [0, 1, 1, n % 2], "completion": "x" * 500} for n in range(6)]
    log = run_of(tmp_path, lines(rows))
    assert close(log.series("rewards"), [0.5, 0.75] * 3)
    assert said(log.notes, "averaged")
    assert said(log.notes, "Long texts")


def test_verl_file_logger(tmp_path: Path) -> None:
    rows = [{"step": n, "data": {"critic/score/mean": n / 40}} for n in range(9)]
    assert read_curve(save(tmp_path, lines(rows))).score_name == "critic/score/mean"


@pytest.mark.parametrize("indent", [None, 2])
def test_trap_32_trainer_state(tmp_path: Path, indent: int | None) -> None:
    path = save(tmp_path, json.dumps(trainer_state(), indent=indent), "trainer_state.json")
    log = read_run(path)
    assert log.format == "HF trainer_state"
    curve = log.curve()
    assert curve.score_name == "eval_reward"
    assert close(curve.compute, range(50, 350, 50))
    assert len(log.curve(y="reward")) == 30


def test_trainer_state_tokens_at_evaluation_rows(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, json.dumps(trainer_state())), x="num_tokens")
    assert curve.unit == "token"
    assert close(curve.compute, range(50_000, 350_000, 50_000))


def test_trap_33_trainer_state_cut(tmp_path: Path) -> None:
    text = json.dumps(trainer_state(), indent=2)
    curve = read_curve(save(tmp_path, text[: len(text) // 2]), y="reward")
    assert len(curve) >= 14
    assert said(curve.notes, "cut off", "salvaged", "characters lost")


@pytest.mark.parametrize(
    "document",
    [
        ROWS,
        {"history": ROWS},
        {"step": [r["step"] for r in ROWS], "reward": [r["reward"] for r in ROWS]},
        {
            "step": {str(i): r["step"] for i, r in enumerate(ROWS)},
            "reward": {str(i): r["reward"] for i, r in enumerate(ROWS)},
        },
        [[r["step"], r["reward"]] for r in ROWS],
        [[1.7e9 + r["step"], r["step"], r["reward"]] for r in ROWS],
    ],
)
def test_whole_documents(tmp_path: Path, document: Any) -> None:
    for indent in (None, 1):
        curve = read_curve(save(tmp_path, json.dumps(document, indent=indent)))
        assert close(curve.compute, range(20))
        assert close(curve.score, [n / 40 for n in range(20)])


def test_runs_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, json.dumps({"a": ROWS, "b": ROWS[:9]}))
    assert read_run(path).runs == ["a", "b"]
    assert len(read_curve(path, run="b")) == 9


def test_array_cut(tmp_path: Path) -> None:
    text = json.dumps(ROWS)
    curve = read_curve(save(tmp_path, text[: len(text) // 2]))
    assert len(curve) >= 9
    assert said(curve.notes, "salvaged")


def own_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for n in range(40):
        compute = {"device_hours": {"generator": n * 0.5, "trainer": n * 0.25}, "tokens": n * 100}
        rows.append(
            {
                "kind": "train",
                "step": n,
                "policy_version": n,
                "compute": compute,
                "reward": n / 50,
                "truncation_rate": 0.02,
            }
        )
        if n % 5 == 0:
            rows.append({"kind": "event", "step": n, "event": "checkpoint"})
            rows.append(
                {
                    "kind": "eval",
                    "step": n,
                    "policy_version": n,
                    "compute": compute,
                    "task": "aime",
                    "pass_rate": n / 90,
                    "trials": 480,
                }
            )
    return rows


def test_own_run_directory(tmp_path: Path) -> None:
    save(tmp_path, lines(own_rows()), "metrics.jsonl")
    save(tmp_path, "recipe: {}\n", "config.yaml")
    log = read_run(tmp_path)
    assert log.format == "scalerl run directory"
    curve = log.curve()
    assert (curve.unit, curve.score_name) == ("gpu-hour", "pass_rate")
    assert close(curve.compute, [0.75 * n for n in range(0, 40, 5)])
    assert curve.trials is not None
    assert close(curve.trials, [480] * 8)
    assert close(log.curve(x="step", y="pass_rate").compute, range(0, 40, 5))
    truncation = log.truncation()
    assert truncation is not None
    assert truncation.warning is None
    assert close(truncation.rate, [0.02] * 40)


@pytest.mark.parametrize("config", ["forecast: {axis: step}", "forecast: {axis: miles}", "forecast: 3", "forecast: ["])
def test_own_run_directory_names_its_axis_and_a_broken_config_changes_nothing(tmp_path: Path, config: str) -> None:
    save(tmp_path, lines(own_rows()), "metrics.jsonl")
    save(tmp_path, f"{config}\n", "config.yaml")
    curve = read_run(tmp_path).curve()
    assert (curve.unit == "step") == ("step" in config)
    assert close(read_run(tmp_path).curve(x="compute/device_hours").compute, [0.75 * n for n in range(0, 40, 5)])


def test_own_run_with_two_tasks(tmp_path: Path) -> None:
    rows = own_rows()
    rows += [{**r, "task": "math", "pass_rate": 0.5, "trials": 100} for r in rows if r["kind"] == "eval"]
    log = run_of(tmp_path, lines(rows))
    assert close(log.curve(y="eval/math/pass_rate", x="step").score, [0.5] * 8)
    with pytest.raises(InputError, match="eval/aime/pass_rate"):
        log.curve(y="pass_rate")


def test_folder_with_checkpoints(tmp_path: Path) -> None:
    for step in (9, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save(folder, json.dumps({"log_history": ROWS[:step]}), "trainer_state.json")
    assert len(read_curve(tmp_path)) == 10


def test_numbers_beyond_floats(tmp_path: Path) -> None:
    log = run_of(tmp_path, '{"step": 1, "acc": 0.5, "n": ' + "9" * 400 + '}\n{"step": 2, "acc": 0.6, "n": 1e999}\n')
    assert len(log.curve()) == 2
    assert not np.isfinite(log.columns["n"]).any() if "n" in log.columns else True


@pytest.mark.parametrize(
    "text", ["{}", "[]", "{", "[", '{"a": ', '{"a": "b"}', "[" * 5000, "[[],[]]", '"text"', "null", "[1, "]
)
def test_documents_without_rows(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_curve(save(tmp_path, text))
    assert "\n" not in str(caught.value)
