"""The gradient of a step: the same under every split, order and padding, and in a slow loop (TRAPS 1, 3, 9, 11)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CONFIGS, random_batch, select, slow_cispo_gradient, slow_logprobs, tiny

from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.types import Batch

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def trainer(kind: str = "tied", dtype: torch.dtype = torch.float32, **changes: object) -> TorchTrainer:
    return TorchTrainer(tiny(kind, dtype), TrainerSettings(compute="fp32", **changes))  # type: ignore[arg-type]


def gradients(made: TorchTrainer, batch: Batch) -> dict[str, torch.Tensor]:
    made.optimizer.zero_grad()
    made.accumulate(batch)
    return {name: p.grad.clone() for name, p in made.model.named_parameters() if p.grad is not None}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= tolerance * largest, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_equals_a_slow_loop_over_sequences(kind: str, dtype: torch.dtype, temperature: float) -> None:
    batch = random_batch(1)
    made = trainer(kind, dtype, temperature=temperature, clip=(None, 1.2))
    expected = slow_cispo_gradient(tiny(kind, dtype), batch, 1.2, temperature)
    assert_equal(gradients(made, batch), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("loss", ["cispo", "grpo", "dapo", "gspo"])
@settings(max_examples=15)
@given(seed=st.integers(0, 999), budget=st.integers(1, 400), order=st.randoms(use_true_random=False))
def test_no_split_and_no_order_changes_it(loss: str, seed: int, budget: int, order) -> None:  # type: ignore[no-untyped-def]
    batch = random_batch(seed, sequences=8, longest=14)
    clip = (None, 1.2) if loss == "cispo" else (0.2, 0.26)
    whole = trainer(dtype=torch.float64, loss=loss, clip=clip, micro_batch_tokens=10**6)
    parts = trainer(dtype=torch.float64, loss=loss, clip=clip, micro_batch_tokens=budget)
    shuffled = list(range(8))
    order.shuffle(shuffled)
    assert_equal(gradients(parts, select(batch, np.array(shuffled))), gradients(whole, batch), 1e-10)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_with_unequal_token_counts_add_up(ranks: int) -> None:
    batch = random_batch(2, sequences=11)
    made = trainer()
    expected = gradients(made, batch)
    made.optimizer.zero_grad()
    for rank in range(ranks):
        made.accumulate(select(batch, np.arange(11)[rank::ranks]))
    assert_equal({n: p.grad for n, p in made.model.named_parameters()}, expected, 1e-5)  # type: ignore[misc]


@pytest.mark.parametrize("kind", CONFIGS)
def test_packed_equals_unpacked_first_token_included(kind: str) -> None:
    batch = random_batch(3)
    made = trainer(kind, torch.float64, micro_batch_tokens=10**6)
    with torch.no_grad():
        expected = slow_logprobs(made.model, batch)
    mask = torch.from_numpy(batch.loss_mask)
    first = np.flatnonzero(np.r_[False, np.diff(batch.sequence_ids) != 0]) + 1
    assert batch.loss_mask[first].any()  # targets predicted from the very first token of a packed sequence
    torch.testing.assert_close(made.logprobs(batch)[mask], expected[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_on_fresh_weights_the_ratio_is_one(temperature: float) -> None:
    made = trainer(temperature=temperature)
    batch = random_batch(4)
    with torch.no_grad():
        told = slow_logprobs(tiny(), batch, temperature).numpy()
    batch.generator_logprobs[batch.loss_mask] = told[batch.loss_mask]
    stats = made.accumulate(batch)
    assert stats["ratio_min"] == pytest.approx(1, abs=1e-5)
    assert stats["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert stats["mismatch_kl"] < 1e-9


def test_recomputed_activations_change_nothing() -> None:
    batch = random_batch(5)
    expected = gradients(trainer(), batch)
    assert_equal(gradients(trainer(activation_checkpointing=True), batch), expected, 1e-6)


def test_the_kl_to_a_reference_vanishes_at_the_reference() -> None:
    batch = random_batch(6)
    plain = gradients(trainer(dtype=torch.float64), batch)
    same = TorchTrainer(tiny(dtype=torch.float64), TrainerSettings(kl_coefficient=0.5), tiny(dtype=torch.float64))
    far = TorchTrainer(
        tiny(dtype=torch.float64), TrainerSettings(kl_coefficient=0.5), tiny(dtype=torch.float64, seed=1)
    )
    assert_equal(gradients(same, batch), plain, 1e-10)
    assert same.accumulate(batch)["reference_kl"] == 0.0
    assert "reference_kl" not in trainer().accumulate(batch)
    mask = torch.from_numpy(batch.weights) > 0
    log_ratio = (
        TorchTrainer(tiny(dtype=torch.float64, seed=1), TrainerSettings()).logprobs(batch) - same.logprobs(batch)
    )[mask]
    for tokens in (10_000, 40):  # the mean over tokens, however they are split
        far.settings = replace(far.settings, micro_batch_tokens=tokens)
        told = far.accumulate(batch)["reference_kl"]
        assert told == pytest.approx(float((log_ratio.exp() - 1 - log_ratio).mean()), rel=1e-9)
    with pytest.raises(AssertionError):
        assert_equal(gradients(far, batch), plain, 1e-3)


def test_a_first_token_as_target_is_an_error() -> None:
    batch = random_batch(7)
    batch.loss_mask[0] = True
    with pytest.raises(ValueError, match="nothing predicts its first token"):
        trainer().accumulate(batch)
