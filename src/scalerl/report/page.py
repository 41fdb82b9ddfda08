"""The page around a frame: header over it, boxed reasons, the legend below; each gets the height its text needs.

The frame keeps its size and the page grows, so that no number of reasons, runs or long names covers the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from scalerl.report.axis import label_height
from scalerl.report.style import BLACK, FONT, GREY, SMALL, TITLE_FONT, VERMILLION, save, width_of, wrapped
from scalerl.report.table import Table, draw_table, table_height

WIDTH, LEFT, RIGHT, PAD = 7.2, 0.72, 0.36, 0.12
FRAME = WIDTH - LEFT - RIGHT
"""Width of the frame in inches."""
FRAME_HEIGHT = 3.3
_UNDER_FRAME = 0.48
_LEADING = 1.35 / 72
_SWATCH, _GAP = 0.40, 0.16
"""Inches for the picture of a legend entry, and between two columns."""
Entry = tuple[Any, str]


@dataclass
class Page:
    """What stands around a frame.

    Attributes:
        title: bold first line. lines: further lines of the header. box_title, box: boxed reasons.
        entries: (artist or None, text) of the legend. label_rows: rows of labels over the frame.
        table: under everything else.
    """

    title: str
    lines: list[str] = field(default_factory=list)
    box_title: str = ""
    box: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    label_rows: int = 0
    table: Table | None = None


@dataclass(frozen=True)
class Frame:
    """Axes with their place in inches: from the left edge of the page and from the top of the area of frames."""

    ax: Axes
    left: float = LEFT
    top: float = 0.0
    width: float = FRAME
    height: float = FRAME_HEIGHT


def new_figure() -> Figure:
    """An empty figure that is drawn by Agg, without pyplot."""
    fig = Figure(figsize=(WIDTH, FRAME_HEIGHT))
    FigureCanvasAgg(fig)
    return fig


def new_frame() -> tuple[Figure, Axes]:
    """A figure with one frame; `arrange` puts the rest around it."""
    fig = new_figure()
    return fig, new_axes(fig)


def new_axes(fig: Figure) -> Axes:
    """Axes that `arrange` will put in their place."""
    return fig.add_axes((0.1, 0.1, 0.8, 0.8), label=f"frame {len(fig.axes)}")


def arrange(fig: Figure, frames: Sequence[Frame], page: Page, path: Path | None) -> Figure:
    """Lay the page out, write it if a path is given, and return the figure."""
    width = WIDTH - 2 * PAD
    header = [(line, TITLE_FONT, "bold", BLACK) for line in wrapped(page.title, width, TITLE_FONT, "bold")]
    header += [(part, FONT, "normal", BLACK) for line in page.lines for part in wrapped(line, width)]
    entries = [(artist, "\n".join(wrapped(text, width - _SWATCH - 0.1, SMALL))) for artist, text in page.entries]
    box = _box_lines(page, width - 0.2)
    header_height = sum(size * _LEADING for _, size, _, _ in header) + 0.06
    box_height = len(box) * SMALL * _LEADING + 0.14 if box else 0.0
    columns, legend_height = _legend_size(entries, width)
    top = PAD + header_height + (box_height + 0.08 if box else 0.0) + label_height(page.label_rows)
    under = top + max(f.top + f.height for f in frames) + _UNDER_FRAME
    height = under + legend_height + table_height(page.table) + PAD
    fig.set_size_inches(WIDTH, height)
    for f in frames:
        bottom = 1 - (top + f.top + f.height) / height
        f.ax.set_position((f.left / WIDTH, bottom, f.width / WIDTH, f.height / height))
    _write(fig, header, PAD, height, PAD)
    if box:
        edge = PAD + header_height
        corner = (PAD / WIDTH, 1 - (edge + box_height) / height)
        fig.add_artist(
            Rectangle(
                corner, width / WIDTH, box_height / height, transform=fig.transFigure, lw=1.0,
                facecolor="#fdf1ea", edgecolor=VERMILLION,
            )
        )  # fmt: skip
        _write(fig, box, edge + 0.06, height, PAD + 0.1)
    if entries:
        _legend(fig, entries, columns, 1 - under / height)
    draw_table(fig, page.table, under + legend_height, WIDTH, height, PAD)
    if path is not None:
        save(fig, path)
    return fig


def blank() -> Line2D:
    """A legend entry without a picture."""
    return Line2D([], [], ls="none")


def _box_lines(page: Page, width: float) -> list[tuple[str, float, str, str]]:
    if not page.box:
        return []
    lines = [(page.box_title, SMALL, "bold", BLACK)]
    for reason in page.box:
        first, *rest = wrapped(reason, width - 0.15, SMALL)
        lines += [("•  " + first, SMALL, "normal", BLACK), *(("    " + r, SMALL, "normal", BLACK) for r in rest)]
    return lines


def _write(fig: Figure, lines: Sequence[tuple[str, float, str, str]], top: float, height: float, left: float) -> None:
    for text, size, weight, color in lines:
        fig.text(left / WIDTH, 1 - top / height, text, fontsize=size, weight=weight, color=color, va="top", ha="left")
        top += size * _LEADING


def _legend_size(entries: Sequence[Entry], width: float) -> tuple[int, float]:
    """The most columns that fit (four at most), and the height in inches."""
    best = (1, 0.0)
    for columns in range(1, min(4, len(entries)) + 1):
        parts = _legend_columns([text for _, text in entries], columns)
        widest = [max(width_of(line, SMALL) for text in part for line in text.split("\n")) for part in parts]
        if columns == 1 or sum(widest) + _SWATCH * columns + _GAP * (columns - 1) <= width:
            lines = max(sum(1 + text.count("\n") for text in part) for part in parts)
            best = (columns, lines * 1.37 * SMALL / 72 + 0.04)
    return best


def _legend_columns(texts: list[str], columns: int) -> list[list[str]]:
    """As matplotlib fills them: one after the other, the first ones longer."""
    rows, longer = divmod(len(texts), columns)
    ends = [0, *(sum(rows + (j < longer) for j in range(i + 1)) for i in range(columns))]
    return [texts[a:b] for a, b in pairwise(ends)]


def _legend(fig: Figure, entries: Sequence[Entry], columns: int, top: float) -> None:
    fig.legend(
        [artist if artist is not None else blank() for artist, _ in entries], [text for _, text in entries],
        loc="upper left", bbox_to_anchor=(PAD / WIDTH, top), ncols=columns, frameon=False, fontsize=SMALL,
        handlelength=2.6, handletextpad=0.6, columnspacing=1.4, labelspacing=0.35, borderpad=0, borderaxespad=0,
        labelcolor=BLACK, edgecolor=GREY,
    )  # fmt: skip
