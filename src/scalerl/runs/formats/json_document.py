"""One JSON document: an array of rows, `trainer_state.json`, columns, or runs by name. Cut-off ones are salvaged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import orjson

from scalerl.errors import InputError
from scalerl.runs.rows import RowCollector
from scalerl.runs.table import Table, count

_DECODER = json.JSONDecoder()
_ROW_KEYS = ("log_history", "history", "metrics", "rows", "data", "logs", "records", "results", "evals", "steps")


def read(path: Path, text: str, notes: list[str]) -> Table:
    """Rows of a JSON document.

    Raises:
        InputError: nothing in it looks like rows of numbers.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return _collect(path, _salvage(path, text, notes), "JSON", notes)
    kind, rows = _rows(document)
    if not rows:
        seen = (
            f"an object with keys {', '.join(map(repr, list(document)[:5]))}" if isinstance(document, dict) else "JSON"
        )
        raise InputError(f"{path}: {seen} holds no rows of numbers; expected an array of objects, or lists by column")
    return _collect(path, rows, kind, notes)


def _collect(path: Path, rows: list[dict[str, Any]], kind: str, notes: list[str]) -> Table:
    if not rows:
        raise InputError(
            f"{path}: the JSON is broken and no whole row can be salvaged; write it again or cut it to sound rows"
        )
    collector = RowCollector()
    for start in range(0, len(rows), 8192):
        collector.add(rows[start : start + 8192])
    return collector.table(kind, notes)


def _rows(document: Any) -> tuple[str, list[dict[str, Any]]]:
    if isinstance(document, list):
        return "JSON array", _rows_of_list(document)
    if not isinstance(document, dict):
        return "JSON", []
    history = document.get("log_history")
    if isinstance(history, list):
        return "HF trainer_state", _objects(history)
    for key in (*_ROW_KEYS, *document):
        value = document.get(key)
        if isinstance(value, list) and _objects(value):
            others = {k: v for k, v in document.items() if k != key and isinstance(v, list) and _objects(v)}
            return _runs(document) if others and key not in _ROW_KEYS else ("JSON rows", _objects(value))
    return _columns(document)


def _objects(values: list[Any]) -> list[dict[str, Any]]:
    return [v for v in values if isinstance(v, dict)]


def _rows_of_list(values: list[Any]) -> list[dict[str, Any]]:
    if rows := _objects(values):
        return rows
    lists = [v for v in values if isinstance(v, list) and v]
    if lists and len(lists) == len(values):
        if all(len(v) == 3 and _is_number(v[0]) and v[0] > 1e9 for v in lists):  # TensorBoard's JSON download
            return [{"wall_time": v[0], "step": v[1], "value": v[2]} for v in lists]
        if len(lists[0]) == 2:
            return [{"step": v[0], "score": v[1]} for v in lists if len(v) == 2]
        return [{f"column_{i + 1}": cell for i, cell in enumerate(v)} for v in lists]
    if values and all(_is_number(v) or v is None for v in values):
        return [{"row": i, "score": v} for i, v in enumerate(values)]
    return []


def _runs(document: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    rows = [
        {"run": name, **row} for name, items in document.items() if isinstance(items, list) for row in _objects(items)
    ]
    return "JSON rows by run", rows


def _columns(document: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """{"step": [..], "reward": [..]} or pandas' {"step": {"0": .., "1": ..}}."""
    lists = {k: v for k, v in document.items() if isinstance(v, list) and len(v) > 1}
    if not lists:
        tables = {k: v for k, v in document.items() if isinstance(v, dict) and len(v) > 1}
        if len(tables) != len(document) or len({tuple(v) for v in tables.values()}) != 1:
            scalars = [k for k, v in document.items() if _is_number(v)]
            return "JSON object", [document] if len(scalars) > 1 else []
        lists = {k: list(v.values()) for k, v in tables.items()}
    longest = max(len(v) for v in lists.values())
    lists = {k: v for k, v in lists.items() if len(v) == longest}
    return "JSON columns", [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(_clip(value))


def _clip(value: float) -> float:
    return max(min(value, 1e300), -1e300)


def _salvage(path: Path, text: str, notes: list[str]) -> list[dict[str, Any]]:
    """Whole objects of a broken document, one after the other, from its first list of objects on."""
    start = text.find("log_history")
    start = text.find("[", max(start, 0)) + 1
    if "log_history" not in text[:start]:
        start = 0
    rows: list[dict[str, Any]] = []
    skipped = 0
    at = text.find("{", start)
    while at >= 0:
        try:
            row, at_end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            if not rows or len(text) - at > 1_000_000:
                break  # nothing sound behind it, or too much to try again at each brace
            skipped += 1
            at = text.find("{", at + 1)
            continue
        if isinstance(row, dict):
            rows.append(row)
        at = text.find("{", at_end)
        if start and "]" in text[at_end : at if at >= 0 else at_end]:
            break
    if rows and skipped == 0 and not text[at_end:].strip(" \n\r\t],}"):
        notes.append(f"Several JSON documents in one file: {count(len(rows), 'row')} read.")
    elif rows:
        lost = len(text) - at_end
        notes.append(
            f"The JSON is cut off or broken: {count(len(rows), 'whole row')} salvaged, {lost:,} characters lost."
        )
    return rows
