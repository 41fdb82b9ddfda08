"""The parts of bench/gpu.py with a real vLLM and the sharded trainer, as its dry-run on CPU has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"


def answers(cache: Path, part: str, *options: str) -> dict[str, Any]:
    """By their questions."""
    environment = os.environ | {"SCALERL_CACHE": str(cache)}
    command = [sys.executable, str(BENCH / "gpu_parts.py"), part, "--cpu", "--seconds", "1", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=300, check=True)
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    assert not [line for line in lines if "failed" in line]
    return {line["question"]: line for line in lines}


def test_all_that_is_measured_on_one_gpu_can_be_on_a_cpu(tmp_path: Path) -> None:
    machine = answers(tmp_path, "prepare")["machine"]
    assert machine["peak_from"] == "measured"
    folder = machine["folder"]
    found = answers(tmp_path, "fp32", "--folder", folder)
    assert [run["at_once"] for run in found["generator_head_fp32"]["runs"]] == machine["sizes"]["at_once"]
    assert 2 < found["mismatch_head_fp32"]["nats_per_token"] < 5  # neither flat nor sure
    assert 0 < found["mismatch_head_fp32"]["mismatch_kl"] < 5e-3
    update = found["update_shared"]
    assert update["spanning"] == update["running"]
    assert update["tokens_lost"] == 0
    assert update["kl_after_updates"] < 5e-3 < 3 * update["kl_if_none_had_arrived"]
    trained = answers(tmp_path, "trainer", "--folder", folder)
    assert len(trained) == 3
    assert all(line["tokens_per_second"] > 0 and line["micro_batches"] > 1 for line in trained.values())
