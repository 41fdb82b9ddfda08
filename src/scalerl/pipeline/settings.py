"""The controller's settings, and how a run ends."""

from __future__ import annotations

from dataclasses import dataclass

from scalerl.errors import InputError
from scalerl.recipe.recipe import Recipe


@dataclass(frozen=True)
class ControllerSettings:
    """What is no choice of the algorithm.

    Attributes:
        steps: where the run ends. evaluate_every, checkpoint_every: in steps; 0 for never.
        capacity: most groups under way; None for all that the staleness bound allows.
        seed: of a generator that can be reseeded, in lockstep.
        pause: seconds to sleep after a turn in which nothing happened.
    """

    steps: int
    evaluate_every: int = 0
    checkpoint_every: int = 0
    capacity: int | None = None
    seed: int = 0
    pause: float = 0.002

    def check(self, recipe: Recipe) -> None:
        """Refuse what cannot be done under this recipe.

        Raises:
            InputError: naming the setting and the nearest valid value.
        """
        if self.capacity is None:
            return
        least, most = recipe.prompts_per_step, (recipe.max_staleness + 1) * recipe.prompts_per_step
        if recipe.schedule != "pipeline":
            raise InputError(f"capacity = {self.capacity}: {recipe.schedule} always fills its window; leave it out")
        if not least <= self.capacity <= most:
            raise InputError(
                f"capacity = {self.capacity}: it must be from prompts_per_step = {least} to (max_staleness + 1) x "
                f"prompts_per_step = {most}; the nearest valid is {min(max(self.capacity, least), most)}"
            )


@dataclass(frozen=True)
class Outcome:
    """`reason` is "steps", "stopped: ..." or "all prompts retired"."""

    step: int
    reason: str
