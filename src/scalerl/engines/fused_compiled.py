"""A layer of the fused body with its passes over memory compiled (`kernels.py`); the formulas are fused.py's.

The residual stream travels as a pair (x, y): y is what the last matmul adds to it, and is added where the next norm
reads x anyway. Attention works on the nodes of the prefix tree as they lie: nothing is gathered, and a state that many
rows share is computed once here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalerl.engines.kernels import Kernels
from scalerl.engines.prefix_tree import PrefixTree


@dataclass(frozen=True)
class Rotation:
    """What attention needs beside queries, keys and values.

    Attributes:
        cos, sin: (width, dim), sin with the signs of rotate_half. scaling: of the scores.
    """

    run: Kernels
    tree: PrefixTree
    cos: Tensor
    sin: Tensor
    heads: int
    kv_heads: int
    epsilon: float
    scaling: float


class _AddNormLinear(torch.autograd.Function):
    """x, y, weights -> x + y and unit(x + y) @ cast.T; `master` receives the gradient of `cast`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, master: Tensor, cast: Tensor, run: Kernels, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        n, d = x.shape
        total = x if y is None else torch.empty_like(x)
        unit, inverse = x.new_empty(n, d, dtype=cast.dtype), x.new_empty(n)
        run.add_norm(n, d, x, y, None if y is None else total, unit, inverse, epsilon)
        ctx.save_for_backward(unit, inverse, cast)
        ctx.settings = (run, master.dtype, y is not None)
        ctx.set_materialize_grads(False)
        return total, unit @ cast.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unit, inverse, cast = ctx.saved_tensors
        run, master_dtype, added = ctx.settings
        n, d = unit.shape
        grad_x = inverse.new_empty(n, d)
        low = torch.empty_like(unit) if added and unit.dtype != grad_x.dtype else None
        later = None if grads[0] is None else grads[0].contiguous()
        run.add_norm_backward(n, d, grads[1] @ cast, unit, inverse, later, grad_x, low)
        grad_y = (grad_x if low is None else low) if added else None
        return grad_x, grad_y, (grads[1].T @ unit).to(master_dtype), None, None, None


class _Attention(torch.autograd.Function):
    """(u, heads + 2 kv_heads, dim) of one matmul -> (u, heads * dim)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, scale: Tensor | None, at: Rotation) -> Tensor:
        tree, (u, row, dim) = at.tree, qkv.shape
        turned = at.heads + at.kv_heads
        rotated = at.cos.new_empty(u, turned, dim)
        at.run.rotate(u, turned, row, dim, qkv, scale, at.cos, at.sin, tree.positions, at.epsilon, rotated)
        mixed = qkv.new_empty(u, at.heads * dim)
        at.run.attend(
            *tree.paths.shape, at.heads, at.kv_heads, dim, rotated, qkv, tree.paths, tree.place, at.scaling, mixed
        )
        ctx.save_for_backward(qkv, scale, rotated)
        ctx.at = at
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, scale, rotated = ctx.saved_tensors
        at: Rotation = ctx.at
        tree, (u, row, dim) = at.tree, qkv.shape
        turned = at.heads + at.kv_heads
        grad_rotated, grad_v = torch.zeros_like(rotated), rotated.new_zeros(u, at.kv_heads, dim)
        at.run.attend_backward(
            *tree.paths.shape, at.heads, at.kv_heads, dim, rotated, qkv, tree.paths, tree.place, at.scaling,
            grads[0].contiguous(), grad_rotated, grad_v,
        )  # fmt: skip
        grad, grad_scale = torch.empty_like(qkv), None if scale is None else torch.empty_like(scale)
        at.run.rotate_backward(
            u, turned, row, dim, qkv, scale, at.cos, at.sin, tree.positions, at.epsilon, grad_rotated, grad_v,
            grad, grad_scale,
        )  # fmt: skip
        return grad, grad_scale, None


class _SwigluLinear(torch.autograd.Function):
    """y = (silu(gate) * up) @ cast.T of (n, 2 f) gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, master: Tensor, cast: Tensor, run: Kernels) -> Tensor:
        n, f = gate_up.shape[0], gate_up.shape[1] // 2
        product = gate_up.new_empty(n, f)
        run.swiglu(n, f, gate_up, product)
        ctx.save_for_backward(gate_up, product, cast)
        ctx.settings = (run, master.dtype)
        return product @ cast.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, product, cast = ctx.saved_tensors
        run, master_dtype = ctx.settings
        grad = torch.empty_like(gate_up)
        run.swiglu_backward(*product.shape, gate_up, grads[0] @ cast, grad)
        return grad, (grads[0].T @ product).to(master_dtype), None, None


# `apply` has no types of its own.
add_norm_linear: Callable[..., tuple[Tensor, Tensor]] = _AddNormLinear.apply
attention: Callable[..., Tensor] = _Attention.apply
swiglu_linear: Callable[..., Tensor] = _SwigluLinear.apply
