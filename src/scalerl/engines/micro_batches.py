"""Split one `Batch` into padded micro-batches that waste little.

Sequences are sorted by length and filled into rows of nearly equal length. Padding stands on the right, where causal
attention never looks at it, so no mask is needed and the fast kernels stay usable. Since the batch's weights sum to 1
before the split, any split has the same gradient (TRAPS 9-11).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalerl.types import Batch

_FIXED_COST = 256
"""What a micro-batch costs beside its inputs, in inputs: small kernels' calls, and a pass over all parameters."""


@dataclass(frozen=True)
class MicroBatch:
    """Some sequences of a batch.

    Attributes:
        token_ids: (rows, width) inputs, padded on the right with 0. lengths: (rows,) inputs without padding.
        sites: (n,) flat index into rows x width of the state that predicts each target.
        targets: (n,) token ids trained on. batch_index: (n,) where each stands in the batch.
        generator_logprobs, advantages, weights: (n,) fp32. sequence_ids: (n,).
        tokens: inputs without padding.
    """

    token_ids: Tensor
    lengths: Tensor
    sites: Tensor
    targets: Tensor
    batch_index: NDArray[np.int64]
    generator_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    sequence_ids: Tensor
    tokens: int

    @property
    def padded(self) -> int:
        """Inputs computed, padding included."""
        return self.token_ids.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """The same with its tensors on a device."""
        if self.token_ids.device == device:
            return self
        moved: dict[str, Any] = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def split(batch: Batch, token_budget: int, rank: int = 0, ranks: int = 1) -> Iterator[MicroBatch]:
    """Micro-batches of at most `token_budget` inputs, padding included; one sequence alone may exceed it.

    What predicts nothing that is trained is left out: all after the last target of a sequence, and sequences without
    one.

    Args:
        rank, ranks: only this rank's share of the sequences; the shares have nearly as many inputs each.
    """
    starts, last = _extents(batch)
    lengths = last - starts  # the last target itself is not an input
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    if ranks > 1:
        order = order[_owners(lengths[order], ranks) == rank]
    begin = 0
    for end in _cuts(lengths[order], token_budget):
        chosen = order[begin:end]
        yield _gather(batch, starts[chosen], lengths[chosen])
        begin = end


def empty() -> MicroBatch:
    """One input and no target: a rank computes it, to no effect, while others still have sequences (TRAPS 11)."""
    ids, floats = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    one = torch.ones(1, dtype=torch.int64)
    return MicroBatch(one[None] * 0, one, ids, ids, np.zeros(0, np.int64), floats, floats, floats, ids, tokens=0)


def _owners(lengths: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Which rank takes which of these ascending lengths: from the longest on, whoever has the fewest inputs so far."""
    owners = np.zeros(len(lengths), np.int64)
    load = [(0, rank) for rank in range(ranks)]
    for i in range(len(lengths) - 1, -1, -1):
        inputs, owners[i] = load[0]
        heapq.heapreplace(load, (inputs + int(lengths[i]), int(owners[i])))
    return owners


def _extents(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index of the first token and of the last target of each sequence; both the same where there is no target."""
    n = len(batch.token_ids)
    if n == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = np.flatnonzero(np.r_[True, np.diff(batch.sequence_ids) != 0])
    if batch.positions[starts].any() or batch.loss_mask[starts].any():
        raise ValueError("a sequence starts at position 0, and nothing predicts its first token: it is no target")
    place = np.where(batch.loss_mask, np.arange(n), 0)
    last = np.maximum(np.maximum.reduceat(place, starts), starts)
    return starts, last


def _cuts(lengths: NDArray[np.int64], token_budget: int) -> list[int]:
    """Ends of the micro-batches of ascending lengths that cost least: padded inputs, and `_FIXED_COST` each."""
    n = len(lengths)
    cost = np.zeros(n + 1)  # of the first i sequences
    before = np.zeros(n + 1, dtype=np.int64)  # where the last micro-batch of the first i sequences begins
    for end in range(1, n + 1):
        width = int(lengths[end - 1])
        begin = np.arange(max(0, end - max(1, token_budget // width)), end)
        total = cost[begin] + (end - begin) * width + _FIXED_COST
        best = int(total.argmin())
        cost[end], before[end] = total[best], begin[best]
    cuts, end = [], n
    while end > 0:
        cuts.append(end)
        end = int(before[end])
    return cuts[::-1]


def _gather(batch: Batch, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> MicroBatch:
    width = int(lengths[-1])
    column = np.arange(width)
    index = starts[:, None] + column
    inside = column < lengths[:, None]
    token_ids = np.where(inside, batch.token_ids[np.minimum(index, len(batch.token_ids) - 1)], 0)
    predicts = inside & batch.loss_mask[np.minimum(index + 1, len(batch.token_ids) - 1)]
    sites = np.flatnonzero(predicts)
    at = index.reshape(-1)[sites] + 1
    return MicroBatch(
        token_ids=torch.from_numpy(token_ids),
        lengths=torch.from_numpy(lengths),
        sites=torch.from_numpy(sites),
        targets=torch.from_numpy(batch.token_ids[at]),
        batch_index=at,
        generator_logprobs=torch.from_numpy(batch.generator_logprobs[at]),
        advantages=torch.from_numpy(batch.advantages[at]),
        weights=torch.from_numpy(batch.weights[at]),
        sequence_ids=torch.from_numpy(batch.sequence_ids[at]),
        tokens=int(lengths.sum()),
    )
