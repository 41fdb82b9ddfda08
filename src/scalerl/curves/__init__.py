"""Floor 2: the law, its fit, forecasts with intervals, verdicts, comparisons and backtests (numpy and scipy only)."""

from scalerl.curves.fit import Fit, fit
from scalerl.curves.forecast import Forecast, forecast

__all__ = ["Fit", "Forecast", "fit", "forecast"]
