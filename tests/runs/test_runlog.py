"""Choosing columns: TRAPS 32 and 36, the ranked guess across trainers, and errors that teach."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from log_samples import CURVES, close, lines, said, save

from scalerl.errors import InputError
from scalerl.runs import aliases, read_curve, read_run

# Columns of one row of each trainer, and what must be taken as x and y.
TRAINERS: dict[str, tuple[list[str], str, str]] = {
    "TRL in W&B": (
        ["_step", "_runtime", "train/global_step", "train/reward", "train/reward_std", "train/loss",
        "eval/reward", "eval/loss",
         "train/rewards/format_reward/mean", "train/completions/mean_length", "train/frac_reward_zero_std"],
        "train/global_step", "eval/reward",
    ),
    "TRL": (["step", "epoch", "num_tokens", "reward", "rewards/accuracy_reward/mean",
        "rewards/format_reward/mean", "kl", "loss"],
            "step", "rewards/accuracy_reward/mean"),
    "verl": (["training/global_step", "critic/score/mean", "critic/rewards/mean", "val-core/aime/acc/mean@32",
              "val-core/aime/acc/maj@32/mean", "val-core/aime/acc/best@32/mean",
        "val-aux/aime/reward/mean@32", "actor/entropy"],
             "training/global_step", "val-core/aime/acc/mean@32"),
    "verl with countdown": (["step", "critic/score/mean", "val/test_score/countdown"], "step",
        "val/test_score/countdown"),
    "OpenRLHF": (["train/global_step", "train/reward", "train/policy_loss", "eval/global_step",
        "eval/eval_default_pass1",
                  "eval/eval_default_pass4"], "train/global_step", "eval/eval_default_pass1"),
    "Tinker": (["step", "progress/batch", "time/total", "env/all/correct", "env/all/format",
        "env/all/reward/total",
                "test/env/all/correct", "optim/lr"], "step", "test/env/all/correct"),
    "prime-rl": (["step", "reward/all/mean", "reward/all/std", "eval/aime24/avg@16", "eval/aime24/pass@8",
        "eval/aime24/completion_len/mean",
                  "progress/total_tokens", "time/step"], "step", "eval/aime24/avg@16"),
    "SkyRL": (["trainer/global_step", "reward/avg_pass_at_8", "reward/avg_raw_reward",
        "eval/all/avg_score", "generate/avg_num_tokens",
               "timing/step"], "trainer/global_step", "eval/all/avg_score"),
    "NeMo-RL": (["step", "train/reward", "train/loss", "validation/accuracy", "validation/avg_length",
        "timing/train/total_step_time"],
                "step", "validation/accuracy"),
    "open-instruct": (["training_step", "episode", "objective/verifiable_correct_rate",
        "objective/scores", "val/sequence_lengths",
                       "val/stop_rate", "val/total_tokens"], "training_step",
        "objective/verifiable_correct_rate"),
    "slime": (["rollout/step", "rollout/raw_reward", "eval/aime", "eval/aime-truncated_ratio",
        "rollout/truncated_ratio", "perf/step_time"],
              "rollout/step", "eval/aime"),
}  # fmt: skip


@pytest.mark.parametrize("trainer", TRAINERS)
def test_guess_across_trainers(tmp_path: Path, trainer: str) -> None:
    names, x, y = TRAINERS[trainer]
    axes = set(aliases.axis_candidates(names))
    rows = [{n: (step if n in axes else 0.3 + step / 100) for n in names} for step in range(1, 30)]
    curve = read_curve(save(tmp_path, lines(rows)))
    assert curve.score_name == y
    assert said(curve.notes, f"x = {x!r} (guessed")
    assert said(curve.notes, f"y = {y!r} (guessed; --y overrides")


def test_trap_32_wandb_step_is_not_the_training_step(tmp_path: Path) -> None:
    rows = [{"_step": 2 * n, "train/global_step": 10 * n, "train/reward": n / 50} for n in range(20)]
    assert close(read_curve(save(tmp_path, lines(rows))).compute, range(0, 200, 10))
    alone = [{"_step": n, "reward": n / 50} for n in range(20)]
    assert said(read_curve(save(tmp_path, lines(alone))).notes, "'_step'", "log calls")


def test_a_lone_evaluation_does_not_lead(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = [{"step": n, "reward": n / 100} for n in range(50)] + [
        {"step": 50, "test/accuracy": 0.6}
    ]
    assert read_curve(save(tmp_path, lines(rows))).score_name == "reward"


def test_given_names_override(tmp_path: Path) -> None:
    rows = [{"step": n, "samples_seen": 8 * n, "eval/acc": 0.5, "other": n / 30} for n in range(1, 30)]
    curve = read_curve(save(tmp_path, lines(rows)), x="samples_seen", y="other")
    assert (curve.unit, curve.score_name) == ("samples_seen", "other")
    assert close(curve.compute, range(8, 240, 8))
    assert not said(curve.notes, "guessed")


def test_unknown_names_list_the_nearest_and_the_candidates(tmp_path: Path) -> None:
    path = save(tmp_path, lines({"step": n, "eval/accuracy": 0.1, "reward": 0.2} for n in range(5)))
    with pytest.raises(
        InputError,
        match=r"no column for --y 'acuracy'; did you mean 'eval/accuracy'\? candidates: eval/accuracy, reward",
    ):
        read_curve(path, y="acuracy")
    with pytest.raises(InputError, match=r"no column for --x 'stp'; did you mean 'step'\?"):
        read_curve(path, x="stp")
    with pytest.raises(InputError, match="no column 'zzz'; candidates"):
        read_run(path).series("zzz")
    assert read_curve(path, y="accuracy").score_name == "eval/accuracy"


def test_trials_by_number_by_column_and_by_guess(tmp_path: Path) -> None:
    rows = [{"step": n, "accuracy": 0.5, "n_eval": 64, "other": 8} for n in range(1, 9)]
    path = save(tmp_path, lines(rows))
    for trials, expected in ((None, 64), (100, 100), ("other", 8), ("32", 32)):
        curve = read_curve(path, trials=trials)  # type: ignore[arg-type]
        assert curve.trials is not None
        assert close(curve.trials, [expected] * 8)
    for bad in (0, -1, "zzz"):
        with pytest.raises(InputError):
            read_curve(path, trials=bad)  # type: ignore[arg-type]


def test_trap_36_truncation_sources(tmp_path: Path) -> None:
    def truncation(**columns: float) -> Any:
        return read_run(save(tmp_path, lines({"step": n, "reward": 0.5, **columns} for n in range(5)))).truncation()

    assert truncation() is None
    assert truncation(**{"completions/clipped_ratio": 0.25}).warning is None
    assert close(truncation(**{"train/agg/all/is_truncated/mean": 0.125}).rate, [0.125] * 5)
    assert truncation(**{"eval/aime24/is_truncated/mean": 0.125}) is None
    assert close(truncation(truncated_count=5, rollout_count=20).rate, [0.25] * 5)
    assert close(truncation(**{"val/stop_rate": 0.9}).rate, [0.1] * 5)
    assert truncation(**{"response_length/clip_ratio": 0.25}).warning is not None


def test_gzip_is_read_and_a_cut_one_salvaged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    packed = gzip.compress(lines({"step": n, "reward": float(rng.random())} for n in range(20_000)).encode())
    curve = read_curve(save(tmp_path, packed, "log.jsonl.gz"))
    assert len(curve) == 20_000
    assert said(curve.notes, "packed with gzip")
    cut = read_curve(save(tmp_path, packed[: len(packed) // 2], "cut.gz"))
    assert 5_000 < len(cut) < 15_000
    assert said(cut.notes, "cut off")


def test_parquet(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "_step": range(9),
            "eval/acc": [None if n % 2 else n / 10 for n in range(9)],
            "run": ["a"] * 9,
            "s": [{"q": n} for n in range(9)],
        }
    )
    frame.write_parquet(tmp_path / "x.bin")
    log = read_run(tmp_path / "x.bin")
    assert log.format == "Parquet"
    assert close(log.series("s/q"), range(9))
    curve = log.curve()
    assert (len(curve), curve.name) == (5, "a")
    data = (tmp_path / "x.bin").read_bytes()
    with pytest.raises(InputError, match="cut off"):
        read_run(save(tmp_path, data[:-20]))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"PK\x03\x04" + b"x" * 99, "zip archive or Excel"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "picture"),
        (b"log".ljust(257, b"\0") + b"ustar" + b"\0" * 300, "tar archive"),
        (b"<!DOCTYPE html>\n<html></html>", "web page"),
        (b"\x80\x04\x95" + b"\0" * 50, "pickle"),
        (bytes(range(256)), "unknown binary data"),
        (b"\x1f\x8b\x08\x00broken", "broken gzip"),
    ],
)
def test_what_no_reader_takes(tmp_path: Path, content: bytes, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        read_run(save(tmp_path, content))
    assert "\n" not in str(caught.value)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    save(tmp_path, "step,acc\n", "metrics.csv")
    with pytest.raises(InputError, match=r"no such file; did you mean .*metrics\.csv"):
        read_run(tmp_path / "metrics.cvs")
    with pytest.raises(InputError, match="is no known log"):
        read_run(tmp_path)
    with pytest.raises(InputError, match=r"a\?b: no such file|cannot be opened"):
        read_run("a\0b")
    with pytest.raises(InputError, match="only W&B"):
        read_run("s3://bucket/x")


def test_no_score_at_all_lists_the_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column is known as a score; choose one with --y: loss, kl"):
        read_curve(save(tmp_path, lines({"step": n, "loss": 3.0, "kl": 2.0} for n in range(5))))


def test_columns_without_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'acc' holds no number"):
        read_curve(save(tmp_path, "step,acc\n0,\n100,\n200,nan\n"))
    with pytest.raises(InputError, match="'name' holds text"):
        read_curve(save(tmp_path, "step,acc,name\n1,.1,x\n2,.2,y\n"), y="name")


def test_importing_the_readers_is_light() -> None:
    heavy = ("polars", "wandb", "mlflow", "yaml", "torch", "scipy")
    code = f"import sys, scalerl.runs; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


REAL = sorted(p for p in CURVES.glob("*/*") if p.name not in ("LICENSE",)) if CURVES.is_dir() else []
EXPECTED = {
    "grpo_metrics.jsonl": (500, "accuracy"), "grpo_trl_metrics.jsonl": (49, "accuracy"),
    "fig1_8b_dense.csv": (34, "pass_rate"),
    "fig1_scout_moe.csv": (32, "pass_rate"), "arithmetic_metrics.jsonl": (100, "env/all/correct"),
    "distillation_on_metrics.jsonl": (35, "env/all/reward/total"), "grpo_100_math.log": (100, "reward"),
    "grpo_100_synth.log": (100, "reward"), "grpo_100_xlam.log": (100, "reward"), "gsm8k_8B_100step.log": (100, "acc"),
    "gsm8k_8B_rank64.log": (50, "acc"),
}  # fmt: skip


@pytest.mark.skipif(not REAL, reason="the real logs are not beside the project")
@pytest.mark.parametrize("path", REAL, ids=lambda p: p.name)
def test_real_logs(path: Path) -> None:
    if path.name == "llama_results.csv":
        with pytest.raises(InputError, match=r"holds 13 runs; choose one with --run: backtracking_subgoal"):
            read_curve(path)
        curve = read_curve(path, run="owmathqa2_ppo")
        beside = read_curve(path.with_name("llama3b_owmathqa2_ppo.csv"))
        assert close(curve.score, beside.score)
        return
    curve = read_curve(path)
    points, name = EXPECTED.get(path.name, (26, "score"))
    assert (len(curve), curve.score_name) == (points, name)
    assert json.dumps(curve.notes)
