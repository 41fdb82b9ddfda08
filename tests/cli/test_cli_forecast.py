"""`scalerl forecast`: the JSON of schema 1, the human view, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli_runs import Run, sigmoid, write_csv

ISSUE_KEYS = {
    "schema",
    "data",
    "fit",
    "forecast",
    "families",
    "backtest",
    "calibration",
    "verdict",
    "reasons",
    "vetoes",
}
ISSUE_KEYS |= {"warnings"}
DATA_KEYS = {"points_used", "points_dropped", "compute_unit", "compute_last", "score_last"}
FIT_KEYS = {"R0", "A", "B", "C_mid", "A_interval", "C_over_C_mid", "residual_sd", "autocorrelation"}
ROW_KEYS = {"compute", "score", "low", "high", "gain", "gain_low", "gain_high"}
VERDICTS = {"CONTINUE", "STOP-THIS-RECIPE", "UNSURE", "NO-FORECAST"}


def test_json_has_every_key_of_schema_1(run: Run, risen: Path) -> None:
    result = run("forecast", risen, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer.keys() >= ISSUE_KEYS
    assert answer["schema"] == 1
    assert answer["data"].keys() >= DATA_KEYS
    assert answer["fit"].keys() >= FIT_KEYS
    assert all(row.keys() >= ROW_KEYS for row in answer["forecast"])
    assert len(answer["forecast"]) == 3
    assert answer["verdict"] in VERDICTS
    assert answer["source"]["format"] == "CSV"


def test_json_alone_on_stdout_and_the_guess_on_stderr(run: Run, risen: Path) -> None:
    result = run("forecast", risen, "--json")
    json.loads(result.stdout)
    assert "y = 'val/pass_rate' (guessed" in result.stderr
    assert "x = 'step' (guessed" in result.stderr


def test_view_begins_with_what_was_read_and_follows_the_order_of_need(run: Run, risen: Path) -> None:
    text = run("forecast", risen, "--target", "0.69").stdout
    guesses = ["y = 'val/pass_rate' (guessed; --y overrides", "x = 'step' (guessed; --x overrides"]
    order = ["Read", "CSV", *guesses, "╭", "Forecast", "Target 0.69", "Fit", "Laws", "This run's own past"]
    order += ["Calibration", "Warnings"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)


def test_view_fits_80_columns_without_colour_codes(run: Run, risen: Path, rising: Path, collapsed: Path) -> None:
    for file in (risen, rising, collapsed):
        text = run("forecast", file, "--price-per-hour", "2.5", "--unit", "gpu-hour").stdout
        assert "\x1b" not in text
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "cost" in text


def test_colour_where_it_is_asked_for(run: Run, risen: Path) -> None:
    assert "\x1b[" in run("forecast", risen, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" not in run("forecast", risen, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


def test_no_ceiling_below_1_5_C_mid(run: Run, rising: Path) -> None:
    answer = json.loads(run("forecast", rising, "--json").stdout)
    assert answer["fit"]["C_over_C_mid"] < 1.5
    text = run("forecast", rising).stdout
    line = next(line for line in text.splitlines() if re.match(r"\s+A\s", line))
    assert "not identified" in line
    assert f"{answer['fit']['A']:.3f}" not in text


def test_ceiling_stands_beside_C_over_C_mid_and_an_interval(run: Run, risen: Path) -> None:
    line = next(line for line in run("forecast", risen).stdout.splitlines() if re.match(r"\s+A\s", line))
    assert re.search(r"A\s+0\.\d{3}\s+\[0\.\d{3}, 0\.\d{3}\].*C/C_mid is \d", line)


def test_level_threshold_at_budget_reach_the_forecast(run: Run, risen: Path) -> None:
    narrow = json.loads(run("forecast", risen, "--at", "2x", "--level", "0.5", "--json").stdout)["forecast"][0]
    wide = json.loads(run("forecast", risen, "--at", "2,000", "--level", "0.95", "--json").stdout)["forecast"][0]
    assert narrow["compute"] == wide["compute"] == 2000
    assert wide["high"] - wide["low"] > narrow["high"] - narrow["low"]
    answer = json.loads(run("forecast", risen, "--threshold", "0.3", "--budget", "3x", "--json").stdout)
    assert (answer["verdict"], answer["budget"]) == ("STOP-THIS-RECIPE", 3000)


def test_upto_forgets_what_came_after(run: Run, risen: Path, tmp_path: Path) -> None:
    early = tmp_path / "early.csv"
    early.write_text("\n".join(risen.read_text().splitlines()[:21]) + "\n")  # up to step 500
    replay = json.loads(run("forecast", risen, "--upto", "500", "--json").stdout)
    then = json.loads(run("forecast", early, "--json").stdout)
    for key in ("fit", "forecast", "verdict", "reasons", "warnings", "backtest"):
        assert replay[key] == then[key]


def test_upto_also_forgets_the_later_truncation(run: Run, tmp_path: Path) -> None:
    compute = np.arange(10.0, 401.0, 10.0)
    rate = np.where(compute > 200, 0.4, 0.01)
    rows = [f"{c:g},{s:.4f},{r:g}" for c, s, r in zip(compute, sigmoid(compute), rate, strict=True)]
    file = tmp_path / "truncated.csv"
    file.write_text("\n".join(["step,val/acc,truncation_rate", *rows]))
    whole = json.loads(run("forecast", file, "--factor", "2", "--json").stdout)
    past = json.loads(run("forecast", file, "--factor", "2", "--upto", "400", "--json").stdout)
    assert any("40 % of generations are truncated" in w for w in whole["warnings"])
    assert not any("truncat" in w for w in past["warnings"])


def test_cost_counts_from_now_on(run: Run, risen: Path) -> None:
    row = json.loads(
        run("forecast", risen, "--at", "2x", "--unit", "gpu-hour", "--price-per-hour", "2.5", "--json").stdout
    )
    assert row["forecast"][0]["cost"] == pytest.approx(2500)


def test_a_collapse_is_refused_with_exit_3_and_still_shown(run: Run, collapsed: Path) -> None:
    result = run("forecast", collapsed)
    assert result.exit_code == 3
    assert "NO-FORECAST" in result.stdout
    assert "collapse" in result.stdout
    answer = json.loads(run("forecast", collapsed, "--json").stdout)
    assert answer["vetoes"]
    assert answer["fit"] is not None


def test_a_constant_is_refused_with_the_full_schema(run: Run, constant: Path) -> None:
    result = run("forecast", constant, "--json")
    assert result.exit_code == 3
    answer = json.loads(result.stdout)
    assert answer.keys() >= ISSUE_KEYS
    assert answer["data"].keys() >= DATA_KEYS
    assert answer["verdict"] == "NO-FORECAST"
    assert "constant" in answer["reasons"][0]
    assert "constant" in run("forecast", constant).stdout


def test_stdin(run: Run, risen: Path) -> None:
    piped = json.loads(run("forecast", "-", "--json", input=risen.read_bytes()).stdout)
    named = json.loads(run("forecast", risen, "--json").stdout)
    assert piped["source"]["file"] == "stdin"
    assert piped["forecast"] == named["forecast"]


def test_stdin_errors_say_stdin(run: Run) -> None:
    result = run("forecast", "-", input=b"")
    assert result.exit_code == 2
    assert result.stderr.startswith("scalerl: stdin: ")


def test_plot_is_written_and_said(run: Run, risen: Path, tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    result = run("forecast", risen, "--upto", "500", "--plot", picture)
    assert result.exit_code == 0
    assert picture.read_text().lstrip().startswith("<?xml")
    assert "picture written" in result.stdout


def test_plot_of_a_refusal_is_not_silently_missing(run: Run, constant: Path, tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    result = run("forecast", constant, "--plot", picture)
    assert result.exit_code == 3
    assert not picture.exists()
    assert "not drawn" in result.stderr


def test_raw_intervals_and_foreign_tables(run: Run, risen: Path, tmp_path: Path) -> None:
    raw = json.loads(run("forecast", risen, "--calibration", "none", "--json").stdout)
    assert raw["calibration"]["multipliers"] == [1.0, 1.0, 1.0]
    bad = tmp_path / "table.json"
    bad.write_text("{}")
    result = run("forecast", risen, "--calibration", bad)
    assert result.exit_code == 2
    assert str(bad) in result.stderr


def test_user_strings_never_reach_the_terminal_raw(run: Run, tmp_path: Path) -> None:
    compute = np.arange(10.0, 401.0, 10.0)
    file = write_csv(tmp_path / "evil.csv", compute, sigmoid(compute), header="step,val/\x1b[31m[bold]acc")
    result = run("forecast", file)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "[bold]acc" in result.output
