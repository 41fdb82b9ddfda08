"""Entropy, which is reported, and the KL to a reference model, which PAPER's recipes leave off."""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.recipe.loss import MOST_LOG_RATIO


@torch.no_grad()
def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of the sampling distribution at each position, without gradient.

    Args:
        logits: (..., vocabulary); -inf is a token that cannot be sampled.

    Returns:
        (...) in at least float32.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    probabilities = torch.softmax(logits.to(dtype) / temperature, dim=-1)
    nats: Tensor = torch.special.entr(probabilities).sum(dim=-1)  # 0 log 0 = 0
    return nats


def reference_kl(trainer_logprobs: Tensor, reference_logprobs: Tensor, weights: Tensor) -> Tensor:
    """GRPO's penalty: the weighted sum of k3 = r - 1 - log r with r = reference / trainer; add it to the loss.

    Its mean over samples of the trained policy estimates KL(trainer || reference). All arguments are (n,); tokens of
    weight 0 or with a log-probability that is not finite have no part.
    """
    active = (weights > 0) & torch.isfinite(trainer_logprobs) & torch.isfinite(reference_logprobs)
    dtype = torch.promote_types(trainer_logprobs.dtype, torch.float32)
    trainer = torch.where(active, trainer_logprobs, 0).to(dtype)
    reference = torch.where(active, reference_logprobs, 0).to(dtype)
    log_ratio = reference - trainer
    k3 = log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp() - 1 - log_ratio
    return (torch.where(active, weights, 0).to(dtype) * k3).sum()
