"""Floor 2: the law, its fit, forecasts with intervals, verdicts, comparisons and backtests (numpy and scipy only)."""

from scalerl.curves.association import Association
from scalerl.curves.compare import Comparison, Difference, Pair, Rank, RecipeFit, compare
from scalerl.curves.fit import Fit, fit
from scalerl.curves.forecast import Forecast, forecast
from scalerl.curves.transfer import Transfer, transfer

__all__ = [
    "Association",
    "Comparison",
    "Difference",
    "Fit",
    "Forecast",
    "Pair",
    "Rank",
    "RecipeFit",
    "Transfer",
    "compare",
    "fit",
    "forecast",
    "transfer",
]
