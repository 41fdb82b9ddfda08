"""Floor 3: the algorithm. Settings (`Recipe`), and pure functions from rewards to a loss.

Only `loss` and `divergence` need torch; the rest is numpy, so that a controller or planner loads no torch. What is left
out on purpose: sampling (engines), verifying (tasks), and every loop.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Recipe": "recipe",
    "PRESETS": "presets",
    "make_batch": "assemble",
    "prediction_sites": "assemble",
    "group_advantages": "advantages",
    "token_weights": "aggregation",
    "Curriculum": "curriculum",
    "Interruption": "length",
    "length_penalty": "length",
    "policy_loss": "loss",
    "LossStats": "loss",
    "entropy": "divergence",
    "reference_kl": "divergence",
}
__all__ = ["PRESETS", *sorted(_HOME.keys() - {"PRESETS"})]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalerl.recipe' has no attribute {name!r}")
    return getattr(import_module(f"scalerl.recipe.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
