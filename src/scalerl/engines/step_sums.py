"""What the micro-batches of one optimizer step add up to, and the statistics that are made of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scalerl.engines.micro_batches import MicroBatch
from scalerl.recipe.loss import LossStats


@dataclass
class StepSums:
    """Plain sums, so that those of several ranks add up as those of several micro-batches do.

    Attributes:
        loss: of all micro-batches. entropy: nats over targets. stats: of the loss; None without a micro-batch.
        tokens, padded: inputs without and with padding. sequences, micro_batches: how many there were.
        reference_kl: k3 over trained tokens; None where there is no reference.
        router_loss: see `router.py`; None where it is not asked for.
    """

    loss: float = 0.0
    entropy: float = 0.0
    tokens: float = 0.0
    padded: float = 0.0
    sequences: float = 0.0
    micro_batches: float = 0.0
    stats: LossStats | None = None
    reference_kl: float | None = None
    router_loss: float | None = None

    def add(
        self,
        part: MicroBatch,
        loss: Tensor,
        stats: LossStats,
        entropy: float,
        reference_kl: float = 0.0,
        router_loss: float = 0.0,
    ) -> None:
        """One micro-batch: its loss, the loss's statistics, and its summands of the attributes of these names.

        One without inputs only kept other ranks company, and does not count.
        """
        if part.tokens == 0:
            return
        self.loss += float(loss.detach())
        self.entropy += entropy
        if self.reference_kl is not None:
            self.reference_kl += reference_kl
        if self.router_loss is not None:
            self.router_loss += router_loss
        self.tokens += part.tokens
        self.padded += part.padded
        self.sequences += len(part.token_ids)
        self.micro_batches += 1
        self.stats = stats if self.stats is None else self.stats + stats

    def metrics(self) -> dict[str, float]:
        """For the log; without a trained token there are no means."""
        found = {"tokens": 0.0} if self.stats is None else self.stats.metrics()
        if found["tokens"]:
            found["entropy"] = self.entropy / (found["tokens"] + found["dropped_tokens"])
            if self.reference_kl is not None:
                found["reference_kl"] = max(self.reference_kl / found["tokens"], 0.0)  # k3 rounds below it
        if self.router_loss is not None:
            found["router_loss"] = self.router_loss
        return found | {
            "loss": self.loss,
            "sequences": self.sequences,
            "input_tokens": self.tokens,
            "padded_share": 1 - self.tokens / self.padded if self.padded else 0.0,
            "micro_batches": self.micro_batches,
        }
