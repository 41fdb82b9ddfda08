"""The forecast line: never a refusal without its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalerl.training.progress import State
from scalerl.training.renewal import Renewal
from scalerl.training.settings import ForecastSettings


def forecast_line(directory: Path, evaluations: int) -> str:
    state = State()

    def listener(row: Any) -> None:
        state.feed(row)

    renewal = Renewal(ForecastSettings(), directory, listener)
    with renewal.beside(lambda _: None):
        for i in range(evaluations):
            compute = {"flops": 1e9 * i, "tokens": i, "device_hours": {"train": i}}
            row = {"kind": "eval", "step": i, "task": "t", "pass_rate": 0.1 + 0.04 * i, "trials": 400}
            renewal.heard(row | {"compute": compute})
    return dict(state.parts())["forecast"]


@pytest.mark.parametrize(
    ("evaluations", "words"),
    [
        (3, "NO-FORECAST: a verdict needs 8 evaluations, the run has 3"),
        (6, "NO-FORECAST (too few points: 6 after warm-up, at least 8 are needed)"),
        (9, "CONTINUE"),
    ],
)
def test_the_reason_stands_beside_a_refused_forecast(tmp_path: Path, evaluations: int, words: str) -> None:
    assert forecast_line(tmp_path, evaluations).endswith(words)


def test_a_skipped_evaluation_is_explained() -> None:
    state = State()
    state.feed({"kind": "event", "step": 5, "event": "evaluation skipped", "reason": "that of step 4"})
    assert "evaluation skipped (that of step 4)" in dict(state.parts())["last event"]
