"""From rewards to advantages: A_i = r_i - mean of its group, on a common scale (PAPER section 4, item 5)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from scalerl.recipe.grouping import Floats, Grouping

AdvantageNormalization = Literal["batch", "prompt", "none"]


def group_advantages(rewards: ArrayLike, group_ids: ArrayLike, normalization: AdvantageNormalization) -> Floats:
    """Advantage of each rollout.

    Standard deviations are over all given advantages, with their number as the denominator. Filter zero-variance
    prompts out before: their zeros would shrink the batch's standard deviation. A group whose rewards are all the same
    has advantages of exactly 0, and so has a group of one; a batch with nothing else stays 0 instead of dividing by 0.

    Args:
        rewards: (r,) finite. group_ids: (r,) the draw each rollout belongs to; a prompt drawn twice has two.
        normalization: batch: divided by the std of all A_i of the batch. prompt: by the std of the own group (GRPO).
            none: as they are (Dr. GRPO).

    Returns:
        (r,) float64.
    """
    reward = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(reward).all():
        raise ValueError("rewards hold NaN or infinity: leave rollouts that could not be verified out")
    groups = Grouping.of(group_ids)
    constant = groups.constant(reward)[groups.index]
    advantage = np.where(constant, 0.0, reward - groups.mean(reward)[groups.index])
    if normalization == "none" or constant.all():
        return advantage
    if normalization == "batch":
        scale = np.full_like(advantage, np.sqrt(np.mean(advantage**2)))  # the mean is 0 by construction
    else:
        scale = np.sqrt(groups.mean(advantage**2))[groups.index]
    return np.divide(advantage, scale, out=np.zeros_like(advantage), where=scale > 0)
