"""`make demo` with ten seeds: does training rise, and does the forecast at half time hold the end? One JSON line.

    python bench/demo.py [--seeds 10] [--out demo/seeds]

A seed gives another order of prompts and other samples; the supervised start is the same. `held` counts the ends, as
they were observed, inside the 90 % interval of the forecast from the first half. `peak_mb` is of all processes together
(proportional set size, so that shared memory counts once), where Linux tells it. The run directories, pictures and
numbers of every seed stay in --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
_LOOK_EVERY = 2.0  # seconds


def run(folder: Path, seed: int) -> dict[str, Any]:
    """One demo, what it wrote in demo.json, and what its metrics show of the recipe at work."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen([sys.executable, str(DEMO), str(folder), "--seed", str(seed)], stdout=output)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(_LOOK_EVERY)
    if process.returncode:
        raise SystemExit(f"seed {seed}: the demo failed; see {folder / 'output.txt'}")
    found = json.loads((folder / "demo.json").read_text())
    return found | {"peak_mb": round(peak / 1024)} | at_work(folder / "run")


def at_work(directory: Path) -> dict[str, float]:
    """What the metrics of the whole run say of the ingredients that count something."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "train"]

    def mean(name: str) -> float:
        return round(statistics.fmean(row[name] for row in steps), 4)

    return {
        "interrupted_share": mean("interrupted_share"),
        "dropped_prompts": sum(row["dropped_prompts"] for row in steps),
        "prompts_retired": steps[-1]["prompts_retired"],
        "staleness_mean": mean("staleness_mean"),
        "staleness_max": max(row["staleness_max"] for row in steps),
        "versions_per_rollout": mean("versions_per_rollout"),
        "seconds_per_step": round(statistics.median(row["seconds_total"] for row in steps), 3),
    }


def memory(root: int) -> int:
    """KiB of a process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(_proportional(pid) for pid in tree)


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    """Run the seeds one after the other; each uses all cores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("demo/seeds"))
    options = parser.parse_args()
    found = []
    for seed in range(options.seeds):
        found.append(run(options.out / f"seed-{seed}", seed))
        print(f"seed {seed}: {found[-1]}", file=sys.stderr, flush=True)
    rises = [f["end"] - f["start"] for f in found]
    print(
        json.dumps(
            {
                "bench": "demo",
                "seeds": len(found),
                "held": sum(f["held"] for f in found),
                "rise_min": round(min(rises), 3),
                "rise_median": round(statistics.median(rises), 3),
                "evaluations_min": min(f["evaluations"] for f in found),
                "interval_width_median": round(statistics.median(f["high"] - f["low"] for f in found), 3),
                "error_median": round(statistics.median(abs(f["score"] - f["end"]) for f in found), 3),
                "seconds_max": max(f["seconds"] for f in found),
                "peak_mb_max": max(f["peak_mb"] for f in found),
                "runs": found,
            }
        )
    )


if __name__ == "__main__":
    main()
