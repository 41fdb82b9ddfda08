"""Floor 1: readers of training logs -> `RunLog`, `Curve`."""

from scalerl.runs.curve import Curve
from scalerl.runs.runlog import RunLog, read_curve, read_run
from scalerl.runs.truncation import Truncation

__all__ = ["Curve", "RunLog", "Truncation", "read_curve", "read_run"]
