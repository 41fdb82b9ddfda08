"""Terminal view of `transfer`: the words, what speaks for them, and the downstream score's own fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from scalerl import words as n
from scalerl.report.terminal import fit_line_view, grid, heading, lines, plain

if TYPE_CHECKING:
    from scalerl.curves.association import Association
    from scalerl.curves.transfer import Transfer

_STYLE = {"follows": "green", "follows with a lag": "cyan", "cannot say": "yellow", "does not follow": "red"}


def transfer_view(found: Transfer) -> list[RenderableType]:
    """Words and reasons, association, slope and lag, the downstream score's own fit, notes."""
    level, unit = n.nominal(found.level), n.plural(found.downstream.unit)
    title = Text(plain(f"{found.downstream.score_name} against {found.heldout.score_name}: "), style="bold")
    title.append(found.words, style=f"bold {_STYLE.get(found.words, '')}".strip())
    parts: list[RenderableType] = [Text(""), title, lines(found.reasons, "-", "dim")]
    parts += [Text(""), heading("Association", f"{level} intervals; worth: points left after autocorrelation")]
    parts.append(_association([found.levels, found.increments, found.detrended]))
    parts.append(lines(_slope_and_lag(found, unit)))
    if found.fit is not None:
        parts += fit_line_view(found.fit, found.level)
    else:
        parts += [Text(""), heading("Fit"), lines([f"none of its own: {found.fit_refused}"])]
    if found.notes:
        parts += [Text(""), heading("Notes"), lines(found.notes, "-", "dim")]
    return parts


def _association(kinds: list[Association]) -> RenderableType:
    rows = [
        [
            a.kind,
            f"{a.pearson:+.2f} [{a.pearson_low:+.2f}, {a.pearson_high:+.2f}]",
            f"{a.spearman:+.2f} [{a.spearman_low:+.2f}, {a.spearman_high:+.2f}]",
            f"{a.effective_n:.0f} of {a.n}",
        ]
        for a in kinds
    ]
    return grid([("", "left"), ("linear", "right"), ("rank", "right"), ("worth", "right")], rows)


def _slope_and_lag(found: Transfer, unit: str) -> list[str]:
    slope, lag = found.regression, found.lag
    bound = "" if lag.bounded else "; not bounded by these points"
    state = "it trails" if lag.low > 0 else "it runs ahead" if lag.high < 0 else "not told from none"
    steep, late = f"[{slope.slope_low:.2f}, {slope.slope_high:.2f}]", n.between(lag.low, lag.high, "amount")
    return [
        f"Slope {slope.slope:.2f} {steep}: gained downstream per gain held out.",
        f"Lag {n.amount(lag.compute)} {late} {unit}: {state}{bound}.",
    ]
