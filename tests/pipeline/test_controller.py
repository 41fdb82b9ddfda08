"""The whole loop on stub engines: the bound, the schedules, faults, the clear end, and what the metrics say."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pipeline_stubs import Run, StubGenerator, StubTask, StubTrainer, recipe, without_clocks

import scalerl
from scalerl.engines.fleet import Fleet, FleetSettings
from scalerl.errors import EngineDied, InputError
from scalerl.pipeline.settings import ControllerSettings
from scalerl.types import Batch, Rollout


class Killed(BaseException):
    """As little warning as SIGKILL gives: nobody catches it."""


@pytest.mark.parametrize("k", [1, 2, 8])
def test_pipeline_trains_no_rollout_staler_than_k(tmp_path: Path, k: int) -> None:
    slow = StubGenerator(slots=12, most_polls=30)
    run = Run(tmp_path, recipe(k=k), steps=60, generator=slow, checkpoint_every=0, evaluate_every=10)
    assert run.controller.run().reason == "steps"
    rows = run.rows("train")
    assert [row["step"] for row in rows] == list(range(1, 61))
    seen: Counter[int] = Counter()
    for row in rows:
        seen.update({int(s): n for s, n in row["staleness_histogram"].items()})
        assert sum(row["staleness_histogram"].values()) == 16
    assert 0 < max(seen) <= k
    assert rows[-1]["versions_per_rollout"] > 1
    assert run.trainer.version == 60


def test_every_metric_of_the_issue_is_there(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe(retire_at=0.75), steps=12, trainer=StubTrainer(seconds=0.005))
    run.controller.run()
    row = run.rows("train")[-1]
    wanted = [
        "interrupted_share", "dropped_prompts", "prompts_retired", "prompts_total", "staleness_histogram",
        "staleness_max", "staleness_mean", "versions_per_rollout", "truncation_rate", "entropy", "mismatch_kl", "loss",
        "trained_tokens", "effective_batch", "generator_idle_share", "trainer_idle_share", "seconds_total",
        "seconds_train", "seconds_controller", "train_pass_rate", "reward", "outstanding_groups", "unverified",
        "timestamp",
    ]  # fmt: skip
    assert [name for name in wanted if name not in row] == []
    assert row["policy_version"] == row["step"] == 12
    assert set(row["compute"]) == {"device_hours", "tokens", "flops", "evaluation"}
    assert set(row["compute"]["device_hours"]) == {"generate", "train", "idle"}
    assert row["prompts_retired"] > 0
    evals = run.rows("eval")
    assert [e["step"] for e in evals] == [0, 5, 10, 12]  # the end too
    assert all(e["policy_version"] == e["step"] and e["trials"] == 24 and e["task"] == "stub" for e in evals)
    assert row["compute"]["evaluation"]["tokens"] > 0


def test_an_evaluation_that_falls_due_meanwhile_is_made_later_and_a_second_one_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe(), steps=40, evaluate_every=2)
    run.evaluation.generator.slots = 1
    run.controller.run()
    evals = run.rows("eval")
    assert all(e["policy_version"] == e["step"] and e["trials"] == 24 for e in evals)
    skipped = [row for row in run.rows("event") if row["event"] == "evaluation skipped"]
    assert skipped
    assert len(evals) + len(skipped) == 21
    assert all("that of step" in row["reason"] for row in skipped)


def test_the_forecaster_reads_the_run_directory(tmp_path: Path) -> None:
    Run(tmp_path, recipe("lockstep"), steps=20, evaluate_every=2).controller.run()
    curve = scalerl.read_curve(tmp_path, x="compute/flops")
    assert len(curve.compute) == 11
    assert curve.score_name == "pass_rate"
    assert curve.trials is not None
    assert (curve.trials == 24).all()


def test_ppo_off_policy_freezes_the_weights_for_a_window(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe("ppo-off-policy", k=3), steps=9, generator=StubGenerator(most_polls=9))
    run.controller.run()
    for i, row in enumerate(run.rows("train")):
        assert row["staleness_histogram"] == {str(i % 3): 16}
        assert row["versions_per_rollout"] == 1


def test_a_window_that_the_run_does_not_fill_is_generated_only_as_far(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe("ppo-off-policy", k=4), steps=6, evaluate_every=0)
    assert run.controller.run().step == 6
    assert run.raw.made == 6 * 16
    longer = Run(tmp_path, recipe("ppo-off-policy", k=4), steps=11, evaluate_every=0, resume=True)
    assert longer.controller.run().step == 11
    assert [len(row["staleness_histogram"]) for row in longer.rows("train")] == [1] * 11


@pytest.mark.parametrize("at", [3, 8])
def test_ppo_off_policy_goes_on_in_the_middle_of_a_window(tmp_path: Path, at: int) -> None:
    settings = recipe("ppo-off-policy", k=3)

    def listener(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == at:
            raise Killed

    with pytest.raises(Killed):
        Run(tmp_path, settings, steps=12, checkpoint_every=1, listener=listener).controller.run()
    run = Run(tmp_path, settings, steps=12, checkpoint_every=1, resume=True)
    assert run.controller.step == at - 1
    run.controller.run()
    assert [row["staleness_histogram"] for row in run.rows("train")] == [{str(i % 3): 16} for i in range(12)]


@pytest.mark.parametrize(
    ("schedule", "capacity", "message"),
    [("ppo-off-policy", 16, "leave it out"), ("pipeline", 3, "nearest valid is 4"), ("pipeline", 99, "valid is 20")],
)
def test_impossible_capacities_are_refused(schedule: str, capacity: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ControllerSettings(5, capacity=capacity).check(recipe(schedule))


def test_lockstep_repeats_itself(tmp_path: Path) -> None:
    runs = [Run(tmp_path / name, recipe("lockstep"), steps=8) for name in "ab"]
    for run in runs:
        run.controller.run()
    assert without_clocks(runs[0].rows("train")) == without_clocks(runs[1].rows("train"))
    assert all(row["staleness_histogram"] == {"0": 16} for row in runs[0].rows("train"))


@pytest.mark.parametrize("at", [7, 12, 15, 33])
def test_lockstep_killed_and_resumed_equals_uninterrupted(tmp_path: Path, at: int) -> None:
    whole = Run(tmp_path / "whole", recipe("lockstep"), steps=12)
    whole.controller.run()
    count = iter(range(10**6))

    def listener(row: dict[str, Any]) -> None:
        if next(count) == at:
            raise Killed

    parts = Run(tmp_path / "parts", recipe("lockstep"), steps=12, checkpoint_every=3, listener=listener)
    try:
        parts.controller.run()
    except Killed:
        with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
            file.write('{"kind": "train", "step": 9')  # cut off in the middle of a write
        parts = Run(tmp_path / "parts", recipe("lockstep"), steps=12, checkpoint_every=3, resume=True)
        parts.controller.run()
    for kind in ("train", "eval"):
        assert without_clocks(parts.rows(kind)) == without_clocks(whole.rows(kind))
    assert parts.trainer.skill == whole.trainer.skill
    assert parts.ledger.flops == whole.ledger.flops


def trained(batches: list[Batch]) -> int:
    return sum(int(batch.info["rollouts"]) for batch in batches)


def test_pipeline_killed_and_resumed_draws_the_same_prompts_and_keeps_the_bound(tmp_path: Path) -> None:
    """TRAPS 24, 25: nothing is drawn twice or left out, and there is no burst above capacity."""

    class Noting(StubGenerator):
        def __init__(self) -> None:
            super().__init__(slots=12, most_polls=20)
            self.asked: dict[int, str] = {}
            self.most = 0

        def submit(self, prompts: Any) -> None:
            super().submit(prompts)
            self.asked.update({group_id: prompt.prompt_id for group_id, prompt in prompts})
            self.most = max(self.most, len(self.queue) + len(self.running))

    size = StubTask(size=400)
    whole, parts = Noting(), [Noting() for _ in range(4)]
    quiet = recipe(k=4, curriculum="uniform")
    Run(tmp_path / "whole", quiet, steps=24, generator=whole, task=size).controller.run()
    for i, generator in enumerate(parts):
        at = 6 * (i + 1) + 1

        def listener(row: dict[str, Any], at: int = at) -> None:
            if row["kind"] == "train" and row["step"] == at and at < 24:
                raise Killed

        run = Run(
            tmp_path / "parts", quiet, steps=24, generator=generator, task=size, resume=True, checkpoint_every=2,
            listener=listener,
        )  # fmt: skip
        try:
            run.controller.run()
        except Killed:
            continue
    asked: dict[int, str] = {}
    for generator in parts:
        for group_id, prompt_id in generator.asked.items():
            assert asked.setdefault(group_id, prompt_id) == prompt_id
        assert generator.most <= 5 * 4 * 4
    assert asked == whole.asked
    assert len(asked) == 24 * 4
    rows = run.rows("train")
    assert [row["step"] for row in rows] == list(range(1, 25))
    assert max(int(s) for row in rows for s in row["staleness_histogram"]) <= 4
    assert (tmp_path / "parts" / "metrics.discarded.jsonl").exists()


def test_a_dead_generator_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    made: list[StubGenerator] = []

    def spawn(place: int) -> StubGenerator:
        made.append(StubGenerator(slots=12, most_polls=9, seed=len(made), dies_after=25 if len(made) < 5 else None))
        return made[-1]

    fleet = Fleet(spawn, 1, FleetSettings(in_flight=100))
    run = Run(tmp_path, recipe(k=3), steps=30, generator=fleet)
    assert run.controller.run().step == 30
    assert len(made) == 6
    events = [row for row in run.rows("event") if row["event"] == "generator replaced"]
    assert len(events) == len(made) - 1
    assert "signal 9" in events[0]["reason"]
    rows = run.rows("train")
    assert all(row["rollouts"] == 16 for row in rows)
    assert max(int(s) for row in rows for s in row["staleness_histogram"]) <= 3


def test_a_generator_that_always_dies_ends_the_run(tmp_path: Path) -> None:
    fleet = Fleet(lambda _: StubGenerator(dies_after=0), 1, FleetSettings(in_flight=100))
    run = Run(tmp_path, recipe(), generator=fleet)
    with pytest.raises(EngineDied, match="signal 9"):
        run.controller.run()


def test_a_trainer_that_dies_while_it_waits_is_noticed_before_generators_die_of_it(tmp_path: Path) -> None:
    class Starved(StubGenerator):
        """Brings nothing, since what it needs is gone; and in the end it dies."""

        def poll(self) -> list[Rollout]:
            trainer.dead = EngineDied("the trainer process was killed by signal 9")
            if time.monotonic() > until:
                raise EngineDied("no weights")
            return []

    trainer, until = StubTrainer(), time.monotonic() + 20
    with pytest.raises(EngineDied, match="trainer process"):
        Run(tmp_path, recipe(), trainer=trainer, generator=Starved()).controller.run()


def test_a_dead_evaluator_is_replaced_and_evaluates_the_same_version(tmp_path: Path) -> None:
    lives = iter([2])
    fleet = Fleet(lambda _: StubGenerator(dies_after=next(lives, None)), 1, FleetSettings(100), name="evaluator")
    run = Run(tmp_path, recipe(), steps=10, evaluator=fleet)
    run.controller.run()
    assert [(row["step"], row["policy_version"]) for row in run.rows("eval")][:1] == [(0, 0)]
    assert all(row["trials"] == 24 for row in run.rows("eval"))
    [event] = [row for row in run.rows("event") if row["event"] == "evaluator replaced"]
    assert "signal 9" in event["reason"]
    assert 0 < event["rollouts_asked_again"] <= 24


def test_an_evaluator_that_dies_between_evaluations_is_replaced_then(tmp_path: Path) -> None:
    def listener(row: dict[str, Any]) -> None:
        if row["kind"] == "eval":
            engines[-1].dies_after = engines[-1].polls
        if row["kind"] == "train" and row["step"] == 8:
            replaced.append(len(engines))

    engines: list[StubGenerator] = []
    replaced: list[int] = []

    def spawn(_: int) -> StubGenerator:
        engines.append(StubGenerator())
        return engines[-1]

    fleet = Fleet(spawn, 1, FleetSettings(100), name="evaluator")
    run = Run(tmp_path, recipe(), steps=10, evaluator=fleet, evaluate_every=10, listener=listener)
    run.controller.run()
    assert replaced == [2]
    assert [row["step"] for row in run.rows("eval")] == [0, 10]


def test_a_dead_trainer_leaves_the_run_which_resumes(tmp_path: Path) -> None:
    class Dying(StubTrainer):
        def step(self, batch: Batch) -> Any:
            if self.version == 13:
                raise EngineDied("the trainer process was killed by signal 9")
            return super().step(batch)

    with pytest.raises(EngineDied, match="trainer process"):
        Run(tmp_path, recipe(), trainer=Dying()).controller.run()
    run = Run(tmp_path, recipe(), resume=True)
    assert run.controller.step == 10
    assert run.controller.run().step == 20
    assert [row["step"] for row in run.rows("train")] == list(range(1, 21))


def test_all_prompts_retired_is_a_clear_end(tmp_path: Path) -> None:
    trainer = StubTrainer()
    trainer.skill = 50.0
    run = Run(tmp_path, recipe(), steps=500, task=StubTask(size=30), trainer=trainer)
    outcome = run.controller.run()
    assert outcome.reason == "all prompts retired"
    assert 5 <= outcome.step <= 30
    assert run.rows("event")[-1]["reason"] == "all prompts retired"


def test_batches_with_nothing_to_learn_are_steps_all_the_same(tmp_path: Path) -> None:
    trainer = StubTrainer()
    trainer.skill = 50.0
    run = Run(tmp_path, recipe(curriculum="uniform"), steps=6, trainer=trainer)
    run.controller.run()
    assert [len(batch.token_ids) for batch in trainer.batches] == [0] * 6
    assert run.rows("train")[-1]["dropped_prompts"] == 4


@pytest.mark.parametrize("schedule", ["pipeline", "lockstep"])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(tmp_path: Path, schedule: str) -> None:
    def listener(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == 7:
            signal.raise_signal(signal.SIGTERM)

    run = Run(tmp_path, recipe(schedule), listener=listener)
    before = signal.signal(signal.SIGTERM, lambda *_: run.controller.stop("SIGTERM"))
    try:
        outcome = run.controller.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome.reason == "stopped: SIGTERM"
    assert outcome.step in (7, 8)
    resumed = Run(tmp_path, recipe(schedule), resume=True)
    assert resumed.controller.step == outcome.step
    assert resumed.controller.run().step == 20
    assert [row["step"] for row in resumed.rows("train")] == list(range(1, 21))
    assert resumed.rows("eval")[0]["step"] == 0


def test_a_failed_checkpoint_is_told_and_training_goes_on(tmp_path: Path) -> None:
    class Full(StubTrainer):
        def save(self, path: Path) -> None:
            if self.version == 5:
                raise OSError(28, "No space left on device")
            super().save(path)

    run = Run(tmp_path, recipe(), steps=10, trainer=Full())
    assert run.controller.run().step == 10
    [event] = [row for row in run.rows("event") if row["event"] == "checkpoint failed"]
    assert "disk is full" in event["reason"]
    assert run.checkpoints.latest() == tmp_path / "checkpoints" / "step-00000010"


def test_training_overlaps_generation_and_evaluation(tmp_path: Path) -> None:
    """Each step lasts until generators have been asked beside it; one even until an evaluation has ended."""

    class Waiting(StubTrainer):
        def step(self, batch: Batch) -> Any:
            asked, give_up = run.raw.polls, time.monotonic() + 20
            while run.raw.polls < asked + 3 or (self.version == 2 and run.evaluation.running):
                assert time.monotonic() < give_up, "nothing went on beside the step"
                time.sleep(0.001)
            return super().step(batch)

    run = Run(tmp_path, recipe(k=8), steps=5, trainer=Waiting(), checkpoint_every=0, evaluate_every=2)
    run.controller.run()
    assert max(row["staleness_max"] for row in run.rows("train")) > 0  # rollouts were begun before the last step's end
    assert [row["step"] for row in run.rows("eval")][:2] == [0, 2]
    assert all(0 <= row["trainer_idle_share"] <= 1 for row in run.rows("train"))


def test_verdicts_may_come_from_threads(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe("lockstep"), steps=8, threads=3)
    run.controller.run()
    again = Run(tmp_path / "again", recipe("lockstep"), steps=8)
    again.controller.run()
    assert [row["rollouts"] for row in run.rows("train")] == [16] * 8
    assert run.trainer.skill == again.trainer.skill
    assert not [t for t in threading.enumerate() if t.name.startswith("train")]


def test_evaluation_beside_training_needs_its_own_generator(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe())
    run.evaluation.generator = run.controller.generator
    with pytest.raises(ValueError, match="of its own"):
        type(run.controller)(
            recipe(), run.controller.settings, sampler=run.controller.sampler, generator=run.controller.generator,
            trainer=run.trainer, verification=run.controller._verification, ledger=run.ledger,
            metrics=run.controller.metrics, checkpoints=run.checkpoints, evaluation=run.evaluation,
        )  # fmt: skip
    run.controller.close()


def test_memory_is_flat_and_bookkeeping_is_cheap(tmp_path: Path) -> None:
    """A small version of bench/controller.py: what a run holds does not grow with its length."""
    import tracemalloc

    trainer = StubTrainer()
    trainer.keep = False
    task = StubTask()
    run = Run(tmp_path, recipe(curriculum="uniform"), steps=400, trainer=trainer, evaluate_every=0, checkpoint_every=0)
    sizes: dict[int, int] = {}

    def listener(row: dict[str, Any]) -> None:
        run.task.judged.clear()
        if row.get("step") in (200, 400):
            sizes[row["step"]] = tracemalloc.get_traced_memory()[0]

    run.controller.metrics.listener = listener
    tracemalloc.start()
    try:
        run.controller.run()
    finally:
        tracemalloc.stop()
    assert task.size == 40
    assert sizes[400] < sizes[200] + 50_000


def test_an_evaluation_stands_at_the_compute_of_its_policy_however_late_it_ends(tmp_path: Path) -> None:
    run = Run(tmp_path, recipe(), steps=40, evaluate_every=5)
    run.evaluation.generator.slots = 1
    run.controller.run()
    flops = {row["step"]: row["compute"]["flops"] for row in run.rows("train")}
    evals = run.rows("eval")
    assert len(evals) > 2
    assert all(row["compute"]["flops"] == flops.get(row["step"], 0.0) for row in evals)
