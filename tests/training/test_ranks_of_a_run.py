"""Runs whose trainer is several ranks: they end as others do, go on with another number, and survive a death."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from small_runs import WORDS, rows, settings
from test_processes_of_a_run import MANY, Command, every_step_once, started, wait_for_step
from transformers import AutoModelForCausalLM

from scalerl.errors import InputError

__all__ = ["started"]


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_a_run_of_two_ranks_goes_on_as_one_and_as_two(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = Command("train", *WORDS, "engines.trainers=2", "--out", str(run))
    output = first.output()
    assert first.process.returncode == 0, output
    assert every_step_once(run, 6)
    assert len(list((run / "checkpoints" / "step-00000006" / "trainer").glob("shard-*.safetensors"))) == 2
    AutoModelForCausalLM.from_pretrained(run / "model")
    hours = rows(run, "train")[-1]["compute"]["device_hours"]
    assert hours["train"] > 0
    for step, count in ((8, 1), (10, 2)):
        config = run / "config.yaml"
        config.write_text(config.read_text().replace(f"trainers: {3 - count}", f"trainers: {count}"))
        resumed = Command("resume", str(run), "--steps", str(step))
        output = resumed.output()
        assert resumed.process.returncode == 0, output
        assert every_step_once(run, step)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (signal.SIGKILL, "the trainer rank 1 process was killed by signal 9"),
        (signal.SIGSTOP, "trainer of 2 ranks: has said nothing for 15 s since it was told to "),
    ],
)
def test_a_rank_that_is_killed_or_hangs_is_survived(
    tmp_path: Path, started: list[Command], fault: signal.Signals, said: str
) -> None:
    run = tmp_path / "run"
    few = ["steps=20", "evaluation.every=0", "engines.step_seconds=15"]
    command = Command("train", *MANY, "engines.trainers=2", *few, "--out", str(run))
    started.append(command)
    wait_for_step(run, 5, command)
    os.kill(list(command.children().values())[2], fault)  # after the generator and rank 0
    output = command.output()
    assert command.process.returncode == 0, output
    assert every_step_once(run, 20)
    [died] = [row for row in rows(run, "event") if row["event"] == "trainer replaced"]
    assert died["reason"].startswith(said)


def test_ranks_need_processes() -> None:
    for name in ("trainers", "generators"):
        with pytest.raises(InputError, match=rf"engines\.{name} = 2: with launch = inline there is one"):
            settings(f"engines.{name}=2", "engines.launch=inline")
    with pytest.raises(InputError, match="trainers = 0"):
        settings("engines.trainers=0")
