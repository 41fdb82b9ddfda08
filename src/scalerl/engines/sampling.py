"""Sampling with the log-probability of what was sampled, from the same FP32 logits at the same temperature."""

from __future__ import annotations

import torch

_BELOW_ONE = 1 - 1e-12
"""Keeps a draw below the total, whatever the rounding: a token must lie beyond it."""


def sample(logits: torch.Tensor, rng: torch.Generator, greedy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each row.

    Args:
        logits: (b, v) float32, already divided by the temperature. rng: the only source of randomness.
        greedy: take the likeliest token instead.

    Returns:
        (b,) tokens and (b,) log-probabilities under the distribution that was sampled from: the whole vocabulary at
        this temperature. No top-p, top-k or min-p: they would renormalise what is reported.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    if greedy:
        tokens = logprobs.argmax(dim=-1, keepdim=True)
    else:
        # One uniform number a row, not one a token. Sums in fp64: in fp32 the rarest tokens would fall into the grid.
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        drawn = torch.rand(len(logits), 1, dtype=torch.float64, generator=rng).mul_(_BELOW_ONE)
        tokens = torch.searchsorted(cumulative, drawn.mul_(cumulative[:, -1:]), right=True)
        tokens.clamp_(max=logits.shape[-1] - 1)  # rows of NaN: their log-probability tells
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]
