"""When prompts are submitted and weights are sent: PipelineRL-k, PPO-off-policy-k, or lockstep."""

from __future__ import annotations

from dataclasses import dataclass

from scalerl.recipe.recipe import Recipe


@dataclass(frozen=True)
class Schedule:
    """What the controller asks at each turn.

    Attributes:
        max_staleness: k of the admission.
        whole: prompts are submitted and weights sent only when nothing is outstanding, and batches taken only when all
            of it has finished, in the order of submission. Without, both happen at every step.
        overlap: training and evaluation run beside generation; without, one thing happens at a time.
    """

    max_staleness: int
    whole: bool
    overlap: bool

    @classmethod
    def of(cls, recipe: Recipe) -> Schedule:
        """`pipeline`: generation never stops. `ppo-off-policy`: k batches from frozen weights, then k updates.

        `lockstep`: a batch, a step, in turns, and the same in every repetition.
        """
        if recipe.schedule == "pipeline":
            return cls(recipe.max_staleness, whole=False, overlap=True)
        if recipe.schedule == "ppo-off-policy":
            return cls(max(recipe.max_staleness, 1) - 1, whole=True, overlap=True)
        return cls(0, whole=True, overlap=False)

    def renews(self, outstanding: int) -> bool:
        """Whether weights are sent and prompts submitted with so many groups outstanding."""
        return outstanding == 0 or not self.whole
