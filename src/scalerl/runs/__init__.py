"""Floor 1: readers of training logs -> `RunLog`, `Curve`."""

from scalerl.runs.curve import Curve

__all__ = ["Curve"]
