"""Checkpoints beside training: steps go on, one is seen when it is whole, and it is of the step at which it began."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pipeline_stubs import Run, StubTrainer, recipe

from scalerl.errors import CheckpointError, EngineDied, ScaleRLError
from scalerl.types import Batch


class Slow(StubTrainer):
    """What is saved is written `steps` steps later; `says` are told for whole where no step follows."""

    def __init__(self, steps: int = 3, fails: tuple[int, ...] = (), dies: bool = False) -> None:
        super().__init__()
        self.steps, self.fails, self.dies = steps, fails, dies
        self.begun: list[int] = []
        self.busy, self.waited = False, 0
        self.state = ""

    def step(self, batch: Batch) -> Any:
        self.busy = True
        try:
            return super().step(batch)
        finally:
            self.busy = False

    def begin_save(self, path: Path) -> None:
        assert not self.busy
        self.begun.append(self.version)
        folder = path.parent / "copy"
        folder.mkdir()
        self.save(folder)
        self.state, self.path = (folder / "trainer.json").read_text(), path
        (folder / "trainer.json").unlink()
        folder.rmdir()

    def saved(self, wait: bool) -> bool:
        assert not self.busy
        if self.dies:
            raise EngineDied("the trainer rank 1 process was killed by signal 9")
        if not wait and self.version < self.begun[-1] + self.steps:
            return False
        self.waited += wait
        if self.begun[-1] in self.fails:
            raise ScaleRLError(f"{self.path}: could not be written (No space left on device)")
        (self.path / "trainer.json").write_text(self.state)
        return True


def steps_on_disk(run: Run) -> list[int]:
    return sorted(int(path.name[-8:]) for path in run.checkpoints.folder.glob("step-*"))


def seen_at(run: Run) -> dict[int, list[int]]:
    """What is on disk when each step has been logged; filled while the run goes on."""
    seen: dict[int, list[int]] = {}

    def listener(row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            finishing = run.controller._saver._finishing
            if finishing is not None:
                finishing.result(10.0)
            seen[row["step"]] = steps_on_disk(run)
            time.sleep(0.01)

    run.controller.metrics.listener = listener
    return seen


@pytest.fixture(autouse=True)
def ask_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalerl.pipeline.saving._GLANCE", 0.0)


def test_steps_go_on_and_the_state_is_of_the_step_at_which_it_began(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe(), steps=8, trainer=Slow(steps=2), evaluate_every=0)
    seen = seen_at(run)
    run.controller.run()
    assert seen[6] == []  # begun after step 5
    assert seen[8] == [5]
    assert steps_on_disk(run) == [5, 8]
    assert run.rows("event")[-1]["event"] == "end"
    state, _, _ = run.checkpoints.load(run.checkpoints.folder / "step-00000005")
    assert state["step"] == 5
    rows = (tmp_path / "metrics.jsonl").read_bytes()[: state["metrics_size"]]
    assert rows.count(b'"kind":"train"') == 5


def test_a_run_goes_on_from_what_was_written_beside_it(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def listener(row: dict[str, Any]) -> None:
        if row["step"] == 9:
            raise Killed

    trainer = Slow(steps=2)
    run = Run(tmp_path, recipe(), steps=20, trainer=trainer, listener=listener)
    with pytest.raises(Killed):
        run.controller.run()
    assert trainer.begun == [5]
    resumed = Run(tmp_path, recipe(), steps=20, trainer=Slow(), resume=True)
    assert resumed.controller.step == resumed.trainer.version == 5
    resumed.controller.run()
    assert [row["step"] for row in resumed.rows("train")] == list(range(1, 21))
    assert not list(run.checkpoints.folder.glob(".writing-*"))


def test_one_is_under_way_at_a_time_and_the_last_is_waited_for(tmp_path: Path) -> None:
    trainer = Slow(steps=100)
    run = Run(tmp_path, recipe(), steps=6, trainer=trainer, checkpoint_every=2, evaluate_every=0)
    run.controller.run()
    assert trainer.begun == [2, 4, 6]
    assert trainer.waited == 3  # of 2 before 4 begins, of 4 before 6, of 6 at the end
    assert steps_on_disk(run) == [4, 6]


def test_turns_wait_for_it(tmp_path: Path) -> None:
    trainer = Slow(steps=100)
    run = Run(tmp_path, recipe("lockstep"), steps=5, trainer=trainer, evaluate_every=0, checkpoint_every=1)
    seen: list[int] = []
    run.controller.metrics.listener = lambda row: seen.append(len(steps_on_disk(run)))
    run.controller.run()
    assert seen[:5] == [0, 1, 2, 2, 2]


def test_a_failure_is_told_when_it_is_known_and_the_next_one_is_whole(tmp_path: Path) -> None:
    trainer = Slow(steps=1, fails=(5,))
    run = Run(tmp_path, recipe(), steps=12, trainer=trainer, evaluate_every=0)
    run.controller.run()
    [event] = [row for row in run.rows("event") if row["event"] == "checkpoint failed"]
    assert event["step"] > 5
    assert "step-00000005: could not be written" in event["reason"]
    assert "disk is full" in event["reason"]
    assert steps_on_disk(run) == [10, 12]
    assert not list(run.checkpoints.folder.glob(".writing-*"))


def test_a_last_one_that_fails_beside_is_tried_again_and_ends_the_run(tmp_path: Path) -> None:
    trainer = Slow(fails=(10,))
    run = Run(tmp_path, recipe(), steps=10, trainer=trainer, evaluate_every=0)
    with pytest.raises(CheckpointError, match=r"step-00000010.*goes on from the one before"):
        run.controller.run()
    assert trainer.begun == [5, 10, 10]
    assert steps_on_disk(run) == [5]


def test_two_that_fail_with_none_before_end_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe(), steps=40, trainer=Slow(steps=1, fails=(5, 10)), evaluate_every=0)
    with pytest.raises(CheckpointError, match="no checkpoint could be written yet"):
        run.controller.run()
    assert run.controller.step < 15


def test_the_death_of_the_trainer_meanwhile_leaves_what_the_next_one_removes(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe(), steps=10, trainer=Slow(dies=True), evaluate_every=0)
    with pytest.raises(EngineDied, match="rank 1"):
        run.controller.run()
    assert run.checkpoints.latest() is None
    assert run.checkpoints.unfinished
    Run(tmp_path, recipe(), steps=10, resume=True, evaluate_every=0).controller.run()
    assert steps_on_disk(run) == [5, 10]
    assert not run.checkpoints.unfinished


def test_what_is_written_is_made_a_checkpoint_while_the_run_ends(tmp_path: Path, monkeypatch: Any) -> None:
    """Reading and forcing to disk hold up no step; a run that breaks off meanwhile keeps the checkpoint."""
    run = Run(tmp_path, recipe(), steps=10, trainer=Slow(steps=0), evaluate_every=0)
    finish, may = run.checkpoints.finish, threading.Event()

    def slowly(draft: Any) -> Path:
        may.wait(10.0)
        return finish(draft)

    def listener(row: dict[str, Any]) -> None:
        if row["step"] == 8:
            assert steps_on_disk(run) == []
            may.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(run.checkpoints, "finish", slowly)
    run.controller.metrics.listener = listener
    with pytest.raises(KeyboardInterrupt):
        run.controller.run()
    assert steps_on_disk(run) == [5]
