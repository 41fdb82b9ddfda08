"""How long an example of hypothesis takes says nothing on a machine that others load; in CI each run draws the same."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "scalerl", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("scalerl")
