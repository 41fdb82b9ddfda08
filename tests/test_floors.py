"""The house's floors: imports point down, the first half needs no torch, and importing is fast."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "scalerl"
FLOORS = {
    "errors": 0, "cache": 0, "types": 0, "protocols": 0, "words": 0, "runs": 1, "curves": 2, "recipe": 3, "engines": 4,
    "tasks": 4, "pipeline": 5, "training": 6, "plan": 6, "report": 6, "study": 7, "cli": 8,
}  # fmt: skip


def imported(path: Path) -> set[str]:
    """First-level names below `scalerl` that a file imports, at any depth of its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{a.name}" for a in node.names if node.module == "scalerl"]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("scalerl.")}
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    home = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if home in ("__init__", "__main__"):
        return
    for target in imported(path) - {home, "__version__"}:
        assert target in FLOORS, f"{path.name} imports scalerl.{target}, which is on no floor"
        below = FLOORS[target] < FLOORS[home] or FLOORS[home] == 0  # floor 0 is files, not packages
        assert below, f"{path.name} (floor {FLOORS[home]}) imports {target} ({FLOORS[target]})"


def test_a_forecast_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys, numpy as np, scalerl;"
        "c = scalerl.Curve(np.arange(30.0), np.linspace(.1, .5, 30));"
        "scalerl.forecast(c); scalerl.fit(c).summary();"
        "print(sorted({'torch', 'pandas', 'matplotlib', 'polars'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, scalerl; print(sorted({'numpy', 'scipy', 'polars', 'matplotlib', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
