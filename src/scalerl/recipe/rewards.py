"""From a verifier's score to the reward on the recipe's scale (PAPER A.3: +1 correct, -1 wrong)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scalerl.errors import InputError
from scalerl.recipe.grouping import Bools, Floats


def is_correct(scores: ArrayLike) -> Bools:
    """(r,) True at full marks: partial credit for a wrong answer is no success in a pass rate."""
    return np.asarray(scores, dtype=np.float64) >= 1


def scaled_rewards(scores: ArrayLike, correct: float, wrong: float) -> Floats:
    """Rewards of scores in [0, 1], linear from `wrong` to `correct`; -1 is wrong as well.

    NaN (could not be verified) stays NaN.

    Raises:
        InputError: a score is outside [-1, 1].
    """
    score = np.asarray(scores, dtype=np.float64)
    outside = np.abs(score) > 1  # False for NaN
    if outside.any():
        raise InputError(
            f"a verifier returned {score[outside][0]:g}: return 1 for correct, 0 for wrong, or partial "
            "credit between them"
        )
    return wrong + np.maximum(score, 0.0) * (correct - wrong)
