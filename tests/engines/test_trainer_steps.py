"""Steps: AdamW's closed form, tiny learning rates, poisoned numbers, a resume bit for bit (TRAPS 14, 15, 28)."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import random_batch, select, tiny

from scalerl.engines import trainer_state
from scalerl.engines.micro_batches import split
from scalerl.engines.model import checksum, named_tensors
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.errors import InputError, ScaleRLError
from scalerl.recipe import Recipe
from scalerl.types import Batch

FAST = TrainerSettings(learning_rate=1e-3, warmup_steps=4, compute="fp32", micro_batch_tokens=64)


def fingerprint(trainer: TorchTrainer) -> str:
    return checksum(named_tensors(trainer.model).items())


def test_the_first_step_is_adamw_s_formula_with_clipping_and_warm_up() -> None:
    settings = TrainerSettings(learning_rate=1e-2, warmup_steps=4, weight_decay=0.1, gradient_clipping=0.05)
    trainer, probe = (TorchTrainer(tiny(dtype=torch.float64), settings) for _ in range(2))
    batch = random_batch()
    probe.accumulate(batch)
    gradient = {n: p.grad for n, p in probe.model.named_parameters()}
    norm = torch.sqrt(sum((g**2).sum() for g in gradient.values()))  # type: ignore[misc,operator]
    stats = trainer.step(batch)
    assert stats["grad_norm"] == pytest.approx(float(norm))
    assert float(norm) > 0.05
    lr = 1e-2 / 4
    for name, parameter in trainer.model.named_parameters():
        g = gradient[name] * 0.05 / norm  # type: ignore[operator]
        before = dict(probe.model.named_parameters())[name]
        expected = before * (1 - lr * 0.1) - lr * g / (g.abs() + 1e-15)  # bias-corrected moments of one step
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-10)


def test_a_learning_rate_of_5e_7_moves_weights_given_in_bf16() -> None:
    trainer = TorchTrainer(tiny(dtype=torch.bfloat16), TrainerSettings(warmup_steps=1))
    before = {n: t.detach().clone() for n, t in named_tensors(trainer.model).items()}
    trainer.step(random_batch())
    for name, tensor in named_tensors(trainer.model).items():
        assert tensor.dtype == torch.float32
        moved = float((tensor.detach() - before[name]).abs().max())
        assert 0 < moved < 1e-6, name


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_one_poisoned_generator_logprob_is_dropped_and_counted(poison: float) -> None:
    batch, clean = random_batch(), TorchTrainer(tiny(), FAST)
    at = int(np.flatnonzero(batch.loss_mask)[5])
    batch.generator_logprobs[at] = poison
    poisoned = TorchTrainer(tiny(), FAST)
    stats = poisoned.step(batch)
    assert stats["dropped_tokens"] == 1
    assert stats["skipped_steps"] == 0
    without = random_batch()
    without.weights[at] = 0
    clean.step(without)
    for mine, theirs in zip(poisoned.model.parameters(), clean.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_gradient_that_is_not_finite_skips_the_step_and_is_counted() -> None:
    trainer = TorchTrainer(tiny(), FAST)
    trainer.step(random_batch())
    before, batch = fingerprint(trainer), random_batch(1)
    batch.advantages[np.flatnonzero(batch.loss_mask)[0]] = np.nan
    stats = trainer.step(batch)
    assert stats["skipped_steps"] == 1
    assert fingerprint(trainer) == before
    assert (trainer.version, trainer.updates) == (2, 1)
    assert trainer.step(random_batch(2))["skipped_steps"] == 1
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_a_batch_with_nothing_to_learn_changes_nothing() -> None:
    trainer = TorchTrainer(tiny(), FAST)
    before = fingerprint(trainer)
    for batch in (select(random_batch(), np.zeros(0, np.int64)), without_targets()):
        stats = trainer.step(batch)
        assert (stats["tokens"], stats["grad_norm"]) == (0, 0)
    assert fingerprint(trainer) == before
    assert trainer.skipped == trainer.version == 2


def without_targets() -> Batch:
    batch = random_batch()
    batch.loss_mask[:] = False
    return batch


@pytest.mark.parametrize("kind", ["tied", "untied", "moe"])
def test_saved_and_loaded_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    straight = TorchTrainer(tiny(kind), FAST)
    for seed in range(3):
        straight.step(random_batch(seed))
    straight.save(tmp_path)
    resumed = TorchTrainer(tiny(kind, seed=9), FAST)
    resumed.step(random_batch(99))
    resumed.load(tmp_path)
    drawn = torch.rand(1)
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(1), drawn)  # the random state is part of it
    for seed in range(3, 6):
        mine, theirs = resumed.step(random_batch(seed)), straight.step(random_batch(seed))
        same = [k for k in mine if not k.startswith("seconds")]
        assert [mine[k] for k in same] == [theirs[k] for k in same]
    assert fingerprint(resumed) == fingerprint(straight)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".safetensors", ".safetensors"]


def test_steps_go_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, free = TorchTrainer(tiny(), FAST), threading.Event()
    write = trainer_state.save_file

    def slow(*arguments: Any) -> None:
        free.wait(30)
        write(*arguments)

    monkeypatch.setattr(trainer_state, "save_file", slow)
    trainer.step(random_batch(0))
    before = fingerprint(trainer)
    trainer.begin_save(tmp_path / "one")
    trainer.step(random_batch(1))
    assert not trainer.saved(wait=False)
    free.set()
    assert trainer.saved()
    assert trainer.saved(wait=False)  # there is nothing to wait for
    assert fingerprint(trainer) != before
    trainer.load(tmp_path / "one")
    assert fingerprint(trainer) == before
    (tmp_path / "file").write_text("in the way")
    trainer.begin_save(tmp_path / "file" / "trainer")
    with pytest.raises(ScaleRLError, match=r"file/trainer: could not be written \(.*Not a directory"):
        trainer.saved()
    trainer.step(random_batch(1))


def test_a_foreign_or_cut_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    TorchTrainer(tiny("untied"), FAST).save(tmp_path / "untied")
    trainer = TorchTrainer(tiny(), FAST)
    trainer.save(tmp_path / "cut")
    before = fingerprint(trainer)
    with pytest.raises(InputError, match=r"lm_head\.weight is not in both"):
        trainer.load(tmp_path / "untied")
    file = tmp_path / "cut" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(InputError, match=r"optimizer\.safetensors: cannot be read"):
        trainer.load(tmp_path / "cut")
    assert fingerprint(trainer) == before


def test_every_statistic_is_there_and_finite() -> None:
    stats = TorchTrainer(tiny(), FAST).step(random_batch())
    wanted = {
        "loss", "grad_norm", "entropy", "ratio_mean", "ratio_max", "ratio_at_bound", "mismatch_kl", "tokens",
        "padded_share", "sequences", "seconds_forward", "seconds_backward", "seconds_optimizer", "learning_rate",
    }  # fmt: skip
    assert wanted <= stats.keys()
    assert all(np.isfinite(v) for v in stats.values())
    assert stats["learning_rate"] == pytest.approx(1e-3 / 4)


def test_micro_batches_hold_every_target_once_and_the_budget() -> None:
    batch = random_batch(sequences=300, longest=40)
    parts = list(split(batch, 1000))
    found = np.sort(np.concatenate([p.batch_index for p in parts]))
    assert np.array_equal(found, np.flatnonzero(batch.loss_mask))
    assert all(p.padded <= 1000 or len(p.token_ids) == 1 for p in parts)
    assert sum(p.tokens for p in parts) > 0.85 * sum(p.padded for p in parts)
    for part in parts:
        assert np.array_equal(part.targets.numpy(), batch.token_ids[part.batch_index])


def test_settings_come_from_the_recipe() -> None:
    settings = TrainerSettings.from_recipe(Recipe.preset("scalerl"), micro_batch_tokens=2048)
    assert (settings.loss, settings.learning_rate, settings.epsilon) == ("cispo", 5e-7, 1e-15)
    assert (settings.warmup_steps, settings.weight_decay, settings.fp32_head) == (100, 0.01, True)


def test_bf16_compute_keeps_fp32_masters_and_an_fp32_head() -> None:
    settings = TrainerSettings(learning_rate=1e-3, compute="bf16")
    trainer, exact = TorchTrainer(tiny(), settings), TorchTrainer(tiny(), FAST)
    batch = random_batch()
    near, true = trainer.logprobs(batch), exact.logprobs(batch)
    assert 0 < float((near - true).abs().max()) < 0.2
    trainer.step(batch)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
