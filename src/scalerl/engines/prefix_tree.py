"""Positions of a padded batch that hold the same state: rows that begin alike share what they begin with.

In a causal model the state at a position depends on the tokens up to it alone. The rollouts of a group have one prompt,
and often the same first words; each state is computed once, and its gradient is the sum over all rows that use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class PrefixTree:
    """Of a (rows, width) batch with u different prefixes, its nodes.

    Attributes:
        tokens, positions: (u,) last token of each prefix, and where it stands.
        node: (rows, width) node of each position; 0 at padding.
        paths: (p, width) nodes of the rows that are no beginning of another, for attention; 0 at padding.
        place: (u,) flat index into `paths` of one position that holds each node.
    """

    tokens: Tensor
    positions: Tensor
    node: Tensor
    paths: Tensor
    place: Tensor


def prefix_tree(token_ids: Tensor, lengths: Tensor | None = None) -> PrefixTree:
    """The tree of a batch.

    Args:
        token_ids: (rows, width), padded on the right. lengths: (rows,) >= 1 without padding; None: there is none.
    """
    rows, width = token_ids.shape
    column = np.arange(width)
    length = np.full(rows, width) if lengths is None else lengths.numpy()
    inside = column < length[:, None]
    ids = np.where(inside, token_ids.numpy(), -1)  # smaller than any token: a beginning sorts before its continuations
    order = np.lexsort(ids.T[::-1])
    ids, inside = ids[order], inside[order]
    differs = np.ones((rows, width), np.bool_)
    differs[1:] = np.logical_or.accumulate(ids[1:] != ids[:-1], axis=1)
    new = differs & inside
    number = np.cumsum(new).reshape(rows, width) - 1
    # Equal beginnings lie one below the other: each position belongs to the row above it that began its prefix.
    owner = np.maximum.accumulate(np.where(differs, np.arange(rows)[:, None], 0), axis=0)
    node = np.where(inside, number[owner, column], 0)
    is_path = np.ones(rows, np.bool_)
    is_path[:-1] = differs[1:][np.arange(rows - 1), length[order][:-1] - 1]
    paths = node[is_path]
    place = np.zeros(int(number[-1, -1]) + 1, np.int64)
    flat = np.flatnonzero(inside[is_path])
    place[paths.reshape(-1)[flat]] = flat
    at = np.flatnonzero(new)
    unsorted = np.empty_like(node)
    unsorted[order] = node
    return PrefixTree(
        *map(torch.from_numpy, (ids.reshape(-1)[at].astype(np.int64), at % width, unsorted, paths, place))
    )
