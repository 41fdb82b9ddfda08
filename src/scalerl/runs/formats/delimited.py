"""CSV, TSV and their relatives: delimiter, header and decimal comma are found by content.

Uses Python's `csv`, which takes ragged lines and quotes one by one, so that one bad line costs one line.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import aliases
from scalerl.runs.formats.console_lines import is_console
from scalerl.runs.rows import RowCollector, parse_number
from scalerl.runs.source import blocks, is_text
from scalerl.runs.table import Table, count

DELIMITERS = (",", "\t", ";", "|")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?%?")
_RULE = re.compile(r"[\s|:+-]*\|[\s|:+-]*-[\s|:+-]*")  # the line below the names of a Markdown table
_GROUP = 8192
csv.field_size_limit(2**31 - 1)  # a cell with a whole completion is longer than the 128 KiB that csv takes unasked
_NAMES = {",": "CSV", "\t": "TSV", ";": "CSV (semicolons)", "|": "CSV (bars)", " ": "table with blanks"}


def matches(path: Path, head: bytes) -> bool:
    """Whether most lines split into the same number of cells, at least one column of them numbers."""
    if not is_text(head):
        return False
    lines = _lines_of(head)
    console = sum(is_console(line) for line in lines[:50])
    if console * 10 > len(lines[:50]):
        return False
    return _sniff(head) is not None or (len(lines) == 1 and _is_lonely_header(lines[0]))


def read(path: Path) -> Table:
    """Read a delimited table; the header is the first line that is not a comment, or made up if that holds numbers.

    Raises:
        InputError: there is no table in it.
    """
    notes: list[str] = []
    lines = _Lines(blocks(path, notes))
    delimiter = _sniff("".join(lines.peek()).encode())
    if delimiter is None and len(lines.peek()) == 1:
        raise InputError(f"{path}: holds column names but no rows; is the run still empty?")
    if delimiter is None:
        raise InputError(f"{path}: no table found; expected a line of column names and lines of numbers below it")
    table = _Reader(delimiter, notes).read(lines)
    if table.rows == 0:
        raise InputError(f"{path}: holds column names but no rows; is the run still empty?")
    return table


class _Lines:
    """Lines of text from blocks, with a look ahead at the first ones; knows whether the last had a line end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._first = self._split(next(self._pieces, b""))
        while len(self._first) < 3 and (piece := next(self._pieces, b"")):
            self._first += self._split(piece)
        self.ended = True
        self.comment = ""  # the last one before the first row, which may hold the names

    def peek(self) -> list[str]:
        return self._first[:200]

    def __iter__(self) -> Iterator[str]:
        yield from self._mark(self._first)
        self._first = []
        for piece in self._pieces:
            yield from self._mark(self._split(piece))

    def _split(self, piece: bytes) -> list[str]:
        text = piece.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
        *whole, rest = text.split("\n")  # not splitlines, which takes rare characters within cells for line ends
        return [line + "\n" for line in whole] + ([rest] if rest else [])

    def _mark(self, lines: list[str]) -> list[str]:
        self.ended = not lines or lines[-1].endswith("\n")
        if not self.comment:
            self.comment = next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")
        return [line for line in lines if line.strip() and not line.startswith("#") and not _RULE.fullmatch(line)]


class _Reader:
    def __init__(self, delimiter: str, notes: list[str]) -> None:
        self.delimiter = delimiter
        self.notes = notes
        self.header: list[str] = []
        self.rows = RowCollector()
        self.short = self.long = self.headers_again = 0
        self.decimal_comma = False

    def read(self, lines: _Lines) -> Table:
        cells = self._cells(lines)
        first = next(cells, [])
        if first and all(_is_number(c) for c in first if c.strip()):
            names = lines.comment.split(None if self.delimiter == " " else self.delimiter)
            if len(names) == len(first):
                self.header = self._unique([n.strip() for n in names])
            else:
                self.header = ["step", "score"] if len(first) == 2 else [f"column_{i + 1}" for i in range(len(first))]
                self.notes.append(f"No header line: the columns are called {', '.join(self.header)}.")
            batch = [first]
        else:
            self.header = self._unique([c.strip().strip('"') for c in first])
            batch = []
        self.decimal_comma = self.delimiter in ";\t" and any(
            _DECIMAL_COMMA.fullmatch(c.strip()) for line in lines.peek()[:50] for c in line.split(self.delimiter)
        )
        last: list[list[str]] = []
        for row in cells:
            if len(row) != len(self.header) or row[0].strip() == self.header[0]:
                if self._is_header(row):
                    self._flush(batch)
                    batch = []
                    self.header = self._unique([c.strip() for c in row])
                    self.headers_again += 1
                    continue
                row = self._repair(row)
            batch.append(row)
            if len(batch) == _GROUP:
                last = batch[-50:]
                self._flush(batch)
                batch = []
        if not lines.ended:
            self._drop_cut_row(batch, last)
        self._flush(batch)
        return self._table()

    def _cells(self, lines: _Lines) -> Iterator[list[str]]:
        if self.delimiter == " ":
            yield from (line.split() for line in lines)
            return
        reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True)
        while True:
            try:
                row = next(reader, None)
            except csv.Error:
                self.short += 1
                continue
            if row is None:
                return
            if row:
                yield row

    def _is_header(self, row: list[str]) -> bool:
        """A header that stands again in the middle, as after a restart that appends to the same file."""
        names = {c.strip() for c in row if c.strip()}
        known = sum(n in self.header for n in names)
        return bool(names) and known * 2 >= len(names) and not any(_is_number(c) for c in names)

    def _repair(self, row: list[str]) -> list[str]:
        width = len(self.header)
        if len(row) < width:
            self.short += 1
            return row + [""] * (width - len(row))
        self.long += any(c.strip() for c in row[width:])
        return row[:width]

    def _drop_cut_row(self, batch: list[list[str]], before: list[list[str]]) -> None:
        """A file without a last line end may stop in the middle of a number: 12 of 1250 is a wrong number."""
        if not batch:
            return
        *others, row = batch
        others = (before + others)[-50:]
        filled = [i for i, c in enumerate(row) if c.strip()]
        cut = len(filled) < len(row) and bool(others) and all(o[-1].strip() for o in others)
        if filled and others:
            at, cell = filled[-1], row[filled[-1]].strip()
            lengths = [len(o[at].strip()) for o in others if o[at].strip()]
            cut = cut or not _is_complete(cell) or (len(others) > 2 and len(cell) + 1 < min(lengths, default=0))
        if cut:
            batch.pop()
            self.notes.append("The file is cut off: its last line is not whole and was dropped.")
            self.short = max(0, self.short - 1)

    def _unique(self, names: list[str]) -> list[str]:
        seen: dict[str, int] = {}
        result = []
        for i, name in enumerate(names):
            name = name or f"column_{i + 1}"
            seen[name] = seen.get(name, 0) + 1
            result.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
        twice = [n for n, k in seen.items() if k > 1]
        if twice:
            self.notes.append(f"Column names that stand twice were numbered: {', '.join(twice[:5])}.")
        return result

    def _flush(self, batch: list[list[str]]) -> None:
        if not batch:
            return
        columns: list[Sequence[str]] = list(zip(*batch, strict=True))
        if self.decimal_comma:
            columns = [
                [c.replace(",", ".") if _DECIMAL_COMMA.fullmatch(c.strip()) else c for c in cs] for cs in columns
            ]
        self.rows.add_columns(
            {
                name: [c if c else None for c in cells] if "" in cells else cells
                for name, cells in zip(self.header, columns, strict=True)
            }
        )

    def _table(self) -> Table:
        if self.decimal_comma:
            self.notes.append("Numbers have a decimal comma; it was read as a point.")
        if self.headers_again:
            self.notes.append(
                f"{count(self.headers_again, 'further header line')} within the file (a restart?) were heeded."
            )
        if self.short:
            self.notes.append(f"{count(self.short, 'line')} with too few cells: the missing ones are empty.")
        if self.long:
            self.notes.append(
                f"{count(self.long, 'line')} with more cells than column names: the surplus was left out."
            )
        table = self.rows.table(_NAMES[self.delimiter], self.notes)
        for name in [n for n, c in table.columns.items() if re.fullmatch(r"column_\d+", n) and np.isnan(c).all()]:
            del table.columns[name]  # the empty cells at the edges of a Markdown table
        return table


def _is_number(cell: str) -> bool:
    number = parse_number(cell)
    return (number is not None and not math.isnan(number)) or bool(_DECIMAL_COMMA.fullmatch(cell.strip()))


def _is_complete(cell: str) -> bool:
    """Not a number that was cut in the middle, such as `0.`, `1e` or `-`."""
    return not re.fullmatch(r"[+-]?\d*\.?\d*[eE.+-]", cell)


def _is_lonely_header(line: str) -> bool:
    names = [c.strip().strip('"') for c in re.split(r"[,;\t|]", line)]
    return len(names) > 1 and bool(aliases.axis_candidates(names)) and len(line) < 10_000


def _lines_of(head: bytes) -> list[str]:
    text = head.decode("utf-8", errors="ignore").replace("\r\n", "\n").replace("\r", "\n")
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    return [line for line in lines[:200] if not _RULE.fullmatch(line)]


def _sniff(head: bytes) -> str | None:
    """The delimiter under which the first lines form a table, or None."""
    lines = _lines_of(head)
    if len(head) >= 60_000 and 2 < len(lines) < 200 and not head.endswith(b"\n"):
        lines.pop()  # the head ends within it
    best, most = None, 0.0
    for delimiter in (*DELIMITERS, " "):
        score = _fitness(lines, delimiter)
        if score > most:
            best, most = delimiter, score
    if best is None and len(lines) > 3 and not _is_number(lines[0]) and all(_is_number(line) for line in lines[1:]):
        return ","  # a single column
    return best


def _fitness(lines: list[str], delimiter: str) -> float:
    """How much of the lines is cells of a table with this delimiter; 0 if it is none."""
    try:
        rows = [line.split() for line in lines] if delimiter == " " else list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return 0.0
    rows = [row for row in rows if row]
    if len(rows) < 2 or len(rows[0]) < 2:
        return 0.0
    width, body = len(rows[0]), rows[1:]
    same = sum(len(row) == width for row in body)
    if same < len(body) * {" ": 1.0, "|": 0.9}.get(delimiter, 0.3):
        return 0.0
    cells = [c for row in body if len(row) == width for c in row if c.strip()]
    share = sum(_is_number(c) for c in cells) / max(len(cells), 1)
    if share < (0.99 if delimiter == " " else 0.2) or (delimiter == " " and any("=" in c for c in rows[0])):
        return 0.0
    return share * same / len(body) * min(width, 4)
