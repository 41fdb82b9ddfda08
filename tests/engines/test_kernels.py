"""Compiled kernels: made once, and done without where they cannot be made."""

import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from scalerl.engines import kernels as module
from scalerl.engines.kernels import kernels

needs_compiler = pytest.mark.skipif(kernels(torch.float32, 32) is None, reason="no C++ compiler")


@needs_compiler
def test_the_library_is_compiled_once_and_then_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []

    def run(command: Any, **settings: Any) -> Any:
        commands.append(" ".join(command))
        return subprocess_run(command, **settings)

    subprocess_run = subprocess.run
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path))
    monkeypatch.setattr(module.subprocess, "run", run)
    assert module._library.__wrapped__() is not None
    assert module._library.__wrapped__() is not None
    assert sum(" -c " in command for command in commands) == 1
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".so"]


@pytest.mark.parametrize("reason", ["switched off", "no compiler"])
def test_torchs_operations_are_used_without_a_word_where_that_is_meant(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if reason == "switched off":
        monkeypatch.setenv("SCALERL_KERNELS", "0")
    else:
        monkeypatch.setattr(module.shutil, "which", lambda _: None)
    assert module._library.__wrapped__() is None
    assert not caplog.records


@pytest.mark.parametrize("compiler", ["false", "true"])
def test_a_compiler_that_fails_is_named_in_a_warning(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.WARNING):
        assert module._library.__wrapped__() is None
    assert "kernels.cpp is not used" in caplog.text


def test_what_the_kernels_do_not_cover_is_left_to_torch() -> None:
    assert kernels(torch.float64, 32) is None
    assert kernels(torch.float16, 32) is None
    assert kernels(torch.float32, 48) is None
