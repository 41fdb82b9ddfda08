"""Zero-variance filtering: prompts whose rollouts all score the same teach nothing (PAPER section 4, item 7).

Dropped prompts are not replaced: the batch becomes smaller, unlike under DAPO's dynamic sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scalerl.recipe.grouping import Bools, Grouping


@dataclass(frozen=True)
class VarianceCounts:
    """Prompts of a batch by what their rollouts say.

    Attributes:
        prompts: all of them. all_correct, all_wrong: every rollout right, or none at full marks and all alike.
    """

    prompts: int
    all_correct: int
    all_wrong: int

    @property
    def zero_variance(self) -> int:
        return self.all_correct + self.all_wrong


def zero_variance(rewards: ArrayLike, group_ids: ArrayLike) -> Bools:
    """(r,) True for each rollout whose group scores all the same; a group of one always does."""
    groups = Grouping.of(group_ids)
    return groups.constant(np.asarray(rewards, dtype=np.float64))[groups.index]


def variance_counts(rewards: ArrayLike, group_ids: ArrayLike, correct: ArrayLike) -> VarianceCounts:
    """Count the zero-variance prompts by the side on which they fail to vary; `correct` is (r,) of full marks."""
    groups = Grouping.of(group_ids)
    constant = groups.constant(np.asarray(rewards, dtype=np.float64))
    right = groups.mean(correct) > 0.5
    return VarianceCounts(groups.count, int((constant & right).sum()), int((constant & ~right).sum()))
