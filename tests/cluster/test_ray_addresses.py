"""Runs as a driver of a cluster that was there before: by its address, and as a client."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from small_runs import WORDS, rows

pytestmark = [pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    gcs, client = free_port(), free_port()
    ray = Path(sys.executable).with_name("ray")
    start = [str(ray), "start", "--head", f"--port={gcs}", f"--ray-client-server-port={client}", "--num-cpus=4"]
    subprocess.run([*start, "--include-dashboard=false"], check=True, capture_output=True)
    yield gcs, client
    subprocess.run([str(ray), "stop", "--force"], check=True, capture_output=True)


def run(directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scalerl", "train", *WORDS, "steps=3", "engines.launch=ray", *words]
    return subprocess.run(
        [*command, "--out", str(directory)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, timeout=240, check=False,
    )  # fmt: skip


def test_by_the_environment(ports: tuple[int, int], tmp_path: Path) -> None:
    done = run(tmp_path / "run", RAY_ADDRESS=f"127.0.0.1:{ports[0]}")
    assert done.returncode == 0, done.stdout
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [1, 2, 3]


def test_as_a_client(ports: tuple[int, int], tmp_path: Path) -> None:
    done = run(tmp_path / "run", f"engines.ray.address=ray://127.0.0.1:{ports[1]}")
    assert done.returncode == 0, done.stdout
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [1, 2, 3]


def test_an_address_where_nobody_is_is_refused(tmp_path: Path) -> None:
    done = run(
        tmp_path / "run", f"engines.ray.address=ray://127.0.0.1:{free_port()}", RAY_CLIENT_MAX_CONNECT_ATTEMPTS="1"
    )
    assert done.returncode == 2, done.stdout
    assert "no Ray cluster answers" in done.stdout
