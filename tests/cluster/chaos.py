"""`make chaos`: a run on a Ray cluster of four nodes, hit by a hundred faults one after the other; one JSON line.

    python tests/cluster/chaos.py [--faults 100] [--minutes 15] [--seed 0]

Each fault of `faulty.py`, as often as its weight says, in random order: the next one comes as soon as a step has been
taken since the last, so that most of them hit a run that still mends the one before. At the end the log is held
against all promises. Exit code 1, with the reason, where a promise was broken, where no step came for two and a half
minutes, or where time ran out before the last fault.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))  # small_runs

import faulty
from faulty import Driver, Fault, Nodes

WEIGHTS: dict[Fault, int] = {
    faulty.kill_a_generator: 30,
    faulty.delay_weights: 15,
    faulty.kill_a_trainer_rank: 13,
    faulty.hang_a_generator: 10,
    faulty.lose_a_node: 10,
    faulty.fill_the_disk_of_the_checkpoints: 10,
    faulty.kill_the_controller: 10,
    faulty.hang_a_trainer_rank: 2,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1000))
    options = parser.parse_args()
    logging.getLogger("ray").setLevel(logging.ERROR)
    rng = random.Random(options.seed)
    whole, rest = divmod(options.faults, sum(WEIGHTS.values()))
    faults = whole * [fault for fault, weight in WEIGHTS.items() for _ in range(weight)]
    faults += rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=rest)
    rng.shuffle(faults)
    nodes = Nodes()
    try:
        with tempfile.TemporaryDirectory(prefix="scalerl-chaos-") as folder:
            driver = Driver(Path(folder) / "run", nodes.cluster.address)
            try:
                report = _hit(driver, nodes, faults, rng, time.monotonic() + 60 * options.minutes)
            finally:
                driver.kill()
    finally:
        nodes.cluster.shutdown()
    print(json.dumps({"bench": "chaos", "seed": options.seed, **report}))
    return 0


def _hit(driver: Driver, nodes: Nodes, faults: list[Fault], rng: random.Random, deadline: float) -> dict[str, object]:
    begun, done = time.monotonic(), Counter[str]()
    driver.progress()
    for number, fault in enumerate(faults, 1):
        if time.monotonic() > deadline:
            raise SystemExit(f"time ran out after {number - 1} of {len(faults)} faults, at step {driver.step()}")
        print(f"{number}, {time.monotonic() - begun:.0f} s, step {driver.step()}: {fault.__name__}", file=sys.stderr)
        driver.began = time.time()
        fault(driver, nodes, rng)
        driver.progress(1)
        done[fault.__name__] += 1
    driver.progress()
    faulty.promises_kept(driver)
    events = Counter(str(row["event"]) for row in driver.rows("event"))
    return {
        "faults": len(faults), "seconds": round(time.monotonic() - begun), "steps": driver.step(),
        "by_fault": done, "events": events,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
