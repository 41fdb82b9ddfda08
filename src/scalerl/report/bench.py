"""Terminal views of sets of whole runs: what was read, a backtest, a calibration table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from scalerl import words as n
from scalerl.report.terminal import grid, heading, lines

if TYPE_CHECKING:
    from scalerl.curves.backtest import Backtest, Case
    from scalerl.curves.calibration import Calibration
    from scalerl.runs import Curve

_LEGEND = (
    "held: the interval holds the mean score of the end, its own noise allowed for; observed: without that "
    "allowance. median, RMS: of the error of the forecast."
)


def curves_view(curves: Sequence[tuple[str, Curve]]) -> RenderableType:
    """What was read: a line a curve, and the notes of the readers, equal ones once with how many runs they are of."""
    rows = [
        [
            n.short(c.name),
            f"{len(c):,}",
            c.score_name,
            f"{n.amount(c.compute[0])} to {n.amount(c.compute[-1])} {n.plural(c.unit)}",
        ]
        for _, c in curves
    ]
    notes: dict[str, list[str]] = {}
    for _, curve in curves:
        for note in curve.notes:
            notes.setdefault(note, []).append(n.short(curve.name))
    several = len(curves) > 1
    said = [f"{_whose(names, len(curves))}: {note}" if several else note for note, names in notes.items()]
    files = len({file for file, _ in curves})
    parts: list[RenderableType] = [
        heading("Read", f"{n.count(len(curves), 'run')} in {n.count(files, 'file')}"),
        grid([("run", "left"), ("points", "right"), ("score", "left"), ("compute", "left")], rows),
    ]
    return Group(*parts, lines(said, "-", "dim")) if said else Group(*parts)


def backtest_view(found: Backtest) -> list[RenderableType]:
    """Per fraction a line a method; then the rows of the first method, and what could not be cut."""
    parts: list[RenderableType] = []
    summaries = found.summaries()
    for fraction in dict.fromkeys(s.fraction for s in summaries):
        rows = []
        for s in summaries:
            if s.fraction != fraction:
                continue
            if s.cases == 0:
                rows.append([s.method, "0", *[n.NEVER] * 6, str(s.failures)])
                continue
            rows.append([s.method, str(s.cases), n.percent(s.coverage_of_mean), n.percent(s.coverage), n.score(s.width),
                         n.score(s.median_error), n.score(s.rms_error), n.signed(s.bias), str(s.failures)])  # fmt: skip
        aside = f"{n.nominal(found.level)} intervals for the end, {n.multiple(1 / fraction)} ahead"
        titles = ["runs", "held", "observed", "width", "median", "RMS", "bias", "failed"]
        parts += [Text(""), heading(f"Cut at {fraction:g}", aside)]
        parts.append(grid([("method", "left"), *((t, "right") for t in titles)], rows))
    parts.append(lines([_LEGEND]))
    parts += _rows_of_first(found)
    if found.skipped:
        parts += [Text(""), heading("Not cut"), lines(found.skipped, "-", "dim")]
    return parts


def calibration_view(table: Calibration, written: str | None) -> list[RenderableType]:
    """The multipliers by reach, what was measured with them, and where the table went."""
    from scalerl.curves.calibration import REACHES

    reaches = [(n.multiple(reach), "right") for reach in REACHES]
    rows = [["", *(f"{m:.2f}" for m in table.multipliers)]]
    about = ", ".join(f"{source} ({runs})" for source, runs in table.provenance.get("sources", {}).items())
    parts: list[RenderableType] = [
        Text(""),
        heading(
            "Multipliers", f"of the intervals' half-widths, from {n.count(table.provenance.get('curves', 0), 'run')}"
        ),
        grid([("", "left"), *reaches], rows),
        lines([f"Sources: {about}."]),
        Text(""),
        heading("Measured", "90 % intervals so widened, each source's own runs left out"),
        grid([("", "left"), *reaches], _measured(table)),
    ]
    end = f"Table written to {written}." if written else "Nothing was written; --out FILE.json keeps the table."
    return [*parts, Text(""), lines([end])]


def _measured(table: Calibration) -> list[list[str]]:
    from scalerl.curves.calibration import REACHES

    def row(title: str, key: str, form: str) -> list[str]:
        values = [table.measured.get(f"{reach:g}", {}).get(key) for reach in REACHES]
        return [title, *(n.NEVER if v is None else format(v, form) for v in values)]

    return [
        row("runs", "curves", "d"),
        row("held", "coverage", ".0%"),
        row("observed", "coverage_as_observed", ".0%"),
        row("width, mean", "width", ".3f"),
        row("width, median", "median_width", ".3f"),
        row("median error", "median_error", ".3f"),
    ]


def _rows_of_first(found: Backtest) -> list[RenderableType]:
    method = found.cases[0].method
    rows = [_case(c, found.level) for c in found.cases if c.method == method]
    columns = [
        ("run", "left"),
        ("cut", "right"),
        ("points", "right"),
        ("said", "right"),
        ("came", "right"),
        ("", "left"),
    ]
    aside = "--json has those of every method" if len({c.method for c in found.cases}) > 1 else ""
    return [Text(""), heading(f"Run by run, {method}", aside), grid(columns, rows)]


def _case(case: Case, level: float) -> list[str]:
    start = [n.short(case.curve), f"{case.fraction:g}", str(case.points)]
    if case.failure or math.isnan(case.score):
        return [*start, n.NEVER, n.score(case.actual), case.failure]
    held = "held" if case.miss(level) <= 1 else f"off by {case.actual - case.score:+.3f}"
    return [*start, f"{n.score(case.score)} {n.between(case.low, case.high)}", n.score(case.actual), held]


def _whose(names: Sequence[str], of: int) -> str:
    if len(names) == of:
        return "all"
    return ", ".join(names) if len(names) <= 3 else n.count(len(names), "run")
