"""Drawing by content hash, tasks by weight, retirement, and a state that JSON holds."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pipeline_stubs import StubTask, recipe

from scalerl.errors import InputError
from scalerl.pipeline.sampler import Sampler
from scalerl.recipe.recipe import Recipe
from scalerl.tasks.mixture import Mixture
from scalerl.types import Prompt

RECIPE = Recipe()


def mixture() -> Mixture:
    return Mixture([StubTask("a", 30), StubTask("b", 10)], [3, 1])


def test_an_epoch_shows_each_prompt_once() -> None:
    sampler = Sampler.of(StubTask(size=12), RECIPE)
    drawn = [sampler.draw() for _ in range(24)]
    assert Counter(p.prompt_id for p in drawn if p) == {p.prompt_id: 2 for p in StubTask(size=12).prompts("train")}


def test_tasks_are_drawn_by_weight_in_every_stretch() -> None:
    sampler = Sampler.of(mixture(), RECIPE)
    drawn = [p.task for _ in range(400) if (p := sampler.draw())]
    for start in range(0, 400, 40):
        assert Counter(drawn[start : start + 40]) == {"a": 30, "b": 10}


def test_retired_prompts_never_come_again_and_a_retired_task_leaves_its_share() -> None:
    sampler = Sampler.of(mixture(), RECIPE)
    for prompt in StubTask("b", 10).prompts("train"):
        sampler.record(prompt, 15, 16)
    assert sampler.retired == 10
    assert sampler.total == 40
    drawn = [p for _ in range(60) if (p := sampler.draw())]
    assert {p.task for p in drawn} == {"a"}
    for prompt in StubTask("a", 30).prompts("train"):
        sampler.record(prompt, 16, 16)
    assert sampler.draw() is None


def test_a_draw_below_the_threshold_or_without_verdicts_retires_nothing() -> None:
    sampler = Sampler.of(StubTask(size=3), RECIPE)
    for prompt in StubTask(size=3).prompts("train"):
        sampler.record(prompt, 14, 16)
        sampler.record(prompt, 0, 0)
    assert sampler.retired == 0


@pytest.mark.parametrize("at", [0, 7, 40, 97])
def test_a_restored_sampler_goes_on_as_if_nothing_had_happened(at: int) -> None:
    one, two = (Sampler.of(mixture(), RECIPE, seed=3) for _ in range(2))
    for i in range(at):
        prompt = one.draw()
        assert prompt is not None
        one.record(prompt, 16 if i % 5 == 0 else 4, 16)
    two.restore(json.loads(json.dumps(one.state())))
    assert [one.draw() for _ in range(100)] == [two.draw() for _ in range(100)]
    assert one.retired == two.retired


def test_history_is_by_content_not_by_index() -> None:
    one = Sampler.of(StubTask(size=20), RECIPE)
    for prompt in StubTask(size=20).prompts("train")[:7]:
        one.record(prompt, 16, 16)
    shuffled = StubTask(size=20).prompts("train")[::-1]
    two = Sampler({"stub": shuffled}, RECIPE)
    two.restore(one.state())
    assert two.retired == 7
    assert [one.draw() for _ in range(40)] == [two.draw() for _ in range(40)]


def test_no_prompts_and_vanished_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="no prompt to train on"):
        Sampler({"t": []}, recipe())
    with pytest.raises(InputError, match="no longer in the tasks' train split"):
        Sampler.of(StubTask(), RECIPE).prompt(Prompt((1,), "gone", "t").prompt_id)


def test_history_stays_small() -> None:
    sampler = Sampler.of(StubTask(size=1), recipe(curriculum="uniform"))
    prompt = sampler.draw()
    assert prompt is not None
    sizes = []
    for _ in range(3):
        for _ in range(100):
            sampler.record(prompt, 3, 4)
        sizes.append(len(json.dumps(sampler.state())))
    assert len(set(sizes)) == 1
