"""The sharded trainer on 1, 2 and 4 ranks against the one of a single process (TRAPS 4-6, 9-11, 14, 15)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_checks
import torch
from rank_pool import RankPool
from tiny_models import CONFIGS, random_batch, select, tiny

from scalerl.engines.micro_batches import split
from scalerl.engines.model import checksum, load_model, named_tensors
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.types import Batch

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
UNEQUAL = {"micro_batches", "padded_share"}  # what a split among ranks may change


@pytest.fixture(scope="module", params=[1, 2, 4])
def pool(request: Any, tmp_path_factory: Any) -> Iterator[RankPool]:
    made = RankPool(request.param, tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


def single(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> TorchTrainer:
    settings = TrainerSettings(**({"compute": "fp32"} | changes))
    return TorchTrainer(tiny(kind, dtype), settings, tiny(kind, dtype, seed=5) if settings.kl_coefficient else None)


def assert_same_gradients(
    pool: RankPool, kind: str, dtype: torch.dtype, batch: Batch, find: Any = rank_checks.gradients, **changes: Any
) -> None:
    one = single(kind, dtype, **changes)
    expected = one.accumulate(batch)
    largest = max(float(p.grad.abs().max()) for p in one.model.parameters() if p.grad is not None)
    for found, stats in pool.run(find, kind, dtype, batch, changes):
        for name, parameter in one.model.named_parameters():
            difference = float((found[name] - parameter.grad).abs().max())
            assert difference <= TOLERANCE[dtype] * largest, name
        assert_same_statistics(stats, expected, 1e-4 if dtype == torch.float32 else 1e-9)


def assert_same_statistics(found: dict[str, float], expected: dict[str, float], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name not in UNEQUAL and not name.startswith("seconds"):
            assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance * 0.1), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", CONFIGS)
def test_gradients_and_statistics_are_those_of_one_process(pool: RankPool, kind: str, dtype: torch.dtype) -> None:
    assert_same_gradients(pool, kind, dtype, random_batch(1), micro_batch_tokens=40, temperature=0.7, clip=(None, 1.2))


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_is_enough_that_rank_0_has_the_weights(pool: RankPool, kind: str) -> None:
    find = rank_checks.gradients_from_rank_0
    assert_same_gradients(pool, kind, torch.float32, random_batch(8), find, kl_coefficient=0.5)


@pytest.mark.parametrize("sequences", [1, 3, 5])
def test_ranks_without_a_sequence_take_part(pool: RankPool, sequences: int) -> None:
    batch = select(random_batch(2), np.arange(sequences))
    assert_same_gradients(pool, "untied", torch.float64, batch, micro_batch_tokens=20)
    assert_same_gradients(pool, "moe", torch.float32, batch, micro_batch_tokens=20)


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_checkpointing": True},
        {"reshard_after_forward": False},
        {"loss": "gspo", "clip": (0.2, 0.26)},
        {"kl_coefficient": 0.5},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_no_setting_changes_that(pool: RankPool, changes: dict[str, Any]) -> None:
    assert_same_gradients(pool, "tied", torch.float64, random_batch(3), micro_batch_tokens=60, **changes)


@pytest.mark.parametrize("changes", [{}, {"activation_checkpointing": True}, {"reshard_after_forward": False}])
def test_the_router_s_loss_is_that_of_one_process(pool: RankPool, changes: dict[str, Any]) -> None:
    batch = select(random_batch(7), np.arange(5))
    assert_same_gradients(pool, "moe", torch.float64, batch, micro_batch_tokens=30, router_loss=0.3, **changes)


@pytest.mark.parametrize("kind", CONFIGS)
def test_steps_are_those_of_one_process(pool: RankPool, kind: str) -> None:
    changes = {"learning_rate": 1e-3, "warmup_steps": 2, "epsilon": 1e-8, "gradient_clipping": 0.05}
    batches = [random_batch(seed) for seed in range(3)] + [select(random_batch(), np.zeros(0, np.int64))]
    one = single(kind, torch.float64, **changes)
    expected = [one.step(batch) for batch in batches]
    assert expected[0]["grad_norm"] > 0.05  # it is clipped
    weights, stats, counters, _ = pool.run(rank_checks.steps, kind, torch.float64, batches, changes)[0]
    for found, told in zip(stats, expected, strict=True):
        assert_same_statistics(found, told, 1e-9)
    assert counters == (one.version, one.updates, one.skipped) == (4, 3, 1)
    for name, tensor in named_tensors(one.model).items():
        torch.testing.assert_close(weights[name], tensor.detach(), rtol=0, atol=1e-9)


def test_log_probabilities_are_those_of_one_process(pool: RankPool) -> None:
    batch = random_batch(4)
    expected = single("tied", torch.float64, micro_batch_tokens=50).logprobs(batch)
    for found, sharded in pool.run(rank_checks.logprobs, "tied", torch.float64, batch, {"micro_batch_tokens": 50}):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        assert sharded


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(pool: RankPool) -> None:
    assert pool.run(rank_checks.a_poisoned_rank) == [(True, 1.0, True)] * pool.count


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_bf16_keeps_fp32_masters_and_an_exact_head(pool: RankPool, kind: str) -> None:
    batch = random_batch(5, sequences=30)
    near = pool.run(rank_checks.logprobs, kind, torch.float32, batch, {"compute": "bf16"})[0][0]
    assert 1e-4 < float((near - single(kind).logprobs(batch)).abs().mean()) < 0.01
    high, low = (max(pool.run(rank_checks.head_error, kind, batch, fp32)) for fp32 in (True, False))
    assert high < 1e-5 < 1e-3 < low
    changes = {"compute": "bf16", "learning_rate": 5e-7, "warmup_steps": 1}
    weights, _, _, dtypes = pool.run(rank_checks.steps, kind, torch.float32, [batch], changes)[0]
    assert dtypes == {"torch.float32"}
    before = named_tensors(tiny(kind))
    for name, tensor in weights.items():
        assert 0 < float((tensor - before[name].detach()).abs().max()) < 1e-6, name


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_weights_are_gathered_one_after_the_other(pool: RankPool, kind: str) -> None:
    tensors = named_tensors(tiny(kind))
    for metadata, given, found, most in pool.run(rank_checks.source, kind):
        assert metadata == given == [(n, "float32", tuple(t.shape)) for n, t in tensors.items()]
        assert found == checksum((n, t.detach()) for n, t in tensors.items())
        assert pool.count == 1 or most <= 2  # the consumer's last one, and the next


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_exported_model_is_whole(pool: RankPool, kind: str, tmp_path: Path) -> None:
    pool.run(rank_checks.export, kind, tmp_path)
    assert checksum(named_tensors(load_model(tmp_path)).items()) == checksum(named_tensors(tiny(kind)).items())


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_shares_are_disjoint_whole_and_even(ranks: int) -> None:
    batch = random_batch(6, sequences=40)
    parts = [list(split(batch, 100, rank, ranks)) for rank in range(ranks)]
    taken = np.concatenate([part.batch_index for share in parts for part in share])
    assert sorted(taken) == np.flatnonzero(batch.loss_mask).tolist()
    inputs = [sum(part.tokens for part in share) for share in parts]
    assert max(inputs) - min(inputs) <= 24  # the longest sequence
