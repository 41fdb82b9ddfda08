"""Rollouts and groups made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalerl.recipe import Recipe
from scalerl.types import Group, Prompt, Rollout

QUESTION = Prompt((1, 2, 3), "1 + 1?", "sums", 2)


def rollout(
    mask: str = "xxxx",
    prompt: Prompt = QUESTION,
    logprob: float = -0.5,
    versions: Sequence[int] | None = None,
    finish: str = "stop",
    interrupted: bool = False,
    first_token: int = 10,
) -> Rollout:
    """A rollout with a sampled token for each x and an inserted one for each dot."""
    sampled = np.array([letter == "x" for letter in mask], dtype=bool)
    return Rollout(
        prompt=prompt,
        group_id=0,
        token_ids=np.arange(first_token, first_token + len(mask)),
        generator_logprobs=np.where(sampled, logprob, 0.0).astype(np.float32),
        loss_mask=sampled,
        policy_versions=np.array(versions if versions is not None else [5] * len(mask)),
        finish_reason=finish,
        interrupted=interrupted,
    )


def group(rewards: Sequence[float], rollouts: Sequence[Rollout] | None = None, group_id: int = 0) -> Group:
    rollouts = [rollout() for _ in rewards] if rollouts is None else rollouts
    return Group(group_id, tuple(rollouts), np.array(rewards, dtype=np.float32))


def plain(**changes: object) -> Recipe:
    """ScaleRL without normalisation, so that advantages can be read off."""
    return Recipe(advantage_normalization="none").with_(**changes)
