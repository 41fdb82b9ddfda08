"""What is shown while a run makes ready."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from scalerl.training.progress import Progress


def test_a_warm_start_tells_how_long_it_still_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    progress = Progress(10, Console(file=out, width=200))
    for step in range(1, 601):
        progress.warm_start(step, 600, 2.0)
        clock[0] += 0.5
    lines = out.getvalue().splitlines()
    assert lines[0] == "warm start: step 1 of 600, loss 2.000"
    assert lines[1] == "warm start: step 11 of 600, loss 2.000; 5 min left, once only"
    assert lines[-2] == "warm start: step 591 of 600, loss 2.000; 4 s left, once only"
    assert lines[-1] == "warm start: step 600 of 600, loss 2.000"
    assert progress.state.parts() == [("warm start", "step 600 of 600, loss 2.000")]
