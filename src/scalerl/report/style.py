"""How the pictures look: colours, fonts, numbers and words, and how a picture is written to a file.

Colours are Okabe and Ito's, which stay apart under every common colour blindness; each series also has its own line
style and marker, so that a grey print or a photocopy reads as well. Nothing is smaller than 8 pt at the saved size.
"""

from __future__ import annotations

import io
import math
import re
import unicodedata
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from scalerl.errors import InputError

BLACK, GREY, PALE = "#1a1a1a", "#707070", "#d4d4d4"
BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
FONT, TITLE_FONT, SMALL = 9.0, 11.0, 8.5
SUFFIXES = (".png", ".svg", ".pdf")
_RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": FONT,
    "text.usetex": False,
    "text.color": BLACK,
    "axes.edgecolor": "#404040",
    "axes.facecolor": "white",
    "axes.grid": False,
    "axes.labelcolor": BLACK,
    "axes.labelsize": FONT,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "figure.facecolor": "white",
    "legend.fontsize": SMALL,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
    "xtick.color": BLACK,
    "xtick.labelsize": SMALL,
    "ytick.color": BLACK,
    "ytick.labelsize": SMALL,
    # A pdf carries its fonts; an svg does not, and another font's widths would let labels collide: there, outlines.
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    # Makes equal pictures equal files.
    "svg.hashsalt": "scalerl",
}


@dataclass(frozen=True)
class Series:
    """How one of several runs is drawn."""

    color: str
    line: Any
    marker: str


_SERIES = (
    Series(BLUE, "-", "o"),
    Series(VERMILLION, (0, (6, 2)), "s"),
    Series(GREEN, (0, (1.2, 1.2)), "^"),
    Series(PURPLE, (0, (6, 2, 1.2, 2)), "D"),
    Series(ORANGE, (0, (3, 1.5)), "v"),
    Series(SKY, (0, (8, 2, 1.2, 2, 1.2, 2)), "P"),
    Series(BLACK, (0, (1.2, 3)), "X"),
)
_MARKERS = "os^DvPX<>"


def series(index: int) -> Series:
    """The look of run number `index`; colours return after seven runs, then with other markers."""
    base = _SERIES[index % len(_SERIES)]
    return Series(base.color, base.line, _MARKERS[(index + index // len(_SERIES)) % len(_MARKERS)])


def house_style() -> AbstractContextManager[None]:
    """Our settings, whatever the user's matplotlibrc says, for the time of drawing only."""
    settings: Any = _RC  # matplotlib's stubs ask for the literal names
    return matplotlib.rc_context(settings)


def check_path(path: str | Path | None) -> Path | None:
    """The path of a picture, refused before anything is drawn if its kind is unknown.

    Raises:
        InputError: the suffix is none of png, svg, pdf.
    """
    if path is None:
        return None
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        kind = f"suffix {target.suffix!r}" if target.suffix else "no suffix"
        raise InputError(f"{target}: {kind}; a picture is written as {', '.join(SUFFIXES)}: name the file so")
    return target


def save(fig: Figure, path: Path) -> None:
    """Write a picture in the format of its suffix; png with 200 dots per inch. Equal pictures give equal files.

    Raises:
        InputError: the file cannot be written.
    """
    kind = path.suffix.lower()[1:]
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
    picture = io.BytesIO()
    fig.savefig(picture, format=kind, dpi=200, metadata=metadata)
    try:
        path.write_bytes(picture.getvalue())
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"{path}: the picture cannot be written ({why}); choose another folder or name") from error


def plain(text: str) -> str:
    """A name from a log as text that matplotlib draws as it stands, on one line."""
    kept = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
    kept = re.sub(r"\s+", " ", kept).strip()
    # A dollar opens formulas, an underscore in front hides a legend entry.
    return ("\u200a" if kept.startswith("_") else "") + kept.replace("$", r"\$")


def short(text: str, most: int = 40) -> str:
    """A long name with its middle left out."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def name_of(text: str, most: int = 40) -> str:
    """A name from a log, shortened and safe to draw."""
    return plain(short(text, most))


def name_within(text: str, width: float) -> str:
    """A name from a log, shortened to `width` inches and safe to draw."""
    most = min(len(text), 80)
    while most > 4 and width_of(name_of(text, most)) > width:
        most -= 1
    return name_of(text, most)


def plural(unit: str) -> str:
    """`step` -> `steps`."""
    return unit if unit.endswith("s") else unit + "s"


def amount(value: float, digits: int = 3) -> str:
    """A compute in few characters: 950, 25.4k, 1.2M, 3B, 5e21; infinity as words."""
    if not math.isfinite(value):
        return "more than 100x"
    if value != 0 and not 1e-3 <= abs(value) < 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    rounded = float(f"{value:.{digits}g}")
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= size:
            return f"{rounded / size:.{digits}g}{letter}"
    return f"{rounded:g}"


def score_text(value: float, signed: bool = False) -> str:
    """A score with three decimals and a true minus; no minus on zero."""
    text = f"{value:{'+' if signed else ''}.3f}"
    if float(text) == 0:
        return text.lstrip("+-")
    return text.replace("-", "\u2212")


def to(low: float, high: float, signed: bool = False) -> str:
    """An interval of scores in a sentence."""
    return f"{score_text(low, signed)} to {score_text(high, signed)}"


@lru_cache(maxsize=4096)
def width_of(text: str, size: float = FONT, weight: str = "normal") -> float:
    """Width of a line of text in inches, with 3 % for what hinting adds on a screen."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    points, _, _ = TextToPath().get_text_width_height_descent(text.replace(r"\$", "$"), font, ismath=False)
    return 1.03 * float(points) / 72


def wrapped(text: str, width: float, size: float = FONT, weight: str = "normal") -> list[str]:
    """Lines of at most `width` inches; a word that is wider is broken."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if width_of(joined, size, weight) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *whole, line = _broken(word, width, size, weight)
        lines += whole
    return [*lines, line]


def _broken(word: str, width: float, size: float, weight: str) -> Sequence[str]:
    parts, part = [], ""
    for letter in word:
        if part and width_of(part + letter, size, weight) > width:
            parts.append(part)
            part = ""
        part += letter
    return [*parts, part]
