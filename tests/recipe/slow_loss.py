"""The losses once more, in plain Python floats, with the gradient in closed form. Independent of the package."""

from __future__ import annotations

import math
from collections.abc import Sequence

DEFAULTS = {"cispo": (None, 5.0), "grpo": (0.2, 0.2), "dapo": (0.2, 0.26), "gspo": (3e-3, 4e-3)}


def slow_loss(
    kind: str,
    trainer: Sequence[float],
    generator: Sequence[float],
    advantages: Sequence[float],
    weights: Sequence[float],
    sequences: Sequence[int],
    clip: tuple[float | None, float],
) -> tuple[float, list[float]]:
    """(loss, d loss / d trainer log-probability of each token)."""
    n = len(trainer)
    used = [i for i in range(n) if weights[i] > 0 and math.isfinite(trainer[i]) and math.isfinite(generator[i])]
    loss, gradient = 0.0, [0.0] * n
    low, high = clip
    for i in used:
        mates = [j for j in used if sequences[j] == sequences[i]] if kind == "gspo" else [i]
        ratio = math.exp(sum(trainer[j] - generator[j] for j in mates) / len(mates))
        a, w = advantages[i], weights[i]
        if kind == "cispo":
            loss -= w * min(ratio, high) * a * trainer[i]
            gradient[i] -= w * min(ratio, high) * a
            continue
        clipped = min(max(ratio, 1 - low), 1 + high)
        loss -= w * min(ratio * a, clipped * a)
        if ratio * a <= clipped * a:  # else the clip holds, and a constant has no gradient
            for j in mates:
                gradient[j] -= w * a * ratio / len(mates)
    return loss, gradient
