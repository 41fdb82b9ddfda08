"""Interruption plans, the length penalty, and truncated rollouts."""

from __future__ import annotations

import numpy as np
import pytest
from rollouts import rollout

from scalerl.errors import InputError
from scalerl.recipe import Interruption, Recipe, length_penalty
from scalerl.recipe.length import trained_tokens
from scalerl.types import Prompt

PLAN = Interruption(budget_low=10, budget_high=14, phrase=(7, 8, 9), answer_budget=5)


def test_budgets_are_uniform_over_the_whole_range() -> None:
    drawn = np.concatenate([PLAN.draw(seed=0, group_id=g, rollouts=16) for g in range(500)])
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [10, 11, 12, 13, 14]
    assert abs(counts / len(drawn) - 0.2).max() < 0.02


def test_budgets_depend_on_the_draw_and_not_on_the_order() -> None:
    first = PLAN.draw(0, 3, 16)
    PLAN.draw(0, 4, 16)
    assert PLAN.draw(0, 3, 16).tolist() == first.tolist()
    assert PLAN.draw(0, 4, 16).tolist() != first.tolist()
    assert PLAN.draw(1, 3, 16).tolist() != first.tolist()
    assert len(set(first)) > 1  # each rollout has its own


def test_the_plan_of_a_recipe() -> None:
    recipe = Recipe(thinking_budget_low=10, thinking_budget_high=14, answer_budget=5, completion_tokens=22)
    assert Interruption.of(recipe, (7, 8, 9)) == PLAN
    assert PLAN.most_tokens == 14 + 3 + 5
    assert Interruption.of(recipe.with_(length_control="penalty"), (7,)) is None
    with pytest.raises(InputError, match=r"completion_tokens = 22: .* can take 23; set completion_tokens to at least"):
        Interruption.of(recipe, (6, 7, 8, 9))
    with pytest.raises(InputError, match="interruption_phrase"):
        Interruption.of(recipe, ())


def test_the_penalty_is_the_papers_and_for_correct_traces_only() -> None:
    lengths = np.array([0, 12287, 12288, 13312, 14336, 20000])
    expected = [min(max((14336 - n) / 2048 - 1, -1), 0) for n in lengths]
    assert expected == [0, 0, 0, -0.5, -1, -1]
    np.testing.assert_allclose(length_penalty(lengths, np.ones(6, bool), 14336, 2048), expected)
    assert not length_penalty(lengths, np.zeros(6, bool), 14336, 2048).any()


def test_trap_17_inserted_tokens_are_not_trained() -> None:
    assert trained_tokens(rollout("xx..x"), "score").tolist() == [True, True, False, False, True]


def test_trap_20_only_truncation_is_masked_and_interruption_is_not() -> None:
    assert not trained_tokens(rollout("xx", finish="length"), "mask").any()
    assert trained_tokens(rollout("xx", finish="length"), "score").all()
    assert trained_tokens(rollout("x.x", interrupted=True), "mask").tolist() == [True, False, True]


def test_a_token_that_nothing_predicts_is_not_trained() -> None:
    unasked = rollout("xxx", prompt=Prompt((), "", "free"))
    assert trained_tokens(unasked, "score").tolist() == [False, True, True]
    assert unasked.loss_mask.all()  # the rollout itself stays as it was
