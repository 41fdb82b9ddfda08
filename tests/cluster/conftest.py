"""The helpers of the other tests, and as many Ray CPUs as the tests ask for, whatever the machine has."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("training", "engines", "pipeline"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
