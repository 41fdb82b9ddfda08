"""One token for every running rollout in few operations: a Llama-like body that reads and writes the slot cache itself.

Hugging Face's modules cost more than the arithmetic of a small model. Here weights are folded once per weight update
(`fused.fold`), query, key and value share one matmul as gate and up do, keys go straight to their place in the cache,
and attention is two batched matmuls over the slots as they lie. Norms, rotation, attention and the residual stream are
fp32 whatever the weights are, as in the fused body that trains. Where kernels can be compiled, all but the matmuls is
theirs, and attention then reads each slot only as far as its rollout has come.

Only for CPUs, and only where the result has been compared with the model's own (`fused_decoder`).
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalerl.engines.fused import LayerWeights, covered, fold
from scalerl.engines.kernels import Kernels, kernels
from scalerl.engines.model import body
from scalerl.engines.slot_cache import SlotCache

_log = logging.getLogger(__name__)
_TOLERANCE = {torch.bfloat16: 5e-2}  # of the largest state; where not named:
_EXACT = 1e-4
_RESCALED_BY_LENGTH = ("dynamic", "longrope")  # their angles depend on how long the sequence is, not only on where


def fused_decoder(model: nn.Module, length: int) -> FusedDecoder | None:
    """A decoder for sequences of at most `length` tokens; None where the architecture is not covered."""
    if not covered(model):
        return None
    rotation: Any = body(model).rotary_emb
    if getattr(rotation, "rope_type", "default") in _RESCALED_BY_LENGTH:
        return None
    decoder = FusedDecoder(model, length)
    if _agrees(decoder, model):
        return decoder
    if decoder.kernels is None:
        return None
    _log.warning("%s: the compiled kernels disagree with the model and are not used", type(model).__name__)
    decoder.kernels = None
    return decoder if _agrees(decoder, model) else None


class FusedDecoder:
    """See `fused_decoder`. Weights are read at construction and by `refold`, never in between."""

    def __init__(self, model: nn.Module, length: int) -> None:
        self.body: Any = body(model)
        config: Any = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.epsilon = float(config.rms_norm_eps)
        rotation: Any = self.body.rotary_emb
        weight = next(model.parameters())
        self.weight_dtype, self.dtype = weight.dtype, torch.promote_types(weight.dtype, torch.float32)
        with torch.no_grad():
            cos, sin = rotation(torch.zeros(1, dtype=self.dtype), torch.arange(length)[None])
        half = cos.shape[-1] // 2
        self.kernels = kernels(self.weight_dtype, 2 * half)
        self._cos = cos[0, :, None].contiguous()  # (length, 1, dim)
        self._sin = torch.cat([-sin[0, :, None, :half], sin[0, :, None, half:]], -1)  # signs of rotate_half
        self.refold()

    @torch.no_grad()
    def refold(self) -> None:
        """Take over the model's weights as they are now."""
        self._layers = [fold(layer, self.weight_dtype) for layer in self.body.layers]
        self._scaling = [float(layer.self_attn.scaling) for layer in self.body.layers]
        self._scales = [None if w.head_scale is None else w.head_scale.to(self.dtype, copy=True) for w in self._layers]
        for scale, scaling in zip(self._scales, self._scaling, strict=True):
            if scale is not None:
                scale[: self.heads] *= scaling  # a query's norm and attention's scaling in one

    def decode(self, tokens: Tensor, position: Tensor, at: Tensor, cache: SlotCache, reach: int) -> Tensor:
        """One step of the first n slots.

        Args:
            tokens: (n,) inputs. position: (n,) where they stand. at: (n,) column of the cache that takes their keys.
            reach: attention looks at the columns before this; > every position that matters.

        Returns:
            (n, d) last hidden state.
        """
        if self.kernels is not None:
            return self._decode_compiled(self.kernels, tokens, position, at, cache)
        n = len(tokens)
        x = self._embed(tokens)
        cos, sin = self._cos[position], self._sin[position]
        places = cache.places(n, at)
        hidden = torch.zeros(n, 1, reach, dtype=self.dtype)
        hidden.masked_fill_((torch.arange(reach) > position[:, None])[:, None], -torch.inf)
        for i, weights in enumerate(self._layers):
            query, key, value = self._project(i, x, cos, sin)
            cache.write(i, places, key, value)
            keys, values = cache.view(i, n, reach)
            scores = torch.bmm(query.reshape(n * self.kv_heads, -1, query.shape[-1]), keys.transpose(1, 2))
            scores.view(n, self.heads, reach).add_(hidden)
            mixed = torch.bmm(torch.softmax(scores, -1), values)
            x = self._finish(weights, x, mixed.view(n, -1))
        return self._normed(x).mul_(self.body.norm.weight)

    def _decode_compiled(self, run: Kernels, tokens: Tensor, position: Tensor, at: Tensor, cache: SlotCache) -> Tensor:
        x = self._embed(tokens)
        (n, width), dim = x.shape, self._cos.shape[-1]
        unit, product = x.new_empty(n, width, dtype=self.weight_dtype), None
        mixed = x.new_empty(n, self.heads * dim, dtype=self.weight_dtype)
        for i, weights in enumerate(self._layers):
            qkv_weight, output, gate_up_weight, down = weights.casts
            run.add_norm(n, width, x, None, None, unit, None, self.epsilon)
            qkv, scale = unit @ qkv_weight.T, self._scales[i]
            run.attend_step(
                n, self.heads, self.kv_heads, dim, cache.length + 1, qkv, scale, self._cos, self._sin, position, at,
                self.epsilon, self._scaling[i] if scale is None else 1.0, cache.key_store[i], cache.value_store[i],
                mixed,
            )  # fmt: skip
            x = self._add_product(x, mixed, output)
            run.add_norm(n, width, x, None, None, unit, None, self.epsilon)
            gate_up = unit @ gate_up_weight.T
            if product is None:
                product = x.new_empty(n, gate_up.shape[1] // 2, dtype=self.weight_dtype)
            run.swiglu(n, product.shape[1], gate_up, product)
            x = self._add_product(x, product, down)
        return self._normed(x).mul_(self.body.norm.weight)

    def prefill(self, tokens: Tensor, slots: Tensor, cache: SlotCache) -> None:
        """Fill the cache of these slots.

        Args:
            tokens: (r, t) inputs, padded on the right: what padding writes must be masked until it is overwritten.
            slots: (r,) one of each row.
        """
        rows, width = tokens.shape
        x = self._embed(tokens.reshape(-1))
        cos, sin = (table[:width].repeat(rows, 1, 1) for table in (self._cos, self._sin))
        for i, weights in enumerate(self._layers):
            query, key, value = (
                t.reshape(rows, width, -1, t.shape[-1]).transpose(1, 2) for t in self._project(i, x, cos, sin)
            )
            cache.fill(i, slots, key, value)
            if i + 1 == len(self._layers):
                return  # nobody asks what a prompt's earlier tokens predict
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True, scale=1.0
            )
            x = self._finish(weights, x, mixed.transpose(1, 2).reshape(rows * width, -1))

    def _embed(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.body.embed_tokens.weight).to(self.dtype)

    def _project(self, i: int, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, heads, dim) queries, already scaled, and (n, kv_heads, dim) keys and values, normed and rotated."""
        weights, scale = self._layers[i], self._scales[i]
        turned, half = self.heads + self.kv_heads, cos.shape[-1] // 2
        qkv = (self._unit(x) @ weights.casts[0].T).to(self.dtype).view(len(x), turned + self.kv_heads, -1)
        unit = qkv[:, :turned]
        if scale is not None:
            unit = self._normed(unit) * scale
        rotated = (unit * cos).addcmul_(unit.roll(half, -1), sin)
        query = rotated[:, : self.heads]
        return query if scale is not None else query * self._scaling[i], rotated[:, self.heads :], qkv[:, turned:]

    def _finish(self, weights: LayerWeights, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output: attention's projection and the MLP added to the residual stream."""
        _, output, gate_up_weight, down = weights.casts
        x = self._add_product(x, mixed.to(self.weight_dtype), output)
        gate, up = (self._unit(x) @ gate_up_weight.T).chunk(2, 1)
        return self._add_product(x, functional.silu(gate).mul_(up), down)

    def _unit(self, x: Tensor) -> Tensor:
        return self._normed(x).to(self.weight_dtype)

    def _normed(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], eps=self.epsilon)

    def _add_product(self, x: Tensor, a: Tensor, weight: Tensor) -> Tensor:
        if x.dtype == a.dtype:
            return x.addmm_(a, weight.T)
        return x.add_(a @ weight.T)


@torch.no_grad()
def _agrees(decoder: FusedDecoder, model: nn.Module) -> bool:
    """Whether the hidden states of a few random rows are the model's own, some prefilled and then decoded."""
    config: Any = model.config
    rows, width, filled = 2, min(9, len(decoder._cos)), min(4, len(decoder._cos) - 1)
    ids = torch.randint(config.vocab_size, (rows, width), generator=torch.Generator().manual_seed(0))
    expected = body(model)(input_ids=ids, use_cache=False).last_hidden_state
    cache = SlotCache(config, rows, width, decoder.dtype)
    if filled:
        decoder.prefill(ids[:, :filled], torch.arange(rows), cache)
    bound = _TOLERANCE.get(decoder.weight_dtype, _EXACT) * float(expected.abs().max())
    for t in range(filled, width):
        position = torch.full((rows,), t)
        hidden = decoder.decode(ids[:, t], position, position, cache, t + 1)
        if not bool((hidden - expected[:, t]).abs().max() <= bound):  # NaN disagrees
            return False
    return True
