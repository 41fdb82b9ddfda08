"""A rollout as at most two requests of token ids, for engines that generate whole completions (vLLM).

The first request thinks, up to the rollout's own budget. If the thinking neither closed nor ended by itself, the phrase
is appended as tokens; the second request answers, with a budget of its own. The outcome is that of `length_control`,
token for token (a test plays the same samples to both). vLLM's own thinking budget is not used: it would report
log-probabilities of tokens that the policy never sampled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from scalerl.engines.length_control import LengthLimits
from scalerl.protocols import WeightSource
from scalerl.types import Prompt, Rollout


@dataclass(frozen=True)
class TokenRequest:
    """What an engine is asked for.

    Attributes:
        token_ids: all that stands before the completion. most: longest completion, in tokens.
        stop: each of these tokens ends the completion, and is part of it. temperature: 0 takes the likeliest token.
        salt: the prefix cache serves only requests with the same one. seed: of this request alone; None: the engine's.
    """

    token_ids: tuple[int, ...]
    most: int
    stop: tuple[int, ...]
    temperature: float
    salt: str
    seed: int | None = None


@dataclass(frozen=True)
class Completion:
    """(t,) sampled tokens, their log-probabilities and the versions of the weights that computed them."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]


Started = Callable[[], None]
"""Called at the first token of a request."""
Complete = Callable[[TokenRequest, Started], Awaitable[Completion]]


class TokenEngine(Protocol):
    """An engine that completes token ids and takes new weights while it does."""

    async def open(self, version: int) -> None:
        """Get ready; the weights it has at first are those of `version`."""
        ...

    async def complete(self, request: TokenRequest, started: Started) -> Completion:
        """The completion of a request; cancelling aborts it."""
        ...

    def stage(self, version: int, source: WeightSource) -> Any:
        """Put weights where the engine can take them, while it generates; `load` gets what this returns."""
        ...

    async def pause(self) -> None:
        """Stop between two tokens; whatever runs keeps its KV cache."""
        ...

    async def load(self, version: int, staged: Any) -> None:
        """Take over staged weights, check that they are what was sent, and label what follows with `version`."""
        ...

    async def resume(self) -> None:
        """Go on with all that was paused."""
        ...

    async def close(self) -> None:
        """End every process that was started."""
        ...


@dataclass(frozen=True)
class RolloutPlan:
    """How the requests of one rollout are made; `budget` is its thinking budget, drawn from `limits.thinking`."""

    limits: LengthLimits
    budget: int
    temperature: float
    salt: str
    seeds: tuple[int | None, int | None] = (None, None)

    def request(self, number: int, token_ids: Sequence[int], most: int, stop: tuple[int, ...]) -> TokenRequest:
        """The first (0) or second (1) request."""
        return TokenRequest(tuple(token_ids), max(1, most), stop, self.temperature, self.salt, self.seeds[number])


class _Tokens:
    """The tokens of a rollout so far, with all that is known of each."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.mask: list[bool] = []
        self.versions: list[int] = []

    def sampled(self, completion: Completion) -> None:
        self.ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.versions += completion.versions
        self.mask += [True] * len(completion.token_ids)

    def inserted(self, phrase: Sequence[int]) -> None:
        """Under the version of the token before them: nothing was computed for them yet."""
        self.ids += phrase
        self.logprobs += [0.0] * len(phrase)
        self.versions += [self.versions[-1]] * len(phrase)
        self.mask += [False] * len(phrase)

    def rollout(self, prompt: Prompt, group_id: int, stopped: bool, interrupted: bool) -> Rollout:
        return Rollout(
            prompt, group_id, np.array(self.ids, np.int64), np.array(self.logprobs, np.float32),
            np.array(self.mask, np.bool_), np.array(self.versions, np.int64), "stop" if stopped else "length",
            interrupted,
        )  # fmt: skip


async def generate(complete: Complete, group_id: int, prompt: Prompt, plan: RolloutPlan, started: Started) -> Rollout:
    """One rollout.

    Args:
        complete: of the engine. started: called at the rollout's first token.

    Returns:
        With inserted tokens masked; versions never decrease.
    """
    limits, tokens, interrupted = plan.limits, _Tokens(), False
    answer = limits.answer + (0 if limits.interrupts else limits.thinking[1])
    if limits.interrupts:
        assert limits.end_of_thinking is not None  # it interrupts
        stop = (*limits.end_tokens, limits.end_of_thinking)
        tokens.sampled(await complete(plan.request(0, prompt.token_ids, plan.budget, stop), started))
        if tokens.ids[-1] in limits.end_tokens:
            return tokens.rollout(prompt, group_id, True, False)
        # Thinking closed with the budget's last token is not interrupted: the answer follows by itself.
        if tokens.ids[-1] != limits.end_of_thinking:
            interrupted = True
            tokens.inserted(limits.phrase)
    request = plan.request(1, (*prompt.token_ids, *tokens.ids), answer, limits.end_tokens)
    tokens.sampled(await complete(request, started))
    return tokens.rollout(prompt, group_id, tokens.ids[-1] in limits.end_tokens, interrupted)
