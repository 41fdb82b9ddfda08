"""The controller's settings, and how a run ends."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True)
class Outcome:
    """`reason` is "steps", "stopped: ..." or "all prompts retired"."""

    step: int
    reason: str
