"""The warm start: the same for the same settings, made once, whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import WARM

from scalerl.engines.model import checksum, load_model, named_tensors
from scalerl.tasks.tokenizer import load_tokenizer
from scalerl.training import warm_start as module
from scalerl.training.warm_start import content_hash, trained, warm_start

SHORT = replace(WARM, steps=3)


def test_the_same_settings_make_the_same_weights_whatever_torch_has_drawn() -> None:
    sums = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        sums.append(checksum(named_tensors(trained(SHORT)).items()))
    assert sums[0] == sums[1]
    assert checksum(named_tensors(trained(replace(SHORT, seed=1))).items()) != sums[0]


def test_it_is_made_once_and_is_a_model_with_its_tokenizer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "trained", lambda *_: pytest.fail("it was in the cache"))
    assert warm_start(WARM) == model
    assert len(load_tokenizer(model)) == load_model(model).config.vocab_size  # type: ignore[union-attr]


def test_it_learns_and_tells_how_far_it_is() -> None:
    losses: list[float] = []
    trained(replace(WARM, steps=30), progress=lambda step, steps, loss: losses.append(loss))
    assert len(losses) == 30
    assert losses[-1] < losses[0] - 0.5


def test_one_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start(SHORT, progress=killed)
    assert list((tmp_path / "warm-start").iterdir()) == []


def test_every_setting_is_in_the_hash() -> None:
    other = {name: value + 1 for name, value in WARM.__dict__.items() if isinstance(value, int)} | {"level": "hard"}
    hashes = {content_hash(replace(WARM, **{name: value})) for name, value in other.items() if name != "kv_heads"}
    assert len(hashes | {content_hash(WARM)}) == len(other)
