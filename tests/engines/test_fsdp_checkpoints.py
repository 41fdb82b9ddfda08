"""Checkpoints of a sharded trainer: any number of ranks goes on from any other's, as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_checks
import torch
from rank_pool import RankPool
from tiny_models import random_batch, tiny
from torch import Tensor

from scalerl.engines.model import named_tensors
from scalerl.engines.trainer import TorchTrainer, TrainerSettings

CHANGES = {"learning_rate": 1e-3, "warmup_steps": 4, "epsilon": 1e-8, "micro_batch_tokens": 64}
BATCHES = [random_batch(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def pools(tmp_path_factory: Any) -> Iterator[dict[int, RankPool]]:
    made = {count: RankPool(count, tmp_path_factory.mktemp("ranks")) for count in (1, 2, 4)}
    yield made
    for pool in made.values():
        pool.close()


def single(kind: str, seed: int = 0) -> TorchTrainer:
    return TorchTrainer(tiny(kind, torch.float64, seed), TrainerSettings(compute="fp32", **CHANGES))  # type: ignore[arg-type]


def straight(kind: str) -> TorchTrainer:
    """Three steps in one process."""
    made = single(kind)
    for batch in BATCHES:
        made.step(batch)
    return made


def assert_same(found: dict[str, Tensor], expected: TorchTrainer) -> None:
    for name, tensor in named_tensors(expected.model).items():
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["tied", "untied", "moe"])
@pytest.mark.parametrize("writers", [1, 2, 4])
def test_any_number_of_ranks_goes_on(pools: dict[int, RankPool], kind: str, writers: int, tmp_path: Path) -> None:
    expected = straight(kind)
    stats = expected.step(random_batch(3))
    pools[writers].run(rank_checks.save, kind, BATCHES, tmp_path, None, CHANGES)
    assert {p.suffix for p in tmp_path.iterdir()} == {".safetensors", ".json"}
    for pool in pools.values():
        for weights, told, counters, random_state in pool.run(
            rank_checks.load, kind, tmp_path, random_batch(3), CHANGES
        ):
            assert_same(weights, expected)
            assert told["loss"] == pytest.approx(stats["loss"], abs=1e-9)
            assert told["learning_rate"] == stats["learning_rate"]
            assert counters == (4, 4, 0)
            assert random_state
    alone = single(kind, seed=9)
    alone.load(tmp_path)
    alone.step(random_batch(3))
    assert_same({n: t.detach() for n, t in named_tensors(alone.model).items()}, expected)


def test_ranks_go_on_from_one_process(pools: dict[int, RankPool], tmp_path: Path) -> None:
    expected = straight("tied")
    expected.save(tmp_path)
    expected.step(random_batch(3))
    weights, *_ = pools[2].run(rank_checks.load, "tied", tmp_path, random_batch(3), CHANGES)[0]
    assert_same(weights, expected)


def test_steps_go_on_while_it_is_written(pools: dict[int, RankPool], tmp_path: Path) -> None:
    later = random_batch(3)
    moved, _ = pools[2].run(rank_checks.save, "tied", BATCHES, tmp_path, later, CHANGES)[0]
    expected = straight("tied")
    expected.step(later)
    assert_same(moved, expected)
    weights, *_ = pools[4].run(rank_checks.load, "tied", tmp_path, later, CHANGES)[0]
    assert_same(weights, expected)


def test_a_foreign_or_cut_checkpoint_is_refused_and_changes_nothing(pools: dict[int, RankPool], tmp_path: Path) -> None:
    pools[2].run(rank_checks.save, "untied", [], tmp_path, None, CHANGES)
    said, same = pools[2].run(rank_checks.load_fails, "tied", tmp_path)[1]
    assert "tensor lm_head.weight is not in both" in said
    assert same
    shard = sorted(tmp_path.glob("shard-*"))[1]
    shard.write_bytes(shard.read_bytes()[:2000])
    for said, same in pools[4].run(rank_checks.load_fails, "untied", tmp_path):
        assert said.startswith(str(tmp_path))
        assert "resume from an older checkpoint" in said
        assert "\n" not in said
        assert same
    shard.unlink()
    for said, same in pools[2].run(rank_checks.load_fails, "untied", tmp_path):
        assert "than the model's" in said or "cannot be read" in said
        assert same


@pytest.mark.parametrize("in_the_way", ["shard-00002-model-00001-of-00001.safetensors", "trainer.json"])
def test_a_checkpoint_that_one_rank_cannot_write_is_told_by_all(
    pools: dict[int, RankPool], tmp_path: Path, in_the_way: str
) -> None:
    (tmp_path / in_the_way).mkdir()
    for said in pools[2].run(rank_checks.save_fails, "tied", tmp_path):
        assert said.startswith(f"{tmp_path}: could not be written (")
        assert "Is a directory" in said
