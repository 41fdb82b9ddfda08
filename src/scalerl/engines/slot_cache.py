"""A KV cache of fixed slots for continuous batching over any Hugging Face causal LM.

Each running rollout owns a slot of every layer for its whole life. One forward serves rows at different positions:
the cache writes each row's keys and values where that row stands and hands back the slots it needs, up to the
longest row. Attention is kept honest by a mask (row, query, key) that the generator passes to the model.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, PretrainedConfig


class SlotCache(Cache):
    """Keys and values of `slots` sequences of at most `length` tokens.

    Before each forward call `place` to say which slots its rows are and where their tokens go.
    """

    def __init__(self, config: PretrainedConfig, slots: int, length: int, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, heads, length, dim)
        self.key_store, self.value_store = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self._rows: torch.Tensor | None = None
        self._position = torch.zeros(0, 0, dtype=torch.long)
        self._reach = 0

    @property
    def slots(self) -> int:
        return self.key_store.shape[1]

    def place(self, rows: torch.Tensor | None, position: torch.Tensor, reach: int) -> None:
        """Prepare a forward.

        Args:
            rows: (b,) slots of the batch's rows, or None for all slots in order.
            position: (b, t) where each token stands in its sequence.
            reach: keys up to here are handed to attention.
        """
        self._rows, self._position, self._reach = rows, position, reach

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (b, heads, t, dim) at the placed rows and positions; return (b, heads, reach, dim)."""
        keys, values = self.key_store[layer_idx], self.value_store[layer_idx]
        rows = torch.arange(keys.shape[0]) if self._rows is None else self._rows
        at = (rows[:, None], slice(None), self._position)
        keys[at] = key_states.transpose(1, 2).to(keys.dtype)
        values[at] = value_states.transpose(1, 2).to(values.dtype)
        if self._rows is None:
            return keys[:, :, : self._reach], values[:, :, : self._reach]
        return keys[rows, :, : self._reach], values[rows, :, : self._reach]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions are given explicitly, no model may derive them from the cache."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """(length, offset) of the keys, for models that ask although a finished mask is passed."""
        return self._reach, 0
