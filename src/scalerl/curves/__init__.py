"""Floor 2: the law, its fit, forecasts with intervals, verdicts, comparisons and backtests (numpy and scipy only)."""

from scalerl.curves.compare import Comparison, Difference, Pair, Rank, RecipeFit, compare
from scalerl.curves.fit import Fit, fit
from scalerl.curves.forecast import Forecast, forecast

__all__ = [
    "Comparison",
    "Difference",
    "Fit",
    "Forecast",
    "Pair",
    "Rank",
    "RecipeFit",
    "compare",
    "fit",
    "forecast",
]
