"""How often `transfer` says the right thing of simulated downstream scores. Prints one JSON line.

    python bench/transfer.py [runs per cell, default 60]

Leaves out real downstream scores: there nobody knows whether they follow.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.laws import SIGMOID
from scalerl.curves.synthetic import ar1_noise, sigmoid_run
from scalerl.curves.transfer import WORDS, transfer
from scalerl.runs import Curve

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """Downstream points and noise; `lag` in shares of the run, or a `trend` (compute, last, C_mid) of its own."""

    points: int = 30
    sd: float = 0.015
    rho: float = 0.0
    lag: float = 0.0
    trend: Callable[[FloatArray, float, float], FloatArray] | None = None


CELLS = {
    "follows, noise .005, 60 points": Cell(60, 0.005),
    "follows, noise .015, 30 points": Cell(),
    "follows, noise .03, 20 points": Cell(20, 0.03),
    "follows, AR(1) noise .015, 40 points": Cell(40, rho=0.6),
    "follows, noise .01, 7 points": Cell(7, 0.01),
    "trails by .1 of the run": Cell(40, 0.01, lag=0.1),
    "trails by .25 of the run": Cell(40, 0.01, lag=0.25),
    "flat": Cell(trend=lambda c, last, C_mid: 0.3 + 0 * c),
    "flat, AR(1) noise .03": Cell(sd=0.03, rho=0.6, trend=lambda c, last, C_mid: 0.3 + 0 * c),
    "line in compute": Cell(trend=lambda c, last, C_mid: 0.1 + 0.3 * c / last),
    "line in log compute": Cell(trend=lambda c, last, C_mid: 0.3 + 0.08 * np.log(c / last)),
    "sigmoid of five times the C_mid": Cell(trend=lambda c, last, C_mid: SIGMOID.value(c, 0.1, 0.5, 2.0, 5 * C_mid)),
    "falls": Cell(trend=lambda c, last, C_mid: SIGMOID.value(c, 0.5, 0.3, 1.5, C_mid)),
}


def draw(cell: Cell, rng: np.random.Generator) -> tuple[Curve, Curve, float | None]:
    """A run's held-out and downstream scores, and the lag where there is one to find."""
    C_mid, R0 = rng.uniform(300.0, 1500.0), rng.uniform(0.1, 0.4)
    A, B, last = R0 + rng.uniform(0.2, 0.4), float(np.exp(rng.normal(0.5, 0.25))), C_mid * rng.uniform(3.0, 8.0)
    held_out = sigmoid_run(rng, R0, A, B, C_mid, last, 0.005)
    compute = np.linspace(last / cell.points, last, cell.points)
    if cell.trend is not None:
        mean = cell.trend(compute, last, C_mid)
    else:
        mean = 0.1 + 0.8 * (SIGMOID.value(np.maximum(compute - cell.lag * last, 0.0), R0, A, B, C_mid) - R0)
    score = np.clip(mean + ar1_noise(rng, cell.points, cell.sd, cell.rho), 0, 1)
    return held_out, Curve(compute, score, score_name="downstream"), None if cell.trend else cell.lag * last


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    rows, began = {}, time.perf_counter()
    for name, cell in CELLS.items():
        said, held = Counter[str](), 0
        for seed in range(count):
            held_out, downstream, lag = draw(cell, np.random.default_rng([seed, 5]))
            found = transfer(held_out, downstream)
            said[found.words] += 1
            held += lag is not None and found.lag.low <= lag <= found.lag.high
        rows[name] = {words: round(said[words] / count, 3) for words in WORDS if said[words]}
        if cell.trend is None:
            rows[name]["lag coverage"] = round(held / count, 3)
    per_run = 1e3 * (time.perf_counter() - began) / count / len(CELLS)
    print(json.dumps({"bench": "transfer", "runs": count, "ms_per_run": round(per_run, 1), "words": rows}))


if __name__ == "__main__":
    main()
