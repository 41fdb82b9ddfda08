"""The command line as a process of its own: entry points, speed, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalerl import __version__

SCALERL = [sys.executable, "-m", "scalerl"]


def call(*args: object, **extra: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCALERL, *map(str, args)], capture_output=True, text=True, timeout=60, **extra)  # type: ignore[call-overload,no-any-return]


def test_version() -> None:
    assert call("--version").stdout == f"scalerl {__version__}\n"


def test_help_is_quick_and_lists_the_commands() -> None:
    took = []
    for _ in range(3):
        start = time.perf_counter()
        found = call("--help")
        took.append(time.perf_counter() - start)
    assert found.returncode == 0
    for word in ("forecast", "fit", "backtest", "compare", "transfer", "Exit codes"):
        assert word in found.stdout
    assert min(took) < 0.6


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from scalerl.cli.app import application
application.main(["forecast", "--help"], standalone_mode=False)
print([m for m in ("numpy", "scipy", "polars", "rich", "matplotlib") if m in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


def test_without_arguments_the_help() -> None:
    found = call()
    assert found.returncode == 0
    assert found.stdout == call("--help").stdout


def test_forecast_answers(risen: Path) -> None:
    found = call("forecast", risen, "--json")
    assert found.returncode == 0
    assert json.loads(found.stdout)["verdict"]
    assert all(line.startswith("scalerl: ") or line.startswith("note: ") for line in found.stderr.splitlines())


def test_narrow_terminals_get_whole_numbers(risen: Path) -> None:
    wide = call("forecast", risen, env={**os.environ, "COLUMNS": "80"})
    narrow = call("forecast", risen, env={**os.environ, "COLUMNS": "40"})
    assert narrow.stdout == wide.stdout


def test_bad_input_is_one_line_and_exit_2(tmp_path: Path) -> None:
    junk = tmp_path / "junk.bin"
    junk.write_bytes(bytes(range(256)) * 10)
    found = call("forecast", junk)
    assert (found.returncode, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) == 1
    assert "junk.bin" in found.stderr


@pytest.mark.skipif(os.name == "nt", reason="no such pipes there")
def test_a_reader_that_hangs_up_hears_nothing(risen: Path) -> None:
    for options in ([], ["--json"]):
        process = subprocess.Popen(
            [*SCALERL, "forecast", str(risen), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        complaint = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait(60) == 0
        assert "Error" not in complaint
        assert "Broken" not in complaint


def test_ascii_terminals(risen: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    found = call("forecast", risen, env=env)
    assert found.returncode == 0
    assert found.stdout.isascii()
    assert "+--" in found.stdout or "+-" in found.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["formats"], ["forecast", "risen.csv"]])
def test_a_full_disk_under_stdout_is_one_line(risen: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [*SCALERL, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=risen.parent
        )
    assert process.returncode == 2
    assert process.stderr.splitlines() == [process.stderr.rstrip("\n")]
    assert "stdout: cannot be written (No space left on device)" in process.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("command", "words"),
    [("forecast - <&-", "stdin: is closed"), ("forecast risen.csv >&-", "stdout: is closed")],
)
def test_closed_streams_are_one_line(risen: Path, command: str, words: str) -> None:
    process = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m scalerl {command}'],
        capture_output=True, text=True, timeout=60, cwd=risen.parent,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (2, "")
    assert len(process.stderr.splitlines()) == 1
    assert words in process.stderr
