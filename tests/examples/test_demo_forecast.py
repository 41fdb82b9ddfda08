"""The demo: a line for each log, held against its law; a command that fails ends it with exit code 1."""

from __future__ import annotations

from pathlib import Path

import pytest

import demo_forecast as demo
import make_logs
from make_logs import LOGS


def test_a_log_in_one_line_with_the_law_beside_it() -> None:
    found = demo.forecast_of(LOGS / "verl_console.log")
    assert found.truth == pytest.approx(make_logs.VERL(320))
    assert found.inside
    line = demo.line_of(found)
    assert line.startswith("verl_console.log   verl console ")
    assert f"{make_logs.VERL(320):.3f}" in line
    assert len(line) <= demo.WIDTH


def test_the_collapsed_run_is_refused_in_one_line() -> None:
    line = demo.line_of(demo.forecast_of(LOGS / "collapse.csv"))
    assert "NO-FORECAST" in line
    assert line.endswith("collapse")


def test_a_miss_is_shown_as_one() -> None:
    missed = demo.Outcome("x.csv", "CSV", "CONTINUE", low=0.5, high=0.6, truth=0.7, vetoes=[])
    assert demo.line_of(missed).endswith("0.700 outside")
    assert "outside" in demo.against_law(80_000, 0.5, 0.45, 0.55)
    assert "inside" in demo.against_law(80_000, 0.64, 0.63, 0.65)


def test_a_failing_command_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_logs, "write_text_logs", lambda folder: [])  # so that no log is there to be read
    monkeypatch.setattr(make_logs, "write_parquet", lambda folder: None)
    monkeypatch.setattr(make_logs, "write_tensorboard", lambda folder: None)
    assert demo.main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("demo failed: scalerl forecast")
    assert "ended with 2" in error


def test_long_commands_break_so_that_they_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    demo.typed(["forecast", "run.jsonl", *(part for i in range(20) for part in ("--at", f"{i + 2}x"))])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert all(line.endswith(" \\") and len(line) <= demo.WIDTH for line in lines[:-1])
    assert all(line.lstrip().startswith("--at") for line in lines[1:])


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name in ("forecast.png", "forecast_from_half.png", "compare.png"):
        assert (tmp_path / name).stat().st_size > 10_000
        assert name in out
    assert "moves the ceiling" in out
    assert "follows" in out
    assert all(name in out for name in make_logs.TRUTH)
