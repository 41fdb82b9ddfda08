"""From groups to a batch: who is in it, with which weight, and where each token lies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import QUESTION, group, plain, rollout

from scalerl.errors import InputError
from scalerl.recipe import Recipe, group_advantages, make_batch, prediction_sites, token_weights
from scalerl.types import Group, Prompt


def test_packing_by_hand() -> None:
    two = [rollout("xx", first_token=10, logprob=-0.25), rollout("x.x", first_token=20, logprob=-0.5)]
    batch = make_batch([group([1, 0], two)], plain(), policy_version=7)
    assert batch.token_ids.tolist() == [1, 2, 3, 10, 11, 1, 2, 3, 20, 21, 22]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    assert batch.sequence_ids.tolist() == [0] * 5 + [1] * 6
    assert batch.loss_mask.tolist() == [False] * 3 + [True] * 2 + [False] * 3 + [True, False, True]
    assert batch.generator_logprobs.tolist() == [0, 0, 0, -0.25, -0.25, 0, 0, 0, -0.5, 0, -0.5]
    assert batch.advantages.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, -1, 0, -1]
    assert batch.weights.tolist() == [0, 0, 0, 0.25, 0.25, 0, 0, 0, 0.25, 0, 0.25]
    assert batch.policy_version == 7


def test_the_shift_stays_inside_each_sequence() -> None:
    batch = make_batch([group([1, 0], [rollout("xx"), rollout("x.x")])], plain(), 7)
    sites, targets = prediction_sites(batch.loss_mask, batch.sequence_ids)
    assert targets.tolist() == [3, 4, 8, 10]
    assert sites.tolist() == [2, 3, 7, 9]
    with pytest.raises(ValueError, match="first token of a sequence"):
        prediction_sites(np.array([False, True, True]), np.array([0, 0, 1]))
    with pytest.raises(ValueError, match="first token of a sequence"):
        prediction_sites(np.array([True]), np.array([0]))


def test_a_prompt_without_tokens_leaks_nothing_from_the_sequence_before() -> None:
    unasked = Prompt((), "", "free")
    batch = make_batch([group([1, 0], [rollout("xx", unasked), rollout("xx", unasked)])], plain(), 5)
    sites, targets = prediction_sites(batch.loss_mask, batch.sequence_ids)
    assert (sites.tolist(), targets.tolist()) == ([0, 2], [1, 3])
    assert batch.weights.sum() == 1


@st.composite
def group_lists(draw) -> list[Group]:
    masks = st.text("xxx.", max_size=5)
    groups = []
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.integers(1, 4))
        scores = draw(st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.5, math.nan]), min_size=size, max_size=size))
        finishes = st.sampled_from(["stop", "length"])
        groups.append(group(scores, [rollout(draw(masks), finish=draw(finishes)) for _ in range(size)]))
    return groups


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
@given(
    groups=group_lists(),
    zero_variance=st.sampled_from(["filter", "keep"]),
    truncated=st.sampled_from(["score", "mask"]),
    normalization=st.sampled_from(["batch", "prompt", "none"]),
    length_control=st.sampled_from(["interruption", "penalty"]),
)
def test_any_groups_make_a_batch_whose_weights_sum_to_one(
    aggregation, groups, zero_variance, truncated, normalization, length_control
) -> None:
    recipe = Recipe(
        aggregation=aggregation,
        zero_variance=zero_variance,
        truncated=truncated,
        advantage_normalization=normalization,
        length_control=length_control,
        penalty_longest=5,
        penalty_cache=3,
    )
    batch = make_batch(groups, recipe, 5)
    arrays = (batch.positions, batch.sequence_ids, batch.generator_logprobs, batch.advantages, batch.weights)
    assert {len(values) for values in arrays} == {len(batch.token_ids)}
    assert all(np.isfinite(values).all() for values in arrays)
    assert ((batch.weights > 0) == batch.loss_mask).all()
    if len(batch.token_ids):
        assert batch.weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)
        assert (np.bincount(batch.sequence_ids, weights=batch.loss_mask) > 0).all()
    assert len(prediction_sites(batch.loss_mask, batch.sequence_ids)[0]) == batch.info["trained_tokens"]


def test_filtered_prompts_leave_the_denominator_and_kept_ones_stay_in_it() -> None:
    groups = [group([1, 0]), group([1, 1]), group([0, 0])]
    filtered = make_batch(groups, plain(), 5)
    kept = make_batch(groups, plain(zero_variance="keep"), 5)
    assert filtered.weights[filtered.loss_mask].tolist() == [pytest.approx(1 / 8)] * 8
    assert kept.weights[kept.loss_mask].tolist() == [pytest.approx(1 / 24)] * 24
    assert np.count_nonzero(kept.advantages) == np.count_nonzero(filtered.advantages) == 8
    for batch in (filtered, kept):
        assert batch.info["prompts_all_correct"] == 1
        assert batch.info["prompts_all_wrong"] == 1
        assert batch.info["zero_variance_share"] == pytest.approx(2 / 3)
    assert (filtered.info["trained_prompts"], kept.info["trained_prompts"]) == (1, 3)


def test_trap_12_the_batch_is_normalised_after_the_filter() -> None:
    batch = make_batch([group([1, 0]), group([1, 1]), group([0, 0])], Recipe(), 5)
    assert set(batch.advantages[batch.loss_mask].tolist()) == {1.0, -1.0}
    assert batch.info["advantage_std"] == 1


def test_nothing_to_learn_makes_an_empty_batch() -> None:
    for groups in ([], [group([1, 1])], [group([math.nan, math.nan])], [group([1])]):
        batch = make_batch(groups, Recipe(), 5)
        assert len(batch.token_ids) == 0
        assert batch.info["trained_tokens"] == 0
        assert batch.info["groups"] == len(groups)


def test_trap_11_a_prompt_drawn_twice_is_two_groups_even_with_one_id() -> None:
    long = [rollout("xxxxxxxx"), rollout("xxxxxxxx")]
    short = [rollout("x"), rollout("x")]
    batch = make_batch([group([1, 0], long, group_id=4), group([0, 1], short, group_id=4)], plain(), 5)
    per_sequence = np.bincount(batch.sequence_ids, weights=batch.weights)
    np.testing.assert_allclose(per_sequence, [0.25] * 4, rtol=1e-6)


def test_trap_11_empty_completions_have_no_weight_and_no_place() -> None:
    batch = make_batch([group([1, 0], [rollout("xx"), rollout("")])], plain(aggregation="sample"), 5)
    assert batch.sequence_ids.max() == 0
    assert batch.weights[batch.loss_mask].tolist() == [0.5, 0.5]
    assert batch.advantages[batch.loss_mask].tolist() == [1, 1]  # the empty one still counts in the mean


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_trap_17_inserted_tokens_do_not_count_in_lengths(aggregation: str) -> None:
    with_phrase = [rollout("xx.....x", interrupted=True), rollout("x")]
    without = [rollout("xxx"), rollout("x")]
    first, second = (make_batch([group([1, 0], r)], plain(aggregation=aggregation), 5) for r in (with_phrase, without))
    assert first.weights[first.loss_mask].tolist() == second.weights[second.loss_mask].tolist()
    assert first.info["inserted_tokens"] == 5
    assert first.info["sampled_tokens"] == 4


def test_trap_17_no_filler_logprob_enters() -> None:
    odd = rollout("x..x", interrupted=True)
    odd.generator_logprobs[1:3] = [math.nan, -99.0]
    batch = make_batch([group([1, 0], [odd, rollout("x")])], plain(), 5)
    assert set(batch.generator_logprobs[~batch.loss_mask].tolist()) == {0.0}
    assert (batch.weights[~batch.loss_mask] == 0).all()


def test_trap_20_failed_verification_is_excluded_and_counted_and_is_no_zero() -> None:
    rollouts = [rollout("x", first_token=t) for t in (10, 20, 30, 40)]
    broken = make_batch([group([1, 0, math.nan, math.nan], rollouts)], plain(), 5)
    assert broken.info["unverified"] == 2
    assert broken.info["rollouts"] == 4
    assert broken.info["pass_rate"] == 0.5
    assert not {30, 40} & set(broken.token_ids.tolist())
    assert set(broken.advantages[broken.loss_mask].tolist()) == {1.0, -1.0}  # as zeros they would make it 1.5 and -.5
    assert group([1, 0, math.nan, math.nan]).pass_rate == 0.5
    assert math.isnan(group([math.nan]).pass_rate)


def test_trap_20_truncated_interrupted_and_finished_are_counted_apart() -> None:
    rollouts = [
        rollout("xx", finish="length"),
        rollout("x.x", finish="stop", interrupted=True),
        rollout("x.x", finish="length", interrupted=True),
        rollout("x"),
    ]
    info = make_batch([group([0, 1, 0, 1], rollouts)], plain(), 5).info
    assert info["truncated_share"] == 0.5
    assert info["interrupted_share"] == 0.5


def test_truncated_rollouts_are_scored_or_masked() -> None:
    rollouts = [rollout("xx", finish="length"), rollout("xx"), rollout("xx")]
    scored = make_batch([group([0, 1, 1], rollouts)], plain(), 5)
    masked = make_batch([group([0, 1, 1], rollouts)], plain(truncated="mask"), 5)
    assert scored.loss_mask.sum() == 6
    assert masked.loss_mask.sum() == 4
    assert masked.weights.sum() == 1
    np.testing.assert_allclose(masked.advantages[masked.loss_mask], 2 / 3, rtol=1e-6)  # its reward is in the mean


def test_the_length_penalty_is_added_to_correct_rewards() -> None:
    rollouts = [rollout("x" * n) for n in (2, 4, 8, 8)]
    recipe = plain(length_control="penalty", penalty_longest=6, penalty_cache=4)
    batch = make_batch([group([1, 1, 1, 0], rollouts)], recipe, 5)
    rewards = np.array([1, 1 - 0.5, 1 - 1, -1])
    first_tokens = np.flatnonzero(batch.positions == 3)
    np.testing.assert_allclose(batch.advantages[first_tokens], rewards - rewards.mean())
    assert batch.info["reward"] == rewards.mean()
    assert batch.info["pass_rate"] == 0.75  # the penalty is no failure


def test_rewards_are_on_the_recipes_scale() -> None:
    for scores in ([1, 0], [1, -1]):
        assert make_batch([group(scores)], plain(), 5).info["reward"] == 0
    halves = make_batch([group([0.5, 0])], plain(), 5)
    assert set(halves.advantages[halves.loss_mask].tolist()) == {0.5, -0.5}
    assert halves.info["pass_rate"] == 0
    with pytest.raises(InputError, match="a verifier returned 3: return 1 for correct"):
        make_batch([group([3, 0])], plain(), 5)


def test_staleness_and_versions() -> None:
    rollouts = [rollout("xxx", versions=[4, 5, 6]), rollout("xx", versions=[7, 7])]
    info = make_batch([group([1, 0], rollouts)], plain(), policy_version=8).info
    assert (info["staleness_max"], info["staleness_mean"], info["versions_per_rollout"]) == (4, 2.5, 2)


def test_a_batch_agrees_with_the_functions_it_is_made_of() -> None:
    random = np.random.default_rng(0)
    groups, lengths, scores, ids = [], [], [], []
    for g in range(6):
        masks = ["x" * n for n in random.integers(1, 9, size=4)]
        marks = [1.0, 0.0, *random.integers(0, 2, size=2).astype(float)]
        groups.append(group(marks, [rollout(m, QUESTION) for m in masks]))
        lengths += [len(m) for m in masks]
        scores += marks
        ids += [g] * 4
    batch = make_batch(groups, Recipe(), 5)
    advantages = group_advantages(2 * np.array(scores) - 1, ids, "batch")
    weights = token_weights(lengths, ids, "prompt")
    np.testing.assert_allclose(batch.advantages[batch.loss_mask], np.repeat(advantages, lengths), rtol=1e-6)
    np.testing.assert_allclose(batch.weights[batch.loss_mask], np.repeat(weights, lengths), rtol=1e-6)


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal length"):
        rollout("xx", versions=[1])
    with pytest.raises(ValueError, match="1 rollouts, but 2 rewards"):
        group([1, 0], [rollout()])
