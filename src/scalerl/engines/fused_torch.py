"""Norm, matmul, rotation and SwiGLU of the fused body in torch's operations, with gradients in few passes over memory.

`fused_compiled.py` has the same with kernels that are compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """(..., 1) factor that gives the last dimension a root mean square of 1."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1 / x.shape[-1]).add_(epsilon).rsqrt_()


def _norm_backward(grad_unit: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """Gradient through unit = x * _inverse_rms(x): what points along `unit` is lost."""
    along = (grad_unit * unit).mean(-1, keepdim=True)
    return torch.addcmul(grad_unit, unit, along, value=-1).mul_(inverse)


class _Norm(torch.autograd.Function):
    """y = unit(x) * scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
        inverse = _inverse_rms(x, epsilon)
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
        inverse = _inverse_rms(x, epsilon)
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
            inverse = _inverse_rms(unit, epsilon)
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
norm: Callable[..., Tensor] = _Norm.apply
norm_linear: Callable[..., Tensor] = _NormLinear.apply
linear: Callable[..., Tensor] = _Linear.apply
swiglu_linear: Callable[..., Tensor] = _SwigluLinear.apply
rotated: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Rotated.apply
