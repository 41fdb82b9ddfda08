"""How a run ends that cannot go on: verifiers that hang or fail, full disks, engines that die."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pipeline_stubs import Run, StubTask, StubTrainer, recipe, without_clocks

from scalerl.errors import CheckpointError, InputError, VerifierError
from scalerl.pipeline import controller as module
from scalerl.pipeline.metrics import MetricsLog
from scalerl.tasks.guard import Guard


class Hanging(StubTask):
    """Judges `good` answers, and hangs at the next until `free` is set. Slow ones take `seconds`."""

    def __init__(self, good: int, seconds: float = 0.0) -> None:
        super().__init__()
        self.good, self.seconds, self.free, self.hangs = good, seconds, threading.Event(), threading.Event()

    def verify(self, prompt: Any, completion: str) -> float:
        if len(self.judged) >= self.good:
            self.hangs.set()
            self.free.wait(self.seconds or 60.0)
        return super().verify(prompt, completion)


def stopped(run: Run, task: Hanging) -> Any:
    """Run until the verifier hangs, and stop then; the outcome, and how long it took from then on."""
    asked: list[float] = []

    def stop() -> None:
        task.hangs.wait(30)
        time.sleep(0.05)
        asked.append(time.monotonic())
        run.controller.stop("SIGTERM")

    threading.Thread(target=stop, daemon=True).start()
    outcome = run.controller.run()
    return outcome, time.monotonic() - asked[0]


@pytest.mark.parametrize("schedule", ["pipeline", "ppo-off-policy"])
def test_a_run_is_stopped_and_saved_while_its_verifier_hangs(tmp_path: Path, schedule: str) -> None:
    task = Hanging(good=70)
    run = Run(tmp_path, recipe(schedule), task=task, threads=1, evaluate_every=0, checkpoint_every=100)
    outcome, seconds = stopped(run, task)
    assert outcome.reason == "stopped: SIGTERM"
    assert seconds < 20  # of 60
    task.free.set()
    resumed = Run(tmp_path, recipe(schedule), task=StubTask(), evaluate_every=0, resume=True)
    waiting = resumed.controller._buffer.unjudged()
    assert waiting
    assert resumed.controller.step == outcome.step > 0
    assert resumed.controller.run().step == 20
    assert [row["step"] for row in resumed.rows("train")] == list(range(1, 21))
    assert all(row["rollouts"] == 16 and row["unverified"] == 0 for row in resumed.rows("train"))


@pytest.mark.parametrize("threads", [0, 1])
def test_lockstep_gives_up_the_step_and_is_resumed_bit_for_bit(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.2)
    whole = Run(tmp_path / "whole", recipe("lockstep"), steps=8, evaluate_every=2, checkpoint_every=2)
    whole.controller.run()
    task = Hanging(good=100, seconds=0.0 if threads else 0.3)  # within step 4 or 5
    run = Run(tmp_path / "run", recipe("lockstep"), steps=8, task=task, threads=threads, evaluate_every=2,
              checkpoint_every=2)  # fmt: skip
    outcome, seconds = stopped(run, task)
    task.free.set()
    assert outcome.reason == "stopped: SIGTERM, within a step"
    assert seconds < 20  # of 60
    assert run.rows("event")[-1]["reason"] == outcome.reason
    resumed = Run(tmp_path / "run", recipe("lockstep"), steps=8, evaluate_every=2, checkpoint_every=2, resume=True)
    assert resumed.controller.step == 2 * (outcome.step // 2) > 0
    resumed.controller.run()
    assert resumed.trainer.skill == whole.trainer.skill
    for kind in ("train", "eval"):
        assert without_clocks(resumed.rows(kind)) == without_clocks(whole.rows(kind))


def test_lockstep_in_no_hurry_ends_with_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.0)
    run = Run(tmp_path, recipe("lockstep"), evaluate_every=0)
    submit = run.raw.submit
    run.raw.submit = lambda requests: (submit(requests), run.controller.stop("a condition holds", hurry=False))
    outcome = run.controller.run()
    assert (outcome.step, outcome.reason) == (1, "stopped: a condition holds")
    assert run.checkpoints.latest() is not None


def test_an_evaluation_whose_verifier_hangs_is_made_again(tmp_path: Path) -> None:
    task = Hanging(good=0)
    run = Run(tmp_path, recipe(), task=task, threads=1, steps=0, evaluate_every=5)
    _, seconds = stopped(run, task)
    task.free.set()
    assert seconds < 20  # of 60
    assert run.rows("eval") == []
    resumed = Run(tmp_path, recipe(), steps=0, resume=True)
    resumed.controller.run()
    assert [row["trials"] for row in resumed.rows("eval")] == [24]


def test_a_verifier_that_hangs_does_not_keep_the_process() -> None:
    code = """
import time
import numpy as np
from scalerl.pipeline.verification import Verification
from scalerl.types import Prompt, Rollout
verification = Verification(lambda *_: time.sleep(600), lambda _: "", threads=2)
zeros = np.zeros(1, dtype=np.int64)
rollout = Rollout(Prompt((1,), "q", "t"), 0, zeros, zeros.astype(np.float32), zeros == 0, zeros, "stop")
for i in range(5):
    verification.submit(i, rollout)
verification.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


class Full(StubTrainer):
    """A disk that has room for the checkpoint of step 5 only."""

    def save(self, path: Path) -> None:
        if self.version != 5:
            raise OSError(28, "No space left on device")
        super().save(path)


def test_a_last_checkpoint_without_room_is_the_end_that_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe(), steps=7, trainer=Full())
    with pytest.raises(
        CheckpointError, match=rf"disk is full.*`scalerl resume {tmp_path}` goes on from the one before"
    ):
        run.controller.run()
    [end] = [row for row in run.rows("event") if row["event"] == "end"]
    assert end["reason"].startswith("failed: ")
    assert "step-00000007" in end["reason"]
    assert Run(tmp_path, recipe(), steps=7, resume=True).controller.run().step == 7


def test_a_run_that_can_save_nothing_ends_before_more_is_at_risk(tmp_path: Path) -> None:
    class Never(StubTrainer):
        def save(self, path: Path) -> None:
            raise OSError(28, "No space left on device")

    run = Run(tmp_path, recipe(), steps=40, trainer=Never())
    with pytest.raises(CheckpointError, match=r"disk is full.*no checkpoint could be written yet"):
        run.controller.run()
    assert run.controller.step == 10
    run = Run(tmp_path / "short", recipe(), steps=4, trainer=Never())
    with pytest.raises(CheckpointError, match="there is none before it"):
        run.controller.run()


def test_a_log_without_room_is_named(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    log = MetricsLog(tmp_path)
    with pytest.raises(InputError, match=rf"metrics.jsonl: cannot be written \(No space.*`scalerl resume {tmp_path}`"):
        log.write("train", {})
    log.close()


def guarded(run: Run, guard: Guard) -> None:
    run.controller._verification._verify = guard.verify
    run.controller.counts = guard.counts


def test_a_step_of_which_nothing_could_be_judged_ends_the_run_and_a_mended_verifier_goes_on(tmp_path: Path) -> None:
    class Breaking(StubTask):
        def verify(self, prompt: Any, completion: str) -> float:
            if len(self.judged) > 100:
                raise ZeroDivisionError("x")
            return super().verify(prompt, completion)

    run = Run(tmp_path, recipe(), task=Breaking(), evaluate_every=0, checkpoint_every=1)
    guarded(run, Guard(run.task, give_up_after=10_000))
    with pytest.raises(VerifierError) as refusal:
        run.controller.run()
    message = str(refusal.value)
    step = run.controller.step + 1
    assert f"none of the 16 answers of step {step} could be judged" in message
    assert "ZeroDivisionError of task stub, " in message
    assert "\n" not in message
    assert run.rows("event")[-1]["reason"] == f"failed: {message}"
    resumed = Run(tmp_path, recipe(), evaluate_every=0, resume=True)
    resumed.controller.counts = run.controller.counts
    assert resumed.controller.run().step == 20


def test_a_prompt_that_cannot_be_judged_is_only_counted(tmp_path: Path) -> None:
    class Picky(StubTask):
        def verify(self, prompt: Any, completion: str) -> float:
            if prompt.answer != 3:
                raise ValueError("x")
            return super().verify(prompt, completion)

    run = Run(tmp_path, recipe(prompts_per_step=20), steps=3, task=Picky(), evaluate_every=0)
    guarded(run, Guard(run.task, give_up_after=10_000))
    assert run.controller.run().step == 3
    assert all(row["unverified"] > 0 for row in run.rows("train"))
