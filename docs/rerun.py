"""Runs every command that README.md and docs/ show and writes what it prints back below it.

    python docs/rerun.py            # or `make docs`; afterwards `git diff` shows what changed
    python docs/rerun.py FILE...    # only these pages

A shown command is a ```console block whose first line is `$ command`; the lines after it are
its output, stderr included, from the root of the repository, at 80 columns and without colour. If the last line is
`...`, only as many lines as before are shown. A picture that a command draws into `forecast.png` is the README's, and
goes to docs/figures/ instead, so that a reader who tries the command changes no tracked file. Tables between two
`measured` or `multipliers` marks are written from the calibration that ships with the package.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = re.compile(r"^```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```$", re.MULTILINE)
MEASURED = re.compile(r"(?<=<!-- measured: begin -->\n)(?:.*\n)*?(?=<!-- measured: end -->)")
MULTIPLIERS = re.compile(MEASURED.pattern.replace("measured", "multipliers"))
PICTURE = ("--plot forecast.png", "--plot docs/figures/forecast.svg")
"""As shown, and as drawn."""
CALIBRATION = ROOT / "src" / "scalerl" / "curves" / "calibration.json"


def pages() -> list[Path]:
    """README and all pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown() -> Iterator[tuple[Path, str, str]]:
    """(page, command, output as shown)."""
    for page in pages():
        for block in SHOWN.finditer(page.read_text()):
            yield page, block["command"], block["output"]


def output_of(command: str) -> str:
    """What a command prints, stderr included."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    settings = {**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "OPENBLAS_NUM_THREADS": "1"}
    settings = {k: v for k, v in settings.items() if k not in ("FORCE_COLOR", "SCALERL_DEBUG")}
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    return done.stdout


def shown_again(block: re.Match[str]) -> str:
    """The block with its output of now, shortened where it was."""
    output, before = output_of(block["command"].replace(*PICTURE)), block["output"].splitlines()
    if before and before[-1] == "...":
        output = "\n".join([*output.splitlines()[: len(before) - 1], "...", ""])
    return f"```console\n$ {block['command']}\n{output}```"


def measured_table() -> str:
    """What was measured of the shipped calibration, as a table."""
    measured = json.loads(CALIBRATION.read_text())["measured"]
    lines = [
        "| reach | runs | held | observed | mean width | median width | median error |",
        "|---|---|---|---|---|---|---|",
    ]
    for reach, row in measured.items():
        held, observed = f"{100 * row['coverage']:.0f} %", f"{100 * row['coverage_as_observed']:.0f} %"
        widths = f"{row['width']:.3f} | {row['median_width']:.3f}"
        lines.append(f"| {reach}x | {row['curves']} | {held} | {observed} | {widths} | {row['median_error']:.3f} |")
    return "\n".join(lines) + "\n"


def multipliers_table() -> str:
    """The shipped multipliers, as a table."""
    table = json.loads(CALIBRATION.read_text())
    heads = ["reach", *(f"{reach:g}x" for reach in table["reaches"])]
    values = ["multiplier", *(f"{value:.2f}" for value in table["multipliers"])]
    return f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n| {' | '.join(values)} |\n"


def main(arguments: list[str]) -> None:
    for page in [Path(a).resolve() for a in arguments] or pages():
        text = page.read_text()
        new = SHOWN.sub(shown_again, text)
        new = MEASURED.sub(lambda _: measured_table(), new)
        new = MULTIPLIERS.sub(lambda _: multipliers_table(), new)
        if new != text:
            page.write_text(new)
            print(f"changed: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
