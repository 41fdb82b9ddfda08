"""Learning under faults: the same run undisturbed, and with an engine killed every few seconds. One JSON line.

    python bench/faults.py [--seeds 3] [--steps 60] [--every 6] [--out demo/faults]

Each seed is run twice, on two generators and a trainer in processes; the second time a random engine is killed (by
kill -9) every `--every` seconds. `end` are held-out scores at the last step. `difference` is the mean over seeds of
disturbed minus undisturbed, `noise` the standard error of such a mean, from the spread of each kind over its seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def run(folder: Path, seed: int, steps: int, every: float | None) -> dict[str, Any]:
    """One run; its last score, how many engines were killed, and whether the log keeps what it promises."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = ["engines.generators=2", "engines.slots=64", "evaluation.every=10", "checkpoints.every=4"]
    command = [sys.executable, "-m", "scalerl", "train", "--steps", str(steps), "--seed", str(seed), *words]
    with folder.with_suffix(".txt").open("w") as output:
        process = subprocess.Popen([*command, "--out", str(folder)], stdout=output, stderr=subprocess.STDOUT)
        kills = _disturb(process, folder, random.Random(seed), every) if every else 0
        if process.wait():
            raise SystemExit(f"{folder}: the run failed; see {folder.with_suffix('.txt')}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    groups = [group for row in trained for group in row["group_ids"].split()]
    return {
        "end": [row["pass_rate"] for row in rows if row["kind"] == "eval"][-1],
        "kills": kills,
        "each_step_once": [row["step"] for row in trained] == list(range(1, steps + 1)),
        "each_group_once": len(groups) == len(set(groups)),
        "staleness_max": max(row["staleness_max"] for row in trained),
    }


def _disturb(process: subprocess.Popen[bytes], folder: Path, rng: random.Random, every: float) -> int:
    """Kill one engine after the other until the run has ended; how many."""
    kills = 0
    while process.poll() is None:
        time.sleep(rng.uniform(0.5, 1.5) * every)
        engines = _engines(process.pid) if (folder / "metrics.jsonl").exists() else []
        if engines:
            try:
                os.kill(rng.choice(engines), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:  # it has just ended by itself
                continue
    return kills


def _engines(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
        except OSError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=float, default=6.0)
    parser.add_argument("--out", type=Path, default=Path("demo/faults"))
    options = parser.parse_args()
    calm, hit = [], []
    for seed in range(options.seeds):
        calm.append(run(options.out / f"calm-{seed}", seed, options.steps, None))
        hit.append(run(options.out / f"hit-{seed}", seed, options.steps, options.every))
        print(f"seed {seed}: {calm[-1]} {hit[-1]}", file=sys.stderr)
    ends = [[one["end"] for one in kind] for kind in (calm, hit)]
    spread = sum(statistics.variance(kind) for kind in ends) if options.seeds > 1 else math.nan
    print(
        json.dumps(
            {
                "bench": "faults",
                "undisturbed": calm,
                "disturbed": hit,
                "difference": round(statistics.fmean(ends[1]) - statistics.fmean(ends[0]), 4),
                "noise": round(math.sqrt(spread / options.seeds), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
