"""How often `compare` says the right thing of two simulated recipes. Prints one JSON line.

    python bench/compare.py [pairs per cell, default 100]

Leaves out several seeds a recipe and real runs: there the truth is not known.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from scalerl.curves.compare import compare
from scalerl.curves.pair_words import WORDS
from scalerl.curves.pooling import A_SPREAD, SHAPE_SPREAD
from scalerl.curves.synthetic import sigmoid_run
from scalerl.runs import Curve

Cell = Callable[[np.random.Generator], tuple[Curve, Curve]]


def two_recipes(
    reach: float,
    sd: float = 0.004,
    rho: float = 0.0,
    A: float = 0.0,
    B: float = 1.0,
    C_mid: float = 1.0,
    seeds: float = 0.0,
) -> Cell:
    """Both runs get to `reach` C_mid; the second's law differs by these amounts, and each by its seed's deviation."""

    def draw(rng: np.random.Generator) -> tuple[Curve, Curve]:
        R0, gain = rng.uniform(0.1, 0.5), rng.uniform(0.15, 0.35)
        law_B, law_C_mid = float(np.exp(rng.normal(0.5, 0.25))), rng.uniform(500.0, 3000.0)
        runs = []
        for plus, by_B, by_C_mid in ((0.0, 1.0, 1.0), (A, B, C_mid)):
            stray = seeds * rng.standard_normal(3)
            runs.append(
                sigmoid_run(
                    rng,
                    R0,
                    R0 + gain + plus + A_SPREAD * stray[0],
                    law_B * by_B * np.exp(SHAPE_SPREAD * stray[1]),
                    law_C_mid * by_C_mid * np.exp(SHAPE_SPREAD * stray[2]),
                    reach * law_C_mid * max(C_mid, 1.0),
                    sd,
                    rho,
                )
            )
        return runs[0], runs[1]

    return draw


CELLS: dict[str, Cell] = {
    "equal, 4 C_mid": two_recipes(4),
    "equal but for seeds, 4 C_mid": two_recipes(4, seeds=1.0),
    "equal but for seeds, 8 C_mid": two_recipes(8, seeds=1.0),
    "equal, noise .012, 2.5 C_mid": two_recipes(2.5, sd=0.012),
    "equal, AR(1) noise .006, 6 C_mid": two_recipes(6, sd=0.006, rho=0.6),
    "A +.06, 4.5 C_mid": two_recipes(4.5, A=0.06),
    "A +.06, 4 C_mid": two_recipes(4, A=0.06),
    "A +.06, 8 C_mid": two_recipes(8, A=0.06),
    "B x2, 5 C_mid": two_recipes(5, B=2.0),
    "B /2, 5 C_mid": two_recipes(5, B=0.5),
    "C_mid x2, 5 C_mid": two_recipes(5, C_mid=2.0),
    "C_mid x2, noise .01, 5 C_mid": two_recipes(5, sd=0.01, C_mid=2.0),
    "equal, 1 C_mid": two_recipes(1),
}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rates, began = {}, time.perf_counter()
    for name, draw in CELLS.items():
        said = Counter[str]()
        for seed in range(count):
            first, second = draw(np.random.default_rng([seed, 99]))
            said[compare({"first": first, "second": second}).pairs[0].words] += 1
        rates[name] = {words: round(said[words] / count, 3) for words in WORDS if said[words]}
    per_pair = (time.perf_counter() - began) / count / len(CELLS)
    print(json.dumps({"bench": "compare", "pairs": count, "ms_per_pair": round(1e3 * per_pair, 1), "words": rates}))


if __name__ == "__main__":
    main()
