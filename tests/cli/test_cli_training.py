"""`train`, `resume` and `watch` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import Run


def test_show_resolves_and_writes_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("train", "--preset", "magistral", "steps=7", "--set", "engines.slots=3", "--seed", "5", "--show")
    assert done.exit_code == 0, done.stderr
    found = yaml.safe_load(done.stdout)
    assert (found["steps"], found["seed"], found["engines"]["slots"], found["recipe"]["loss"]) == (7, 5, 3, "dapo")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["recipe.lossy=dapo"],
            "--set recipe.lossy=dapo: there is no setting recipe.lossy; the nearest is recipe.loss",
        ),
        (["--preset", "scalrl"], "--preset scalrl: no preset 'scalrl'; the nearest is 'scalerl'"),
        (["--stop-when", "gain < 1"], "--stop-when gain < 1: forecast.stop_when"),
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["a.yaml", "b.yaml"], "one settings file"),
    ],
)
def test_unusable_settings_are_refused_in_one_line(run: Run, words: list[str], message: str) -> None:
    done = run("train", *words, "--show")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["train", "resume"])
def test_without_torch_the_extra_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    find = util.find_spec
    monkeypatch.setattr("scalerl.cli.training_options.find_spec", lambda n: None if n == "torch" else find(n))
    (tmp_path / "config.yaml").write_text("steps: 3\n")
    done = run(command, *([] if command == "train" else [tmp_path]))
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'scalerl[train]'" in done.stderr


def test_neither_show_nor_watch_nor_a_refusal_loads_torch(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    code = f"""
import sys
from scalerl.cli.app import application
for words in (["train", "--show"], ["train", "a=1"], ["watch", {str(tmp_path)!r}, "--once"], ["train", "--help"]):
    try:
        application(words)
    except SystemExit:
        pass
print("torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"


def rows_of_a_run() -> list[dict[str, Any]]:
    train = {
        "kind": "train", "step": 3, "train_pass_rate": 0.25, "entropy": 0.5, "grad_norm": 1.5, "seconds_total": 2.0,
        "generator_idle_share": 0.1, "trainer_idle_share": 0.2, "truncation_rate": 0.03, "interrupted_share": 0.4,
        "completion_length": 20.5, "staleness_mean": 1.5, "staleness_max": 3.0, "versions_per_rollout": 2.5,
        "dropped_prompts": 2.0, "groups": 8.0, "prompts_retired": 7, "prompts_total": 64,
    }  # fmt: skip
    spent = {"flops": 1.0, "tokens": 1, "device_hours": {"train": 1.0}}
    same = {"kind": "eval", "task": "t", "trials": 64, "mean_at": 4, "compute": spent}
    evals = [{**same, "step": s, "pass_rate": r} for s, r in ((0, 0.125), (2, 0.25))]
    return [evals[0], train, evals[1]]


def write(path: Path, found: list[dict[str, Any]], end: str = "\n") -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.write("\n".join(json.dumps(row) for row in found) + end)


def test_watch_once_tells_all_that_matters(run: Run, tmp_path: Path) -> None:
    write(tmp_path, rows_of_a_run())
    row = {"compute": 2.0, "score": 0.4, "low": 0.3, "high": 0.5, "gain": 0.15, "gain_low": 0.05, "gain_high": 0.25}
    answer = {"schema": 1, "step": 2, "tasks": {"t": {"verdict": "CONTINUE", "reasons": [], "forecast": [row]}}}
    (tmp_path / "forecast.json").write_text(json.dumps(answer))
    done = run("watch", tmp_path, "--once")
    assert done.exit_code == 0, done.stderr
    for text in ("0.250 at step 2", "+0.125 since step 0", "CONTINUE", "10 %", "3 % truncated", "40 % interrupted",
                 "1.50 on average", "2 dropped of 8", "7 of 64 retired"):  # fmt: skip
        assert text in " ".join(done.stdout.split()), text
    told = json.loads(run("watch", tmp_path, "--json").stdout)
    assert (told["schema"], told["train"]["step"], told["eval"]["t"]["step"], told["ended"]) == (1, 3, 2, None)
    assert told["forecast"]["t"]["verdict"] == "CONTINUE"


def test_watch_follows_until_the_end_and_waits_for_half_a_line(run: Run, tmp_path: Path) -> None:
    write(tmp_path, rows_of_a_run(), end="")
    end = {"kind": "event", "step": 3, "event": "end", "reason": "steps"}

    def later() -> None:
        time.sleep(0.3)
        write(tmp_path, [], end="\n")
        write(tmp_path, [end])

    writer = threading.Thread(target=later)
    writer.start()
    done = run("watch", tmp_path, "--interval", "0.05")
    writer.join()
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["held-out", "step", "held-out", "step"]
    assert lines[-1] == "step 3: end (steps)"


def test_watch_waits_for_a_run_that_starts_and_says_of_one_that_it_was_killed(run: Run, tmp_path: Path) -> None:
    from scalerl.training.claim import claimed

    def starts_and_dies() -> None:
        with claimed(tmp_path):
            begun.set()
            time.sleep(0.3)
            write(tmp_path, rows_of_a_run())
            time.sleep(0.3)

    begun = threading.Event()
    writer = threading.Thread(target=starts_and_dies)
    writer.start()
    begun.wait()
    done = run("watch", tmp_path, "--interval", "0.05")
    writer.join()
    assert done.exit_code == 0, done.stderr
    said = f"no process writes this run any more, and it has not ended: `scalerl resume {tmp_path}` goes on"
    assert [line.split(" ")[0] for line in done.stdout.splitlines()] == ["held-out", "step", "held-out", "no"]
    assert done.stdout.splitlines()[-1] == said
    assert said in run("watch", tmp_path, "--once").stdout
    assert json.loads(run("watch", tmp_path, "--json").stdout)["writing"] is False


def test_watch_survives_a_resume_that_cuts_the_log(tmp_path: Path) -> None:
    from scalerl.training.progress import State
    from scalerl.training.watch import Follower

    write(tmp_path, rows_of_a_run())
    follower, state = Follower(tmp_path), State()

    def look() -> None:
        for row in follower.rows():
            state.feed(row)

    look()
    (tmp_path / "metrics.jsonl").write_text("")
    write(tmp_path, rows_of_a_run()[:1])
    look()
    assert [row["step"] for row in state.evals["t"]] == [0]
    longer = {"kind": "event", "event": "x" * 2000, "step": 0}
    (tmp_path / "metrics.jsonl").write_text("")
    write(tmp_path, [longer, *rows_of_a_run()])
    look()
    look()
    assert [row["step"] for row in state.evals["t"]] == [0, 2]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"kind": "eval"}, "step is None, a whole number is needed"),
        ({"kind": "train", "step": None}, "step is None, a whole number is needed"),
        ({"kind": "train", "step": 1.5}, "step is 1.5, a whole number is needed"),
        ({"kind": ["eval"], "step": 1}, "kind is ['eval'], not train, eval or event"),
        ({"kind": "eval", "step": 1}, "task is None, a row of kind eval needs a text there"),
        ({"kind": "event", "step": 1}, "event is None, a row of kind event needs a text there"),
        ({"kind": "eval", "step": 1, "task": "t", "pass_rate": "high"}, "pass_rate is 'high', a number is needed"),
        ({"kind": "eval", "step": 1, "task": "t", "pass_rate": 0.5, "trials": 4}, "compute/flops is missing, which"),
        ({"kind": "train", "step": 1, "staleness_max": "old"}, "staleness_max is 'old', a number is needed"),
        ({"kind": "train", "step": 1, "staleness_max": {}}, "staleness_max is {}, a number is needed"),
        ({"kind": "train", "step": 1, "compute": 3}, "compute is 3, an object is needed"),
        ({"kind": "train", "step": 1, "compute": {"device_hours": 3}}, "compute/device_hours is 3, an object is"),
        ({"kind": "train", "step": 1, "staleness_histogram": {"old": 3}}, "its names must be whole numbers"),
        ({"kind": "train", "step": 1, "verified/t": None}, "verified/t is None, a number is needed"),
    ],
)
def test_a_row_that_no_reader_could_take_is_named(run: Run, tmp_path: Path, row: dict[str, Any], why: str) -> None:
    write(tmp_path, [*rows_of_a_run(), row])
    done = run("watch", tmp_path, "--once")
    assert done.exit_code == 2
    assert "metrics.jsonl:4: no row of a run (" in done.stderr
    assert why in done.stderr


def test_rows_that_say_little_are_shown_and_summed(run: Run, tmp_path: Path) -> None:
    from scalerl.recipe.recipe import Recipe
    from scalerl.training.ingredients import ingredients, rows_of

    names = [name for name in rows_of_a_run()[1] if name not in ("kind", "step")]
    full = [{"kind": "train", "step": 1}, {"kind": "train", "step": 2, **dict.fromkeys(names)}]
    write(tmp_path, [*full, {"kind": "eval", "step": 2, "task": "t"}, {"kind": "event", "step": 2, "event": "x"}])
    done = run("watch", tmp_path, "--once")
    assert done.exit_code == 0, done.stderr
    assert "no score at step 2" in done.stdout
    assert len(ingredients(Recipe(), rows_of(tmp_path))) == 9


@pytest.mark.parametrize("interval", ["nan", "inf", "0", "1e9"])
def test_watch_refuses_an_interval_that_it_cannot_wait(run: Run, tmp_path: Path, interval: str) -> None:
    write(tmp_path, [{"kind": "event", "step": 3, "event": "end"}])
    done = run("watch", tmp_path, "--interval", interval)
    assert done.exit_code == 2
    assert "out of range: it must be at least 0.05 and below 1e+06" in done.stderr


def test_watch_without_a_run_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalerl.cli.watch._PATIENCE", 0.1)
    for options in ((), ("--once",)):
        done = run("watch", tmp_path / "none", *options)
        assert done.exit_code == 2
        assert "no metrics.jsonl" in done.stderr


def test_resume_without_a_run_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("resume", tmp_path)
    assert done.exit_code == 2
    assert "no config.yaml" in done.stderr
