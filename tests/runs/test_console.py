"""Console logs: TRAPS 32, 33 and 36. Samples follow what TRL, verl and hand-made loops print, noise included."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_samples import close, lines, said, save

from scalerl.errors import InputError
from scalerl.runs import read_curve, read_run
from scalerl.runs.formats import console_lines

RAY = "\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m "


def bar(n: int, total: int = 500) -> str:
    return f"\r  {n * 100 // total}%|▏         | {n}/{total} [01:23<1:02:03,  7.50s/it]"


def hf_log(with_bars: bool) -> str:
    text = "Loading checkpoint shards: 100%|████| 2/2 [00:01<00:00,  1.5it/s]\nUserWarning: use_reentrant, x=1\n"
    for n in range(5, 60, 5):
        row = (
            f"{{'loss': '{0.1 / n:.4g}', 'grad_norm': nan, 'reward': '{0.3 + n / 200:.4g}', 'epoch': '{n / 500:.2f}'}}"
        )
        text += (bar(n) + "\r" + " " * 30 + "\r" if with_bars else "") + row + "\n" + (bar(n) if with_bars else "")
    return text + "\n{'train_runtime': 12.5, 'train_loss': 0.1, 'epoch': 1.0}\n"


def test_trap_32_hf_dict_lines_among_progress_bars(tmp_path: Path) -> None:
    log = read_run(save(tmp_path, hf_log(True)))
    assert log.format == "HF console"
    curve = log.curve()
    assert close(curve.compute, range(5, 60, 5))
    assert close(curve.score, [0.3 + n / 200 for n in range(5, 60, 5)])
    assert said(curve.notes, "progress bar")


def test_bars_that_are_not_redrawn_and_bars_of_generation(tmp_path: Path) -> None:
    prompts = "Processed prompts: 100%|█| 900/900 [00:01]\rProcessed prompts:   1%|█| 9/900 [00:01]\n"
    text = "".join(
        prompts + bar(n) + f"{{'loss': '0.1', 'reward': '0.{n}', 'epoch': '0.1'}}\n" for n in range(10, 60, 10)
    )
    assert close(read_curve(save(tmp_path, text)).compute, range(10, 60, 10))


def test_hf_dict_lines_without_bars_count_rows(tmp_path: Path) -> None:
    path = save(tmp_path, hf_log(False))
    curve = read_curve(path)
    assert (curve.unit, len(curve)) == ("row", 11)
    assert said(curve.notes, "--factor")
    assert close(read_curve(path, factor=5, unit="step").compute, range(5, 60, 5))


def test_trap_31_restart_seen_in_the_epoch_where_nothing_tells_the_step(tmp_path: Path) -> None:
    text = "".join(
        f"{{'loss': 0.1, 'reward': {n / 100 + s}, 'epoch': {n / 50}}}\n"
        for e, s in ((30, 0), (50, 0.1))
        for n in range(e - 30, e)
    )
    curve = read_curve(save(tmp_path, text))
    assert close(curve.compute, range(1, 51))
    assert said(curve.notes, "10 rows repeated by a restart at row 21")


def test_hf_evaluation_rows_stand_at_the_training_row(tmp_path: Path) -> None:
    text = "".join(
        f"{{'loss': 0.1, 'reward': 0.{n}, 'epoch': 0.1}}\n{{'eval_reward': 0.{n}, 'eval_runtime': 2.5, 'epoch': 0.1}}\n"
        for n in range(1, 7)
    )
    curve = read_curve(save(tmp_path, text))
    assert curve.score_name == "eval_reward"
    assert close(curve.compute, [1, 2, 3, 4, 5, 6])


def test_trap_33_dict_line_cut_in_a_number(tmp_path: Path) -> None:
    text = "".join(f"{{'reward': 0.{n}5, 'epoch': 0.{n}}}\n" for n in range(1, 6)) + "{'loss': 0.5, 'reward': 0.6"
    curve = read_curve(save(tmp_path, text))
    assert len(curve) == 5
    assert said(curve.notes, "last line is cut off")


def test_logger_prefix_and_json_dicts(tmp_path: Path) -> None:
    text = "".join(
        "INFO:root:" + line + "\n" for line in lines({"step": n, "reward": n / 40} for n in range(9)).splitlines()
    )
    assert close(read_curve(save(tmp_path, text)).compute, range(9))


def test_dict_lines_with_numpy_and_nested_values() -> None:
    line = "x {'loss': np.float64(0.25), 'reward': tensor(0.5, device='cuda:0'), "
    line += "'eval': {'acc': 0.75}, 'name': 'a', 'k': None} y"
    ((row, cut),) = console_lines.dict_rows(line)
    assert row == {"loss": 0.25, "reward": 0.5, "eval/acc": 0.75, "name": "a"}
    assert not cut


def verl_log(steps: range) -> str:
    text = RAY + "{'actor_rollout_ref': {'actor': {'clip_ratio': 0.2, 'lr': 1e-06}}}\n"
    text += (
        RAY
        + "(\"Initial validation metrics: {'val-core/openai/gsm8k/reward/mean@8': \"\n"
        + RAY
        + " 'np.float64(0.4)}')\n"
    )
    for n in steps:
        parts = [f"step:{n}"]
        if n:
            parts += [
                "actor/entropy:np.float64(0.2)", f"critic/score/mean:{0.3 + n / 100:.3f}", "critic/score/max:1.0",
                "actor/pg_loss:-1.5e-05", "response_length/clip_ratio:0.1", f"timing_s/step:{100 + n % 7}",
                f"training/global_step:{n}", "perf/total_num_tokens:1000",
            ]  # fmt: skip
        if n % 5 == 0:
            parts += [
                f"val-core/openai/gsm8k/reward/mean@8:np.float64({0.4 + n / 200})",
                "val-core/openai/gsm8k/reward/best@8/mean:0.9",
            ]
        text += RAY + " - ".join(parts) + ("\x1b[32m [repeated 2x across cluster]\x1b[0m" if n % 4 == 0 else "") + "\n"
        text += RAY + f"Training Progress:  {n}%|█  | {n}/30 [01:23<1:02:03,  7.50s/it]\n"
    return text


def test_trap_32_verl_console(tmp_path: Path) -> None:
    log = read_run(save(tmp_path, verl_log(range(31))))
    assert log.format == "verl console"
    curve = log.curve()
    assert curve.score_name == "val-core/openai/gsm8k/reward/mean@8"
    assert close(curve.compute, range(0, 31, 5))
    assert close(curve.score, [0.4 + n / 200 for n in range(0, 31, 5)])
    assert close(log.curve(y="critic/score/mean").compute, range(1, 31))
    assert close(log.columns["actor/pg_loss"][1:], [-1.5e-05] * 30)


def test_verl_durations_and_tokens_are_summed(tmp_path: Path) -> None:
    path = save(tmp_path, verl_log(range(31)))
    hours = read_curve(path, devices=8)
    assert hours.unit == "gpu-hour"
    assert close(hours.compute[:2], [0, sum(100 + n % 7 for n in range(1, 6)) * 8 / 3600])
    assert close(read_curve(path, x="perf/total_num_tokens").compute, [1000 * n for n in range(0, 31, 5)])


def test_trap_36_verl_clip_ratio_is_a_warning(tmp_path: Path) -> None:
    truncation = read_run(save(tmp_path, verl_log(range(31)))).truncation()
    assert truncation is not None
    assert truncation.source == "response_length/clip_ratio"
    assert truncation.warning is not None
    assert "not as a fact" in truncation.warning


def test_unknown_truncation_is_none(tmp_path: Path) -> None:
    assert read_run(save(tmp_path, lines({"step": n, "reward": 0.1} for n in range(3)))).truncation() is None


def test_verl_cut(tmp_path: Path) -> None:
    text = (
        "".join(f"step:{n} - critic/score/mean:0.{n}\n" for n in range(1, 5))
        + "step:5 - critic/score/mean:0.5 - actor/entr"
    )
    curve = read_curve(save(tmp_path, text))
    assert close(curve.compute, [1, 2, 3, 4])
    assert said(curve.notes, "last line is cut off")


@pytest.mark.parametrize(
    "line",
    [
        "{n}/99 | reward=0.6{n}22\n",
        "step:{n} - critic/score/mean:0.6{n}22\n",
        "{{'loss': 0.5, 'epoch': 0.{n}, 'reward': 0.6{n}22\n",
        "reward=0.6{n}22 at step {n}\n",
    ],
)
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_trap_33_a_last_line_cut_in_a_number_is_left_out(tmp_path: Path, line: str, cut: int) -> None:
    """`reward=0.` is not 0.0, and 0.6 is not 0.6422."""
    line = line.replace("22\n", "22}}\n") if line.startswith("{{") else line
    text = "".join(line.format(n=n) for n in range(1, 10))
    curve = read_curve(save(tmp_path, text[:-cut]))
    whole = read_curve(save(tmp_path, text))
    assert close(curve.score, whole.score[: len(curve)])
    assert len(whole) == 9
    assert len(curve) == 8 or (line.startswith("{{") and cut == 1)
    assert len(curve) == 9 or said(curve.notes, "last line is cut off")


@pytest.mark.parametrize(
    "line",
    [
        "[tag]  {n}/100 | loss=-0.5 | reward={r}",
        "step {n} reward {r} loss 0.5",
        "2024-05-01 12:00:{n:02d},123 INFO Step {n}: reward={r}, loss=0.1 (3.2 s/it)",
        "\x1b[32m12:{n:02d}:00\x1b[0m SUCCESS Step {n} | Time: 12.3s | Reward: {r} | Speed: 1.5 t/s | Seq. Length: 9",
        "[rank0]: iter={n} reward: {r}",
        "Iteration {n}/100: mean_reward = {r}, kl = 0.01",
        "Epoch 1/3 step {n}: reward={r}",
        "[step {n}] reward={r}% of target",
    ],
)
def test_trap_32_free_text(tmp_path: Path, line: str) -> None:
    text = (
        "Loading model=Qwen/Qwen3-8B seed=42\n"
        + "".join(line.format(n=n, r=n / 50) + "\n" for n in range(1, 20))
        + "DONE last10=0.3\n"
    )
    curve = read_curve(save(tmp_path, text))
    assert close(curve.compute, range(1, 20))
    scale = 100 if "%" in line else 1
    assert close(curve.score, [n / 50 / scale for n in range(1, 20)])


def test_free_text_time_stamps_give_wall_time(tmp_path: Path) -> None:
    text = "".join(f"2024-05-01 12:{n:02d}:00 step {n}: reward=0.{n + 10}\n" for n in range(1, 20))
    curve = read_curve(save(tmp_path, text), devices=60)
    assert close(curve.compute, range(1, 20))


def test_percent_in_free_text(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, "".join(f"{n}/9 | loss=1.5 | acc={n * 10}.5%\n" for n in range(1, 9))))
    assert close(curve.score, [(n * 10 + 0.5) / 100 for n in range(1, 9)])
    assert said(curve.notes, "percent sign")


def test_a_block_of_lines_a_step(tmp_path: Path) -> None:
    block = "\n===== Step {n}/100 =====\nTraining Results:\n  • Loss: 0.0123\n"
    block += "  • Avg Reward: {r}\n  • Total step time: 60.0s\n"
    path = save(tmp_path, "batch_size: 64\n" + "".join(block.format(n=n, r=n / 40) for n in range(1, 20)))
    assert close(read_curve(path).score, [n / 40 for n in range(1, 20)])
    assert close(read_curve(path, devices=60).compute, range(1, 20))


def test_progress_bar_with_values_behind_it(tmp_path: Path) -> None:
    line = "\rTrain epoch [1/1]:  {n}%|██  | {n}/100 [00:10<01:00, 1s/it, loss=0.01, reward=0.{n}, len=200]"
    curve = read_curve(save(tmp_path, "".join(line.format(n=n) for n in range(10, 30))))
    assert close(curve.compute, range(10, 30))
    assert close(curve.score, [n / 100 for n in range(10, 30)])


def test_steps_under_the_names_of_trainers(tmp_path: Path) -> None:
    text = "".join(
        f"INFO - {{'reward/avg_raw_reward': 0.1, 'trainer/global_step': {n}, 'eval/all/avg_score': 0.5}}\n"
        for n in range(9)
    )
    curve = read_curve(save(tmp_path, text))
    assert (curve.unit, curve.score_name) == ("step", "eval/all/avg_score")
    assert not said(curve.notes, "hold no step")


@pytest.mark.parametrize(
    "text", ["hello\nworld\n", "model=Qwen lr=1e-6\nseed=3\n", "12:00:01 starting\n12:00:02 done\n"]
)
def test_prose_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_run(save(tmp_path, text))
    assert "known log lines" in str(caught.value)
    assert "\n" not in str(caught.value)
