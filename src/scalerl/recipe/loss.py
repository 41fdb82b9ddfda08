"""The policy loss of PAPER section 4 and its alternatives: one plain weighted sum over packed tokens.

The weights come from the whole batch and sum to 1 there, so losses and gradients of any split simply add up: over
micro-batches, packing orders and data-parallel ranks. A GSPO sequence must stay in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LossKind = Literal["cispo", "grpo", "dapo", "gspo"]
Clip = tuple[float | None, float]
MOST_LOG_RATIO = 20.0  # e^20: far above every clip, far below overflow; beyond it the ratio passes on no gradient


@dataclass(frozen=True)
class LossStats:
    """Sums and extremes over trained tokens, as detached 0-d tensors; `a + b` are those of both micro-batches.

    Attributes:
        tokens: trained. dropped: had a weight, but a log-probability that is infinite or NaN.
        ratio_sum, ratio_min, ratio_max: of trainer to generator (GSPO: of the token's sequence).
        at_bound: tokens whose ratio the clip replaced.
        mismatch_sum: of k3 = r - 1 - log r, whose mean estimates KL(generator || trainer) and is never negative.
    """

    tokens: Tensor
    dropped: Tensor
    ratio_sum: Tensor
    ratio_min: Tensor
    ratio_max: Tensor
    at_bound: Tensor
    mismatch_sum: Tensor

    def __add__(self, other: LossStats) -> LossStats:
        return LossStats(
            self.tokens + other.tokens,
            self.dropped + other.dropped,
            self.ratio_sum + other.ratio_sum,
            torch.minimum(self.ratio_min, other.ratio_min),
            torch.maximum(self.ratio_max, other.ratio_max),
            self.at_bound + other.at_bound,
            self.mismatch_sum + other.mismatch_sum,
        )

    def metrics(self) -> dict[str, float]:
        """Means, extremes and shares for the log; without a token there are no means, and none is made up."""
        tokens = float(self.tokens)
        found = {"tokens": tokens, "dropped_tokens": float(self.dropped)}
        if tokens == 0:
            return found
        return found | {
            "ratio_mean": float(self.ratio_sum) / tokens,
            "ratio_min": float(self.ratio_min),
            "ratio_max": float(self.ratio_max),
            "ratio_at_bound": float(self.at_bound) / tokens,
            "mismatch_kl": float(self.mismatch_sum) / tokens,
        }


def policy_loss(
    kind: LossKind,
    trainer_logprobs: Tensor,
    generator_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequence_ids: Tensor,
    clip: Clip,
) -> tuple[Tensor, LossStats]:
    """Loss to minimise, and its statistics.

    Every ratio is anchored on what the generator reported when it sampled the token, never on recomputed values.
    Tokens of weight 0 (prompts, insertions, padding) enter nothing, whatever their other values are.

    Args:
        kind: cispo: sg(min(ratio, high)) * A * log pi. grpo, dapo: min(ratio * A, clip(ratio, 1 - low, 1 + high) * A).
            gspo: the same with the sequence's ratio, exp of the mean log-ratio over its trained tokens.
        trainer_logprobs: (n,) under the weights being trained, with gradient; at the sampling temperature.
        generator_logprobs: (n,) under the distribution that sampled the token.
        advantages: (n,). weights: (n,), summing to 1 over the whole batch.
        sequence_ids: (n,) equal for the tokens of one sequence; only gspo reads them.
        clip: (low, high). For cispo low is None and high bounds the ratio itself; for the others they are distances
            from 1.

    Returns:
        () loss in at least float32, and `LossStats`. A token with an infinite or NaN log-probability has no part in
        the loss and is counted as dropped; the other tokens keep their weights.
    """
    dtype = torch.promote_types(trainer_logprobs.dtype, torch.float32)
    active = (weights > 0) & torch.isfinite(trainer_logprobs) & torch.isfinite(generator_logprobs)
    # Replaced before any arithmetic: NaN * 0 and (-inf) - (-inf) would poison both the sum and the gradient.
    trainer = torch.where(active, trainer_logprobs, 0).to(dtype)
    generator = torch.where(active, generator_logprobs, 0).to(dtype)
    advantage = torch.where(active, advantages, 0).to(dtype)
    weight = torch.where(active, weights, 0).to(dtype)

    token_log_ratio = trainer - generator
    log_ratio = _sequence_mean(token_log_ratio, active, sequence_ids) if kind == "gspo" else token_log_ratio
    ratio = _bounded_exp(log_ratio)
    low, high = clip
    if kind == "cispo":
        bounded = ratio.detach().clamp(max=high)
        objective = bounded * advantage * trainer
        at_bound = active & (ratio.detach() > high)
    else:
        if low is None:
            raise ValueError(f"{kind} needs a lower clip")
        free, clipped = ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage
        objective = torch.minimum(free, clipped)
        at_bound = active & (clipped < free).detach()
    dropped = (weights != 0) & ~active
    stats = _statistics(ratio.detach(), token_log_ratio.detach(), active, at_bound, dropped)
    return -(weight * objective).sum(), stats


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()


def _sequence_mean(log_ratio: Tensor, active: Tensor, sequence_ids: Tensor) -> Tensor:
    """Mean over the active tokens of each sequence, at each of its tokens; 0 at those of a sequence without any."""
    ids, index = torch.unique(sequence_ids, return_inverse=True)
    total = log_ratio.new_zeros(len(ids)).index_add(0, index, log_ratio)
    length = log_ratio.new_zeros(len(ids)).index_add(0, index, active.to(log_ratio.dtype))
    return (total / length.clamp(min=1))[index]


def _statistics(ratio: Tensor, log_ratio: Tensor, active: Tensor, at_bound: Tensor, dropped: Tensor) -> LossStats:
    none = ratio.new_tensor([torch.inf])  # keeps the extremes defined for an empty micro-batch
    # 0 where not active: both log-probabilities are 0 there. Below 0 it is rounding.
    k3 = (log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).expm1() - log_ratio).clamp(min=0)
    return LossStats(
        tokens=active.sum(),
        dropped=dropped.sum(),
        ratio_sum=torch.where(active, ratio, 0).sum(),
        ratio_min=torch.cat([torch.where(active, ratio, torch.inf), none]).min(),
        ratio_max=torch.cat([torch.where(active, ratio, -torch.inf), -none]).max(),
        at_bound=at_bound.sum(),
        mismatch_sum=k3.sum(),
    )
