"""Forced length interruption, token by token, for all slots at once (section 4).

A rollout thinks until it closes the thinking by itself or its budget is spent; then the phrase is inserted by
teacher-forcing, and the answer has a budget of its own. The states of all slots are arrays, so that a decode step
costs no Python per slot; numpy's, because on a few hundred numbers its calls cost a third of torch's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from scalerl.types import BoolArray, IntArray

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
        self.phase, self.spent, self.budget = (np.zeros(slots, np.int64) for _ in range(3))
        self.interrupted = np.zeros(slots, np.bool_)
        self._phrase = np.array(limits.phrase or (0,), np.int64)
        self._close = -1 if limits.end_of_thinking is None else limits.end_of_thinking
        self._answer = limits.answer + (0 if limits.interrupts else limits.thinking[1])

    def start(self, slots: IntArray, rng: torch.Generator) -> None:
        """Begin a rollout in each slot."""
        low, high = self.limits.thinking
        self.spent[slots], self.interrupted[slots] = 0, False
        if self.limits.interrupts:
            self.phase[slots] = THINKING
            self.budget[slots] = torch.randint(low, high + 1, (slots.size,), generator=rng).numpy()
        else:
            self.phase[slots] = ANSWERING
            self.budget[slots] = high

    def move(self, sources: IntArray, targets: IntArray) -> None:
        """Let slots take over the state of others."""
        for state in (self.phase, self.spent, self.budget, self.interrupted):
            state[targets] = state[sources]

    def advance(self, rows: IntArray, sampled: IntArray) -> tuple[IntArray, BoolArray, BoolArray, BoolArray]:
        """Take one token for each row.

        Args:
            rows: (b,) slots. sampled: (b,) what the policy would say next.

        Returns:
            (b,) the tokens to use, whether each was sampled (else inserted), whether the rollout ends with it by an
            end token, and whether it ends because the answer's budget is spent.
        """
        phase, spent = self.phase[rows], self.spent[rows]
        inserting, thinking = phase == INSERTING, phase == THINKING
        phrase = self._phrase[np.minimum(spent, self._phrase.size - 1)]
        token = np.where(inserting, phrase, sampled)
        spent += 1
        stopped = np.zeros(rows.size, np.bool_)
        for end in self.limits.end_tokens:
            stopped |= token == end
        stopped &= ~inserting
        closed = thinking & (token == self._close)
        inserted = inserting & (spent == self._phrase.size)
        to_answer = (closed | inserted) & ~stopped
        # Thinking closed with the budget's last token is not interrupted: the answer follows by itself.
        to_insert = thinking & (spent >= self.budget[rows]) & ~closed & ~stopped
        ran_out = (phase == ANSWERING) & (spent >= self._answer) & ~stopped
        phase[to_answer], phase[to_insert] = ANSWERING, INSERTING
        spent[to_answer | to_insert] = 0
        self.phase[rows], self.spent[rows] = phase, spent
        self.interrupted[rows] |= to_insert
        return token, ~inserting, stopped, ran_out
