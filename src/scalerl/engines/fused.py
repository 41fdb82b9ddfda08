"""The body of a Llama-like model in few passes over memory, with gradients written by hand.

A small model's training step is bound by reading and writing activations, not by matmuls: Hugging Face's RMS norm alone
makes a dozen passes, forward and backward. Here a norm's weight is folded into the matmul after it, query, key and
value share one matmul as gate and up do, and each backward pass makes the few passes that its formula needs. Parameters
are read from the Hugging Face model at every call, or once a step: nothing is kept that could be stale.

States are computed once for all rows that begin alike (`prefix_tree.py`); attention alone sees whole rows.

Only for CPUs, and only where the result has been compared with the model's own (`fused_body`). Rows are padded on the
right, so plain causal attention is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scalerl.engines.model import body
from scalerl.engines.prefix_tree import PrefixTree, prefix_tree

ARCHITECTURES = ("llama", "qwen3")
_TOLERANCE = 1e-4  # of the largest state, in fp32


def fused_body(model: nn.Module, bf16: bool, recompute: bool = False) -> FusedBody | None:
    """(rows, width) ids -> (rows, width, d) last hidden state; None where the architecture is not covered.

    Args:
        bf16: matmuls in bf16; norms, rotation, attention and the residual stream stay in fp32.
        recompute: each layer once more in the backward pass, for memory.
    """
    if not covered(model):
        return None
    run = FusedBody(model, bf16, recompute)
    return run if _agrees(model) else None


@dataclass(frozen=True)
class LayerWeights:
    """What one layer multiplies with: in the master's dtype for the gradient, and cast once for all micro-batches."""

    masters: tuple[Tensor, Tensor, Tensor, Tensor]  # query-key-value, output, gate-up, down
    casts: tuple[Tensor, Tensor, Tensor, Tensor]
    head_scale: Tensor | None  # (heads + kv_heads, head_dim), of the norms of query and key


class FusedBody:
    """See `fused_body`. Within `step` the weights are folded once for all calls, outside of it at every call."""

    def __init__(self, model: nn.Module, bf16: bool, recompute: bool) -> None:
        self.body: Any = body(model)
        config: Any = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.epsilon = float(config.rms_norm_eps)
        self.dtype = torch.bfloat16 if bf16 else next(model.parameters()).dtype
        self.recompute = recompute
        self._folded: list[LayerWeights] | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Micro-batches of one step: their backward passes add to the folded weights, leaving adds to the model's own.

        The parameters' gradients are complete only after it, and no weight may change within.
        """
        graph = [fold(layer, self.dtype) for layer in self.body.layers]
        roots = [t for layer in graph for t in (*layer.masters, layer.head_scale) if t is not None]
        leaves = {id(root): root.detach().requires_grad_(root.requires_grad) for root in roots}
        self._folded = [_cut(layer, leaves) for layer in graph]
        try:
            yield
        finally:
            self._folded = None
        reached = [root for root in roots if leaves[id(root)].grad is not None]
        if reached:
            torch.autograd.backward(reached, [leaves[id(root)].grad for root in reached])

    def __call__(self, token_ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(rows, width) ids, (rows,) lengths without padding or None -> (rows, width, d), of no meaning at padding."""
        tree = prefix_tree(token_ids, lengths)
        x = functional.embedding(tree.tokens, self.body.embed_tokens.weight)
        cos, sin = (table[0, :, None] for table in self.body.rotary_emb(x, tree.positions[None]))
        half = cos.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)  # signs of rotate_half
        for i, layer in enumerate(self.body.layers):
            weights = self._folded[i] if self._folded is not None else fold(layer, self.dtype)
            scaling = layer.self_attn.scaling
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(self._layer, weights, x, tree, cos, sin, scaling, use_reentrant=False)
            else:
                x = self._layer(weights, x, tree, cos, sin, scaling)
        return _rows(_norm(x, self.body.norm.weight, self.epsilon), tree.node)

    def _layer(self, w: LayerWeights, x: Tensor, tree: PrefixTree, cos: Tensor, sin: Tensor, scaling: float) -> Tensor:
        """(u, d) residual stream after one layer, a row for each node of the tree."""
        qkv = _norm_linear(x, w.masters[0], w.casts[0], self.epsilon)
        qkv = qkv.view(1, len(x), self.heads + 2 * self.kv_heads, -1)
        states = _rotated(qkv, w.head_scale, cos, sin, self.epsilon, self.heads, self.kv_heads)
        query, key, value = (_rows(t[0].flatten(1), tree.paths).view(*tree.paths.shape, *t.shape[2:]) for t in states)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True,
            scale=scaling,
        )  # fmt: skip
        mixed = mixed.transpose(1, 2).flatten(2)
        x = x + _linear(_rows(mixed.flatten(0, 1), tree.place), w.masters[1], w.casts[1])
        gate_up = _norm_linear(x, w.masters[2], w.casts[2], self.epsilon)
        return x + _swiglu_linear(gate_up, w.masters[3], w.casts[3])


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table; as an embedding, whose backward pass adds up rows many times faster than index_select's."""
    return functional.embedding(index, table)


def fold(layer: Any, dtype: torch.dtype) -> LayerWeights:
    """What a layer of a covered model (`covered`) multiplies with; the casts have this dtype and no gradient."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    masters = (
        qkv * layer.input_layernorm.weight,
        attention.o_proj.weight,
        gate_up * layer.post_attention_layernorm.weight,
        mlp.down_proj.weight,
    )
    a, b, c, d = (m.detach().to(dtype) for m in masters)
    head_scale = None
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight, attention.k_norm.weight
        heads, kv_heads = (proj.weight.shape[0] // len(query) for proj in (attention.q_proj, attention.k_proj))
        head_scale = torch.cat([query.expand(heads, -1), key.expand(kv_heads, -1)])
    return LayerWeights(masters, (a, b, c, d), head_scale)


def _cut(layer: LayerWeights, leaves: dict[int, Tensor]) -> LayerWeights:
    """The same with leaves in the place of what the graph computed."""
    a, b, c, d = (leaves[id(m)] for m in layer.masters)
    return LayerWeights((a, b, c, d), layer.casts, None if layer.head_scale is None else leaves[id(layer.head_scale)])


def inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """(..., 1) factor that gives the last dimension a root mean square of 1."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1 / x.shape[-1]).add_(epsilon).rsqrt_()


def _norm_backward(grad_unit: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """Gradient through unit = x * inverse_rms(x): what points along `unit` is lost."""
    along = (grad_unit * unit).mean(-1, keepdim=True)
    return torch.addcmul(grad_unit, unit, along, value=-1).mul_(inverse)


class _Norm(torch.autograd.Function):
    """y = unit(x) * scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
        inverse = inverse_rms(x, epsilon)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, scale)
        return unit * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unit, inverse, scale = ctx.saved_tensors
        return _norm_backward(grads[0] * scale, unit, inverse), (grads[0] * unit).sum(0), None


class _NormLinear(torch.autograd.Function):
    """y = unit(x) @ cast.T in the cast's dtype; `master` holds the same weights and receives the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, master: Tensor, cast: Tensor, epsilon: float) -> Tensor:
        inverse = inverse_rms(x, epsilon)
        unit = (x * inverse).to(cast.dtype)
        ctx.save_for_backward(unit, inverse, cast)
        ctx.dtype = master.dtype
        return unit @ cast.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unit, inverse, cast = ctx.saved_tensors
        grad_x = _norm_backward((grads[0] @ cast).to(inverse.dtype), unit.to(inverse.dtype), inverse)
        return grad_x, (grads[0].T @ unit).to(ctx.dtype), None, None


class _Linear(torch.autograd.Function):
    """y = x @ cast.T, as above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, master: Tensor, cast: Tensor) -> Tensor:
        cast_x = x.to(cast.dtype)
        ctx.save_for_backward(cast_x, cast)
        ctx.dtypes = (x.dtype, master.dtype)
        return cast_x @ cast.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, cast = ctx.saved_tensors
        return (grads[0] @ cast).to(ctx.dtypes[0]), (grads[0].T @ x).to(ctx.dtypes[1]), None


class _SwigluLinear(torch.autograd.Function):
    """y = (silu(gate) * up) @ cast.T of (n, 2 f) gate and up side by side, as above."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, master: Tensor, cast: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, 1)
        active = functional.silu(gate)
        product = active * up
        ctx.save_for_backward(gate_up, active, product, cast)
        ctx.dtype = master.dtype
        return product @ cast.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, active, product, cast = ctx.saved_tensors
        grad_product = grads[0] @ cast
        grad = torch.empty_like(gate_up)
        (gate, up), (grad_gate, grad_up) = gate_up.chunk(2, 1), grad.chunk(2, 1)
        torch.mul(grad_product, active, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad_product.mul_(up), gate, grad_input=grad_gate)
        return grad, (grads[0].T @ product).to(ctx.dtype), None


class _Rotated(torch.autograd.Function):
    """(rows, width, heads, dim) queries, keys and values of one matmul -> the three, in fp32, normed and rotated."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, scale: Tensor | None, cos: Tensor, sin: Tensor, epsilon: float, heads: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        turned = heads + kv_heads
        unit = qkv[:, :, :turned].to(cos.dtype)
        inverse = None
        own_cos, own_sin, half = cos, sin, cos.shape[-1] // 2
        if scale is not None:
            inverse = inverse_rms(unit, epsilon)
            unit = unit * inverse
            own_cos, own_sin = cos * scale, sin * scale.roll(half, -1)
        out = torch.addcmul(unit * own_cos, unit.roll(half, -1), own_sin)
        ctx.save_for_backward(unit, inverse, own_cos, own_sin, cos, sin)
        ctx.shape, ctx.dtype, ctx.turned = qkv.shape, qkv.dtype, turned
        return out[:, :, :heads], out[:, :, heads:], qkv[:, :, turned:].to(cos.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unit, inverse, own_cos, own_sin, cos, sin = ctx.saved_tensors
        half = cos.shape[-1] // 2
        grad_out = torch.cat([grads[0], grads[1]], 2)
        grad_unit = torch.addcmul((grad_out * own_sin).roll(half, -1), grad_out, own_cos)
        grad_scale = None
        if inverse is not None:
            straight, crossed = (grad_out * unit).sum(0), (grad_out * unit.roll(half, -1)).sum(0)
            grad_scale = (straight * cos).sum(0) + (crossed * sin).sum(0).roll(half, -1)
            grad_unit = _norm_backward(grad_unit, unit, inverse)
        grad = torch.empty(ctx.shape, dtype=ctx.dtype)
        grad[:, :, : ctx.turned] = grad_unit
        grad[:, :, ctx.turned :] = grads[2]
        return grad, grad_scale, None, None, None, None, None


# `apply` has no types of its own.
_norm: Callable[..., Tensor] = _Norm.apply
_norm_linear: Callable[..., Tensor] = _NormLinear.apply
_linear: Callable[..., Tensor] = _Linear.apply
_swiglu_linear: Callable[..., Tensor] = _SwigluLinear.apply
_rotated: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Rotated.apply


def covered(model: nn.Module) -> bool:
    """Whether the formulas here are this architecture's."""
    config: Any = model.config
    if config.model_type not in ARCHITECTURES or next(model.parameters()).device.type != "cpu":
        return False
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return False
    biased = any(isinstance(m, nn.Linear) and m.bias is not None for m in body(model).modules())
    return not biased and str(config.hidden_act) == "silu"


@torch.no_grad()
def _agrees(model: nn.Module) -> bool:
    """Whether the hidden states of a few random rows are the model's own."""
    config: Any = model.config
    ids = torch.randint(config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = body(model)(input_ids=ids, use_cache=False).last_hidden_state
    difference = (FusedBody(model, False, False)(ids) - expected).abs().max()
    return bool(difference <= _TOLERANCE * expected.abs().max())
