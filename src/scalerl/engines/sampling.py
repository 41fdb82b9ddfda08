"""Sampling with the log-probability of what was sampled, from the same FP32 logits at the same temperature."""

from __future__ import annotations

import torch


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
        tokens = logprobs.argmax(dim=-1)
    else:
        # argmax of log p + Gumbel noise is a draw from p; -log of an exponential is Gumbel.
        noise = torch.empty_like(logprobs).exponential_(generator=rng)
        tokens = (logprobs - noise.log()).argmax(dim=-1)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
