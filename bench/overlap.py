"""Whether generation and training overlap: a step's wall time over its longer phase; prints one JSON line.

    python bench/overlap.py [--steps 40] [--skip 6] [--runs default,evaluated,ample,starved]

Each run is `scalerl train` with all defaults (the small model, processes) but for what its name says:

    default     no evaluation. evaluated: with it, every 4 steps, in a third process on the same cores
    ample       as many prompts under way as the staleness bound allows: the generator never waits
    starved     only one step's prompts under way: each waits for the other. It must miss the target, or this bench
                could not see a pipeline that does not overlap

All figures are sums over the steps after the first `--skip`, of clocks that ran while both roles did, so both phases
hold what they lose to each other's use of memory. The phases are taken where the work is, in the children: trainer's
`seconds_step`, and the generator's clock around its decode steps (`device_hours.generate`). What pipes, pickling,
waiting and the controller add is in the wall time alone.

    ratio             wall / the longer phase; target 1.15. A generator that decodes with half of its slots empty is
                      busy too, so read it with the next one
    wall_over_ample   wall time a step, to that of `ample`: what the freshness of the default costs;
                      the runs follow each other, so this one is worth something on an idle machine only
    controller_share  of the wall time: the loop's own (`seconds_controller`); target .05. awake_share: all that is not
                      sleep, so polling, unpickling, verdicts, batches and publishing too
    idle shares, staleness, versions per rollout: as in metrics.jsonl, means
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RUNS: dict[str, dict[str, Any]] = {
    "default": {"evaluation.every": 0},
    "evaluated": {"evaluation.every": 4, "evaluation.prompts": 128},
    "ample": {"evaluation.every": 0, "engines.capacity": 288},
    "starved": {"evaluation.every": 0, "engines.capacity": 32},
}
PHASES = ("assemble", "publish", "engine", "verify", "checkpoint", "sleep")


def rows_of(settings: dict[str, Any], steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of kind train, and of kind eval, of a run of so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        words = [f"{key}={value}" for key, value in settings.items()]
        command = [sys.executable, "-m", "scalerl", "train", *words, "--quiet", "--steps", str(steps)]
        subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"], [row for row in rows if row["kind"] == "eval"]


def measured(rows: list[dict[str, Any]], evaluations: list[dict[str, Any]], skip: int) -> dict[str, Any]:
    """A run's figures, without its first `skip` steps and its last two: there is nothing left to generate then."""
    first, kept = rows[skip - 1], rows[skip:-2]
    n, last = len(kept), kept[-1]

    def per_step(name: str) -> float:
        return sum(row.get(name, 0.0) for row in kept) / n

    def mean(name: str, digits: int = 3) -> float:
        return round(statistics.mean(row[name] for row in kept), digits)

    wall = (last["timestamp"] - first["timestamp"]) / n
    hours = [row["compute"]["device_hours"]["generate"] for row in (first, last)]
    tokens = last["compute"]["tokens"] - first["compute"]["tokens"]
    generate, train = (hours[1] - hours[0]) * 3600 / n, per_step("seconds_step")
    return {
        "steps": n,
        "seconds_wall": round(wall, 3),
        "seconds_generate": round(generate, 3),
        "seconds_train": round(train, 3),
        "ratio": round(wall / max(generate, train), 3),
        "controller_share": round(per_step("seconds_controller") / wall, 4),
        "awake_share": round(1 - per_step("seconds_sleep") / wall, 4),
        "shares": {name: round(per_step(f"seconds_{name}") / wall, 4) for name in PHASES},
        "train_call_overhead": round(per_step("seconds_train") - train, 4),
        "generated_tokens_per_busy_second": round(tokens / (generate * n)),
        "generator_idle_share": mean("generator_idle_share"),
        "trainer_idle_share": mean("trainer_idle_share"),
        "staleness_mean": mean("staleness_mean"),
        "staleness_max": max(row["staleness_max"] for row in kept),
        "versions_per_rollout": mean("versions_per_rollout"),
        "evaluations": len(evaluations),
        "evaluation_seconds": round(statistics.mean([e["seconds_evaluation"] for e in evaluations] or [0.0]), 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--skip", type=int, default=6, help="first steps left out: the pipe fills")
    parser.add_argument("--runs", default=",".join(RUNS))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name in options.runs.split(","):
        found[name] = measured(*rows_of(RUNS[name], options.steps), options.skip)
    if "ample" in found:
        for one in found.values():
            one["wall_over_ample"] = round(one["seconds_wall"] / found["ample"]["seconds_wall"], 3)
    print(json.dumps({"bench": "overlap", "cores": os.cpu_count(), "runs": found}))


if __name__ == "__main__":
    main()
