"""A trainer of several ranks in processes of their own: the same steps, and a death that names the rank."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_models import random_batch, tiny

from scalerl.engines.fsdp import FSDPTrainer
from scalerl.engines.model import named_tensors
from scalerl.engines.ranks import RankGroup, TrainerRanks, joined
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.engines.weights import SharedWeights
from scalerl.errors import EngineDied, InputError, ScaleRLError

SETTINGS = TrainerSettings(learning_rate=1e-3, compute="fp32", epsilon=1e-6)


class Fragile(FSDPTrainer):
    """Fails on one rank when asked."""

    def fail(self, rank: int) -> None:
        if self.rank == rank:
            raise ZeroDivisionError(f"no luck\non rank {rank}")
        time.sleep(1.0)


def make(threads: int = 1) -> Fragile:
    return Fragile(tiny(), SETTINGS)


def fail(rank: int) -> FSDPTrainer:
    if torch.distributed.get_rank() == rank:
        raise RuntimeError("no room for this model")
    return make()


@pytest.fixture
def shared() -> SharedWeights:
    return SharedWeights(named_tensors(tiny()))


@pytest.fixture
def trainer(shared: SharedWeights, tmp_path: Path) -> Iterator[TrainerRanks]:
    made = TrainerRanks(make, (), shared, tmp_path / "trainer.log", ranks=2)
    yield made
    made.close()


def assert_published(trainer: TrainerRanks, expected: TorchTrainer) -> None:
    found = dict(trainer.weights())
    for name, tensor in named_tensors(expected.model).items():
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_ranks_step_publish_save_and_survive_the_death_of_one(
    trainer: TrainerRanks, shared: SharedWeights, tmp_path: Path
) -> None:
    inline = TorchTrainer(tiny(), SETTINGS)
    for seed in range(2):
        mine, theirs = trainer.step(random_batch(seed)), inline.step(random_batch(seed))
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert mine["seconds_publish"] > 0
    assert shared.newest_version == 2
    assert_published(trainer, inline)
    trainer.save(tmp_path / "saved")
    group = trainer.engine
    assert isinstance(group, RankGroup)
    os.kill(group._others[0].process.pid or 0, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineDied, match=r"the trainer rank 1 process was killed by signal 9; see .*trainer-1\.log"):
        trainer.step(random_batch(3))
    assert time.monotonic() - started < 10
    assert not group.process.is_alive()
    with pytest.raises(EngineDied, match="rank 1"):
        trainer.engine.receive()
    again = TrainerRanks(make, (), shared, tmp_path / "trainer.log", ranks=2)
    again.load(tmp_path / "saved")
    assert shared.newest_version == 2
    assert_published(again, inline)
    with pytest.raises(EngineDied, match="trainer rank 1: ZeroDivisionError: no luck on rank 1; see "):
        again.call("fail", 1)
    again.close()


@pytest.mark.slow
def test_a_rank_that_hangs_ends_them_all_and_says_so(
    trainer: TrainerRanks, shared: SharedWeights, tmp_path: Path
) -> None:
    trainer._step_seconds = 2.0
    group = trainer.engine
    assert isinstance(group, RankGroup)
    processes = [group.process, group._others[0].process]
    os.kill(processes[1].pid or 0, signal.SIGSTOP)
    log = tmp_path / "trainer.log"
    said = f"trainer of 2 ranks: has said nothing for 2 s since it was told to step (engines.step_seconds); see {log}"
    for _ in range(2):  # dead stays dead
        with pytest.raises(EngineDied) as told:
            trainer.step(random_batch(0))
        assert str(told.value) == said
    assert not any(process.is_alive() for process in processes)


@pytest.mark.slow
def test_steps_go_on_while_ranks_write(trainer: TrainerRanks, tmp_path: Path) -> None:
    inline = TorchTrainer(tiny(), SETTINGS)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ScaleRLError, match=r"file/trainer: could not be written \(.*Not a directory"):
        trainer.begin_save(tmp_path / "file" / "trainer")
    assert trainer.saved(wait=False)  # there is nothing to wait for
    trainer.step(random_batch(0))
    inline.step(random_batch(0))
    trainer.begin_save(tmp_path / "one")
    trainer.step(random_batch(1))
    trainer.begin_save(tmp_path / "two")  # waits for the first
    assert trainer.saved()
    for name in ("one", "two"):
        trainer.load(tmp_path / name)
        assert_published(trainer, inline)
        inline.step(random_batch(1))
    (tmp_path / "three" / "shard-00002-model-00001-of-00001.safetensors").mkdir(parents=True)
    trainer.begin_save(tmp_path / "three")
    with pytest.raises(ScaleRLError, match=r"three: could not be written .*Is a directory"):
        trainer.saved()
    assert trainer.saved()
    trainer.save(tmp_path / "four")


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(InputError, match=r"engines\.trainers = 2: each needs a GPU of its own, and this machine has 1"),
        joined(0, 2, f"file://{tmp_path}/meeting"),
    ):
        pass


@pytest.mark.slow
def test_a_rank_that_cannot_begin_names_itself(shared: SharedWeights, tmp_path: Path) -> None:
    with pytest.raises(EngineDied, match="trainer rank 1: RuntimeError: no room for this model"):
        TrainerRanks(fail, (1,), shared, tmp_path / "trainer.log", ranks=2)
