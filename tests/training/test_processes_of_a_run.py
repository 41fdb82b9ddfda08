"""Runs with real processes: engines that are killed, preemption, and resuming."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import WORDS, rows, settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from scalerl.training.engines import Engines
from scalerl.training.train import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("model")]
LONG = 240.0
MANY = [*WORDS, "task.max_steps=2", "task.train_prompts=1000", "recipe.retire_at=1"]
"""Prompts enough for a long run."""


class Command:
    """`scalerl ...` in a process group of its own."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scalerl", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip

    def output(self) -> str:
        return self.process.communicate(timeout=LONG)[0]

    def children(self) -> dict[str, int]:
        """Process ids of the engines by name, in the order in which they were started."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        engines = [int(pid) for pid in listed if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return dict(zip(("generator", "evaluator", "trainer"), engines, strict=False))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for command in commands:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
            command.process.wait()
        assert command.process.stdout is not None
        command.process.stdout.close()


def train_rows(run: Path) -> list[dict[str, Any]]:
    return rows(run, "train") if (run / "metrics.jsonl").exists() else []


def wait_for_step(run: Path, step: int, command: Command) -> None:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if any(row["step"] >= step for row in train_rows(run)):
            return
        assert command.process.poll() is None, command.output()
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


def every_step_once(run: Path, last: int) -> bool:
    return [row["step"] for row in rows(run, "train")] == list(range(1, last + 1))


def give_it_work(command: Command, run: Path) -> None:
    """Stop the generator, which may be idle just now, until the trainer waits for it: then rollouts are open."""
    os.kill(command.children()["generator"], signal.SIGSTOP)
    before = 0
    while (steps := len(rows(run, "train"))) > before:
        before = steps
        time.sleep(2.0)


@pytest.mark.parametrize("victim", ["generator", "evaluator", "trainer"])
def test_a_killed_engine_is_replaced_and_the_run_ends_as_it_should(
    tmp_path: Path, started: list[Command], victim: str
) -> None:
    run = tmp_path / "run"
    command = Command("train", *MANY, "steps=60", "evaluation.every=10", "--out", str(run))
    started.append(command)
    wait_for_step(run, 5, command)
    if victim == "generator":
        give_it_work(command, run)
    os.kill(command.children()[victim], signal.SIGKILL)
    output = command.output()
    assert command.process.returncode == 0, output
    assert every_step_once(run, 60)
    if victim == "generator":
        event = next(row for row in rows(run, "event") if row["event"] == "generator replaced")
        assert "signal 9" in event["reason"]
        assert event["rollouts_asked_again"] > 0
    if victim == "evaluator":
        event = next(row for row in rows(run, "event") if row["event"] == "evaluator replaced")
        assert "signal 9" in event["reason"]
    if victim == "trainer":
        event = next(row for row in rows(run, "event") if row["event"] == "trainer replaced")
        assert "signal 9" in event["reason"]
        assert "trainer replaced" in output
    assert rows(run, "event")[-1]["reason"] == "steps"


def test_an_evaluator_that_hangs_is_replaced_and_every_evaluation_is_made(
    tmp_path: Path, started: list[Command]
) -> None:
    run = tmp_path / "run"
    command = Command("train", *MANY, "steps=60", "engines.silent_seconds=5", "evaluation.every=30", "--out", str(run))
    started.append(command)
    while not ((run / "metrics.jsonl").exists() and rows(run, "eval")):  # it is up
        assert command.process.poll() is None, command.output()
        time.sleep(0.05)
    os.kill(command.children()["evaluator"], signal.SIGSTOP)
    output = command.output()
    assert command.process.returncode == 0, output
    event = next(row for row in rows(run, "event") if row["event"] == "evaluator replaced")
    assert event["reason"] == "evaluator 0 has said nothing for 5 s"
    assert rows(run, "eval")[-1]["step"] == 60


def kill_one_of_the_engines(command: Command, rng: random.Random) -> None:
    """Of those that live: for a moment after the last kill there may be none."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        assert command.process.poll() is None, command.output()
        try:
            os.kill(rng.choice(list(command.children().values())), signal.SIGKILL)
            return
        except (IndexError, FileNotFoundError, ProcessLookupError):
            time.sleep(0.02)
    raise AssertionError("no engine was started again")


def test_kills_at_ten_random_moments_lose_no_run(tmp_path: Path, started: list[Command]) -> None:
    rng = random.Random(0)
    run = tmp_path / "run"
    command = Command("train", *MANY, "steps=5000", "evaluation.every=20", "checkpoints.every=5", "--out", str(run))
    started.append(command)
    for number in range(10):
        if number % 3 == 0:  # an engine that dies again and again while it starts is rightly given up
            wait_for_step(run, 1 + max((row["step"] for row in train_rows(run)), default=0), command)
        time.sleep(rng.uniform(0.1, 5.0))  # some while the last victim's successor still starts
        kill_one_of_the_engines(command, rng)
    os.kill(command.process.pid, signal.SIGTERM)  # however far it has come
    output = command.output()
    assert command.process.returncode == 0, output
    last = rows(run, "train")[-1]["step"]
    assert last > 1
    assert every_step_once(run, last)
    assert "replaced" in output
    resumed = Command("resume", str(run), "--steps", str(last + 5))
    started.append(resumed)
    assert "ended at step" in resumed.output()
    assert every_step_once(run, last + 5)


def test_a_trainer_that_dies_while_it_exports_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = Engines.export

    def killed(engines: Engines, *arguments: Any) -> None:
        monkeypatch.setattr(Engines, "export", export)
        os.kill(engines.trainer.engine.process.pid, signal.SIGKILL)
        export(engines, *arguments)

    monkeypatch.setattr(Engines, "export", killed)
    run = tmp_path / "run"
    finished = train(settings("steps=3", "evaluation.every=0"), run)
    assert finished.outcome.step == 3
    assert AutoModelForCausalLM.from_pretrained(run / "model")
    assert [row["event"] for row in rows(run, "event")] == ["trainer replaced", "end"]
    assert every_step_once(run, 3)


def test_sigterm_writes_a_checkpoint_resume_goes_on_and_the_model_is_one(
    tmp_path: Path, started: list[Command]
) -> None:
    run = tmp_path / "run"
    command = Command("train", *MANY, "steps=400", "checkpoints.every=1000", "--out", str(run))
    started.append(command)
    wait_for_step(run, 5, command)
    command.process.send_signal(signal.SIGTERM)
    output = command.output()
    assert command.process.returncode == 0, output
    assert "scalerl resume" in output
    at = rows(run, "train")[-1]["step"]
    assert (run / "checkpoints" / f"step-{at:08d}").is_dir()
    assert not (run / "model").exists()
    resumed = Command("resume", str(run), "--steps", str(at + 5), "--json")
    started.append(resumed)
    output = resumed.output()
    assert resumed.process.returncode == 0, output
    assert json.loads(output[output.index("{") :])["step"] == at + 5
    assert every_step_once(run, at + 5)
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert model.config.vocab_size == len(tokenizer)


def test_a_run_that_is_killed_altogether_leaves_no_process_and_resumes(tmp_path: Path, started: list[Command]) -> None:
    run = tmp_path / "run"
    command = Command("train", *MANY, "steps=400", "--out", str(run))
    started.append(command)
    wait_for_step(run, 6, command)
    engines = command.children()
    command.process.kill()
    command.process.wait()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in engines.values()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [name for name, pid in engines.items() if Path(f"/proc/{pid}").exists()]
    last = rows(run, "train")[-1]["step"] + 10
    resumed = Command("resume", str(run), "--steps", str(last))
    started.append(resumed)
    output = resumed.output()
    assert resumed.process.returncode == 0, output
    assert every_step_once(run, last)


HANGS = """
import time
from pathlib import Path
def verify(prompt, completion, answer):
    if Path(__file__).with_name("hang").exists():
        time.sleep(3600)
    return float(completion.strip() == str(answer))
"""


@pytest.mark.parametrize("isolated", [True, False])
def test_sigterm_ends_a_run_whose_verifier_hangs_and_a_second_writer_is_refused(
    tmp_path: Path, started: list[Command], isolated: bool
) -> None:
    run = tmp_path / "run"
    (tmp_path / "mine.py").write_text(HANGS)
    lines = [json.dumps({"prompt": f"{i}+{j}=", "answer": (i + j) % 10}) for i in range(10) for j in range(10)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    task = {"name": "file", "path": str(tmp_path / "sums.jsonl"), "verifier": "mine.py:verify",
            "verifier_options": {"isolated": isolated}}  # fmt: skip
    words = [word for word in MANY if not word.startswith("task.")]
    command = Command("train", *words, f"task={json.dumps(task)}", "steps=400", "--out", str(run))
    started.append(command)
    wait_for_step(run, 3, command)
    second = Command("resume", str(run))
    started.append(second)
    assert f"process {command.process.pid} on " in second.output()
    assert second.process.returncode == 2
    (tmp_path / "hang").touch()
    time.sleep(3.0)
    command.process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    output = command.output()
    assert command.process.returncode == 0, output
    assert time.monotonic() - asked < 60  # engines end, the last forecast is made; the verifier sleeps an hour
    at = rows(run, "train")[-1]["step"]
    assert (run / "checkpoints" / f"step-{at:08d}").is_dir()
    assert rows(run, "event")[-1]["reason"] == "stopped: SIGTERM"
    (tmp_path / "hang").unlink()
    resumed = Command("resume", str(run), "--steps", str(at + 3))
    started.append(resumed)
    assert resumed.process.wait(LONG) == 0, resumed.output()
    assert every_step_once(run, at + 3)


def test_all_ingredients_are_at_work_between_processes(tmp_path: Path, started: list[Command]) -> None:
    run = tmp_path / "run"
    command = Command(
        "train", "--preset", "scalerl", *WORDS, "steps=30", "recipe.max_staleness=8", "--out", str(run), "--quiet"
    )
    started.append(command)
    output = command.output()
    assert command.process.returncode == 0, output
    steps = rows(run, "train")
    assert 0 < max(row["staleness_max"] for row in steps) <= 8
    for name in ("interrupted_share", "dropped_prompts", "prompts_retired", "staleness_mean"):
        assert max(row[name] for row in steps) > 0, name
    assert max(row["versions_per_rollout"] for row in steps) > 1
    evals = rows(run, "eval")
    assert evals
    assert all(row["policy_version"] == row["step"] for row in evals)
