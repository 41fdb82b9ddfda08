"""Mean@k of exactly one version: pinned while it runs, refused if the engine mixes versions, a row a task."""

from __future__ import annotations

import time

import pytest
from pipeline_stubs import StubGenerator, StubTask, StubWeights, decode

from scalerl.pipeline.evaluation import Evaluation, Result
from scalerl.pipeline.verification import Verification
from scalerl.tasks.guard import Guard
from scalerl.tasks.mixture import Mixture
from scalerl.types import Prompt, Rollout


class Pin:
    def __init__(self, held: list[int], version: int) -> None:
        self.held, self.version = held, version
        held.append(version)

    def release(self) -> None:
        self.held.remove(self.version)


def finished(evaluation: Evaluation) -> Result:
    while True:
        result = evaluation.poll()
        if result is not None:
            return result


def test_the_version_is_held_until_the_last_rollout_is_in() -> None:
    held: list[int] = []
    task = StubTask(held_out=5)
    generator = StubGenerator(slots=3)
    evaluation = Evaluation(generator, task, 4, task.verify, decode, hold=lambda version: Pin(held, version))
    evaluation.begin(30, 30, StubWeights(0.0))
    assert evaluation.poll() is None
    assert held == [30]
    with pytest.raises(RuntimeError, match="one evaluation at a time"):
        evaluation.begin(40, 40, StubWeights(0.0))
    [row] = finished(evaluation).rows
    assert held == []
    assert not evaluation.running
    assert (row["step"], row["policy_version"], row["trials"], row["mean_at"]) == (30, 30, 20, 4)
    evaluation.begin(40, 40, StubWeights(0.0))
    evaluation.close()
    assert held == []


def test_a_version_that_is_gone_is_an_error() -> None:
    task = StubTask()
    evaluation = Evaluation(StubGenerator(), task, 1, task.verify, decode, hold=lambda version: None)
    with pytest.raises(RuntimeError, match="version 3 was overwritten"):
        evaluation.begin(3, 3, StubWeights(0.0))


def test_tokens_of_another_version_are_no_evaluation() -> None:
    task = StubTask()
    generator = StubGenerator(slots=2)
    evaluation = Evaluation(generator, task, 2, task.verify, decode)
    evaluation.begin(3, 3, StubWeights(0.0))
    generator.version = 4
    with pytest.raises(RuntimeError, match="evaluation of version 3 holds tokens of version 4"):
        finished(evaluation)


def test_each_task_of_a_mixture_has_its_row_and_late_rollouts_are_not_counted() -> None:
    tasks = [StubTask("easy", held_out=4), StubTask("hard", held_out=2)]
    mixture = Mixture(tasks)
    generator = StubGenerator()
    evaluation = Evaluation(generator, mixture, 3, mixture.verify, decode)
    generator.submit([(4, tasks[0].prompts("held-out")[0])])  # left over from a dead run's evaluation of step 0
    evaluation.begin(10, 10, StubWeights(0.0))
    result = finished(evaluation)
    assert {row["task"]: row["trials"] for row in result.rows} == {"easy": 12, "hard": 6}
    assert result.prompt_tokens == 18 * 3


def test_the_score_follows_the_weights_and_repeats_itself() -> None:
    task = StubTask(held_out=40)
    evaluation = Evaluation(StubGenerator(), task, 8, task.verify, decode)
    scores = []
    for skill in (-3.0, 3.0, -3.0):
        evaluation.begin(10, 10, StubWeights(skill))
        scores.append(finished(evaluation).rows[0]["pass_rate"])
    assert scores[0] == scores[2] < 0.3 < 0.7 < scores[1]


def test_excluded_rollouts_are_in_no_pass_rate() -> None:
    class Broken(StubTask):
        def verify(self, prompt: Prompt, completion: str) -> float:
            if completion == "wrong":
                raise ValueError("cannot read that")
            return 1.0

    guard = Guard(Broken(), give_up_after=10_000)
    evaluation = Evaluation(StubGenerator(), guard.task, 8, guard.verify, decode)
    evaluation.begin(0, 0, StubWeights(0.0))
    [row] = finished(evaluation).rows
    assert row["pass_rate"] == 1.0
    assert row["excluded"] > 0
    assert row["trials"] + row["excluded"] == 48


def test_verdicts_keep_the_order_of_submission_whoever_is_slow() -> None:
    def verify(prompt: Prompt, completion: str) -> float:
        time.sleep(0.02 if prompt.answer == 0 else 0.0)
        return float(prompt.answer)

    task, generator = StubTask(), StubGenerator()
    prompts = task.prompts("train")[:10]
    generator.update_weights(0, StubWeights(0.0))
    generator.submit([(i, prompt) for i, prompt in enumerate(prompts)])
    rollouts: list[Rollout] = []
    while len(rollouts) < 10:
        rollouts += generator.poll()
    verification: Verification[int] = Verification(verify, decode, threads=4)
    for i, rollout in enumerate(rollouts):
        verification.submit(i, rollout)
    verdicts: list[tuple[int, Rollout, float | None]] = []
    while len(verdicts) < 10:
        verdicts += verification.poll()
    verification.close()
    assert [key for key, _, _ in verdicts] == list(range(10))
    assert [reward for *_, reward in verdicts] == [rollout.prompt.answer for rollout in rollouts]
