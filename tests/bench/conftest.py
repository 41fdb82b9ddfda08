"""The scripts of bench/ import each other by their file names."""

import sys
from pathlib import Path

# Last: examples have a `demo` too.
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
