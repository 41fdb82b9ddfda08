"""Where the warm-up ends: the fast first phase that is not yet the sigmoid (2.1 leaves out about one epoch)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalerl.curves.laws import SIGMOID
from scalerl.curves.observations import observe
from scalerl.curves.posterior import Prior, posterior
from scalerl.runs import Curve

_PRIOR = Prior(
    laws=(SIGMOID,), law_weights=(1.0,), coarse=(12, 6), fine=(14, 8), rho=(0.0, 0.5), rho_weights=(0.6, 0.4),
    tau=(0.0, 0.02), tau_weights=(0.6, 0.4),
)  # fmt: skip
_FRACTIONS = (0.08, 0.15, 0.25)
_KEEP = 8
_RISE_LEFT = 0.25
_ODDS = 4.0
"""log odds by which a cut must explain the points better than none."""


def propose_warmup(curve: Curve) -> float:
    """Compute below which points are better explained as warm-up; 0 where nothing speaks for a cut.

    A cut keeps the early points but takes them for a hundred times as noisy, so that cut and uncut explain the
    same data and their evidence can be compared.
    """
    data = observe(curve)
    n = data.compute.size
    cuts = sorted({round(f * n) for f in _FRACTIONS} - {0})
    # What is left must still rise well beyond its noise, or the cut would throw away the sigmoid itself.
    least = max(_RISE_LEFT * np.ptp(data.score), 10 * data.sigma)
    cuts = [k for k in cuts if n - k >= _KEEP and data.score[k:].max() - data.score[k] >= least]
    if not cuts:
        return 0.0
    plain = posterior(data, _PRIOR).log_evidence
    odds = []
    for k in cuts:
        noise = data.noise.copy()
        noise[:k] *= 100.0
        odds.append(posterior(replace(data, noise=noise, R0_known=False), _PRIOR).log_evidence - plain)
    best = int(np.argmax(odds))
    return float(data.compute[cuts[best]]) if odds[best] > _ODDS else 0.0
