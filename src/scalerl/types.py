"""Floor 0: what flows through training. Plain data, no torch: arrays are numpy, one entry a token where said.

Prompt -> Rollout -> Group -> Batch. The trainer sees only a `Batch`: the recipe has turned rewards into per-token
advantages and weights by then, so it needs to know no algorithm.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FinishReason = Literal["stop", "length", "late"]


@dataclass(frozen=True)
class Prompt:
    """A question with all that its verifier needs.

    Attributes:
        token_ids: (p,) the prompt as the model sees it.
        text: the same as a person reads it.
        task: name of the task that made it, whose verifier judges the answers.
        answer: what the verifier compares with; anything JSON can hold.
    """

    token_ids: tuple[int, ...]
    text: str
    task: str
    answer: Any = None

    @property
    def prompt_id(self) -> str:
        """Hash of the content: the same prompt has the same id in every run and after every reshuffling."""
        content = f"{self.task}\x00{self.text}\x00{self.answer!r}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Rollout:
    """One generation for one prompt.

    Attributes:
        prompt: what was asked. group_id: of the draw it belongs to.
        token_ids: (t,) generated and inserted tokens, without the prompt.
        generator_logprobs: (t,) log-probability of each token under the distribution that sampled it; 0 where
            `loss_mask` is False.
        loss_mask: (t,) True where the policy sampled the token; inserted tokens are False.
        policy_versions: (t,) version of the weights that computed each token; never decreasing.
        finish_reason: "stop" for an end token, "length" where the budget ran out, "late" for one that its engine did
            not bring in time: it has no tokens, is no answer and must be excluded.
        interrupted: the thinking was ended by inserting the phrase. truncated: the answer ran out of tokens.
    """

    prompt: Prompt
    group_id: int
    token_ids: IntArray
    generator_logprobs: FloatArray
    loss_mask: BoolArray
    policy_versions: IntArray
    finish_reason: FinishReason
    interrupted: bool = False

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if not n == len(self.generator_logprobs) == len(self.loss_mask) == len(self.policy_versions):
            raise ValueError(f"rollout of group {self.group_id}: arrays of unequal length beside {n} token_ids")

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    @property
    def oldest_version(self) -> int:
        """Version that the rollout's staleness is counted from."""
        return int(self.policy_versions.min(initial=np.iinfo(np.int64).max))


@dataclass(frozen=True, eq=False)
class Group:
    """All rollouts of one draw of one prompt, with their rewards; a prompt drawn twice makes two groups.

    Attributes:
        rewards: (g,) what the verifier said: 1 correct, 0 or -1 wrong, between them partial credit; NaN where the
            verification itself failed, which is our failure and not the model's. The recipe maps them to its scale.
    """

    group_id: int
    rollouts: tuple[Rollout, ...]
    rewards: FloatArray

    def __post_init__(self) -> None:
        if len(self.rollouts) != len(self.rewards):
            raise ValueError(f"group {self.group_id}: {len(self.rollouts)} rollouts, but {len(self.rewards)} rewards")

    @property
    def pass_rate(self) -> float:
        """Share of full marks among the rollouts that could be verified; NaN if there is none."""
        judged = self.rewards[~np.isnan(self.rewards)]
        return float(np.mean(judged >= 1)) if judged.size else float("nan")


@dataclass(frozen=True, eq=False)
class Batch:
    """Packed tokens of all sequences of one optimizer step; arrays are (n,) over tokens, prompts included.

    Attributes:
        token_ids, positions, sequence_ids: which token, where in its sequence, of which sequence.
        generator_logprobs, advantages, weights: of each token as a target; weights sum to 1 over the batch.
        loss_mask: True where a token is trained on.
        policy_version: trainer's version when the batch was made. info: what the metrics report beside it.
    """

    token_ids: IntArray
    positions: IntArray
    sequence_ids: IntArray
    generator_logprobs: FloatArray
    advantages: FloatArray
    weights: FloatArray
    loss_mask: BoolArray
    policy_version: int
    info: dict[str, float] = field(default_factory=dict)
