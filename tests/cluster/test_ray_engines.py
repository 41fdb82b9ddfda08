"""Engines in Ray actors, one by one: weights through the object store, errors that travel, room that is asked for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

ray = pytest.importorskip("ray")

from tiny_models import random_batch, tiny  # noqa: E402

from scalerl.engines.model import checksum, named_tensors  # noqa: E402
from scalerl.engines.object_store import StoredWeights, put_own_chunks, together  # noqa: E402
from scalerl.engines.ray_cluster import connected, options, reserved  # noqa: E402
from scalerl.engines.ray_generator import RayGenerator  # noqa: E402
from scalerl.engines.ray_trainer import RayTrainer  # noqa: E402
from scalerl.engines.trainer import TorchTrainer, TrainerSettings  # noqa: E402
from scalerl.engines.weights import TensorSource  # noqa: E402
from scalerl.errors import EngineDied, InputError, ScaleRLError  # noqa: E402
from scalerl.types import Prompt, Rollout  # noqa: E402

SETTINGS = TrainerSettings(learning_rate=1e-3, compute="fp32")
ANYWHERE = {"num_cpus": 0}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with connected():
        yield


class Echo:
    """Answers each prompt with its version, and says the checksum of the weights it has."""

    def __init__(self, fail: str = "") -> None:
        if fail == "start":
            raise RuntimeError("no room\nfor this model")
        self.version, self.queue, self.done, self.fail = 0, [], [], fail  # type: ignore[var-annotated]
        self.checksum = ""

    @property
    def idle(self) -> bool:
        return not self.queue

    def submit(self, prompts: Any) -> None:
        self.queue += prompts

    def update_weights(self, version: int, source: Any) -> None:
        self.version, self.checksum = version, checksum(source)

    def step(self) -> None:
        if self.fail == "step":
            raise ZeroDivisionError("bad prompt")
        group_id, prompt = self.queue.pop(0)
        one, version = np.ones(1), np.array([self.version])
        self.done.append(Rollout(prompt, group_id, version, one.astype(np.float32), one.astype(bool), version, "stop"))

    def poll(self) -> list[Rollout]:
        done, self.done = self.done, []
        return done

    def state(self) -> dict[str, Any]:
        return {"version": self.version, "checksum": self.checksum}


def make_trainer() -> TorchTrainer:
    return TorchTrainer(tiny(), SETTINGS)


def stored(version: int = 0, **changes: Any) -> StoredWeights:
    source = TensorSource(named_tensors(tiny()))
    return together(version, [put_own_chunks(source, **({"dtype": None} | changes))])


@pytest.mark.parametrize("chunk_bytes", [1, 10_000, 1 << 30])
def test_weights_come_out_of_the_store_as_they_went_in(chunk_bytes: int) -> None:
    found = stored(chunk_bytes=chunk_bytes)
    assert (len(found.chunks) == 1) == (chunk_bytes == 1 << 30)
    assert checksum(found) == checksum(named_tensors(tiny()).items())
    assert list(found.metadata()) == list(TensorSource(named_tensors(tiny())).metadata())


def test_they_are_published_in_the_dtype_asked_for() -> None:
    low = tiny(dtype=torch.bfloat16)
    assert checksum(stored(dtype=torch.bfloat16)) == checksum(named_tensors(low).items())


def test_ranks_put_chunks_by_turns_and_none_puts_all() -> None:
    source = TensorSource(named_tensors(tiny()))
    parts = [put_own_chunks(source, None, rank, 3, chunk_bytes=10_000) for rank in range(3)]
    whole = together(5, parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert checksum(whole) == checksum(source)


def collect(generator: RayGenerator, n: int) -> list[Rollout]:
    found: list[Rollout] = []
    end = time.monotonic() + 60
    while len(found) < n and time.monotonic() < end:
        found += generator.poll()
        time.sleep(0.01)
    return found


def requests(n: int) -> list[tuple[int, Prompt]]:
    return [(i // 2, Prompt((1,), f"p{i // 2}", "t")) for i in range(n)]


def test_a_generator_in_an_actor_takes_weights_and_brings_rollouts() -> None:
    generator = RayGenerator(Echo, (), ANYWHERE, 1, "generator 0")
    try:
        assert generator.state() == {}
        generator.update_weights(7, stored(7))
        generator.submit(requests(6))
        found = collect(generator, 6)
        assert sorted(r.group_id for r in found) == [0, 0, 1, 1, 2, 2]
        assert {r.oldest_version for r in found} == {7}
        while not generator.state().get("checksum"):
            generator.poll()
        assert generator.state()["checksum"] == checksum(named_tensors(tiny()).items())
    finally:
        generator.close()


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("start", "generator 3: RuntimeError: no room for this model"),
        ("step", "generator 3: ZeroDivisionError: bad prompt"),
    ],
)
def test_an_error_in_the_actor_travels_as_one_line(fail: str, said: str) -> None:
    generator = RayGenerator(Echo, (fail,), ANYWHERE, 1, "generator 3")
    generator.submit(requests(1))
    with pytest.raises(EngineDied) as told:
        collect(generator, 1)
    assert str(told.value) == said


def test_a_killed_actor_is_an_engine_that_died() -> None:
    generator = RayGenerator(Echo, (), ANYWHERE, 1, "generator 1")
    generator.close()
    with pytest.raises(EngineDied, match="generator 1: "):
        collect(generator, 1)
    other = RayGenerator(Echo, (), ANYWHERE, 1, "generator 2")
    pid = ray.get(other._actor.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match=rf"generator 2: process {pid} on [0-9.]+: The actor is dead because its "):
        again_and_again(other.poll)


def test_a_trainer_in_an_actor_steps_publishes_and_saves_as_one_in_this_process(tmp_path: Any) -> None:
    torch.manual_seed(0)
    inline, remote = make_trainer(), RayTrainer(make_trainer, (), [ANYWHERE])
    try:
        assert checksum(remote.weights()) == checksum(inline.weights())
        before = remote.weights()
        for seed in range(2):
            assert remote.step(random_batch(seed))["loss"] == inline.step(random_batch(seed))["loss"]
        assert checksum(remote.weights()) == checksum(inline.weights())
        assert checksum(before) == checksum(named_tensors(tiny()).items())  # who holds a version keeps it
        assert remote.hold(2) is remote.weights()
        assert remote.hold(1) is None
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(ScaleRLError, match="trainer"):
            remote.save(tmp_path / "file" / "trainer")
        assert remote.alive
        remote.save(tmp_path / "saved")
        again = RayTrainer(make_trainer, (), [ANYWHERE])
        again.load(tmp_path / "saved")
        assert checksum(again.weights()) == checksum(inline.weights())
        assert again.version == 2
        again.close()
        with pytest.raises(EngineDied, match="trainer, rank 0 of 1: "):
            again.step(random_batch(3))
        assert not again.alive
    finally:
        remote.close()


def test_a_trainer_that_died_while_it_waited_is_noticed_and_its_weights_are_lost() -> None:
    remote = RayTrainer(make_trainer, (), [ANYWHERE])
    for _ in range(100):  # it is there, and says so
        remote.check()
    ray.kill(remote._ranks[0])
    with pytest.raises(EngineDied, match="trainer, rank 0 of 1: "):
        again_and_again(remote.check)
    assert not remote.alive
    with pytest.raises(ScaleRLError, match="weights of version 0 are lost: their trainer has died"):
        again_and_again(lambda: list(remote.weights()))


def again_and_again(call: Callable[[], Any]) -> None:
    """Until it raises, or for half a minute."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        call()


def make_rank() -> TorchTrainer:
    from scalerl.engines.fsdp import FSDPTrainer

    return FSDPTrainer(tiny(), SETTINGS)


@pytest.mark.slow
def test_ranks_train_on_while_they_write_and_one_that_hangs_ends_them_all(tmp_path: Any) -> None:
    inline, remote = make_trainer(), RayTrainer(make_rank, (), [ANYWHERE] * 2)
    try:
        remote.begin_save(tmp_path / "saved")
        remote.step(random_batch(0))
        assert remote.saved()
        again = TorchTrainer(tiny(seed=1), SETTINGS)
        again.load(tmp_path / "saved")
        assert checksum(again.weights()) == checksum(inline.weights())
        (tmp_path / "saved" / "shard-00002-model-00001-of-00001.safetensors").unlink()
        (tmp_path / "saved" / "shard-00002-model-00001-of-00001.safetensors").mkdir()
        remote.begin_save(tmp_path / "saved")
        with pytest.raises(ScaleRLError, match=r"saved: could not be written .*Is a directory"):
            remote.saved()
        pids = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in remote._ranks])
        os.kill(pids[1], signal.SIGSTOP)
        remote._step_seconds = 2.0
        for _ in range(2):  # dead stays dead
            with pytest.raises(EngineDied) as told:
                remote.step(random_batch(1))
            assert str(told.value) == (
                "trainer of 2 ranks: has said nothing for 2 s since it was told to step (engines.step_seconds)"
            )
        assert not remote.alive
        end = time.monotonic() + 30
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        remote.close()


def test_more_than_the_cluster_has_is_refused_with_what_there_is() -> None:
    asked = reserved(3, {"CPU": 1, "GPU": 1}, "PACK", "engines.ray.trainer", 0.5)
    with pytest.raises(InputError, match=r"engines.ray.trainer: 3 x 1 CPU \+ 1 GPU .* the cluster has .* 0 GPU"), asked:
        pass


def test_options_name_what_ray_calls_otherwise() -> None:
    found = options({"CPU": 2, "GPU": 1, "fast": 3}, None)
    assert found == {"num_cpus": 2, "num_gpus": 1, "resources": {"fast": 3}, "scheduling_strategy": "SPREAD"}
