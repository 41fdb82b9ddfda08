"""Runs as a driver of a cluster that was there before: by its address, and as a client."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from small_runs import WORDS, rows

from scalerl.training.resolve import resolve

pytestmark = [pytest.mark.slow]
ROOT = Path(__file__).parents[2]


MANY = ["task.max_steps=2", "task.train_prompts=3000", "recipe.retire_at=1"]
"""Prompts enough for a long run."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    gcs, client = free_port(), free_port()
    ray = Path(sys.executable).with_name("ray")
    # A busy machine may take longer than half a minute to start a client's server.
    token = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "100"}
    subprocess.run([str(ray), "get-auth-token", "--generate"], check=True, capture_output=True, env=token)
    start = [str(ray), "start", "--head", f"--port={gcs}", f"--ray-client-server-port={client}", "--num-cpus=4"]
    subprocess.run([*start, "--include-dashboard=false"], check=True, capture_output=True, env=token)
    yield gcs, client
    subprocess.run([str(ray), "stop", "--force"], check=True, capture_output=True)


SRUN = """#!/usr/bin/env bash
# Of Slurm: options, then a command, which is run here.
while [[ $1 == -* ]]; do
  if [[ $1 == -w ]]; then shift; fi
  shift
done
exec "$@"
"""


def run(directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scalerl", "train", *WORDS, "steps=3", "engines.launch=ray", *words]
    return subprocess.run(
        [*command, "--out", str(directory)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token", **environment}, timeout=240, check=False,
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


def test_the_slurm_script_starts_a_run_stops_it_in_time_and_goes_on(tmp_path: Path) -> None:
    """Slurm itself is a stub that runs everything here: what is tried is Ray, the controller and the signal."""
    tools, out = tmp_path / "tools", tmp_path / "run"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho 127.0.0.1\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    small = ["engines.ray.generator={CPU: 0.3}", "engines.ray.trainer={CPU: 0.3}", "steps=100000"]
    settings = resolve(words=[*WORDS, *MANY, *small]).to_yaml().replace("launch: process", "launch: ray")
    (tmp_path / "run.yaml").write_text(settings)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ, "PATH": path, "SLURM_JOB_NODELIST": "n", "SLURM_JOB_NUM_NODES": "1", "OMP_NUM_THREADS": "1",
        "RAY_PORT": str(free_port()),
    }  # fmt: skip
    reached = 0
    for _ in range(2):
        job = subprocess.Popen(
            ["bash", str(ROOT / "examples/slurm.sh"), str(tmp_path / "run.yaml"), str(out)], env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            wait_for_step(out, reached + 3, job)
            os.kill(job.pid, signal.SIGTERM)
            assert job.wait(60) == 0
        finally:
            end_group(job.pid)  # Ray, which Slurm would end with the job
        assert rows(out, "event")[-1]["reason"] == "stopped: SIGTERM"
        reached = rows(out, "train")[-1]["step"]
    assert [row["step"] for row in rows(out, "train")] == list(range(1, reached + 1))


def end_group(group: int) -> None:
    """Ray's head ends its children when it is asked to, and leaves them when it is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        end = time.monotonic() + 15
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.1)
        os.killpg(group, signal.SIGKILL)


def wait_for_step(directory: Path, step: int, job: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 180
    while not (directory / "metrics.jsonl").exists() or all(row["step"] < step for row in rows(directory, "train")):
        assert job.poll() is None, "the job ended too early"
        assert time.monotonic() < end, f"step {step} was not reached"
        time.sleep(0.2)
