"""A small table under a frame: one row a run, with the run's line and marker in front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalerl.report.style import BLACK, PALE, SMALL, Series, short, width_of

_ROW = 1.5 * SMALL / 72
_SWATCH, _GAP = 0.40, 0.14
_SHORTEST = 8


@dataclass(frozen=True)
class Table:
    """Texts by row; the first column is set flush left, the others flush right, the last flush left (notes).

    Names in the first column are shortened until the table fits the page."""

    head: Sequence[str]
    rows: Sequence[tuple[Series, Sequence[str]]]


def _width(texts: Sequence[Sequence[str]]) -> float:
    columns = range(len(texts[0]))
    return _SWATCH + sum(max(width_of(row[j], SMALL) for row in texts) + _GAP for j in columns) - _GAP


def table_height(table: Table | None) -> float:
    """Height in inches, 0 without a table."""
    return 0.0 if table is None else _ROW * (len(table.rows) + 1) + 0.12


def draw_table(fig: Figure, table: Table | None, top: float, width: float, height: float, left: float) -> None:
    """Draw the table `top` inches under the top of a page of `width` x `height` inches."""
    if table is None:
        return
    texts = [list(table.head), *(list(cells) for _, cells in table.rows)]
    while _width(texts) > width - 2 * left and (longest := max(len(row[0]) for row in texts)) > _SHORTEST:
        for row in texts:
            row[0] = short(row[0], longest - 1)
    widths = [max(width_of(row[j], SMALL) for row in texts) for j in range(len(table.head))]
    starts = [left + _SWATCH + sum(widths[:j]) + _GAP * j for j in range(len(widths))]
    last = len(widths) - 1
    for i, row in enumerate(texts):
        y = 1 - (top + _ROW * (i + 0.5)) / height
        for j, text in enumerate(row):
            flush_left = j in (0, last)
            x = starts[j] if flush_left else starts[j] + widths[j]
            fig.text(x / width, y, text, fontsize=SMALL, va="center_baseline", ha="left" if flush_left else "right",
                     color=BLACK)  # fmt: skip
        if i > 0:
            look = table.rows[i - 1][0]
            x = [left / width, (left + _SWATCH / 2 - 0.03) / width, (left + _SWATCH - 0.06) / width]
            fig.add_artist(Line2D(x, [y] * 3, color=look.color, ls=look.line, lw=1.8))
            fig.add_artist(Line2D(x[1:2], [y], color=look.color, marker=look.marker, ms=4.5, mec="white", mew=0.4))
    y = 1 - (top + _ROW * 1.0) / height
    fig.add_artist(Line2D([left / width, 1 - left / width], [y, y], color=PALE, lw=0.8))
