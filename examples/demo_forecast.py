"""`make demo-forecast`: forecasts a run whose law is known, and reads a log of every kind.

    python examples/demo_forecast.py            # into ./demo/forecasts/
    python examples/demo_forecast.py FOLDER     # elsewhere

All logs are generated (make_logs.py), so that each forecast can be held against the truth. The commands shown are run
as they stand, and what they print is shown as it is. Any of them failing ends the demo with exit code 1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import make_logs
import scalerl

EARLY = 20_000
"""GPU-hours, a quarter of the run."""
ANSWERED, REFUSED = 0, 3
WORKERS = 2
WIDTH = 80


class DemoFailed(Exception):
    """A command of the demo did not do what it should; the message says which."""


@dataclass(frozen=True)
class Outcome:
    """What `scalerl forecast --json` said of one log, and the law's own mean score at 2x where there is a law."""

    file: str
    format: str
    verdict: str
    low: float
    high: float
    truth: float | None
    vetoes: list[str]

    @property
    def inside(self) -> bool:
        return self.truth is not None and self.low <= self.truth <= self.high


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0] if arguments else "demo/forecasts")
    began = perf_counter()
    try:
        logs = make_all_logs(folder / "logs")
        pictures = [replay(folder), from_python(folder), which_recipe(folder)]
        follows(folder)
        every_format(logs)
    except DemoFailed as failure:
        print(f"demo failed: {failure}", file=sys.stderr)
        return 1
    heading(f"Written in {perf_counter() - began:.0f} s")
    for path in [*pictures, *logs]:
        print(f"  {path}")
    print("\nYour own log:  scalerl forecast FILE      (what can be read: scalerl formats)")
    return 0


def make_all_logs(folder: Path) -> list[Path]:
    """The logs of the demo, in a fresh folder of their own."""
    heading("A run whose law is known")
    say(f"{make_logs.RUN}.")
    say(
        f"It is evaluated every 1,000 GPU-hours up to 80,000, on {make_logs.RUN_TRIALS:,} graded answers each time, "
        "whose binomial noise is all that hides the law. What does its first quarter tell about the rest?"
    )
    paths = make_logs.write_text_logs(folder)
    return paths + [p for p in (make_logs.write_parquet(folder), make_logs.write_tensorboard(folder)) if p]


def replay(folder: Path) -> Path:
    """Forecast the end of the run from its first quarter by the command line; the later points go into the picture."""
    picture = folder / "forecast.png"
    log = str(folder / "logs" / "run.jsonl")
    command = ["forecast", log, "--upto", str(EARLY), "--at", "2x", "--at", "4x", "--price-per-hour", "2"]
    print()
    typed([*command, "--plot", str(picture)])
    print(run([*command, "--plot", str(picture)]))
    say("Held against the law, which the forecast has not seen:")
    for row in answer(command)["forecast"]:
        say(against_law(row["compute"], row["score"], row["low"], row["high"]), "- ")
    return picture


def from_python(folder: Path) -> Path:
    """The same question from Python, asked at half of the run."""
    heading("The same from Python, at half of the run")
    path, picture = folder / "logs" / "run.jsonl", folder / "forecast_from_half.png"
    print(f'  >>> curve = scalerl.read_curve("{path}")')
    print('  >>> fc = scalerl.forecast(curve.upto(40_000), at=["2x"])')
    curve = scalerl.read_curve(path)
    fc = scalerl.forecast(curve.upto(40_000), at=["2x"])
    print("  >>> fc.verdict, fc.reasons")
    say(f"{fc.verdict}: {'; '.join(fc.reasons)}")
    row = fc.table[0]
    say("Against the law: " + against_law(row.compute, row.score, row.low, row.high))
    from scalerl.report.plots import plot_forecast

    plot_forecast(fc, picture, actual=curve)
    return picture


def which_recipe(folder: Path) -> Path:
    """Compare two recipes, one of which has the higher ceiling."""
    heading("Which recipe is better?")
    picture = folder / "compare.png"
    command = ["compare", *(str(folder / "logs" / f"{name}.csv") for name in ("recipe_a", "recipe_b"))]
    typed(command)
    for pair in answer([*command, "--plot", str(picture)])["pairs"]:
        print(f"  {pair['second']} against {pair['first']}: {pair['words']}")
    a, b = make_logs.RECIPES["recipe_a"], make_logs.RECIPES["recipe_b"]
    print(f"  (by their laws the ceiling of recipe_a is {a.A:g} and that of recipe_b {b.A:g})")
    return picture


def follows(folder: Path) -> None:
    """Whether a downstream score follows the held-out one."""
    heading("Does the downstream score follow?")
    command = ["transfer", str(folder / "logs" / "downstream.jsonl"), "--downstream", "val/aime24/mean@64"]
    typed(command)
    found = answer(command)
    slope = found["regression"]
    print(f"  {found['words']}: slope {slope['slope']:.2f} ({slope['slope_low']:.2f} to {slope['slope_high']:.2f})")
    print("  (by its law it gains .6 of what the held-out score gains)")


def every_format(logs: Sequence[Path]) -> None:
    """`scalerl forecast LOG` for each log, two at a time: format, verdict, interval at 2x, and the law's own mean."""
    heading("A log of every kind")
    print("  $ scalerl forecast LOG --at 2x      (with --run recipe_c where it holds several)\n")
    print(f"{'log':<18} {'format found':<21} {'verdict':<16} {'90 % at 2x':<14} law")
    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes = list(pool.map(forecast_of, logs))
    for found in outcomes:
        print(line_of(found))
    judged = [found for found in outcomes if found.truth is not None]
    print(f"\n  The law's mean lies inside {sum(o.inside for o in judged)} of {len(judged)} intervals.")


def forecast_of(path: Path) -> Outcome:
    several = ["--run", "recipe_c"] if path.stem.startswith("recipes_") else []
    law = make_logs.TRUTH.get(path.name)
    found = answer(["forecast", str(path), *several, "--at", "2x"], expect=ANSWERED if law else REFUSED)
    row = found["forecast"][0]
    truth = law(row["compute"]) if law else None
    form = found["source"]["format"]
    return Outcome(path.name, form, found["verdict"], row["low"], row["high"], truth, found["vetoes"])


def line_of(found: Outcome) -> str:
    start = f"{found.file:<18} {found.format:<21} {found.verdict:<16} "
    if found.truth is None:
        return start + found.vetoes[0].partition(":")[0]
    return start + f"[{found.low:.3f}, {found.high:.3f}] {found.truth:.3f}" + ("" if found.inside else " outside")


def against_law(compute: float, score: float, low: float, high: float) -> str:
    truth = make_logs.RUN(compute)
    where = "inside" if low <= truth <= high else "outside"
    return (
        f"at {compute:,.0f} GPU-hours the law gives {truth:.3f}: {where} [{low:.3f}, {high:.3f}]; "
        f"forecast {score:.3f}, error {score - truth:+.3f}"
    )


def say(text: str, mark: str = "") -> None:
    indent = "  " + " " * len(mark)
    print(textwrap.fill(mark + text, WIDTH, initial_indent="  ", subsequent_indent=indent, break_on_hyphens=False))


def typed(command: Sequence[str]) -> None:
    """Print a command as one would type it."""
    whole = f"$ scalerl {' '.join(command)}"
    # Only the spaces before options may break, so that the lines can be pasted as they stand.
    pieces = textwrap.wrap(re.sub(r" (?!--)", "\0", whole), WIDTH - 6, break_on_hyphens=False, break_long_words=False)
    print("  " + " \\\n      ".join(pieces).replace("\0", " "))


def answer(command: Sequence[str], expect: int = ANSWERED) -> dict[str, Any]:
    """The JSON of a command."""
    found: dict[str, Any] = json.loads(run([*command, "--json"], expect))
    return found


def run(command: Sequence[str], expect: int = ANSWERED) -> str:
    """Standard output of a command.

    Raises:
        DemoFailed: its exit code is not the expected one.
    """
    encoding = sys.stdout.encoding or "utf-8"
    done = subprocess.run([sys.executable, "-m", "scalerl", *command], capture_output=True, encoding=encoding,
                          env={**os.environ, "PYTHONIOENCODING": encoding})  # fmt: skip
    if done.returncode != expect:
        raise DemoFailed(
            f"scalerl {' '.join(command)} ended with {done.returncode}, not {expect}: {done.stderr.strip()}"
        )
    return done.stdout


def heading(title: str) -> None:
    print(f"\n== {title} " + "=" * max(0, 76 - len(title)), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
