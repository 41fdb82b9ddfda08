"""Answers for a terminal: rich renderables that read well at 80 columns and without colour.

What a log, a forecast or a fit says is put in the order in which a reader needs it; nothing is computed here. Users'
strings never pass through rich's markup.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from scalerl import words as n
from scalerl.curves.forecast import CAVEAT

if TYPE_CHECKING:
    from scalerl.curves import Fit, Forecast
    from scalerl.runs import Curve

STYLE = {"CONTINUE": "green", "STOP-THIS-RECIPE": "red", "UNSURE": "yellow", "NO-FORECAST": "magenta"}
MEANING = {
    "CONTINUE": "more compute gains more than the threshold",
    "STOP-THIS-RECIPE": "more compute gains less than the threshold",
    "UNSURE": "the run does not decide it yet",
    "NO-FORECAST": "no verdict can be given",
}
INDENT = 2


def render(parts: Iterable[RenderableType], width: int = 80, colour: bool = False, encoding: str = "utf-8") -> str:
    """Renderables as text with (or without) colour codes; boxes are drawn in ASCII where the encoding has no others."""
    buffer = _Buffer()
    buffer.name_encoding = encoding
    console = Console(file=buffer, width=width, force_terminal=colour, color_system="standard" if colour else None,
                      highlight=False, markup=False, emoji=False, legacy_windows=False)  # fmt: skip
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


class _Buffer(io.StringIO):
    name_encoding = "utf-8"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.name_encoding


def heading(title: str, aside: str = "") -> Text:
    """A section's title, with a remark after it."""
    text = Text(title, style="bold")
    if aside:
        text.append(f"  {aside}", style="not bold dim")
    return text


def lines(sentences: Iterable[str], mark: str = "", style: str = "") -> RenderableType:
    """Sentences, one a paragraph, each hanging under its mark."""
    table = Table.grid(padding=(0, 1, 0, 0))
    if mark:
        table.add_column(width=len(mark))
    table.add_column(overflow="fold")
    for sentence in sentences:
        cell = Text(plain(sentence))
        table.add_row(Text(mark, style=style), cell) if mark else table.add_row(cell)
    return Padding(table, (0, 0, 0, INDENT))


def plain(text: str) -> str:
    """The text without control characters: a log must not be able to write to the user's terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def grid(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], gap: int = 2) -> RenderableType:
    """A table without lines: (heading, "left" or "right") a column."""
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for title, side in columns:
        table.add_column(Text(title), justify="right" if side == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return Padding(table, (0, 0, 0, INDENT))


def reading_view(path: str, format_name: str, rows: int, curve: Curve, others: Sequence[Curve] = ()) -> RenderableType:
    """What was read: file, format, points, the columns with how to override the guess, and every note of the reader."""
    span = f"{n.amount(curve.compute[0])} to {n.amount(curve.compute[-1])} {n.plural(curve.unit)}"
    facts = f"{format_name}, {n.count(rows, 'row')}: {n.count(len(curve), 'point')} of {curve.score_name}, {span}"
    facts += "".join(f", {n.count(len(other), 'point')} of {other.score_name}" for other in others)
    parts: list[RenderableType] = [heading("Read", plain(path)), lines([facts])]
    notes = dict.fromkeys(note for each in (curve, *others) for note in each.notes)
    if notes:
        parts.append(lines(notes, "-", "dim"))
    return Group(*parts)


def verdict_view(verdict: str, reasons: Sequence[str], vetoes: Sequence[str]) -> RenderableType:
    """The verdict in a panel, with its reasons, and the vetoes that are not already among them."""
    colour = STYLE.get(verdict, "white")
    said = " ".join(reasons)
    body = [Text(plain(_sentence(r))) for r in reasons]
    body += [Text(plain(f"Veto: {v}.")) for v in vetoes if v not in said]
    title = Text(f" {verdict}: {MEANING.get(verdict, '')} ", style=f"bold {colour}")
    return Panel(Group(*body), title=title, title_align="left", border_style=colour, box=box.ROUNDED, padding=(0, 1))


def forecast_view(fc: Forecast) -> list[RenderableType]:
    """All of a forecast after what was read: verdict, table, target, fit, laws, tests, warnings."""
    parts: list[RenderableType] = [verdict_view(fc.verdict, fc.reasons, fc.vetoes)]
    parts += _section(heading("Forecast", _now(fc)), _forecast_table(fc), *_target(fc))
    parts += fit_line_view(fc.fit, fc.level)
    there = f"weight, and score at {n.amount(fc.budget)} {n.plural(fc.curve.unit)}"
    parts += _section(heading("Laws", there), _families(fc))
    parts += _section(heading("This run's own past", "what earlier forecasts would have said"), _backtest(fc))
    parts += _section(heading("Calibration"), lines([*calibration_lines(fc), CAVEAT]))
    if fc.warnings:
        parts += _section(heading("Warnings"), lines(fc.warnings, "!", "yellow"))
    return parts


def fit_line_view(fit: Fit, level: float) -> list[RenderableType]:
    """The law's numbers with their intervals. A only stands beside C/C_mid, and not at all below 1.5 C_mid."""
    unit = n.plural(fit.curve.unit)
    left_out = f", {n.count(fit.dropped, 'point')} left out as warm-up" if fit.dropped else ""
    aside = f"{fit.law.name}, {n.count(len(fit.curve), 'point')}{left_out}; {n.nominal(level)} intervals"
    rows = [_ceiling(fit, level)]
    middle = n.between(*fit.interval("C_mid", level), form="amount")
    rows += [
        ["R0", n.score(fit.R0), n.between(*fit.interval("R0", level)), "score before training"],
        ["B", f"{fit.B:.2f}", "[{:.2f}, {:.2f}]".format(*fit.interval("B", level)), "steepness in log compute"],
        ["C_mid", n.amount(fit.C_mid), middle, f"{unit} for half the gain"],
    ]
    scatter = (
        f"Evaluations scatter by {fit.residual_sd:.4f} around the curve; "
        f"neighbouring residuals correlate by {fit.autocorrelation:+.2f}."
    )
    sides = [("", "left"), ("", "right"), ("", "left"), ("", "left")]
    return _section(heading("Fit", aside), _headless(sides, rows), lines([scatter]))


def _ceiling(fit: Fit, level: float) -> list[str]:
    if fit.A <= fit.R0:
        return ["A", n.NEVER, "", "no ceiling: the fitted curve does not rise"]
    if fit.ceiling == "not identified":
        return ["A", n.NEVER, "", f"not identified: {fit.ceiling_reason}"]
    state = f"ceiling; C/C_mid is {fit.C_over_C_mid:.2f}"
    if fit.ceiling_reason:
        state = f"ceiling, provisional: {fit.ceiling_reason}"
    return ["A", n.score(fit.A), n.between(*fit.interval("A", level)), state]


def fit_view(fit: Fit, level: float) -> list[RenderableType]:
    """The fit's table, and a sentence for each number."""
    sentences = fit.explain(level)
    return [*fit_line_view(fit, level), *_section(heading("In words"), lines(sentences, "-", "dim"))]


def calibration_lines(fc: Forecast) -> list[str]:
    """What was measured of intervals like these, or that nothing was."""
    found = fc.calibration_summary()
    measured = found["measured"] or {}
    text = []
    coverage = measured.get("coverage")
    if coverage is None:
        text.append("No measured coverage for this reach: take the intervals as the model's own.")
    else:
        curves, sources = measured.get("curves"), measured.get("sources")
        runs = f"{n.count(curves, 'real run')} of {n.count(sources, 'source')}" if curves and sources else "real runs"
        text.append(
            f"Measured at {n.multiple(measured['reach'])}: 90 % intervals made this way held in "
            f"{n.percent(coverage)} of {runs}, each source's own runs left out."
        )
    if found["left_out_source"]:
        text.append(f"This run belongs to the bank ({found['left_out_source']}): its source was left out for it.")
    return text


def _section(title: RenderableType, *body: RenderableType) -> list[RenderableType]:
    return [Text(""), title, *body]


def _sentence(text: str) -> str:
    starts_with_name = text.split(" ", 1)[0].endswith(":")
    start = text[:1] if starts_with_name else text[:1].upper()
    return start + text[1:] + ("" if text.endswith(".") else ".")


def _now(fc: Forecast) -> str:
    return f"{n.nominal(fc.level)} intervals of the mean score, which now is {n.score(_score_now(fc))}"


def _score_now(fc: Forecast) -> float:
    """The mean score at the last point; one evaluation would be noisier."""
    return float(fc.predict(fc.curve.compute[-1:]).score[0])


def _forecast_table(fc: Forecast) -> RenderableType:
    unit, last = fc.curve.unit, float(fc.curve.compute[-1])
    per = n.handy_unit(last)
    priced = any(row.cost is not None for row in fc.table)
    titles = [
        n.short(n.plural(unit), 12),
        "",
        "score",
        "gain",
        f"per {n.brief(per)}",
        *(["cost"] if priced else []),
    ]
    now = [n.amount(last), "now", "", "", _marginal(fc.marginal_now, per), ""]
    rows = [now[: len(titles)]]
    for row in fc.table:
        cells = [
            n.amount(row.compute),
            n.multiple(row.compute / last),
            f"{n.score(row.score)} {n.between(row.low, row.high)}",
            f"{n.signed(row.gain)} {n.between(row.gain_low, row.gain_high, 'signed')}",
            _marginal(row.marginal, per),
        ]
        rows.append(cells + ([n.amount(row.cost)] if priced else []))
    meaning = f"per {n.brief(per)}: the gain that the next {n.amount(per, 1)} {n.plural(unit)} bring at that point."
    return Group(
        grid([(title, "right") for title in titles], rows, gap=1 if priced else 2),
        lines([meaning + (" cost: from now on." if priced else "")]),
    )


def _marginal(value: float, per: float) -> str:
    return f"{value * per:+.4f}"


def _target(fc: Forecast) -> list[RenderableType]:
    if fc.target is None:
        return []
    unit, target = n.plural(fc.curve.unit), fc.target
    name = f"Target {target.score:g}"
    if target.low == float("inf"):
        return [lines([f"{name}: not within 100x of the compute spent, even at the upper end of the interval."])]
    middle = f"at {n.amount(target.compute)} {unit}"
    if target.compute == float("inf"):
        middle = "the median does not get there within 100x"
    late = "perhaps never" if target.high == float("inf") else f"{n.amount(target.high)} at the latest"
    return [lines([f"{name}: {middle} ({n.amount(target.low)} {unit} at the earliest, {late})."])]


def _families(fc: Forecast) -> RenderableType:
    said = []
    for law in fc.families():
        score = law["score_at_budget"]
        said.append(f"{law['law']} {n.percent(law['weight'])}" + (f" {n.score(score)}" if score == score else ""))
    return lines([" · ".join(said)])


def _backtest(fc: Forecast) -> RenderableType:
    if not fc.replays:
        return lines(["too short: no earlier part of it could be forecast from"])
    unit = fc.curve.unit
    titles = [f"at {n.short(n.plural(unit), 12)}", "points", "reach", "said", "came"]
    rows = []
    for r in fc.replays:
        said = f"{n.score(r.score)} {n.between(r.low, r.high)}"
        held = "held" if r.inside else f"missed by {abs(r.actual - (r.high if r.actual > r.high else r.low)):.3f}"
        rows.append([n.amount(r.cut), str(r.points), n.multiple(r.ratio), said, n.score(r.actual), held])
    return grid([*((title, "right") for title in titles), ("", "left")], rows)


def _headless(sides: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _, side in sides:
        table.add_column(justify="right" if side == "right" else "left")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return Padding(table, (0, 0, 0, INDENT))


__all__ = ["calibration_lines", "fit_line_view", "fit_view", "forecast_view", "grid", "heading", "lines", "plain",
           "reading_view", "render", "verdict_view"]  # fmt: skip
