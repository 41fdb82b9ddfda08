"""Continuous batching over a Hugging Face causal LM with in-flight weight updates (PipelineRL).

One loop, one token a step for every running rollout. Between two steps finished slots are refilled and new weights
may be taken over; running rollouts then go on with the KV cache they have. A slot refilled after an update starts
from an empty cache, so no new rollout ever sees keys of older weights. Each token knows the policy version that
computed it and its log-probability from the very logits that sampled it.

Rollouts of one group have the same prompt: while the weights stay, its keys are computed once and copied.

Left out on purpose: paged memory, sharing of partial prefixes, speculative decoding. vLLM has them; this engine is the
reference that is exact, small and runs anywhere.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from scalerl.engines.fused_decode import fused_decoder
from scalerl.engines.head import head_logits
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import body, head_weight, named_tensors
from scalerl.engines.prompt_keys import FilledPrompts
from scalerl.engines.sampling import sample
from scalerl.engines.slot_cache import SlotCache
from scalerl.engines.slots import Slots
from scalerl.errors import InputError
from scalerl.protocols import WeightSource
from scalerl.types import IntArray, Prompt, Rollout

_REACH_STEP = 8
"""Attention looks at keys up to the longest row, rounded up to this: fewer different shapes."""
_RUNNING_SHARE = 0.75
"""All slots up to the last that runs are computed. When fewer than this share of them run, rollouts move together."""


_SHELF = 8
"""Prompts filled ahead of their turn: one forward over eight costs little more than over one."""
_LOOK_AHEAD = 256


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
        self._body, self._weights = body(model), named_tensors(model)
        self._cache_name = "cache" if "cache" in inspect.signature(self._body.forward).parameters else "past_key_values"
        self._fused = fused_decoder(model, length)
        dtype = next(model.parameters()).dtype if self._fused is None else self._fused.dtype
        self._cache = SlotCache(model.config, settings.slots + _SHELF, length, dtype)
        self._slots = Slots(settings.limits, settings.slots)
        self._rng = torch.Generator().manual_seed(settings.seed)
        self._queue: deque[tuple[int, Prompt]] = deque()
        self._finished: list[Rollout] = []
        self._pending: tuple[int, WeightSource] | None = None
        self._filled = FilledPrompts(range(settings.slots, settings.slots + _SHELF))
        self._window = int(getattr(model.config, "sliding_window", None) or 0)
        self._layer_types = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        self._poisoned = False
        self._head = self._cast_head()
        self.tokens_generated = self.tokens_prefilled = self.decode_steps = self.updates = 0
        self.update_pause = 0.0

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
            "running": int(self._slots.active.sum()),
            "queued": len(self._queue),
            "tokens_generated": self.tokens_generated,
            "tokens_prefilled": self.tokens_prefilled,
            "decode_steps": self.decode_steps,
            "updates": self.updates,
            "seconds_update_pause": self.update_pause,
        }

    def reseed(self, seed: int) -> None:
        """Start the sampling anew: a resumed lockstep run then draws what an uninterrupted one would."""
        self._rng.manual_seed(seed)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._queue and not self._slots.active.any()

    @torch.inference_mode()
    def step(self) -> None:
        """Take over waiting weights, refill free slots, and decode one token of every running rollout."""
        self._take_over_weights()
        self._refill()
        rows = self._move_together()
        if rows.size == 0:
            return
        hidden = self._decode(int(rows[-1]) + 1)
        if rows.size < len(hidden):
            hidden = hidden[torch.from_numpy(rows)]
        sampled, logprobs = self._sample(rows, hidden)
        generated, ended = self._slots.record(rows, sampled.numpy(), logprobs.numpy(), self.version)
        self._poisoned |= not np.isfinite(logprobs.numpy()).all()
        self._finished += ended
        self.tokens_generated += generated
        self.decode_steps += 1

    def _sample(self, rows: IntArray, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(b,) tokens and (b,) log-probabilities of the slots `rows`, whose (b, d) last states these are."""
        temperature = self.settings.temperature
        logits = head_logits(hidden, self._head, temperature or 1.0, self.settings.fp32_head)
        return sample(logits, self._rng, greedy=temperature == 0)

    @torch.inference_mode()
    def _cast_head(self) -> torch.Tensor:
        """The head as it is multiplied: cast once per update, for a large vocabulary's cast costs as much as a step."""
        weight = head_weight(self.model)
        return weight.to(torch.promote_types(weight.dtype, torch.float32)) if self.settings.fp32_head else weight

    def _take_over_weights(self) -> None:
        if self._pending is None:
            return
        started, (version, source) = time.perf_counter(), self._pending
        self._pending = None
        for name, tensor in source:
            weight = self._weights[name]
            if tensor.dtype == weight.dtype and tensor.is_shared():
                weight.data = tensor  # a view of the published buffer: nothing is copied
            else:
                weight.data.copy_(tensor)
        self.version = version
        self._filled.forget_all()  # new rollouts must not see keys of older weights
        self._head = self._cast_head()
        if self._fused is not None:
            self._fused.refold()
        self.updates += 1
        self.update_pause += time.perf_counter() - started

    def _refill(self) -> None:
        free = np.flatnonzero(~self._slots.active)[: len(self._queue)]
        if free.size == 0:
            return
        if self._poisoned:
            self._clean()
        taken = [self._queue.popleft() for _ in range(free.size)]
        self._slots.start(free, taken, self._rng)
        coming = (prompt.token_ids for _, prompt in itertools.islice(self._queue, _LOOK_AHEAD))
        prompts = [prompt.token_ids for _, prompt in taken]
        new, copied = self._filled.assign(free.tolist(), prompts, coming)
        if new:
            self._prefill(list(new.values()), list(new))
        if copied:
            sources, targets = torch.tensor(copied).T
            self._cache.copy(sources, targets, max(map(len, prompts)) - 1)

    def _clean(self) -> None:
        """Forget what lies in all free slots: masked attention still multiplies it, and 0 x NaN is NaN.

        A running rollout with such keys is left to end as it is, and marks the slots again at its next token.
        """
        free = np.flatnonzero(~self._slots.active).tolist()
        self._cache.clear(torch.tensor([*free, *range(self.settings.slots, self._cache.slots)]))
        self._filled.forget_all()
        self._poisoned = False

    def _prefill(self, slots: list[int], prompts: list[tuple[int, ...]]) -> None:
        """Fill the cache with all but the last token of each prompt: that one is the first decode step's input."""
        longest = max(map(len, prompts)) - 1
        if longest == 0:
            return
        # Padding lies right of the prompt: what it writes is overwritten or masked before anybody looks at it.
        tokens = torch.tensor([[*ids[:-1], *[0] * (longest + 1 - len(ids))] for ids in prompts])
        rows = torch.tensor(slots)
        if self._fused is not None:
            self._fused.prefill(tokens, rows, self._cache)
        else:
            position = torch.arange(longest).expand(len(prompts), longest)
            self._forward(tokens, rows, position, position, longest)
        self.tokens_prefilled += sum(len(ids) - 1 for ids in prompts)

    def _move_together(self) -> IntArray:
        """The slots that run, after filling holes with the last ones where too many would be computed for nothing."""
        rows = self._slots.rows
        if rows.size == 0 or rows.size >= _RUNNING_SHARE * (rows[-1] + 1):
            return rows
        sources = rows[rows >= rows.size]
        targets = np.flatnonzero(~self._slots.active[: rows.size])
        reach = int(self._slots.position[sources].max()) + 1
        self._cache.copy(torch.from_numpy(sources), torch.from_numpy(targets), reach)
        self._slots.move(sources, targets)
        self._filled.forget(targets.tolist())
        return self._slots.rows

    def _decode(self, n: int) -> torch.Tensor:
        """(n, hidden) last hidden state of the first n slots after their next input."""
        active = self._slots.active[:n]
        # A free slot computes too; it writes where nobody reads, for the prompt in it may yet be copied.
        position = np.where(active, self._slots.position[:n], 0)
        at = torch.from_numpy(np.where(active, position, self._cache.length))
        reach = min(-(-(int(position.max()) + 1) // _REACH_STEP) * _REACH_STEP, self._cache.length)
        tokens, where = torch.from_numpy(self._slots.next_input[:n]), torch.from_numpy(position)
        if self._fused is not None:
            return self._fused.decode(tokens, where, at, self._cache, reach)
        return self._forward(tokens[:, None], None, where[:, None], at[:, None], reach)[:, 0]

    def _forward(
        self, tokens: torch.Tensor, rows: torch.Tensor | None, position: torch.Tensor, at: torch.Tensor, reach: int
    ) -> torch.Tensor:
        self._cache.place(rows, at, reach)
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
