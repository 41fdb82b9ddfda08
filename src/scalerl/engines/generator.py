"""Continuous batching over a Hugging Face causal LM with in-flight weight updates (PipelineRL).

One loop, one token a step for every running rollout. Between two steps finished slots are refilled and new weights
may be taken over; running rollouts then go on with the KV cache they have. A slot refilled after an update starts
from an empty cache, so no new rollout ever sees keys of older weights. Each token knows the policy version that
computed it and its log-probability from the very logits that sampled it.

Left out on purpose: paged memory, prefix sharing, speculative decoding. vLLM has them; this engine is the reference
that is exact, small and runs anywhere.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from scalerl.engines.head import head_logits
from scalerl.engines.length_control import LengthControl, LengthLimits
from scalerl.engines.model import body, head_weight, named_tensors
from scalerl.engines.sampling import sample
from scalerl.engines.slot_cache import SlotCache
from scalerl.errors import InputError
from scalerl.protocols import WeightSource
from scalerl.types import Prompt, Rollout

_REACH_STEP = 16
"""Attention looks at keys up to the longest row, rounded up to this: fewer different shapes."""
_ALL_ROWS_SHARE = 0.75
"""With at least this share of slots running, all are computed: a view of the cache is cheaper than a copy."""


@dataclass(frozen=True)
class GeneratorSettings:
    """How rollouts are made.

    Attributes:
        slots: rollouts that run at once. prompt_tokens: the longest prompt accepted.
        limits: budgets and interruption. temperature: of sampling, and of the log-probabilities reported.
        fp32_head: whether the head's matmul runs in FP32, as the recipe wants. seed: of all sampling.
    """

    slots: int
    prompt_tokens: int
    limits: LengthLimits
    temperature: float = 1.0
    fp32_head: bool = True
    seed: int = 0


class TorchGenerator:
    """The reference generator; see `scalerl.protocols.Generator`."""

    def __init__(self, model: PreTrainedModel, settings: GeneratorSettings, version: int = 0) -> None:
        self.model, self.settings, self.version = model, settings, version
        self.model.train(False)
        length = settings.prompt_tokens + settings.limits.most
        dtype = next(model.parameters()).dtype
        self._body, self._weights = body(model), named_tensors(model)
        self._cache_name = "cache" if "cache" in inspect.signature(self._body.forward).parameters else "past_key_values"
        self._cache = SlotCache(model.config, settings.slots, length, dtype)
        self._control = LengthControl(settings.limits, settings.slots)
        self._rng = torch.Generator().manual_seed(settings.seed)
        self._queue: deque[tuple[int, Prompt]] = deque()
        self._finished: list[Rollout] = []
        self._pending: tuple[int, WeightSource] | None = None
        self._running: list[tuple[int, Prompt] | None] = [None] * settings.slots
        self._active = torch.zeros(settings.slots, dtype=torch.bool)
        self._next_input = torch.zeros(settings.slots, dtype=torch.long)
        self._position = torch.zeros(settings.slots, dtype=torch.long)
        self._count = torch.zeros(settings.slots, dtype=torch.long)
        shape = (settings.slots, settings.limits.most)
        self._tokens, self._versions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        self._logprobs, self._mask = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
        self._window = int(getattr(model.config, "sliding_window", None) or 0)
        self._layer_types = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        self.tokens_generated = self.tokens_prefilled = self.decode_steps = 0

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """Queue one rollout for each (group_id, prompt).

        Raises:
            InputError: a prompt is empty or longer than `prompt_tokens`.
        """
        for group_id, prompt in prompts:
            if not 0 < len(prompt.token_ids) <= self.settings.prompt_tokens:
                raise InputError(
                    f"prompt {prompt.prompt_id} of task {prompt.task} has {len(prompt.token_ids)} tokens; "
                    f"the generator takes 1 to {self.settings.prompt_tokens}: raise prompt_tokens or filter the task"
                )
            self._queue.append((group_id, prompt))

    def poll(self) -> list[Rollout]:
        """Rollouts that have finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def update_weights(self, version: int, source: WeightSource) -> None:
        """Take these weights before the next decode step; of several waiting updates the newest counts."""
        self._pending = (version, source)

    def state(self) -> Mapping[str, Any]:
        """Counters for the ledger and for balancing."""
        return {
            "version": self.version,
            "running": int(self._active.sum()),
            "queued": len(self._queue),
            "tokens_generated": self.tokens_generated,
            "tokens_prefilled": self.tokens_prefilled,
            "decode_steps": self.decode_steps,
        }

    def reseed(self, seed: int) -> None:
        """Start the sampling anew: a resumed lockstep run then draws what an uninterrupted one would."""
        self._rng.manual_seed(seed)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._queue and not bool(self._active.any())

    @torch.inference_mode()
    def step(self) -> None:
        """Take over waiting weights, refill free slots, and decode one token of every running rollout."""
        self._take_over_weights()
        self._refill()
        rows = torch.nonzero(self._active)[:, 0]
        if rows.numel() == 0:
            return
        everything = rows.numel() >= _ALL_ROWS_SHARE * self.settings.slots
        hidden = self._decode(None if everything else rows)
        temperature = self.settings.temperature
        hidden = hidden[rows] if everything else hidden
        logits = head_logits(hidden, head_weight(self.model), temperature or 1.0, self.settings.fp32_head)
        sampled, logprobs = sample(logits, self._rng, greedy=temperature == 0)
        self._record(rows, sampled, logprobs)

    def _take_over_weights(self) -> None:
        if self._pending is None:
            return
        version, source = self._pending
        self._pending = None
        for name, tensor in source:
            weight = self._weights[name]
            if tensor.dtype == weight.dtype and tensor.is_shared():
                weight.data = tensor  # a view of the published buffer: nothing is copied
            else:
                weight.data.copy_(tensor)
        self.version = version

    def _refill(self) -> None:
        free = torch.nonzero(~self._active)[:, 0][: len(self._queue)]
        if free.numel() == 0:
            return
        taken = [self._queue.popleft() for _ in range(free.numel())]
        lengths = torch.tensor([len(prompt.token_ids) for _, prompt in taken])
        for slot, item in zip(free.tolist(), taken, strict=True):
            self._running[slot] = item
        self._active[free] = True
        self._position[free] = lengths - 1
        self._next_input[free] = torch.tensor([prompt.token_ids[-1] for _, prompt in taken])
        self._count[free] = 0
        self._control.start(free, self._rng)
        self._prefill(free, taken, lengths - 1)

    def _prefill(self, slots: torch.Tensor, taken: list[tuple[int, Prompt]], lengths: torch.Tensor) -> None:
        """Fill the cache with all but the last token of each prompt: that one is the first decode step's input."""
        longest = int(lengths.max())
        if longest == 0:
            return
        tokens = torch.zeros(len(taken), longest, dtype=torch.long)
        for i, (_, prompt) in enumerate(taken):
            tokens[i, : len(prompt.token_ids) - 1] = torch.tensor(prompt.token_ids[:-1], dtype=torch.long)
        # Padding lies right of the prompt: what it writes is overwritten or masked before anybody looks at it.
        position = torch.arange(longest).expand(len(taken), longest)
        self._forward(tokens, slots, position, longest)
        self.tokens_prefilled += int(lengths.sum())

    def _decode(self, rows: torch.Tensor | None) -> torch.Tensor:
        """(b, hidden) last hidden state of the rows after their next input."""
        position = self._position if rows is None else self._position[rows]
        tokens = self._next_input if rows is None else self._next_input[rows]
        reach = int(self._position[self._active].max()) + 1
        reach = min(-(-reach // _REACH_STEP) * _REACH_STEP, self._cache.key_store.shape[3])
        # A free slot computes too when all rows do; it writes at its stale position, which a refill overwrites.
        return self._forward(tokens[:, None], rows, position.clamp(max=reach - 1)[:, None], reach)[:, 0]

    def _forward(
        self, tokens: torch.Tensor, rows: torch.Tensor | None, position: torch.Tensor, reach: int
    ) -> torch.Tensor:
        self._cache.place(rows, position, reach)
        key = torch.arange(reach)
        mask = (key <= position[:, :, None])[:, None]
        masks: Any = mask
        if self._layer_types != {"full_attention"}:
            near = mask & (key > position[:, :, None] - self._window)[:, None]
            masks = {"full_attention": mask, "sliding_attention": near}
        arguments = {self._cache_name: self._cache, "use_cache": True}
        out = self._body(input_ids=tokens, attention_mask=masks, position_ids=position, **arguments)
        hidden: torch.Tensor = out.last_hidden_state
        return hidden

    def _record(self, rows: torch.Tensor, sampled: torch.Tensor, logprobs: torch.Tensor) -> None:
        token, from_policy, stopped, ran_out = self._control.advance(rows, sampled)
        at = (rows, self._count[rows])
        self._tokens[at], self._versions[at] = token, self.version
        self._logprobs[at], self._mask[at] = torch.where(from_policy, logprobs, 0.0), from_policy
        self._count[rows] += 1
        self._position[rows] += 1
        self._next_input[rows] = token
        self.tokens_generated += int(from_policy.sum())
        self.decode_steps += 1
        done = stopped | ran_out
        for slot, by_end in zip(rows[done].tolist(), stopped[done].tolist(), strict=True):
            self._finish(slot, by_end)

    def _finish(self, slot: int, by_end: bool) -> None:
        running = self._running[slot]
        assert running is not None  # only active slots finish
        group_id, prompt = running
        n = int(self._count[slot])

        def cut(store: torch.Tensor) -> np.ndarray[Any, Any]:
            return store[slot, :n].numpy().copy()

        self._finished.append(
            Rollout(
                prompt, group_id, cut(self._tokens), cut(self._logprobs), cut(self._mask), cut(self._versions),
                "stop" if by_end else "length", bool(self._control.interrupted[slot]),
            )
        )  # fmt: skip
        self._running[slot] = None
        self._active[slot] = False
        self._position[slot] = 0
