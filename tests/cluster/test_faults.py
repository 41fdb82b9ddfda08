"""Faults on a real Ray cluster of several nodes: after each the run goes on or resumes, and every promise holds.

One run is hit by all of them, in an order that SCALERL_FAULT_SEED draws; `make chaos` draws its own.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

import faulty
from faulty import EVENTS, Driver, Nodes

pytestmark = [pytest.mark.slow]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.cluster.shutdown()


@pytest.fixture
def driver(nodes: Nodes, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path / "run", nodes.cluster.address)
    yield driver
    driver.kill()


def test_a_run_survives_everything(driver: Driver, nodes: Nodes) -> None:
    rng = random.Random(int(os.environ.get("SCALERL_FAULT_SEED", "0")))
    driver.progress()
    for fault in rng.sample(list(EVENTS), len(EVENTS)):
        print(f"step {driver.step()}: {fault.__name__}", flush=True)
        driver.began = time.time()
        fault(driver, nodes, rng)
        if EVENTS[fault]:
            driver.event(*EVENTS[fault])
        driver.progress(20 if fault is faulty.lose_a_node else 6)
    faulty.promises_kept(driver)
