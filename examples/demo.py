"""`make demo`: trains a small model with the ScaleRL recipe, forecasts its end at half time, and shows what came.

    python examples/demo.py                       # into ./demo/
    python examples/demo.py FOLDER --seed 3       # elsewhere, another order of prompts and other samples

    FOLDER/run/             run directory: metrics.jsonl, forecast.json, checkpoints, model
    FOLDER/half.json        the forecast as it was made at half time
    FOLDER/forecast.png     the same with what came
    FOLDER/demo.json        how it went, in numbers

Everything is done by the commands shown, run as they stand. Any of them failing ends the demo with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml

SETTINGS = Path(__file__).with_name("demo.yaml")
ANSWERED, REFUSED = 0, 3
WIDTH = 80


class DemoFailed(Exception):
    """A command of the demo did not do what it should; the message says which."""


@dataclass(frozen=True)
class Outcome:
    """How it went.

    Attributes:
        start, end: held-out mean@k before training and after it. evaluations: how many there were.
        half_flops, end_flops: compute of training at the forecast, and at the end.
        score, low, high: of the forecast from the first half at `end_flops`, with its 90 % interval.
        held: whether `end` lies in it. seconds: of the whole demo.
    """

    seed: int
    start: float
    end: float
    evaluations: int
    half_flops: float
    end_flops: float
    score: float
    low: float
    high: float
    held: bool
    seconds: float


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        outcome = demo(options.folder, options.seed)
    except DemoFailed as failure:
        print(f"demo failed: {failure}", file=sys.stderr)
        return 1
    heading(f"Done in {outcome.seconds:.0f} s")
    for name in ("run", "half.json", "forecast.png", "demo.json"):
        print(f"  {options.folder / name}")
    print("\nYour own task:  docs/how-to/train-your-own-task.md")
    return 0


def demo(folder: Path, seed: int) -> Outcome:
    """Train the first half, forecast, train the second, compare.

    Raises:
        DemoFailed: a command failed.
    """
    began = perf_counter()
    run, steps = folder / "run", int(yaml.safe_load(SETTINGS.read_text("utf-8"))["steps"])
    for old in (run, folder / "half.json", folder / "forecast.png", folder / "demo.json"):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    heading("Train the first half")
    say("A model of 0.8 million parameters learns the form of worked sums from examples with many mistakes (kept in a "
        "cache for the next time); reinforcement then has to find out which of its sums are right.")  # fmt: skip
    scalerl("train", SETTINGS, "--steps", steps // 2, "--seed", seed, "--out", run)
    heading("What will the second half bring?")
    half = forecast(run, "--at", "2x")
    (folder / "half.json").write_text(json.dumps(half, indent=1) + "\n", "utf-8")
    heading("Train the second half")
    scalerl("resume", run, "--steps", steps)
    heading("What came")
    outcome = held_against(run, half["data"]["compute_last"], folder / "forecast.png", seed, began)
    say(verdict(outcome))
    (folder / "demo.json").write_text(json.dumps(asdict(outcome), indent=1) + "\n", "utf-8")
    return outcome


def held_against(run: Path, half: float, picture: Path, seed: int, began: float) -> Outcome:
    """The end of the run against the forecast from what was known at half time, at the very compute of the end."""
    evaluations = [row for row in rows(run) if row["kind"] == "eval"]
    first, last = evaluations[0], evaluations[-1]
    compute = last["compute"]["flops"]
    known = forecast(run, "--upto", half, "--at", compute, "--plot", picture, show=False)["forecast"][0]
    end = last["pass_rate"]
    return Outcome(
        seed, first["pass_rate"], end, len(evaluations), half, compute, known["score"], known["low"], known["high"],
        known["low"] <= end <= known["high"], round(perf_counter() - began, 1),
    )  # fmt: skip


def verdict(outcome: Outcome) -> str:
    where = "inside" if outcome.held else "outside"
    return (
        f"Held-out pass rate rose from {outcome.start:.3f} to {outcome.end:.3f} in {outcome.evaluations} evaluations. "
        f"At half time, {outcome.half_flops:.3g} flops, the forecast for {outcome.end_flops:.3g} was "
        f"{outcome.score:.3f} [{outcome.low:.3f}, {outcome.high:.3f}]: what came lies {where} the 90 % interval."
    )


def forecast(run: Path, *options: object, show: bool = True) -> dict[str, Any]:
    """What `scalerl forecast --json` says of the run; shown in words too."""
    if show:
        scalerl("forecast", run, *options, expect=(ANSWERED, REFUSED))
    text = scalerl("forecast", run, *options, "--json", expect=(ANSWERED, REFUSED), show=False)
    found: dict[str, Any] = json.loads(text)
    return found


def scalerl(*words: object, expect: Sequence[int] = (ANSWERED,), show: bool = True) -> str:
    """Run a command: on this terminal and echoed, or for its output; its notes are shown only where it fails.

    Raises:
        DemoFailed: its exit code is not an expected one.
    """
    line = [str(word) for word in words]
    if show:
        print(f"  $ scalerl {' '.join(line)}\n", flush=True)
    to = None if show else subprocess.PIPE
    done = subprocess.run([sys.executable, "-m", "scalerl", *line], stdout=to, stderr=to, text=True)
    if done.returncode not in expect:
        raise DemoFailed(f"scalerl {' '.join(line)} ended with {done.returncode}\n{done.stderr or ''}".rstrip())
    return done.stdout or ""


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def say(text: str) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False) + "\n")


def heading(title: str) -> None:
    print(f"\n== {title} " + "=" * max(0, 76 - len(title)), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
