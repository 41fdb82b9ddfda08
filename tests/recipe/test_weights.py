"""Advantages, token weights and the filter, against loops over groups."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalerl.recipe import group_advantages, token_weights
from scalerl.recipe.filtering import variance_counts, zero_variance

NORMALIZATIONS = ["batch", "prompt", "none"]
AGGREGATIONS = ["prompt", "sample", "token"]
batches = st.lists(
    st.tuples(st.integers(-3, 3), st.sampled_from([-1.0, 0.0, 0.25, 1.0]), st.integers(0, 9)), min_size=1, max_size=24
)


def members(ids: list[int]) -> list[list[int]]:
    return [[i for i, g in enumerate(ids) if g == gid] for gid in dict.fromkeys(ids)]


def slow_advantages(rewards: list[float], ids: list[int], normalization: str) -> list[float]:
    found = [0.0] * len(rewards)
    for group in members(ids):
        mean = sum(rewards[i] for i in group) / len(group)
        for i in group:
            found[i] = rewards[i] - mean
    everything = list(range(len(rewards)))
    scales = [1.0] * len(rewards)
    for group in {"batch": [everything], "prompt": members(ids), "none": []}[normalization]:
        mean = sum(found[i] for i in group) / len(group)
        std = math.sqrt(sum((found[i] - mean) ** 2 for i in group) / len(group))
        for i in group:
            scales[i] = std
    return [a / s if s > 0 else 0.0 for a, s in zip(found, scales, strict=True)]


def slow_weights(lengths: list[int], ids: list[int], aggregation: str) -> list[Fraction]:
    groups = [g for g in members(ids) if sum(lengths[i] for i in g) > 0]
    found = [Fraction(0)] * len(lengths)
    for group in groups:
        for i in group:
            if lengths[i] == 0:
                continue
            if aggregation == "prompt":
                found[i] = Fraction(1, len(groups)) / sum(lengths[j] for j in group)
            elif aggregation == "sample":
                found[i] = Fraction(1, sum(n > 0 for n in lengths)) / lengths[i]
            else:
                found[i] = Fraction(1, sum(lengths))
    return found


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@given(batch=batches)
def test_advantages_are_those_of_a_loop(normalization, batch) -> None:
    ids, rewards, _ = (list(column) for column in zip(*batch, strict=True))
    found = group_advantages(rewards, ids, normalization)
    np.testing.assert_allclose(found, slow_advantages(rewards, ids, normalization), atol=1e-12)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@given(batch=batches, shift=st.floats(-5, 5), seed=st.integers(0, 999))
def test_advantages_follow_a_permutation_and_ignore_a_shift_of_the_rewards(normalization, batch, shift, seed) -> None:
    ids, rewards, _ = (np.array(column) for column in zip(*batch, strict=True))
    order = np.random.default_rng(seed).permutation(len(ids))
    found = group_advantages(rewards, ids, normalization)
    np.testing.assert_allclose(group_advantages(rewards[order], ids[order], normalization), found[order], atol=1e-12)
    np.testing.assert_allclose(group_advantages(rewards + shift, ids, normalization), found, atol=1e-9)


def test_trap_12_batch_std_is_taken_after_filtering() -> None:
    rewards, ids = np.array([1.0, -1, -1, -1, 1, 1, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    kept = ~zero_variance(rewards, ids)
    after = group_advantages(rewards[kept], ids[kept], "batch")
    before = group_advantages(rewards, ids, "batch")[kept]
    np.testing.assert_allclose(after, [math.sqrt(3)] + [-1 / math.sqrt(3)] * 3)
    np.testing.assert_allclose(before, after * math.sqrt(2))  # the zeros of the dull prompt would inflate the rest
    assert after.std() == pytest.approx(1)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -0.3, 1e6 + 0.1])
def test_trap_12_std_zero_gives_zeros(normalization: str, value: float) -> None:
    """The mean of three times .1 is not .1 in floating point: rounding must not be scaled up to an advantage of 1."""
    found = group_advantages([value] * 6, [0, 0, 0, 1, 1, 1], normalization)
    assert found.tolist() == [0.0] * 6
    assert group_advantages([value], [0], normalization).tolist() == [0.0]
    assert group_advantages([], [], normalization).shape == (0,)


def test_trap_12_one_group_only() -> None:
    found = group_advantages([1, -1, -1, -1], [4] * 4, "batch")
    np.testing.assert_allclose(found, group_advantages([1, -1, -1, -1], [4] * 4, "prompt"))
    assert np.isfinite(found).all()


def test_batch_and_prompt_normalisation_differ_between_prompts() -> None:
    """Under "prompt" the one right answer of a hard prompt counts more than one of two of an even one."""
    rewards, ids = [1, -1, -1, -1, 1, 1, -1, -1], [0] * 4 + [1] * 4
    batch, prompt = (group_advantages(rewards, ids, kind) for kind in ("batch", "prompt"))
    assert batch[0] / batch[4] == pytest.approx(1.5)
    assert prompt[0] / prompt[4] == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="could not be verified"):
        group_advantages([1.0, bad], [0, 0], "batch")


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(batch=batches, seed=st.integers(0, 999))
def test_weights_are_those_of_a_loop_and_sum_to_one(aggregation, batch, seed) -> None:
    ids, _, lengths = (list(column) for column in zip(*batch, strict=True))
    assume(sum(lengths) > 0)
    found = token_weights(lengths, ids, aggregation)
    expected = slow_weights(lengths, ids, aggregation)
    assert sum(w * n for w, n in zip(expected, lengths, strict=True)) == 1
    np.testing.assert_allclose(found, [float(w) for w in expected], rtol=1e-12)
    assert found @ np.array(lengths) == pytest.approx(1)
    order = np.random.default_rng(seed).permutation(len(ids))
    np.testing.assert_array_equal(
        token_weights(np.array(lengths)[order], np.array(ids)[order], aggregation), found[order]
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_trap_11_empty_prompts_and_completions_are_in_no_denominator(aggregation: str) -> None:
    with_empty = token_weights([3, 0, 2, 0, 0], [0, 0, 1, 2, 2], aggregation)
    without = token_weights([3, 2], [0, 1], aggregation)
    np.testing.assert_allclose(with_empty, [without[0], 0, without[1], 0, 0])
    assert token_weights([0, 0], [0, 1], aggregation).tolist() == [0, 0]


def test_trap_11_a_prompt_drawn_twice_counts_as_two() -> None:
    twice = token_weights([1, 9, 10], [0, 1, 2], "prompt")
    merged = token_weights([1, 9, 10], [0, 0, 2], "prompt")
    np.testing.assert_allclose(twice * [1, 9, 10], [1 / 3] * 3)
    np.testing.assert_allclose(merged * [1, 9, 10], [0.05, 0.45, 0.5])


def test_negative_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="none can be negative"):
        token_weights([1, -1], [0, 0], "token")


@given(batch=batches)
def test_zero_variance_is_that_of_a_loop(batch) -> None:
    ids, rewards, _ = (list(column) for column in zip(*batch, strict=True))
    found = zero_variance(rewards, ids)
    dull = [g for g in members(ids) if len({rewards[i] for i in g}) == 1]
    assert sorted(np.flatnonzero(found)) == sorted(i for g in dull for i in g)
    counts = variance_counts(rewards, ids, np.array(rewards) == 1)
    assert counts.prompts == len(members(ids))
    assert counts.all_correct == sum(rewards[g[0]] == 1 for g in dull)
    assert counts.zero_variance == len(dull)
