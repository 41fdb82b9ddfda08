"""`RowCollector`: turns rows (dicts, any keys in any row) into the columns of a `Table`, fast and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.runs.table import FloatArray, Table, TextColumn, count, mark_written, written_nan

LONGEST_TEXT = 300  # longer strings are prompts and completions, not labels
MISSING_WORDS = frozenset({"", "nan", "null", "none", "n/a", "na", "-", "--", "nil", "undefined", "missing"})
_MOST_COLUMNS = 20_000
Index = slice | NDArray[np.intp]
Row = Mapping[str, Any]


class RowCollector:
    """Collects rows block by block.

    Rows of one block that have the same keys in the same order are turned into arrays together; this is what
    reads a million rows in a second or two. Nested objects are flattened with `/`; lists of numbers become their mean.
    """

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[str, list[tuple[Index, FloatArray]]] = {}
        self._texts: dict[str, list[tuple[Index, NDArray[np.object_]]]] = {}
        self._long: set[str] = set()
        self._lists: set[str] = set()
        self._percent: set[str] = set()
        self._shared: dict[str, str] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        signatures = list(map(tuple, rows))
        groups: dict[tuple[str, ...], list[int]] = {}
        if signatures and signatures.count(signatures[0]) == len(rows):
            groups[signatures[0]] = list(range(len(rows)))
        else:
            for i, keys in enumerate(signatures):
                if keys in groups:
                    groups[keys].append(i)
                else:
                    groups[keys] = [i]
        for keys, members in groups.items():
            whole = len(members) == len(rows)
            index: Index = slice(self.count, self.count + len(rows)) if whole else np.array(members) + self.count
            chosen = rows if whole else [rows[i] for i in members]
            for key, values in zip(keys, zip(*[row.values() for row in chosen], strict=True), strict=True):
                self._add_values(str(key), values, index)
        self.count += len(rows)

    def add_columns(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append rows given by column, all of one length."""
        size = max(map(len, columns.values()), default=0)
        for name, values in columns.items():
            self._add_values(name, values, slice(self.count, self.count + size))
        self.count += size

    def table(self, format: str, notes: list[str]) -> Table:
        """All rows as a table; the collector is empty afterwards."""
        columns: dict[str, FloatArray] = {}
        for name in list(self._numbers):
            column = np.full(self.count, np.nan)
            for index, values in self._numbers.pop(name):
                known = ~np.isnan(values)
                if known.all():
                    column[index] = values
                else:  # a key that came twice in one row (flat and nested) keeps the value that is there
                    column[index] = np.where(known | written_nan(values), values, column[index])
            columns[name] = column
        text = self._text_columns(columns, notes)
        if self._long:
            notes.append(f"Long texts were left out: {', '.join(sorted(self._long)[:5])}.")
        if self._lists:
            notes.append(f"Lists of numbers were averaged in each row: {', '.join(sorted(self._lists)[:5])}.")
        if self._percent:
            notes.append(percent_note(self._percent))
        return Table(columns, text, notes, format)

    def _text_columns(self, columns: dict[str, FloatArray], notes: list[str]) -> dict[str, TextColumn]:
        """Columns of text; where a name has numbers as well, the larger part decides what the column is."""
        text: dict[str, TextColumn] = {}
        for name, parts in self._texts.items():
            cells = np.full(self.count, "", dtype=object)
            for index, values in parts:
                cells[index] = values
            filled = np.flatnonzero(cells != "")
            if not filled.size:
                continue
            numbers = columns.get(name, np.full(0, np.nan))
            numeric = int(np.count_nonzero(~np.isnan(numbers)))
            if numeric and numeric >= filled.size:
                example = str(cells[filled[0]])[:40]
                notes.append(f"{count(filled.size, 'cell')} of {name!r} not a number ({example!r}): read as missing.")
                continue
            for i in np.flatnonzero(~np.isnan(numbers)):
                cells[i] = cells[i] or f"{numbers[i]:.12g}"
            columns.pop(name, None)
            text[name] = cells
        return text

    def _add_values(self, key: str, values: Sequence[Any], index: Index) -> None:
        try:
            numbers = np.array(values, dtype=np.float64)  # takes None, bools and quoted numbers as well
        except (TypeError, ValueError, OverflowError):
            self._add_mixed(key, values, index)
            return
        if numbers.ndim != 1:
            self._add_mixed(key, values, index)
        else:
            _mark(numbers, values)
            self._put(key, index, numbers)

    def _put(self, key: str, index: Index, numbers: FloatArray) -> None:
        if key in self._numbers:
            self._numbers[key].append((index, numbers))
        elif len(self._numbers) < _MOST_COLUMNS:
            self._numbers[key] = [(index, numbers)]

    def _add_mixed(self, key: str, values: Sequence[Any], index: Index) -> None:
        """One key whose values are not all numbers: texts, nested objects, lists."""
        if set(map(type, values)) == {str} and self._add_labels(key, values, index):
            return
        rows = np.arange(index.start, index.stop) if isinstance(index, slice) else index
        nested = [i for i, v in enumerate(values) if isinstance(v, Mapping)]
        if nested:
            self._add_nested(key, [values[i] for i in nested], rows[nested])
        numbers = np.full(len(values), np.nan)
        texts: list[str] = []
        places: list[int] = []
        for i, value in enumerate(values):
            if isinstance(value, str):
                number = parse_number(value)
                if number is None:
                    texts.append(value)
                    places.append(i)
                    continue
                if value.rstrip().endswith("%"):
                    self._percent.add(key)
                numbers[i] = number
            elif isinstance(value, list | tuple):
                numbers[i] = self._list_mean(key, value)
            elif not isinstance(value, Mapping):
                numbers[i] = to_float(value)
        if any(len(t) > LONGEST_TEXT for t in texts):
            self._long.add(key)
            texts = [t if len(t) <= LONGEST_TEXT else "" for t in texts]
        if texts:
            self._put_text(key, rows[places], texts)
        _mark(numbers, values)
        if len(nested) + len(texts) < len(values):
            self._put(key, rows, numbers)

    def _add_labels(self, key: str, values: Sequence[str], index: Index) -> bool:
        """A few words that stand in many rows (`kind`, `run`), done word by word instead of row by row."""
        words = set(values)
        if len(words) > 1000 or any(parse_number(w) is not None or len(w) > LONGEST_TEXT for w in words):
            return False
        shared = {w: self._shared.setdefault(w, w) for w in words}
        self._put_text(key, index, [shared[v] for v in values])
        return True

    def _put_text(self, key: str, index: Index, values: list[str]) -> None:
        cells = np.empty(len(values), dtype=object)
        cells[:] = values
        if key in self._texts or len(self._texts) < _MOST_COLUMNS:
            self._texts.setdefault(key, []).append((index, cells))

    def _add_nested(self, key: str, objects: Sequence[Row], rows: NDArray[np.intp]) -> None:
        groups: dict[tuple[str, ...], list[int]] = {}
        for i, item in enumerate(objects):
            groups.setdefault(tuple(item), []).append(i)
        for keys, members in groups.items():
            for inner, values in zip(keys, zip(*[objects[i].values() for i in members], strict=True), strict=True):
                self._add_values(f"{key}/{inner}", values, rows[members])

    def _list_mean(self, key: str, values: Sequence[Any]) -> float:
        numbers = [to_float(v) for v in values if not isinstance(v, str | list | tuple | Mapping)]
        if not numbers or len(numbers) != len(values):
            return math.nan
        self._lists.add(key)
        return float(np.mean(numbers))


def _mark(numbers: FloatArray, values: Sequence[Any]) -> None:
    """Tell the NaNs that stand in the log from the values that are not there."""
    absent = np.flatnonzero(np.isnan(numbers))
    written = [i for i in absent.tolist() if _is_nan(values[i])]
    if written:
        mark_written(numbers, np.array(written, dtype=np.intp))


def _is_nan(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower().lstrip("+-") == "nan"
    return isinstance(value, float) and math.isnan(value)


def percent_note(names: Iterable[str]) -> str:
    """What to say about columns written with a percent sign."""
    return f"Values with a percent sign were divided by 100: {', '.join(sorted(names)[:5])}."


def to_float(value: Any) -> float:
    """A JSON scalar as a float; NaN for what has none; an integer beyond the range of floats is infinite."""
    if value is None:
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def parse_number(cell: str) -> float | None:
    """A cell as a number: `0.5`, ` 1e-3 `, `62.5%` (a fraction), `1,234`, NaN for a word of absence, else None."""
    word = cell.strip()
    try:
        return float(word) if "_" not in word else None
    except ValueError:
        pass
    if word.lower() in MISSING_WORDS:
        return math.nan
    if word.endswith("%"):
        share = parse_number(word[:-1])
        return None if share is None or math.isnan(share) else share / 100
    if "," in word:
        head, *groups = word.split(",")
        tail = groups[-1].partition(".")[0]
        if all(len(g) == 3 and g.isdigit() for g in [*groups[:-1], tail]) and head.lstrip("+-").isdigit():
            try:
                return float(word.replace(",", ""))
            except ValueError:
                return None
    return None
