"""Whole runs in one process: the run directory, the ingredients at work, stopping, and going on bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import WARM, rows, settings, without_clocks

import scalerl
from scalerl.engines.model import checksum, load_model, named_tensors
from scalerl.errors import InputError
from scalerl.training import assemble
from scalerl.training.engines import Engines, Launch
from scalerl.training.renewal import Renewal
from scalerl.training.resolve import read, resolve
from scalerl.training.resume import resume
from scalerl.training.settings import ForecastSettings
from scalerl.training.train import train

pytestmark = pytest.mark.usefixtures("model")


class Killed(BaseException):
    """As little warning as SIGKILL gives."""


def weights(folder: Path) -> str:
    return checksum(named_tensors(load_model(folder)).items())


def test_a_run_directory_holds_everything_and_all_ingredients_are_at_work(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    found = settings("engines.launch=inline", "steps=12")
    finished = train(found, tmp_path / "run", lambda row: told.append(dict(row)))
    run = tmp_path / "run"
    assert finished.outcome.reason == "steps"
    assert read(run) == found
    steps = rows(run, "train")
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert max(row["interrupted_share"] for row in steps) > 0
    assert max(row["dropped_prompts"] for row in steps) > 0
    assert steps[-1]["prompts_retired"] > 0
    assert 0 < max(row["staleness_max"] for row in steps) <= 2
    assert max(row["staleness_mean"] for row in steps) > 0
    assert max(row["versions_per_rollout"] for row in steps) > 1
    assert max(row["train_pass_rate"] for row in steps) > 0
    assert all(abs(row["mismatch_kl"]) < 0.1 for row in steps if row.get("tokens"))
    assert len(list((run / "checkpoints").iterdir())) == 2
    assert finished.model == run / "model"
    assert weights(run / "model") == weights_of_checkpoint(run)
    answer = json.loads((run / "forecast.json").read_text())
    assert answer["schema"] == 1
    assert answer["tasks"]["arithmetic"]["verdict"]
    assert {"train", "eval", "event", "forecast"} <= {row["kind"] for row in told}
    spent = {row["compute"]["flops"] for row in rows(run, "eval")}  # a last step without tokens costs nothing
    assert len(scalerl.read_curve(run, x="compute/flops").compute) == len(spent)


def weights_of_checkpoint(run: Path) -> str:
    from safetensors.torch import load_file

    newest = max((run / "checkpoints").iterdir())
    return checksum(load_file(newest / "trainer" / "model.safetensors").items())


def test_lockstep_killed_and_resumed_is_the_uninterrupted_run_bit_for_bit(tmp_path: Path) -> None:
    found = settings("recipe.schedule=lockstep", "steps=7")
    train(found, tmp_path / "whole")

    def killer(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == 5:
            raise Killed

    with pytest.raises(Killed):
        train(found, tmp_path / "killed", killer)
    torch.manual_seed(99)  # nothing may depend on what the process has drawn before
    resume(tmp_path / "killed")
    assert weights(tmp_path / "killed" / "model") == weights(tmp_path / "whole" / "model")
    assert without_clocks(rows(tmp_path / "killed")) == without_clocks(rows(tmp_path / "whole"))
    assert (tmp_path / "killed" / "metrics.discarded.jsonl").is_file()


def test_lockstep_stopped_by_a_signal_is_too(tmp_path: Path) -> None:
    found = settings("recipe.schedule=lockstep", "steps=5", "evaluation.every=0")
    train(found, tmp_path / "whole")

    def terminator(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    stopped = train(found, tmp_path / "stopped", terminator)
    assert signal.getsignal(signal.SIGTERM) == before
    assert (stopped.outcome.reason, stopped.model) == ("stopped: SIGTERM", None)
    assert stopped.outcome.step in (3, 4)
    assert rows(tmp_path / "stopped", "event")[-1]["reason"] == "stopped: SIGTERM"
    assert resume(tmp_path / "stopped").outcome.step == 5
    assert weights(tmp_path / "stopped" / "model") == weights(tmp_path / "whole" / "model")


def test_resuming_an_ended_run_does_nothing_and_further_steps_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings("recipe.schedule=lockstep", "steps=2"), run)
    assert resume(run).outcome.step == 2
    assert resume(run, steps=3).outcome.step == 3
    assert [row["step"] for row in rows(run, "train")] == [1, 2, 3]
    assert read(run).steps == 3


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    def killer(row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            raise Killed

    with pytest.raises(Killed):
        train(settings("recipe.schedule=lockstep", "steps=2"), tmp_path / "run", killer)
    assert resume(tmp_path / "run").outcome.step == 2
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [1, 2]


def test_a_run_killed_while_its_first_checkpoint_was_written_beside_it_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killer(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == 3:
            raise Killed

    monkeypatch.setattr("scalerl.engines.trainer.TorchTrainer.saved", lambda _, wait=True: wait)
    with pytest.raises(Killed):
        train(settings("engines.launch=inline", "steps=4"), tmp_path / "run", killer)
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert resume(tmp_path / "run").outcome.step == 4
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [1, 2, 3, 4]


def test_what_is_missing_of_a_run_is_said_and_never_silently_done_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    train(settings("recipe.schedule=lockstep", "steps=4"), run)
    log = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"metrics.jsonl: has 0 bytes, but [0-9,]+ when the checkpoint was written"):
        resume(run)
    (run / "metrics.jsonl").write_bytes(log)
    newest, older = run / "checkpoints" / "step-00000004", run / "checkpoints" / "step-00000002"
    (newest / "manifest.json").unlink()
    assert resume(run).outcome.step == 4
    assert "step-00000004/manifest.json: missing or cut short; an older" in caplog.text
    shutil.rmtree(newest)
    shutil.rmtree(older)
    with pytest.raises(InputError, match=r"no complete checkpoint, but metrics.jsonl has reached step 4"):
        resume(run)
    assert len(rows(run, "train")) == 4


def test_a_directory_with_a_run_is_refused(tmp_path: Path) -> None:
    settings().write(tmp_path)
    with pytest.raises(InputError, match="scalerl resume"):
        train(settings(), tmp_path)
    with pytest.raises(InputError, match="no such run directory"):
        resume(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipe.prompt_tokens=2"], "recipe.prompt_tokens = 2: a prompt of task arithmetic has 6 tokens"),
        (["recipe.thinking_end=time", "recipe.interruption_phrase=time!"], "thinking_end"),
        (["recipe.completion_tokens=10"], "completion_tokens"),
        (["model.warm_start=null", "model.path=nowhere"], "no Hugging Face model there"),
        (["task.levle=easy"], 'did you mean "level"'),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_is_trained(
    tmp_path: Path, words: list[str], message: str
) -> None:
    with pytest.raises(InputError) as refusal:
        train(settings("engines.launch=inline", *words), tmp_path / "run")
    assert message in str(refusal.value)
    assert not list((tmp_path / "run").glob("metrics.jsonl"))


def test_a_model_without_thinking_and_random_weights_trains(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 32, "vocab_size": 24}  # fmt: skip
    found = settings(
        "engines.launch=inline", "model.warm_start=null", f"model.config={json.dumps(config)}", "steps=2",
        "recipe.length_control=none", "recipe.completion_tokens=8", "recipe.kl_coefficient=0.01",
    )  # fmt: skip
    train(found, tmp_path / "run")
    assert max(row["completion_length"] for row in rows(tmp_path / "run", "train")) <= 8


def test_a_mixture_has_a_curve_for_each_task(tmp_path: Path) -> None:
    parts = [{"name": "arithmetic", "label": n, "min_steps": 1, "max_steps": 1, "seed": i, "train_prompts": 20,
              "held_out_prompts": 4} for i, n in enumerate(("a", "b"))]  # fmt: skip
    train(settings("engines.launch=inline", "steps=2", f"task={json.dumps(parts)}"), tmp_path / "run")
    assert {row["task"] for row in rows(tmp_path / "run", "eval")} == {"a", "b"}
    assert set(json.loads((tmp_path / "run" / "forecast.json").read_text())["tasks"]) == {"a", "b"}


def evaluation(step: int, score: float) -> dict[str, Any]:
    compute = {"flops": 1e9 * step, "tokens": 10 * step, "device_hours": {"generate": 0.1 * step}}
    return {"kind": "eval", "step": step, "task": "t", "pass_rate": score, "trials": 4000, "compute": compute}


def saturated(step: int) -> float:
    return 0.2 + 0.5 / (1 + (20 / max(step, 1e-9)) ** 2)


def test_a_run_that_brings_no_more_is_stopped_and_a_rising_one_is_not(tmp_path: Path) -> None:
    found = ForecastSettings(stop_when="gain_high < 0.03 at 2x")
    for last, ends in ((400, True), (24, False)):
        asked: list[str] = []
        renewal = Renewal(found, tmp_path, lambda _: None)
        for step in range(0, last + 1, last // 20):
            renewal.heard(evaluation(step, round(saturated(step), 3)))
        with renewal.beside(asked.append):
            pass
        assert bool(asked) is ends
    answer = json.loads((tmp_path / "forecast.json").read_text())
    assert answer["tasks"]["t"]["data"]["compute_unit"] == "flop"


def test_the_condition_ends_a_run_and_stands_in_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = type("Row", (), {"gain_high": 0.001})
    monkeypatch.setattr(Renewal, "_forecast", lambda *_: ({"verdict": "STOP-THIS-RECIPE", "forecast": []}, row))
    found = settings("recipe.schedule=lockstep", "steps=500", 'forecast.stop_when="gain_high < 0.01 at 2x"')
    finished = train(found, tmp_path / "run")
    assert finished.outcome.step < 500
    assert rows(tmp_path / "run", "event")[-1]["reason"].startswith("stopped: gain_high < 0.01 at 2x holds at step")
    assert finished.model is not None


def test_a_forecast_that_fails_never_stops_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Renewal, "_forecast", lambda *_: 1 / 0)
    assert train(settings("recipe.schedule=lockstep", "steps=2"), tmp_path / "run").outcome.step == 2
    assert "training goes on" in caplog.text


OWN = Path(__file__).parents[2] / "examples" / "own_task"


def test_the_example_of_ones_own_task_runs_and_its_guide_shows_it(tmp_path: Path) -> None:
    small = [f"model.warm_start={json.dumps(WARM.__dict__)}", "engines.launch=inline", "engines.slots=64"]
    found = resolve(OWN / "run.yaml", words=[*small, "steps=2", "evaluation.every=1", "evaluation.prompts=8"])
    train(found, tmp_path / "run")
    row = rows(tmp_path / "run", "train")[-1]
    assert row["verified/prompts"] == 2 * 16 * 8
    assert row["score"] > 0
    guide = (OWN.parents[1] / "docs" / "how-to" / "train-your-own-task.md").read_text()
    source = (OWN / "verifier.py").read_text()
    assert source[source.index("ALMOST") :] in guide
    assert all(
        line.split("  #")[0] in (OWN / "run.yaml").read_text()
        for line in guide.split("task:")[1].split("```")[0].splitlines()
    )
    assert len(source.splitlines()) <= 20


def test_a_signal_before_the_first_step_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    def signalled(self: Renewal, metrics: Path) -> None:  # called between assembly and the controller's loop
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Renewal, "remember", signalled)
        finished = train(settings("engines.launch=inline", "evaluation.every=0"), tmp_path / "run")
    assert (finished.outcome.step, finished.outcome.reason, finished.model) == (0, "stopped: SIGTERM", None)
    assert (tmp_path / "run" / "checkpoints" / "step-00000000").is_dir()
    assert resume(tmp_path / "run").outcome.step == 6


def test_a_signal_while_engines_start_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: Launch) -> Engines:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        raise AssertionError("the signal was waited with")

    own, run = settings("engines.launch=inline", "steps=4"), tmp_path / "run"
    for step, more in ((0, {}), (4, {"steps": 6})):
        with monkeypatch.context() as patch:
            patch.setitem(assemble.LAUNCHERS, "inline", slow)
            stopped = resume(run, **more) if step else train(own, run)
        assert (stopped.outcome.step, stopped.outcome.reason, stopped.model) == (step, "stopped: SIGTERM", None)
        assert resume(run).outcome.step == (6 if step else 4)
    assert [row["step"] for row in rows(run, "train")] == [1, 2, 3, 4, 5, 6]


def test_a_trainer_that_dies_again_and_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scalerl.errors import EngineDied
    from scalerl.training import train as module

    tries: list[int] = []

    def dying(*_: object) -> None:
        tries.append(1)
        raise module._TrainerDied(EngineDied("the trainer process was killed by signal 9"), 3)

    monkeypatch.setattr(module, "_attempt", dying)
    with pytest.raises(EngineDied, match="signal 9"):
        train(settings(), tmp_path / "run")
    assert len(tries) == 1 + module._ATTEMPTS


@pytest.mark.parametrize("schedule", ["pipeline", "lockstep"])
def test_the_end_is_evaluated_and_once_only_where_the_run_is_prolonged(tmp_path: Path, schedule: str) -> None:
    run = tmp_path / "run"
    train(settings("engines.launch=inline", f"recipe.schedule={schedule}", "evaluation.every=2", "steps=3"), run)
    before = rows(run)[:-1]  # but the end, which is none any more
    assert [row["step"] for row in before if row["kind"] == "eval"] == [0, 2, 3]
    assert resume(run).outcome.step == 3
    resume(run, steps=5)
    assert rows(run)[: len(before)] == before
    assert [row["step"] for row in rows(run, "eval")] == [0, 2, 3, 4, 5]


def test_a_finished_run_that_is_prolonged_keeps_its_last_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings("engines.launch=inline", "steps=4"), run)
    before = rows(run)[:-1]  # but the end, which is none any more
    resume(run, steps=6)
    assert rows(run)[: len(before)] == before
    assert [row["step"] for row in rows(run, "eval")] == [0, 2, 4, 6]


def test_an_end_behind_what_is_saved_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings("recipe.schedule=lockstep", "steps=4", "evaluation.every=0"), run)
    with pytest.raises(InputError, match="run: --steps 3: it has taken 4 steps already; name a later end"):
        resume(run, steps=3)
    assert read(run).steps == 4
    (run / "checkpoints" / "step-00000004" / "manifest.json").unlink()
    assert resume(run, steps=3).outcome.step == 3


def test_settings_changed_between_are_told_beside_the_curve(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("recipe.schedule=lockstep", "evaluation.every=0", "checkpoints.every=1")
    train(settings(*words, "steps=1"), run)
    resume(run)
    assert [row["event"] for row in rows(run, "event")] == ["end"]
    settings(*words, "steps=2", "recipe.learning_rate=2e-3", "task.train_prompts=50").write(run)
    resume(run)
    changed, end = rows(run, "event")
    assert (changed["event"], changed["step"], end["event"]) == ("settings changed", 1, "end")
    told = {"steps: 1 -> 2", "recipe.learning_rate: 0.001 -> 0.002", "task.train_prompts: 60 -> 50"}
    assert set(changed["reason"].split("; ")) == told
    resume(run)
    assert rows(run, "event")[:-1] == [changed]


def test_a_model_that_was_changed_between_is_refused_by_naming_the_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings("recipe.schedule=lockstep", "steps=1", "evaluation.every=0"), run)
    wider = replace(WARM, intermediate_size=32, steps=1)
    found = settings("recipe.schedule=lockstep", "steps=2", f"model.warm_start={json.dumps(wider.__dict__)}")
    found.write(run)
    with pytest.raises(
        InputError, match=r"than the model's; config\.yaml names another model .* put its model settings"
    ):
        resume(run)


@pytest.mark.parametrize(
    ("garbage", "why"), [(b"garbage\n", "unexpected character"), (b"[1]\n", "an object with kind")]
)
def test_a_line_of_the_log_that_is_none_is_named(tmp_path: Path, garbage: bytes, why: str) -> None:
    run = tmp_path / "run"
    train(settings("recipe.schedule=lockstep", "steps=1"), run)
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(lines[0] + garbage + b"".join(lines[1:]))
    for step in (1, 2):
        with pytest.raises(InputError, match=rf"metrics\.jsonl:2: no row of a run \({why}") as refusal:
            resume(run, steps=step)
        assert "\n" not in str(refusal.value)
