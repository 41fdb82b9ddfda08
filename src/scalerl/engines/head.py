"""The LM head in one place, so that generator and trainer compute log-probabilities in the same way.

FP32 at the head (PAPER.md, ingredient 3) means that the matmul itself runs in fp32, not that its bf16 result is cast.
Here weights are cast on the fly and not kept: no stale copy, and a tied embedding keeps its own storage and dtype. The
generator, which knows when its weights change, hands over one cast for all steps between two updates.
Temperature divides the logits before the softmax, on both sides. No top-p or top-k: they would renormalise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24  # logits held at once: 64 MiB in fp32


def head_logits(hidden: Tensor, weight: Tensor, temperature: float = 1.0, fp32: bool = True) -> Tensor:
    """Logits at a temperature, in fp32 (fp64 if the hidden state is).

    Args:
        hidden: (..., d) last hidden state, after the final norm. weight: (v, d) of the head.
        temperature: > 0; divides the logits. fp32: False runs the matmul in the lower precision of the two, since a
            fused body has fp32 states over bf16 weights, and a trainer fp32 weights under bf16 states.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        dtype = _compute_dtype(hidden, weight, fp32)
        logits = (hidden.to(dtype) @ weight.to(dtype).T).to(_result_dtype(hidden))
        return logits if temperature == 1.0 else logits / temperature


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    fp32: bool = True,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and entropy of each distribution (without a gradient).

    Logits exist for one chunk of tokens at a time, in the backward pass too, where they are computed again.

    Args:
        hidden: (n, d) states that predict the targets. weight: (v, d). targets: (n,) token ids.
        temperature, fp32: as in `head_logits`. chunk_elements: bound on tokens x vocabulary held at once.

    Returns:
        (n,) log-probabilities and (n,) entropies in nats, fp32 or fp64.
    """
    run: Any = _TokenLogprobs.apply
    logprobs, entropy = run(hidden, weight, targets, temperature, fp32, chunk_elements)
    return logprobs, entropy


def _compute_dtype(hidden: Tensor, weight: Tensor, fp32: bool) -> torch.dtype:
    return _result_dtype(hidden) if fp32 else min(hidden.dtype, weight.dtype, key=lambda dtype: dtype.itemsize)


def _result_dtype(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)


class _TokenLogprobs(torch.autograd.Function):
    """d log p(target) / d logits = (onehot - p) / T; only the log-normaliser of each token is kept for it."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, fp32: bool, chunk_elements: int
    ) -> tuple[Tensor, Tensor]:
        out_dtype = _result_dtype(hidden)
        logprobs = torch.empty(hidden.shape[0], dtype=out_dtype, device=hidden.device)
        normaliser, entropy = torch.empty_like(logprobs), torch.empty_like(logprobs)
        rows = max(1, chunk_elements // weight.shape[0])
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            logits = head_logits(hidden[part], weight, temperature, fp32)
            chosen = logits.gather(1, targets[part, None])[:, 0]
            normaliser[part] = logits.logsumexp(1)
            logprobs[part] = chosen - normaliser[part]
            probability = (logits - normaliser[part, None]).exp_()
            # 0 * -inf is 0 here: a token that cannot be sampled adds no entropy
            nats = normaliser[part] - (probability * logits.masked_fill(probability == 0, 0.0)).sum(1)
            entropy[part] = nats.clamp_(min=0)  # of large logits, as at a low temperature, it rounds below
        ctx.save_for_backward(hidden, weight, targets, normaliser)
        ctx.settings = (temperature, fp32, rows)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normaliser = ctx.saved_tensors
        temperature, fp32, rows = ctx.settings
        dtype = _compute_dtype(hidden, weight, fp32)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=_result_dtype(hidden), device=weight.device)
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(dtype)
            for start in range(0, hidden.shape[0], rows):
                part = slice(start, start + rows)
                logits = head_logits(hidden[part], weight, temperature, fp32)
                grad = (logits - normaliser[part, None]).exp_().mul_(-grads[0][part, None])
                # A token that was dropped for its NaN must not poison the others: its gradient is 0, not 0 * NaN.
                grad.masked_fill_(grads[0][part, None] == 0, 0.0)
                grad.scatter_add_(1, targets[part, None], grads[0][part, None])
                if temperature != 1.0:
                    grad /= temperature
                grad = grad.to(dtype)
                grad_hidden[part] = grad @ cast
                grad_weight += grad.T @ hidden[part].to(dtype)
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None
