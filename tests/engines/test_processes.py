"""Engines in processes of their own: the same results, errors that travel, and deaths that are survived."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import random_batch, tiny

from scalerl.engines.fleet import Fleet, FleetSettings
from scalerl.engines.model import checksum, named_tensors
from scalerl.engines.process import GeneratorProcess, TrainerProcess
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.engines.weights import SharedWeights
from scalerl.errors import EngineDied, ScaleRLError
from scalerl.protocols import Generator
from scalerl.types import Prompt, Rollout

SETTINGS = TrainerSettings(learning_rate=1e-3, compute="fp32")


def make_trainer(fail: bool = False) -> TorchTrainer:
    if fail:
        raise RuntimeError("no room\nfor this model")
    return TorchTrainer(tiny(), SETTINGS)


class SlowEcho:
    """A generator that answers each prompt with its version, one prompt a step."""

    def __init__(self, version: int = 0) -> None:
        self.version, self.queue, self.done = version, [], []  # type: ignore[var-annotated]
        self.checksum = ""

    @property
    def idle(self) -> bool:
        return not self.queue

    def submit(self, prompts: Any) -> None:
        self.queue += prompts

    def update_weights(self, version: int, source: Any) -> None:
        self.version, self.checksum = version, checksum(source)

    def step(self) -> None:
        group_id, prompt = self.queue.pop(0)
        if prompt.text == "bad":
            raise ZeroDivisionError("bad prompt")
        time.sleep(0.005)
        one = np.ones(1)
        version = np.array([self.version])
        self.done.append(Rollout(prompt, group_id, version, one.astype(np.float32), one.astype(bool), version, "stop"))

    def poll(self) -> list[Rollout]:
        done, self.done = self.done, []
        return done

    def state(self) -> dict[str, Any]:
        return {"version": self.version, "checksum": self.checksum}


class TakesOverAtAStep(SlowEcho):
    """As the real one: an update waits for the next decode step, which an idle generator never takes."""

    def update_weights(self, version: int, source: Any) -> None:
        self.waiting = (version, source)

    def step(self) -> None:
        super().update_weights(*self.waiting)
        super().step()


def prompts(n: int) -> list[tuple[int, Prompt]]:
    return [(i // 2, Prompt((1,), f"p{i // 4}", "t", {"answers": [i // 4]})) for i in range(n)]


def collect(generator: Generator, n: int) -> list[Rollout]:
    found: list[Rollout] = []
    end = time.monotonic() + 30
    while len(found) < n and time.monotonic() < end:
        found += generator.poll()
        time.sleep(0.01)
    return found


def asked(rollouts: list[Rollout]) -> Counter[tuple[int, str]]:
    return Counter((r.group_id, r.prompt.text) for r in rollouts)


@pytest.fixture
def shared() -> SharedWeights:
    return SharedWeights(named_tensors(tiny()))


@pytest.fixture
def generator(shared: SharedWeights, tmp_path: Path) -> Iterator[GeneratorProcess]:
    made = GeneratorProcess(SlowEcho, (), shared, tmp_path / "generator.log")
    yield made
    made.engine.stop(grace=0.0)


def test_a_trainer_process_steps_publishes_and_saves_as_one_in_process(shared: SharedWeights, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inline, remote = make_trainer(), TrainerProcess(make_trainer, (), shared)
    try:
        assert checksum(remote.weights()) == checksum(inline.weights())
        for seed in range(2):
            mine, theirs = remote.step(random_batch(seed)), inline.step(random_batch(seed))
            assert mine["loss"] == theirs["loss"]
            assert mine["seconds_publish"] > 0
        assert shared.newest_version == 2
        assert checksum(remote.weights()) == checksum(inline.weights())
        remote.save(tmp_path)
        remote.busy = True  # as another thread finds it
        with pytest.raises(RuntimeError, match="carries out another command"):
            remote.saved()
        remote.busy = False
        os.kill(remote.engine.process.pid or 0, signal.SIGKILL)
        with pytest.raises(EngineDied, match="trainer process was killed by signal 9"):
            remote.step(random_batch(3))
        again = TrainerProcess(make_trainer, (), shared)
        again.load(tmp_path)
        assert checksum(again.weights()) == checksum(inline.weights())
        assert shared.newest_version == 2
        again.engine.stop(grace=60.0)  # on a busy machine too
        assert again.engine.process.exitcode == 0
    finally:
        remote.close()


def test_a_trainer_that_cannot_write_says_so_and_lives_on(shared: SharedWeights, tmp_path: Path) -> None:
    remote = TrainerProcess(make_trainer, (), shared)
    try:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(ScaleRLError, match="trainer"):
            remote.save(tmp_path / "file" / "trainer")
        assert remote.alive
        assert remote.step(random_batch(0))["loss"] == make_trainer().step(random_batch(0))["loss"]
        remote.save(tmp_path)
        assert list(tmp_path.glob("*.safetensors"))
    finally:
        remote.close()


def test_a_trainer_that_hangs_is_ended(shared: SharedWeights, tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    remote = TrainerProcess(make_trainer, (), shared, log, step_seconds=1.0)
    try:
        os.kill(remote.engine.process.pid or 0, signal.SIGSTOP)
        said = f"trainer: has said nothing for 1 s since it was told to step (engines.step_seconds); see {log}"
        with pytest.raises(EngineDied) as told:
            remote.step(random_batch(0))
        assert str(told.value) == said
        assert not remote.alive
        with pytest.raises(EngineDied) as again:
            remote.saved()
        assert str(again.value) == said
    finally:
        remote.close()


def test_an_error_travels_as_one_line_and_its_traceback_is_in_the_log(shared: SharedWeights, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "trainer.log"
    with pytest.raises(EngineDied) as told:
        TrainerProcess(make_trainer, (True,), shared, log)
    assert str(told.value) == f"trainer: RuntimeError: no room for this model; see {log}"
    assert "Traceback" in log.read_text()


def test_rollouts_come_back_and_updates_are_taken_over(generator: GeneratorProcess, shared: SharedWeights) -> None:
    shared.publish(7, named_tensors(tiny(seed=3)))
    generator.update_weights(7, [])  # type: ignore[arg-type]  # the source is not read
    generator.submit(prompts(6))
    found = collect(generator, 6)
    assert asked(found) == Counter((g, p.text) for g, p in prompts(6))
    assert {r.oldest_version for r in found} == {7}
    while not generator.state():
        generator.poll(timeout=0.1)
    assert generator.state()["checksum"] == checksum(named_tensors(tiny(seed=3)).items())
    assert {"seconds_busy", "seconds_idle"} <= generator.state().keys()


def test_updates_of_an_idle_generator_never_run_out_of_buffers(shared: SharedWeights, tmp_path: Path) -> None:
    generator = GeneratorProcess(TakesOverAtAStep, (), shared, tmp_path / "generator.log")
    try:
        while not generator.state():  # it is up, and obeys at once
            generator.poll(timeout=0.1)
        for version in range(1, 12):
            shared.publish(version, named_tensors(tiny(seed=version)), timeout=5.0)
            generator.update_weights(version, [])  # type: ignore[arg-type]
            time.sleep(0.02)
        generator.submit(prompts(1))
        assert collect(generator, 1)[0].oldest_version == 11
    finally:
        generator.engine.stop(grace=0.0)


def test_updates_without_end_never_run_out_of_buffers(generator: GeneratorProcess, shared: SharedWeights) -> None:
    generator.submit(prompts(400))
    for version in range(1, 40):
        shared.publish(version, named_tensors(tiny()), timeout=5.0)
        generator.update_weights(version, [])  # type: ignore[arg-type]
        generator.poll(timeout=0.01)
    assert generator.state() is not None
    assert generator.engine.process.is_alive()


def test_a_killed_generator_is_replaced_and_no_prompt_is_lost(shared: SharedWeights) -> None:
    made: list[GeneratorProcess] = []

    def spawn(_: int) -> GeneratorProcess:
        made.append(GeneratorProcess(SlowEcho, (), shared))
        return made[-1]

    fleet = Fleet(spawn, 1, FleetSettings(in_flight=100))
    shared.publish(3, named_tensors(tiny()))
    fleet.update_weights(3, [])  # type: ignore[arg-type]
    fleet.submit(prompts(40))
    found = collect(fleet, 5)
    os.kill(made[0].engine.process.pid or 0, signal.SIGKILL)
    found += collect(fleet, 40 - len(found))
    assert asked(found) == Counter((g, p.text) for g, p in prompts(40))
    assert {r.oldest_version for r in found} == {3}
    [event] = fleet.news()
    assert event["reason"] == "the generator process was killed by signal 9"
    assert 0 < event["rollouts_asked_again"] <= 35
    fleet.close()


def test_a_generator_s_error_names_itself(generator: GeneratorProcess) -> None:
    generator.submit([(0, Prompt((1,), "bad", "t"))])
    with pytest.raises(EngineDied, match="generator: ZeroDivisionError: bad prompt; see "):
        collect(generator, 1)
    with pytest.raises(EngineDied, match="ZeroDivisionError"):
        generator.poll()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's allocator")
def test_freed_memory_is_kept() -> None:
    code = (
        "import resource, torch; from scalerl.engines.memory import keep_freed_memory; torch.set_num_threads(1);"
        "assert keep_freed_memory(); make = lambda: sum(t[0, 0] for t in [torch.ones(512, 4096) for _ in range(9)]);"
        "make(); before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; [make() for _ in range(20)];"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 0.1 * 20 * 9 * 2048  # pages of 4 KiB; without it all of them


def test_sigterm_is_the_controller_s_to_answer(generator: GeneratorProcess) -> None:
    generator.submit(prompts(2))
    assert len(collect(generator, 2)) == 2
    os.kill(generator.engine.process.pid or 0, signal.SIGTERM)
    generator.submit(prompts(2))
    assert len(collect(generator, 2)) == 2
    generator.close()
    assert generator.engine.process.exitcode == 0
