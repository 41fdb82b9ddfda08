"""Every error is one line on stderr that names what is wrong and the mend, with exit code 2 and nothing on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_runs import Run
from click.testing import Result

from scalerl.cli import guard, output
from scalerl.cli.app import COMMANDS


def assert_one_line(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_no_such_file_names_the_nearest(run: Run, risen: Path) -> None:
    assert_one_line(run("forecast", risen.with_name("risem.csv")), "no such file", "risen.csv")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--y", "val/passrate"], ["val/passrate", "did you mean", "val/pass_rate"]),
        (["--x", "stepp"], ["stepp", "step"]),
        (["--run", "seed1"], ["seed1"]),
        (["--run-column", "seed"], ["seed"]),
        (["--trials", "none"], ["none"]),
        (["--scale", "lots"], ["--scale"]),
        (["--devices", "8"], ["--devices"]),
        (["--devices", "0"], ["--devices", "above 0"]),
        (["--factor", "nan"], ["--factor"]),
        (["--at", "3 days"], ["3 days", "2x"]),
        (["--at", "0.5x"], ["0.5x", "--upto"]),
        (["--at", "nanx"], ["nanx"]),
        (["--budget", "10"], ["10", "--upto"]),
        (["--level", "90"], ["--level", "below 1"]),
        (["--level", "0"], ["--level"]),
        (["--threshold", "inf"], ["--threshold"]),
        (["--from", "soon"], ["--from", "soon"]),
        (["--from", "-1"], ["--from"]),
        (["--upto", "1"], ["1"]),
        (["--target", "60"], ["--target"]),
        (["--price-per-hour", "2.5"], ["price", "step"]),
        (["--price-per-hour", "-1", "--unit", "gpu-hour"], ["--price-per-hour"]),
        (["--plot", "out.gif"], [".png", "--plot"]),
        (["--plot", "no/such/folder/out.png"], ["no/such/folder"]),
        (["--calibration", "no-such-table.json"], ["no-such-table.json", "calibrate"]),
        (["--budgte", "2x"], ["--budgte", "--help"]),
        (["--level"], ["--level"]),
        (["second.csv"], ["second.csv"]),
    ],
)
def test_settings(run: Run, risen: Path, option: list[str], words: list[str]) -> None:
    assert_one_line(run("forecast", risen, *option), *words)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("formats", "train")])  # these need no file
def test_missing_file_argument(run: Run, command: str) -> None:
    assert_one_line(run(command), f"scalerl {command}", "--help")


def test_mistyped_command(run: Run) -> None:
    assert_one_line(run("forcast", "x"), "forcast", "did you mean 'forecast'")


def test_a_file_where_a_command_belongs(run: Run, risen: Path) -> None:
    assert_one_line(run(risen), f"scalerl forecast {risen}")


def test_unknown_law_lists_the_laws(run: Run, risen: Path) -> None:
    assert_one_line(run("fit", risen, "--law", "line"), "line", "weibull")


def test_messages_are_one_line_whatever_they_quote(run: Run, tmp_path: Path) -> None:
    result = run("forecast", tmp_path / "a\nb\x1b[31m\u2028c.csv")
    assert_one_line(result, "[31m")
    assert "\x1b" not in result.stderr
    assert output.one_line("a\nb\x1b[31m\u2028c\ud800") == "a b\\x1b[31m c\\xd800"
    assert len(output.one_line("x" * 5000)) == output.MAX_LINE


def test_unforeseen_faults_are_one_line_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    def fault() -> int:
        raise ZeroDivisionError("first\nsecond")

    assert guard.guarded(fault) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    for word in ("ZeroDivisionError", "first second", "report", "SCALERL_DEBUG=1"):
        assert word in shown.err


def test_debug_lets_the_traceback_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALERL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        guard.guarded(lambda: 1 // 0)


def test_terminal_that_cannot_print_a_character_gets_its_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        output.print_json({"name": "é"})
        output.print_view("…")
    assert (tmp_path / "out").read_text().endswith("\\u2026\n")


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "3",
        "null",
        "[" * 100_000,
        '{"multipliers": {}}',
        '{"multipliers": [1, 1, 1, 1, 1], "provenance": 0, "without": []}',
    ],
    ids=["list", "number", "null", "deep", "no multipliers", "list of sources"],
)
def test_json_that_is_no_calibration_table(run: Run, risen: Path, tmp_path: Path, content: str) -> None:
    table = tmp_path / "table.json"
    table.write_text(content)
    assert_one_line(run("forecast", risen, "--calibration", table), "table.json", "calibrate")
