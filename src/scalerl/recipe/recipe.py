"""`Recipe`: every choice of the algorithm in one frozen, validated object. The defaults are ScaleRL's.

    Recipe.preset("scalerl").with_(loss="dapo", prompts_per_step=32)

What is no choice of the algorithm is left out: the model, the task, machines, and how often to evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scalerl.recipe import validate
from scalerl.recipe.advantages import AdvantageNormalization
from scalerl.recipe.aggregation import Aggregation
from scalerl.recipe.curriculum import CurriculumKind
from scalerl.recipe.length import LengthControl, TruncatedPolicy
from scalerl.recipe.presets import INTERRUPTION_PHRASE, PRESETS

Schedule = Literal["pipeline", "ppo-off-policy", "lockstep"]
LossName = Literal["cispo", "grpo", "dapo", "gspo"]  # those of loss.LossKind, which would import torch


@dataclass(frozen=True)
class Recipe:
    """The settings. Sections are those of PAPER.md; units stand beside what has one.

    Raises:
        InputError: a value is not valid by itself or beside the others; the message names the nearest that is.
    """

    # Off-policy schedule
    schedule: Schedule = "pipeline"
    max_staleness: int = 8  # k, in optimizer steps: how far the trainer may be ahead of a rollout's oldest token

    # Loss. For cispo clip_high bounds the ratio itself and clip_low is null; for the others both are distances from 1.
    loss: LossName = "cispo"
    clip_low: float | None = None  # null: the loss's own
    clip_high: float | None = None  # null: the loss's own
    kl_coefficient: float = 0.0  # of the KL to a frozen reference
    router_loss: float = 0.0  # coefficient of the load-balancing loss of a mixture of experts

    # Precision. One setting for the head of generator and trainer: on one side only is worse than on neither.
    head_precision: Literal["fp32", "model"] = "fp32"
    master_weights: Literal["fp32"] = "fp32"

    # From rewards to weights
    reward_correct: float = 1.0
    reward_wrong: float = -1.0
    aggregation: Aggregation = "prompt"
    advantage_normalization: AdvantageNormalization = "batch"
    zero_variance: Literal["filter", "keep"] = "filter"

    # Curriculum
    curriculum: CurriculumKind = "no-positive-resampling"
    retire_at: float = 0.9  # pass rate

    # Length, in tokens
    length_control: LengthControl = "interruption"
    thinking_budget_low: int = 10_000
    thinking_budget_high: int = 12_000
    answer_budget: int = 2_048
    interruption_phrase: str = INTERRUPTION_PHRASE
    thinking_end: str = "</think>"
    penalty_longest: int = 14_336  # L_max
    penalty_cache: int = 2_048  # L_cache
    completion_tokens: int = 14_336  # the most a completion may have
    prompt_tokens: int = 2_048  # longer prompts are left out
    truncated: TruncatedPolicy = "score"

    # Sampling. The last three renormalise what the generator reports: only their neutral values are valid.
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    prompts_per_step: int = 48
    generations: int = 16

    # Optimizer: AdamW
    learning_rate: float = 5e-7
    warmup_steps: int = 100
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-15
    weight_decay: float = 0.01
    gradient_clipping: float | None = 1.0  # largest norm; null: none

    def __post_init__(self) -> None:
        for name, value in validate.converted(asdict(self), type(self)).items():
            object.__setattr__(self, name, value)
        low, high = validate.CLIPS[self.loss]
        object.__setattr__(self, "clip_low", low if self.clip_low is None else self.clip_low)
        object.__setattr__(self, "clip_high", high if self.clip_high is None else self.clip_high)
        validate.check(self)

    @classmethod
    def preset(cls, name: str) -> Recipe:
        """One of `PRESETS`; their `sources` say where each setting comes from."""
        return cls.from_dict(PRESETS[validate.one_of("preset", name, tuple(PRESETS))].settings)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Recipe:
        """From settings by name, as YAML or JSON hold them; what is missing is ScaleRL's."""
        validate.check_names(settings, cls)
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """All settings, resolved; plain values that YAML and JSON can hold."""
        return asdict(self)

    def with_(self, **changes: Any) -> Recipe:
        """The same recipe with some settings changed. Another loss brings its own clips unless they are given."""
        settings = self.to_dict()
        if changes.get("loss", self.loss) != self.loss:
            settings |= {"clip_low": None, "clip_high": None}
        return type(self).from_dict(settings | changes)

    def leave_one_out(self) -> dict[str, Recipe]:
        """This recipe with one ingredient turned back at a time (figure 15); arms that change nothing are left out."""
        arms: dict[str, dict[str, Any]] = {
            "loo-plan": {"advantage_normalization": "prompt"},
            "loo-lp": {"length_control": "penalty"},
            "loo-batch": {"zero_variance": "keep"},
            "loo-8op": {"schedule": "ppo-off-policy"},
            "loo-fp32": {"head_precision": "model"},
            "loo-savg": {"aggregation": "sample"},
            "loo-dapo": {"loss": "dapo"},
        }
        recipes = {name: self.with_(**changes) for name, changes in arms.items()}
        return {name: recipe for name, recipe in recipes.items() if recipe != self}

    @property
    def clip(self) -> tuple[float | None, float]:
        """As `policy_loss` takes it."""
        assert self.clip_high is not None  # resolved when made
        return self.clip_low, self.clip_high

    @property
    def batch_size(self) -> int:
        """Rollouts of one optimizer step before filtering."""
        return self.prompts_per_step * self.generations
