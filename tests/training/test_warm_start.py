"""The warm start: the same for the same settings, made once, whole or not at all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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


def test_what_a_killed_one_left_is_removed_and_a_living_ones_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path))
    here, dead = socket.gethostname(), 2**22 + 1
    stay = {f".making-{os.getppid()}@{here}@b", f".making-{dead}@elsewhere@c"}
    for name in (*stay, f".making-{dead}@{here}@a", f".making-{dead}@elsewhere@old", ".making-old"):
        folder = tmp_path / "warm-start" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        if name.endswith("old"):
            os.utime(folder, (0, 0))
    folder = warm_start(SHORT)
    left = {path.name for path in folder.parent.iterdir()}
    assert left == {*stay, folder.name}


def test_two_at_once_both_end_with_the_model(tmp_path: Path) -> None:
    code = f"from scalerl.training.warm_start import *; print(warm_start(WarmStart(**{SHORT.__dict__!r})))"
    environment = {**os.environ, "SCALERL_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    told = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    [folder] = told
    assert [path.name for path in (tmp_path / "warm-start").iterdir()] == [Path(folder.strip()).name]
    assert load_model(Path(folder.strip())).config.hidden_size == SHORT.hidden_size  # type: ignore[union-attr]


def test_every_setting_is_in_the_hash() -> None:
    base = replace(WARM, max_steps=3)
    other = {name: value + 1 for name, value in base.__dict__.items() if isinstance(value, int)} | {"level": "hard"}
    hashes = {content_hash(replace(base, **{name: value})) for name, value in other.items() if name != "kv_heads"}
    assert len(hashes | {content_hash(base)}) == len(other)
