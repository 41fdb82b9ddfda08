"""A KV cache of fixed slots for continuous batching over any Hugging Face causal LM.

Each running rollout owns a slot of every layer. One forward serves rows at different positions: each row's keys and
values are written where that row stands, and attention gets the slots as they lie, up to the longest row. It is kept
honest by a mask (row, query, key) that the generator passes to the model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, PretrainedConfig


class SlotCache(Cache):
    """Keys and values of `slots` sequences of at most `length` tokens.

    One column more, `length`, is never read: slots that run along without a rollout write there.
    Before each forward of a Hugging Face model call `place` to say where its tokens go.
    """

    def __init__(self, config: PretrainedConfig, slots: int, length: int, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, heads, length + 1, dim)
        self.key_store, self.value_store = _zeros(shape, dtype), _zeros(shape, dtype)
        # The same memory as rows of one head's vector, and as one matrix for each slot and head.
        layers = list(zip(self.key_store, self.value_store, strict=True))
        self._vectors = [(keys.view(-1, dim), values.view(-1, dim)) for keys, values in layers]
        self._matrices = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in layers]
        self.slots, self.heads, self.length = slots, heads, length
        self._bases = torch.arange(slots * heads).view(slots, heads) * (length + 1)
        self._rows: Tensor | None = None
        self._position = torch.zeros(0, 0, dtype=torch.long)
        self._reach = 0

    def copy(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` columns of slots to other slots, all read before any is written."""
        for store in (self.key_store, self.value_store):
            store[:, targets, :, :length] = store[:, sources, :, :length]

    def clear(self, slots: Tensor) -> None:
        """Set whole slots to 0."""
        for store in (self.key_store, self.value_store):
            store[:, slots] = 0.0

    def places(self, n: int, at: Tensor) -> Tensor:
        """Where `write` puts one token of each of the first n slots, whose columns are (n,) `at`."""
        return (self._bases[:n] + at[:, None]).view(-1)

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write (n, heads, dim), one token of each of the first n slots."""
        key_vectors, value_vectors = self._vectors[layer]
        key_vectors.index_copy_(0, places, keys.reshape(-1, keys.shape[-1]))
        value_vectors.index_copy_(0, places, values.reshape(-1, values.shape[-1]))

    def fill(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write (r, heads, t, dim) at the beginning of r slots."""
        width = keys.shape[2]
        self.key_store[layer][slots, :, :width] = keys
        self.value_store[layer][slots, :, :width] = values

    def view(self, layer: int, n: int, reach: int) -> tuple[Tensor, Tensor]:
        """(n * heads, reach, dim) keys and values of the first n slots; nothing is copied."""
        keys, values = self._matrices[layer]
        return keys[: n * self.heads, :reach], values[: n * self.heads, :reach]

    def place(self, rows: Tensor | None, position: Tensor, reach: int) -> None:
        """Prepare a forward of a Hugging Face model.

        Args:
            rows: (b,) slots of the batch's rows, or None for the first slots in order.
            position: (b, t) columns that its tokens are written to.
            reach: keys up to here are handed to attention.
        """
        self._rows, self._position, self._reach = rows, position, reach

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (b, heads, t, dim) at the placed rows and positions; return (b, heads, reach, dim)."""
        keys, values = self.key_store[layer_idx], self.value_store[layer_idx]
        n = key_states.shape[0]
        rows = torch.arange(n) if self._rows is None else self._rows
        at = (rows[:, None], slice(None), self._position)
        keys[at] = key_states.transpose(1, 2).to(keys.dtype)
        values[at] = value_states.transpose(1, 2).to(values.dtype)
        if self._rows is None:
            return keys[:n, :, : self._reach], values[:n, :, : self._reach]
        return keys[rows, :, : self._reach], values[rows, :, : self._reach]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions are given explicitly, no model may derive them from the cache."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """(length, offset) of the keys, for models that ask although a finished mask is passed."""
        return self._reach, 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory from numpy, which asks the kernel for huge pages: attention then misses fewer address translations."""
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
