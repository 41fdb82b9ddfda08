"""When prompts are submitted and weights are sent: PipelineRL-k, PPO-off-policy-k, or lockstep."""

from __future__ import annotations

from dataclasses import dataclass

from scalerl.recipe.recipe import Recipe


@dataclass(frozen=True)
class Schedule:
    """What the controller asks at each turn.

    Attributes:
        window: steps between two submissions and two weight updates; 1 submits and sends at every step.
        max_staleness: k of the admission.
        whole: a batch is taken only when everything outstanding has finished, and in the order of submission.
        overlap: training and evaluation run beside generation; without, one thing happens at a time.
    """

    window: int
    max_staleness: int
    whole: bool
    overlap: bool

    @classmethod
    def of(cls, recipe: Recipe) -> Schedule:
        """`pipeline`: generation never stops. `ppo-off-policy`: k batches from frozen weights, then k updates.

        `lockstep`: a batch, a step, in turns, and the same in every repetition.
        """
        if recipe.schedule == "pipeline":
            return cls(1, recipe.max_staleness, whole=False, overlap=True)
        if recipe.schedule == "ppo-off-policy":
            k = max(recipe.max_staleness, 1)
            return cls(k, k - 1, whole=True, overlap=True)
        return cls(1, 0, whole=True, overlap=False)

    def at_boundary(self, step: int) -> bool:
        """Whether weights are sent and prompts submitted after `step` steps."""
        return step % self.window == 0
