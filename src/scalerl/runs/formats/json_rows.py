"""JSON: an array of rows, JSON lines with mixed rows, HF `trainer_state.json`, Tinker's and our own `metrics.jsonl`.

JSON lines are read in blocks of a few MB, each parsed by one call when all its lines are sound; only a block with a
broken line is parsed line by line. Whole documents go to `json_document`.
"""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import orjson

from scalerl.errors import InputError
from scalerl.runs.formats import json_document
from scalerl.runs.rows import RowCollector
from scalerl.runs.source import blocks
from scalerl.runs.table import Table, count

# What Python's json writes and strict JSON has not.
# NaN becomes a quoted one, which is still told from a missing value; a text that this breaks is parsed line by line.
_BARE = (
    (b"NaN", (b'": NaN', b'":NaN'), b'":"NaN"'),
    (b"Infinity", (b'": Infinity', b'": -Infinity', b'":Infinity', b'":-Infinity'), b'":null'),
)
_ROW_GROUP = 8192


def matches(path: Path, head: bytes) -> bool:
    """Whether the text is JSON: it starts as a document, or at least half of its lines are JSON objects."""
    text = head.lstrip()
    if re.match(rb'\[\s*[\[{"\d\-\]]', text) and not re.match(rb"\[[\w.\- ]+\]\s*\S", text):
        return True
    if re.match(rb'\{\s*(?:"|\}|$)', text):
        return True
    lines = [line.strip() for line in text.split(b"\n")[:-1] if line.strip()][:200]
    objects = sum(line.startswith(b'{"') and line.endswith(b"}") for line in lines)
    return objects > 0 and objects * 2 >= len(lines)


def read(path: Path) -> Table:
    """Read any of the JSON shapes.

    Raises:
        InputError: no row can be found in the file.
    """
    collecting = gc.isenabled()
    gc.disable()  # a million rows without a cycle among them: looking for cycles costs a fifth of the time
    try:
        return _read(path)
    finally:
        if collecting:
            gc.enable()


def _read(path: Path) -> Table:
    notes: list[str] = []
    lines = _Lines()
    stream = blocks(path, notes)
    for block in stream:
        if lines.rows.count == 0 and _is_document(block):
            rest = b"".join([block, *stream])
            return json_document.read(path, rest.decode("utf-8", errors="replace"), notes)
        lines.add(block)
    if lines.rows.count == 0:
        raise InputError(f"{path}: holds no JSON row that can be read; expected one JSON object on each line")
    return lines.table(notes)


def _is_document(block: bytes) -> bool:
    """Whether the first line is not itself a whole row, so that the file must be one document."""
    start = block.lstrip()
    if start.startswith(b"["):
        return not re.match(rb"\[[\w.\- ]+\]\s*\S", start)
    first, _, others = start.partition(b"\n")
    if not first.startswith(b"{"):
        return False
    try:
        row = load_line(first)
    except ValueError:
        return b"{" not in others.split(b"\n", 1)[0][:1] and not first.rstrip().endswith(b"}")
    # A document written on one line: its values are the rows.
    return not others.strip() and any(isinstance(v, list | dict) and len(v) > 1 for v in row.values())


class _Lines:
    """Rows of JSON lines and what was lost on the way."""

    def __init__(self) -> None:
        self.rows = RowCollector()
        self.bare = 0
        self.broken: list[int] = []
        self.line = 0
        self.last_broken = False

    def add(self, block: bytes) -> None:
        original = block
        for word, forms, instead in _BARE:
            for form in forms:
                if word not in block:
                    break
                pieces = block.split(form)
                self.bare += len(pieces) - 1
                block = instead.join(pieces)
        body = block.strip()
        self.line += block[: block.find(body[:1])].count(b"\n")
        if not body:
            return
        try:
            rows = orjson.loads(b"[" + body.replace(b"\n", b",") + b"]")
        except orjson.JSONDecodeError:
            rows = None
        if rows is not None and set(map(type, rows)) == {dict}:
            self.line += len(rows)
            self.last_broken = False
            self._collect(rows)
        else:
            self._by_line(original.strip())

    def _by_line(self, block: bytes) -> None:
        rows: list[dict[str, Any]] = []
        for line in block.split(b"\n"):
            self.line += 1
            line = line.strip().removesuffix(b",")
            if not line:
                continue
            try:
                rows.append(load_line(line))
                self.last_broken = False
            except ValueError:
                self.broken.append(self.line)
                self.last_broken = True
        self._collect(rows)

    def _collect(self, rows: list[dict[str, Any]]) -> None:
        rows = unwrap(rows)
        for start in range(0, len(rows), _ROW_GROUP):
            self.rows.add(rows[start : start + _ROW_GROUP])

    def table(self, notes: list[str]) -> Table:
        if self.bare:
            notes.append(f"{count(self.bare, 'NaN or Infinity value')} read as missing.")
        cut = self.last_broken
        if cut:
            notes.append(f"The file is cut off: its last line ({self.broken[-1]}) is not whole and was dropped.")
        middle = self.broken[:-1] if cut else self.broken
        if middle:
            which = ", ".join(map(str, middle[:5])) + (", ..." if len(middle) > 5 else "")
            notes.append(f"{count(len(middle), 'line')} that no JSON object can be read from, skipped: {which}.")
        table = self.rows.table("JSON lines", notes)
        table.format = _flavour(table)
        return table


def load_line(line: bytes) -> dict[str, Any]:
    """One JSON object, by the strict parser or else by Python's, which takes NaN anywhere.

    Raises:
        ValueError: not a JSON object.
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            row = json.loads(line.decode("utf-8", errors="replace"))
        except RecursionError as error:
            raise ValueError("nested too deep") from error
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return row


def unwrap(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """verl's file logger writes {"step": 3, "data": {...}}: the inner object is the row."""
    if rows and rows[0].keys() == {"step", "data"} and all(isinstance(r.get("data"), dict) for r in rows):
        return [{"step": r["step"], **r["data"]} for r in rows]
    return rows


def _flavour(table: Table) -> str:
    names = table.columns.keys()
    if "kind" in table.text and ("policy_version" in names or "pass_rate" in names):
        return "scalerl metrics.jsonl"
    if "progress/batch" in names or any(n.startswith("env/all/") for n in names):
        return "Tinker metrics.jsonl"
    return "JSON lines"
