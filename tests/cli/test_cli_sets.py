"""Commands on many runs: backtest, calibrate, compare; and formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runs import Run, sigmoid, write_csv

from scalerl.cli.compare import by_recipe, split_name
from scalerl.cli.progress import Progress
from scalerl.report.compared import folded
from scalerl.runs import Curve


def whole_run(path: Path, seed: int, A: float = 0.7, B: float = 2.0, C_mid: float = 150.0) -> Path:
    path.parent.mkdir(exist_ok=True)
    compute = np.arange(20.0, 1001.0, 20.0)
    noise = np.random.default_rng(seed).normal(0, 0.004, compute.size)
    return write_csv(path, compute, sigmoid(compute, A=A, B=B, C_mid=C_mid) + noise)


@pytest.fixture
def bank(tmp_path: Path) -> list[Path]:
    """Two sources of two runs."""
    return [whole_run(tmp_path / f"lab{s // 2}" / f"run{s}.csv", s, A=0.5 + 0.08 * s) for s in range(4)]


def test_backtest_json(run: Run, bank: list[Path]) -> None:
    result = run("backtest", *bank, "--fractions", "0.5", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["schema"] == 1
    methods = [s["method"] for s in answer["summaries"]]
    assert methods == ["scalerl", "paper", "curve_fit", "power law", "last five"]
    assert {s["fraction"] for s in answer["summaries"]} == {0.5}
    assert len(answer["cases"]) == 4 * 5
    assert {"coverage", "width", "median_error", "rms_error", "bias"} <= answer["summaries"][0].keys()


def test_backtest_view(run: Run, bank: list[Path]) -> None:
    text = run("backtest", *bank, "--method", "scalerl", "--method", "last five").stdout
    for word in ("Read", "4 runs in 4 files", "Cut at 0.25", "Cut at 0.5", "last five", "Run by run, scalerl", "run3"):
        assert word in text
    assert "paper" not in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_backtest_of_every_run_in_a_file_or_of_those_named(run: Run, tmp_path: Path) -> None:
    compute = np.arange(10.0, 401.0, 10.0)
    rows = [f"{name},{c:g},{s:.4f}" for name in "abc" for c, s in zip(compute, sigmoid(compute), strict=True)]
    file = tmp_path / "long.csv"
    file.write_text("\n".join(["run,step,acc", *rows]))
    every = json.loads(run("backtest", file, "--method", "last five", "--json").stdout)
    named = json.loads(run("backtest", file, "--method", "last five", "--run", "c", "--run", "a", "--json").stdout)
    assert {c["curve"] for c in every["cases"]} == {"a", "b", "c"}
    assert {c["curve"] for c in named["cases"]} == {"a", "c"}


@pytest.mark.parametrize("fractions", ["1.5", "0", "", "half", "0.5,nan"])
def test_bad_fractions(run: Run, bank: list[Path], fractions: str) -> None:
    result = run("backtest", bank[0], "--fractions", fractions)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "--fractions" in result.stderr


def test_an_unreadable_file_among_many_is_named(run: Run, bank: list[Path]) -> None:
    missing = bank[0].with_name("gone.csv")
    result = run("backtest", *bank, missing)
    assert result.exit_code == 2
    assert str(missing) in result.stderr


def test_calibrate_writes_a_table_that_forecast_takes(run: Run, bank: list[Path], tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    result = run("calibrate", *bank, "--out", table, "--about", "simulated", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["provenance"]["sources"] == {"lab0": 2, "lab1": 2}
    assert answer["provenance"]["about"] == "simulated"
    assert set(answer["without"]) == {"lab0", "lab1"}
    assert str(tmp_path) not in table.read_text()  # provenance names files, not the machine they lay on
    forecast = json.loads(run("forecast", bank[0], "--calibration", table, "--json").stdout)
    assert forecast["calibration"]["left_out_source"] == "lab0"
    text = run("calibrate", *bank).stdout
    assert "Nothing was written" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_calibrate_needs_two_sources(run: Run, bank: list[Path]) -> None:
    result = run("calibrate", *bank[:2])
    assert result.exit_code == 2
    assert "2 sources" in result.stderr


def test_compare_tells_a_higher_ceiling(run: Run, tmp_path: Path) -> None:
    low = [whole_run(tmp_path / f"low{s}.csv", s, A=0.55) for s in range(2)]
    high = [whole_run(tmp_path / f"high{s}.csv", 10 + s, A=0.7) for s in range(2)]
    arguments = [f"base={file}" for file in low] + [f"new={file}" for file in high]
    result = run("compare", *arguments, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert [(r["name"], r["seeds"]) for r in answer["recipes"]] == [("base", 2), ("new", 2)]
    assert answer["pairs"][0]["words"] == "moves the ceiling"
    text = run("compare", *arguments).stdout
    assert "new against base: moves the ceiling" in text
    ranking = text[text.index("Ranking") :].splitlines()[2:4]
    assert [line.split()[:2] for line in ranking] == [["1", "new"], ["2", "base"]]
    assert max(len(line) for line in text.splitlines()) <= 80


def test_compare_prints_no_ceiling_of_a_run_that_is_too_short(run: Run, risen: Path, rising: Path) -> None:
    answer = json.loads(run("compare", risen, rising, "--json").stdout)
    text = run("compare", risen, rising).stdout
    short = next(r for r in answer["recipes"] if r["name"] == "rising")
    assert short["too_short"]
    pair = text[text.index("rising against risen: too short to say") :].splitlines()
    assert not any(line.split()[:1] == ["A"] for line in pair)
    assert any(line.split()[:5] == ["rising", "1", "-", "too", "short"] for line in text.splitlines())


def test_compare_draws(run: Run, bank: list[Path], tmp_path: Path) -> None:
    straight = tmp_path / "straight.svg"
    result = run("compare", bank[0], bank[3], "--plot", tmp_path / "both.png", "--straightened", straight)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert straight.exists()


def test_compare_one_recipe_is_too_few(run: Run, risen: Path) -> None:
    result = run("compare", risen)
    assert result.exit_code == 2
    assert "two recipes" in result.stderr


def test_compare_refuses_what_cannot_be_fitted(run: Run, risen: Path, constant: Path) -> None:
    result = run("compare", risen, constant, "--json")
    assert result.exit_code == 3
    assert "constant" in json.loads(result.stdout)["reasons"][0]


def test_compare_leaves_out_what_cannot_be_fitted_and_says_so(
    run: Run, risen: Path, rising: Path, constant: Path
) -> None:
    answer = json.loads(run("compare", risen, constant, rising, "--json").stdout)
    assert [r["name"] for r in answer["recipes"]] == ["risen", "rising"]
    assert "constant" in answer["left_out"][0]
    assert "Left out" in run("compare", risen, constant, rising).stdout


def test_compare_tells_files_of_one_name_apart(run: Run, tmp_path: Path) -> None:
    files = [whole_run(tmp_path / name / "metrics.csv", s) for s, name in enumerate(("fp32", "bf16"))]
    answer = json.loads(run("compare", *files, "--json").stdout)
    assert [r["name"] for r in answer["recipes"]] == ["fp32/metrics", "bf16/metrics"]


def test_compare_never_pools_two_files_as_seeds_of_one_name(tmp_path: Path) -> None:
    curve = Curve([1.0, 2.0], [0.1, 0.2], name="metrics.csv")
    other = Curve([1.0, 2.0], [0.1, 0.2], name="metrics.jsonl")
    deep = by_recipe([("x/a/metrics.csv", None, curve), ("y/a/metrics.csv", None, curve)])
    assert list(deep) == ["x/a/metrics", "y/a/metrics"]
    assert list(by_recipe([("a/metrics.csv", None, curve), ("a/metrics.jsonl", None, other)])) == [
        "a/metrics.csv", "a/metrics.jsonl",
    ]  # fmt: skip
    long = [Curve([1.0, 2.0], [0.1, 0.2], name="x" * 30 + middle + "y" * 30) for middle in "12"]
    assert len(by_recipe([("f", None, curve) for curve in long])) == 2


def test_compare_shows_three_against_the_best_or_the_baseline(run: Run, tmp_path: Path) -> None:
    files = [whole_run(tmp_path / f"{name}.csv", s, A=A) for s, (name, A) in
             enumerate({"low": 0.5, "top": 0.7, "mid": 0.6}.items())]  # fmt: skip
    text = run("compare", *files).stdout
    assert "mid against top:" in text
    assert "low against top:" in text
    assert "low against mid:" not in text
    text = run("compare", *files, "--baseline", "mid").stdout
    assert "top against mid:" in text
    assert "low against top:" not in text
    refused = run("compare", *files, "--baseline", "best")
    assert refused.exit_code == 2
    assert "no recipe 'best' to be the baseline; one of low, top, mid" in refused.stderr


def test_compare_warns_of_scores_of_different_names(run: Run, tmp_path: Path) -> None:
    file = whole_run(tmp_path / "a.csv", 0)
    other = tmp_path / "b.csv"
    other.write_text(whole_run(tmp_path / "c.csv", 1).read_text().replace("val/pass_rate", "test/accuracy"))
    text = " ".join(run("compare", file, other).stdout.split())
    assert "the scores have different names: 'val/pass_rate' (a), 'test/accuracy' (b)" in text
    result = run("compare", file, other, "--json")
    assert len(json.loads(result.stdout)["warnings"]) == 1
    assert "warning: the scores have different names" in result.stderr
    assert json.loads(run("compare", file, tmp_path / "c.csv", "--json").stdout)["warnings"] == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [("all_strategies", "all_strategies"), ("backtracking_backward", "backtracking_\nbackward"),
     ("a" * 30, "aaaaaaa…aaaaaa"), ("no_positive_all_strategies", "no_positive_\nall_strategies"), ("-x", "-x")],
)  # fmt: skip
def test_names_over_a_table_are_folded_before_they_are_cut(name: str, shown: str) -> None:
    assert folded(name, 14) == shown


def test_progress_is_silent_for_two_seconds_then_rare(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.9, 2.1, 3.0, 7.0, 7.2])
    progress = Progress("comparing", clock=lambda: next(times))
    for done in "abcde":
        progress(done)
    assert capsys.readouterr().err.splitlines() == ["comparing: b", "comparing: e"]


def test_stdin_twice(run: Run) -> None:
    result = run("compare", "-", "x=-", input="")
    assert result.exit_code == 2
    assert "one file only" in result.stderr


def test_names_before_files(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.csv"
    odd.touch()
    assert split_name(str(odd)) == (None, str(odd))
    assert split_name("dapo=runs/x=1.csv") == ("dapo", "runs/x=1.csv")
    assert split_name("runs/lr=1.csv") == (None, "runs/lr=1.csv")


def test_formats(run: Run) -> None:
    assert "TensorBoard" in run("formats").stdout
    assert json.loads(run("formats", "--json").stdout)["schema"] == 1


def test_compare_counts_a_file_given_twice_once(run: Run, bank: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "again.csv"
    again.symlink_to(bank[0])
    result = run("compare", f"a={bank[0]}", f"a={again}", f"b={bank[3]}", "--json")
    assert [(r["name"], r["seeds"]) for r in json.loads(result.stdout)["recipes"]] == [("a", 1), ("b", 1)]
    assert "again.csv: the same file is given twice for 'a'" in result.stderr


def test_compare_of_a_file_with_itself_says_so(run: Run, bank: list[Path]) -> None:
    result = run("compare", bank[0], bank[0])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the same file is given 2 times" in result.stderr
    two_names = run("compare", f"a={bank[0]}", f"b={bank[0]}", "--json")
    assert "the same file stands for two recipes" in two_names.stderr


@pytest.mark.parametrize("command", ["backtest", "calibrate"])
def test_a_file_given_twice_is_one_run(run: Run, bank: list[Path], command: str) -> None:
    options = ["--method", "last five"] if command == "backtest" else []
    once = run(command, *bank, *options, "--json")
    twice = run(command, *bank, bank[0], *options, "--json")
    assert twice.stdout == once.stdout
    assert "run0.csv: given twice" in twice.stderr
