"""Forecast the RL post-training of LLMs from the first part of a run.

    curve = scalerl.read_curve("metrics.jsonl")
    fc = scalerl.forecast(curve, at=["2x", 100_000])
    print(fc.verdict, fc.table)

Names are loaded on first use, so that `import scalerl` is fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_HOME = {
    "Curve": "scalerl.runs",
    "RunLog": "scalerl.runs",
    "read_run": "scalerl.runs",
    "read_curve": "scalerl.runs",
    "Fit": "scalerl.curves",
    "Forecast": "scalerl.curves",
    "fit": "scalerl.curves",
    "forecast": "scalerl.curves",
    "compare": "scalerl.curves",
    "transfer": "scalerl.curves",
    "backtest": "scalerl.curves.backtest",
    "InputError": "scalerl.errors",
    "ForecastRefused": "scalerl.errors",
    "ScaleRLError": "scalerl.errors",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalerl' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
