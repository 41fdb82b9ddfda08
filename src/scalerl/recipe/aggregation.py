"""How much each token counts in the loss (PAPER section 4, item 4, and the axis "aggregation")."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from scalerl.recipe.grouping import Floats, Grouping

Aggregation = Literal["prompt", "sample", "token"]


def token_weights(lengths: ArrayLike, group_ids: ArrayLike, aggregation: Aggregation) -> Floats:
    """Weight of every single trained token of each rollout; over all tokens of the batch they sum to 1.

    Prompts and rollouts without a trained token are in no denominator. Zero-variance prompts are in it exactly if they
    are given: leave them out to filter them.

    Args:
        lengths: (r,) trained tokens of each rollout: sampled ones only, without inserted or masked ones.
        group_ids: (r,) the draw each rollout belongs to.
        aggregation: prompt: each prompt counts the same, and within it each token. sample: each rollout counts the
            same, and within it each token (GRPO). token: each token of the batch counts the same.

    Returns:
        (r,) float64; 0 for a rollout without trained tokens. All 0 if there is no token at all.
    """
    length = np.asarray(lengths, dtype=np.float64)
    if (length < 0).any():
        raise ValueError("lengths are counts of tokens, none can be negative")
    groups = Grouping.of(group_ids)
    group_tokens = groups.total(length)
    if aggregation == "prompt":
        denominator = np.count_nonzero(group_tokens) * group_tokens[groups.index]
    elif aggregation == "sample":
        denominator = np.count_nonzero(length) * length
    else:
        denominator = np.full_like(length, length.sum())
    return np.divide(1.0, denominator, out=np.zeros_like(length), where=length > 0)
