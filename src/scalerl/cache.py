"""Where what can be made again is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SCALERL_CACHE, else scalerl below the user's cache."""
    own = os.environ.get("SCALERL_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scalerl"
