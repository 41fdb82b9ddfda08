"""Forced length interruption, token by token, for all slots at once (section 4).

A rollout thinks until it closes the thinking by itself or its budget is spent; then the phrase is inserted by
teacher-forcing, and the answer has a budget of its own. The states of all slots are tensors, so that a decode step
costs no Python per slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

THINKING, INSERTING, ANSWERING = 0, 1, 2


@dataclass(frozen=True)
class LengthLimits:
    """Budgets in tokens.

    Attributes:
        thinking: (low, high) of the thinking budget, drawn uniformly per rollout; (0, 0) if there is no thinking.
        answer: budget of the answer, or of the whole completion without thinking.
        end_of_thinking: token that closes the thinking; None if there is no thinking.
        phrase: tokens inserted when the thinking budget is spent, closing token included; empty: the thinking
            budget is simply added to the answer's and nothing is inserted.
        end_tokens: any of these ends a rollout.
    """

    thinking: tuple[int, int]
    answer: int
    end_of_thinking: int | None
    phrase: tuple[int, ...]
    end_tokens: tuple[int, ...]

    @property
    def interrupts(self) -> bool:
        return self.end_of_thinking is not None and bool(self.phrase) and self.thinking[1] > 0

    @property
    def most(self) -> int:
        """The longest completion that can occur."""
        return self.thinking[1] + self.answer + (len(self.phrase) if self.interrupts else 0)


class LengthControl:
    """State of every slot: phase, tokens spent in it, thinking budget, place in the phrase."""

    def __init__(self, limits: LengthLimits, slots: int) -> None:
        self.limits = limits
        self.phase = torch.zeros(slots, dtype=torch.long)
        self.spent = torch.zeros(slots, dtype=torch.long)
        self.budget = torch.zeros(slots, dtype=torch.long)
        self.interrupted = torch.zeros(slots, dtype=torch.bool)
        self._phrase = torch.tensor(limits.phrase or (0,), dtype=torch.long)
        self._ends = torch.tensor(limits.end_tokens, dtype=torch.long)

    def start(self, slots: torch.Tensor, rng: torch.Generator) -> None:
        """Begin a rollout in each slot."""
        low, high = self.limits.thinking
        self.spent[slots], self.interrupted[slots] = 0, False
        if self.limits.interrupts:
            self.phase[slots] = THINKING
            self.budget[slots] = torch.randint(low, high + 1, (slots.numel(),), generator=rng)
        else:
            self.phase[slots] = ANSWERING
            self.budget[slots] = high

    def advance(
        self, rows: torch.Tensor, sampled: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Take one token for each row.

        Args:
            rows: (b,) slots. sampled: (b,) what the policy would say next.

        Returns:
            (b,) the tokens to use, whether each was sampled (else inserted), whether the rollout ends with it by an
            end token, and whether it ends because the answer's budget is spent.
        """
        phase, spent = self.phase[rows], self.spent[rows]
        inserting = phase == INSERTING
        token = torch.where(inserting, self._phrase[spent.clamp(max=self._phrase.numel() - 1)], sampled)
        spent = spent + 1
        stopped = ~inserting & torch.isin(token, self._ends)
        closed = (phase == THINKING) & (
            token == (-1 if self.limits.end_of_thinking is None else self.limits.end_of_thinking)
        )
        inserted = inserting & (spent == self._phrase.numel())
        to_answer = (closed | inserted) & ~stopped
        # Thinking closed with the budget's last token is not interrupted: the answer follows by itself.
        to_insert = (phase == THINKING) & (spent >= self.budget[rows]) & ~closed & ~stopped
        answer_budget = self.limits.answer + (0 if self.limits.interrupts else self.limits.thinking[1])
        ran_out = (phase == ANSWERING) & (spent >= answer_budget) & ~stopped
        self.phase[rows] = torch.where(to_answer, ANSWERING, torch.where(to_insert, INSERTING, phase))
        self.spent[rows] = torch.where(to_answer | to_insert, 0, spent)
        self.interrupted[rows] |= to_insert
        return token, ~inserting, stopped, ran_out
