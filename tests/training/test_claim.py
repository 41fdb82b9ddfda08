"""One writer a run directory, and what a start that came to nothing leaves to the next one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import rows, settings

from scalerl.errors import InputError
from scalerl.training import train as module
from scalerl.training.claim import claimed
from scalerl.training.lock import LOCK, held
from scalerl.training.resume import resume
from scalerl.training.train import train

LOCKSTEP = ("recipe.schedule=lockstep", "steps=1", "evaluation.every=0")
HOLDER = """
import sys, time
from pathlib import Path
from scalerl.training.claim import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.usefixtures("model")
def test_a_run_that_is_being_written_is_refused_until_its_writer_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings(*LOCKSTEP), run)
    log = (run / "metrics.jsonl").read_bytes()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            with pytest.raises(InputError, match=rf"run: process {holder.pid} on \S+ is writing this run") as refusal:
                resume(run, steps=2)
        finally:
            holder.send_signal(signal.SIGKILL)
    assert "\n" not in str(refusal.value)
    assert (run / "metrics.jsonl").read_bytes() == log
    assert "steps: 1\n" in (run / "config.yaml").read_text()
    assert resume(run, steps=2).outcome.step == 2


def test_a_second_start_in_the_directory_of_a_starting_run_is_refused(tmp_path: Path) -> None:
    with claimed(tmp_path):
        settings().write(tmp_path)
        with pytest.raises(InputError, match=rf"process {os.getpid()} on \S+ is writing this run"):
            train(settings(), tmp_path)


@pytest.mark.usefixtures("model")
def test_a_start_that_came_to_nothing_leaves_its_directory_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    config = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 32, "vocab_size": 24}  # fmt: skip
    other = ("model.warm_start=null", f"model.config={json.dumps(config)}")
    with pytest.raises(InputError, match="prompt_tokens"):
        train(settings(*LOCKSTEP, *other, "recipe.prompt_tokens=2"), run)
    assert (run / "initial-model").is_dir()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "origin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(settings(*LOCKSTEP), run)
    assert not (run / "initial-model").exists()  # of other settings
    assert train(settings(*LOCKSTEP), run).outcome.step == 1
    assert len(rows(run, "train")) == 1
    with pytest.raises(InputError, match="holds a run already"):
        train(settings(*LOCKSTEP), run)


@pytest.mark.parametrize("lost", ["metrics.jsonl", "checkpoints"])
@pytest.mark.usefixtures("model")
def test_what_is_left_of_a_run_is_never_taken_over(tmp_path: Path, lost: str) -> None:
    train(settings(*LOCKSTEP), tmp_path)
    (tmp_path / lost).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="holds a run already"):
        train(settings(*LOCKSTEP), tmp_path)


def test_settings_of_ones_own_are_not_written_over(tmp_path: Path) -> None:
    settings().write(tmp_path)
    before = (tmp_path / "config.yaml").read_bytes()
    for _ in range(2):
        with pytest.raises(InputError, match="holds a run already"):
            train(settings("steps=3"), tmp_path)
    assert (tmp_path / "config.yaml").read_bytes() == before
    assert not (tmp_path / LOCK).exists()


def test_whether_a_run_is_being_written_can_be_asked(tmp_path: Path) -> None:
    assert held(tmp_path) is None
    with claimed(tmp_path):
        assert held(tmp_path) is True
    assert held(tmp_path) is False
