"""Groups of rollouts -> one `Batch`: rewards, filter, advantages, weights, packing. What follows knows no algorithm.

All of it happens on the whole batch, before anything is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scalerl.recipe.advantages import group_advantages
from scalerl.recipe.aggregation import token_weights
from scalerl.recipe.filtering import variance_counts, zero_variance
from scalerl.recipe.grouping import Bools, Floats
from scalerl.recipe.length import length_penalty, trained_tokens
from scalerl.recipe.rewards import is_correct, scaled_rewards
from scalerl.types import Batch, BoolArray, Group, IntArray, Rollout

if TYPE_CHECKING:
    from scalerl.recipe.recipe import Recipe


def make_batch(groups: Sequence[Group], recipe: Recipe, policy_version: int) -> Batch:
    """Make the batch of one optimizer step.

    Rollouts that could not be verified (reward NaN) are left out and counted. Groups stay apart even if they ask the
    same prompt or carry the same id. If nothing is left to learn from, the batch has no tokens: skip the step.

    Args:
        groups: all groups of the step, complete.
        recipe: the settings.
        policy_version: the trainer's, from which staleness is counted.

    Returns:
        `Batch` whose weights sum to 1 over its tokens, and whose `info` holds the metrics of `batch_info`.

    Raises:
        InputError: a verifier returned a score outside [-1, 1].
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    index = np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups])
    scores = np.concatenate([np.zeros(0), *(group.rewards.astype(np.float64) for group in groups)])
    info = batch_info(groups, rollouts, scores, policy_version)

    judged = np.flatnonzero(~np.isnan(scores))
    rollouts, index, scores = [rollouts[i] for i in judged], index[judged], scores[judged]
    rewards = _rewards(scores, rollouts, recipe)
    counts = variance_counts(rewards, index, is_correct(scores))
    info |= {
        "reward": _mean(rewards),
        "prompts": float(counts.prompts),
        "prompts_all_correct": float(counts.all_correct),
        "prompts_all_wrong": float(counts.all_wrong),
        "zero_variance_share": counts.zero_variance / counts.prompts if counts.prompts else float("nan"),
    }
    if recipe.zero_variance == "filter":
        kept = np.flatnonzero(~zero_variance(rewards, index))
        rollouts, index, rewards = [rollouts[i] for i in kept], index[kept], rewards[kept]

    advantages = group_advantages(rewards, index, recipe.advantage_normalization)
    trained = [trained_tokens(rollout, recipe.truncated) for rollout in rollouts]
    lengths = np.array([mask.sum() for mask in trained], dtype=np.int64)
    weights = token_weights(lengths, index, recipe.aggregation)
    info |= {
        "trained_rollouts": float(np.count_nonzero(lengths)),
        "trained_prompts": float(len(np.unique(index[lengths > 0]))),
        "trained_tokens": float(lengths.sum()),
        "advantage_std": float(advantages.std()) if advantages.size else float("nan"),
    }
    used = np.flatnonzero(lengths)
    rollouts, trained = [rollouts[i] for i in used], [trained[i] for i in used]
    return pack(rollouts, trained, advantages[used], weights[used], policy_version, info)


def _rewards(scores: Floats, rollouts: list[Rollout], recipe: Recipe) -> Floats:
    rewards = scaled_rewards(scores, recipe.reward_correct, recipe.reward_wrong)
    if recipe.length_control != "penalty":
        return rewards
    sampled = [int(rollout.loss_mask.sum()) for rollout in rollouts]
    return rewards + length_penalty(sampled, is_correct(scores), recipe.penalty_longest, recipe.penalty_cache)


def pack(
    rollouts: Sequence[Rollout],
    trained: Sequence[BoolArray],
    advantages: NDArray[np.floating],
    weights: NDArray[np.floating],
    policy_version: int,
    info: dict[str, float],
) -> Batch:
    """Lay prompts and completions end to end, one sequence a rollout; `trained[i]` is (t,) over its completion.

    Values of a token stand at the token itself, not at the one that predicts it: see `prediction_sites`.
    """
    starts = [len(rollout.prompt.token_ids) for rollout in rollouts]
    lengths = [start + len(rollout.token_ids) for start, rollout in zip(starts, rollouts, strict=True)]
    ends = np.cumsum([0, *lengths])
    batch = Batch(
        token_ids=np.zeros(ends[-1], dtype=np.int64),
        positions=np.zeros(ends[-1], dtype=np.int64),
        sequence_ids=np.repeat(np.arange(len(rollouts), dtype=np.int64), lengths),
        generator_logprobs=np.zeros(ends[-1], dtype=np.float32),
        advantages=np.zeros(ends[-1], dtype=np.float32),
        weights=np.zeros(ends[-1], dtype=np.float32),
        loss_mask=np.zeros(ends[-1], dtype=np.bool_),
        policy_version=policy_version,
        info=info,
    )
    for i, (rollout, mask) in enumerate(zip(rollouts, trained, strict=True)):
        prompt, completion = slice(ends[i], ends[i] + starts[i]), slice(ends[i] + starts[i], ends[i + 1])
        batch.token_ids[prompt] = rollout.prompt.token_ids
        batch.token_ids[completion] = rollout.token_ids
        batch.positions[ends[i] : ends[i + 1]] = np.arange(lengths[i])
        batch.loss_mask[completion] = mask
        # What was not sampled has no log-probability: 0 is a filler that weight 0 keeps out of every ratio.
        batch.generator_logprobs[completion] = np.where(mask, rollout.generator_logprobs, 0)
        batch.advantages[completion] = np.where(mask, advantages[i], 0)
        batch.weights[completion] = np.where(mask, weights[i], 0)
    return batch


def prediction_sites(loss_mask: BoolArray, sequence_ids: IntArray) -> tuple[IntArray, IntArray]:
    """The shift by one: (sites, targets), so that the hidden state at sites[j] predicts the token at targets[j].

    Raises:
        ValueError: the first token of a sequence is masked in; nothing of its own sequence predicts it.
    """
    targets = np.flatnonzero(loss_mask)
    sites = targets - 1
    if targets.size and (sites[0] < 0 or (sequence_ids[sites] != sequence_ids[targets]).any()):
        raise ValueError("the first token of a sequence cannot be a target")
    return sites, targets


def batch_info(
    groups: Sequence[Group], rollouts: Sequence[Rollout], scores: Floats, policy_version: int
) -> dict[str, float]:
    """Metrics of all rollouts of a step, before any is left out; NaN where there is nothing to count."""
    judged = ~np.isnan(scores)
    staleness = np.array([policy_version - r.oldest_version for r in rollouts if len(r.token_ids)], dtype=np.float64)
    versions = [len(np.unique(r.policy_versions)) for r in rollouts if len(r.token_ids)]
    return {
        "groups": float(len(groups)),
        "rollouts": float(len(rollouts)),
        "unverified": float((~judged).sum()),
        "pass_rate": _mean(is_correct(scores[judged])),
        "score": _mean(scores[judged]),
        "truncated_share": _mean([r.truncated for r in rollouts]),
        "interrupted_share": _mean([r.interrupted for r in rollouts]),
        "sampled_tokens": float(sum(int(r.loss_mask.sum()) for r in rollouts)),
        "inserted_tokens": float(sum(int((~r.loss_mask).sum()) for r in rollouts)),
        "completion_length": _mean([len(r.token_ids) for r in rollouts]),
        "staleness_mean": _mean(staleness),
        "staleness_max": float(staleness.max()) if staleness.size else float("nan"),
        "versions_per_rollout": _mean(versions),
    }


def _mean(values: Sequence[float] | Floats | Bools) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
