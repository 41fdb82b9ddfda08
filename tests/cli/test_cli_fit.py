"""`scalerl fit`: numbers, a sentence for each, methods and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import Run


def test_finds_the_law_that_made_the_run(run: Run, risen: Path) -> None:
    result = run("fit", risen, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    fit = answer["fit"]
    assert fit["A"] == pytest.approx(0.7, abs=0.01)
    assert fit["R0"] == pytest.approx(0.3, abs=0.02)
    assert fit["C_mid"] == pytest.approx(200, rel=0.05)
    assert fit["A_interval"][0] <= 0.7 <= fit["A_interval"][1]
    assert answer["data"]["points_used"] == 40
    assert answer["schema"] == 1


def test_every_number_gets_a_sentence(run: Run, risen: Path) -> None:
    text = run("fit", risen).stdout
    for name in ("R0:", "A:", "C_mid:", "B:", "residual sd:", "autocorrelation:"):
        assert f"- {name}" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_below_1_5_C_mid_the_table_gives_no_ceiling(run: Run, rising: Path) -> None:
    assert "not identified" in run("fit", rising).stdout


def test_from_and_upto_cut_the_window(run: Run, risen: Path) -> None:
    data = json.loads(run("fit", risen, "--from", "100", "--upto", "500", "--json").stdout)["data"]
    assert (data["points_used"], data["points_dropped"], data["compute_last"]) == (17, 3, 500)
    whole = json.loads(run("fit", risen, "--from", "auto", "--json").stdout)["data"]
    assert whole["points_used"] + whole["points_dropped"] == 40


def test_paper_method_needs_no_R0_but_takes_one(run: Run, risen: Path) -> None:
    given = json.loads(run("fit", risen, "--method", "paper", "--r0", "0.3", "--json").stdout)["fit"]
    assert given["R0"] == 0.3
    assert given["A"] * 200 == pytest.approx(round(given["A"] * 200))  # a point of the paper's grid


def test_r0_belongs_to_the_paper_method(run: Run, risen: Path) -> None:
    result = run("fit", risen, "--r0", "0.3")
    assert result.exit_code == 2
    assert "--method paper" in result.stderr


@pytest.mark.parametrize("law", ["sigmoid", "weibull", "gompertz", "power law"])
def test_laws(run: Run, risen: Path, law: str) -> None:
    assert json.loads(run("fit", risen, "--law", law, "--json").stdout)["fit"]["law"] == law


def test_paper_method_fits_the_sigmoid_only(run: Run, risen: Path) -> None:
    result = run("fit", risen, "--law", "weibull", "--method", "paper")
    assert result.exit_code == 2
    assert "--law" in result.stderr


def test_a_constant_is_refused(run: Run, constant: Path) -> None:
    result = run("fit", constant, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["verdict"] == "NO-FORECAST"


def test_plot(run: Run, risen: Path, tmp_path: Path) -> None:
    result = run("fit", risen, "--plot", tmp_path / "fit.png", "--json")
    assert result.exit_code == 0
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert "picture written" in result.stderr
