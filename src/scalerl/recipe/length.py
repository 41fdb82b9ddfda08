"""Keeping generations short: interruption of the thinking, the length penalty, and what becomes of truncated rollouts.

The engine decides token by token and inserts the phrase; here is the plan it follows, and what may count for what
(PAPER section 4, item 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalerl.errors import InputError
from scalerl.types import BoolArray, IntArray, Rollout

if TYPE_CHECKING:
    from scalerl.recipe.recipe import Recipe

LengthControl = Literal["interruption", "penalty", "none"]
TruncatedPolicy = Literal["score", "mask"]


@dataclass(frozen=True)
class Interruption:
    """When to end a rollout's thinking, and with which tokens. Lengths are tokens of the completion.

    Attributes:
        budget_low, budget_high: range, ends included, of the thinking budget drawn for each rollout.
        phrase: token ids inserted when the budget is used up; they end with the mark that closes the thinking.
        answer_budget: tokens the model may sample after its thinking was closed, by itself or by the phrase.
    """

    budget_low: int
    budget_high: int
    phrase: tuple[int, ...]
    answer_budget: int

    @classmethod
    def of(cls, recipe: Recipe, phrase: tuple[int, ...]) -> Interruption | None:
        """The recipe's plan with its phrase as the tokenizer of the model writes it; None if it does not interrupt."""
        if recipe.length_control != "interruption":
            return None
        plan = cls(recipe.thinking_budget_low, recipe.thinking_budget_high, phrase, recipe.answer_budget)
        if not phrase:
            raise InputError("interruption_phrase: the tokenizer makes no token of it; write another phrase")
        if plan.most_tokens > recipe.completion_tokens:
            raise InputError(
                f"completion_tokens = {recipe.completion_tokens}: thinking, the phrase's {len(phrase)} tokens and the "
                f"answer can take {plan.most_tokens}; set completion_tokens to at least that"
            )
        return plan

    @property
    def most_tokens(self) -> int:
        """The longest completion that can come of this plan."""
        return self.budget_high + len(self.phrase) + self.answer_budget

    def draw(self, seed: int, group_id: int, rollouts: int) -> IntArray:
        """(rollouts,) thinking budgets, uniform. The same for the same arguments, in whichever order groups come."""
        random = np.random.default_rng([seed, group_id])
        return random.integers(self.budget_low, self.budget_high, size=rollouts, endpoint=True)


def length_penalty(lengths: ArrayLike, correct: ArrayLike, longest: int, cache: int) -> NDArray[np.float64]:
    """(r,) clip((longest - |y|) / cache - 1, -1, 0) for correct rollouts, 0 for the others; to add to the reward.

    Args:
        lengths: (r,) sampled tokens. correct: (r,) booleans.
        longest: L_max, where the whole penalty applies. cache: L_cache, how far before it the penalty begins.
    """
    room = (longest - np.asarray(lengths, dtype=np.float64)) / cache - 1
    return np.where(correct, np.clip(room, -1.0, 0.0), 0.0)


def trained_tokens(rollout: Rollout, truncated: TruncatedPolicy) -> BoolArray:
    """(t,) tokens that enter the loss: sampled ones, after a token to predict them from.

    Under "mask" a truncated rollout trains nothing, though its reward still counts in its group's mean, as in DAPO.
    Under "score" it is a rollout like any other.
    """
    trained = rollout.loss_mask.astype(np.bool_)  # a copy
    if truncated == "mask" and rollout.truncated:
        trained[:] = False
    if not rollout.prompt.token_ids:
        trained[:1] = False
    return trained
