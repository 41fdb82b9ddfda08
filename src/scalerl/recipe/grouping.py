"""Sums, means and spreads over the rollouts of each group. One entry a rollout in, one entry a group inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SAME_REWARD = 1e-6  # rewards closer than this are equal: float32 noise must not become an advantage


@dataclass(frozen=True)
class Grouping:
    """Which group each of r rollouts belongs to.

    Attributes:
        index: (r,) number of the group, 0 to `count` - 1. count: groups.
    """

    index: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, group_ids: ArrayLike) -> Grouping:
        """From any integer ids, in any order."""
        ids, index = np.unique(np.asarray(group_ids, dtype=np.int64), return_inverse=True)
        return cls(index.reshape(-1).astype(np.int64), len(ids))

    def total(self, values: ArrayLike) -> Floats:
        """(count,) sum of each group."""
        total = np.zeros(self.count)
        np.add.at(total, self.index, np.asarray(values, dtype=np.float64))
        return total

    def mean(self, values: ArrayLike) -> Floats:
        """(count,) mean of each group."""
        return self.total(values) / np.bincount(self.index, minlength=self.count)

    def constant(self, values: Floats) -> Bools:
        """(count,) True where all values of the group are the same."""
        high = np.full(self.count, -np.inf)
        low = np.full(self.count, np.inf)
        np.maximum.at(high, self.index, values)
        np.minimum.at(low, self.index, values)
        return np.asarray(high - low <= SAME_REWARD, dtype=np.bool_)
