"""Parquet tables, such as W&B's history exports. polars is imported only here, as its import costs time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.rows import LONGEST_TEXT
from scalerl.runs.table import FloatArray, Table, TextColumn, mark_written


def matches(path: Path, head: bytes) -> bool:
    """Whether the file has Parquet's signature."""
    return head.startswith(b"PAR1")


def read(path: Path) -> Table:
    """Read all columns; structs are flattened with `/`, times become seconds since 1970.

    Raises:
        InputError: the file is broken.
    """
    import polars as pl
    from polars.exceptions import PanicException, PolarsError

    notes: list[str] = []
    with path.open("rb") as file:  # polars panics aloud on a cut file, so its end is checked first
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        tail = file.read(8)
    if tail[-4:] != b"PAR1" or not 0 < int.from_bytes(tail[:4], "little") < size - 8:
        raise InputError(f"{path}: the Parquet file is cut off (its footer is missing); export it again")
    try:
        frame = pl.read_parquet(path)
        while structs := [n for n, t in frame.schema.items() if t == pl.Struct]:
            for name in structs:
                fields = frame[name].struct.unnest()
                fields = fields.rename({inner: f"{name}/{inner}" for inner in fields.columns})
                clash = [c for c in fields.columns if c in frame.columns]
                frame = frame.drop(name, *clash).hstack(fields)
        numbers, text = _split(frame, notes)
    except (PolarsError, PanicException, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise InputError(f"{path}: the Parquet file is broken or cut off ({reason}); export it again") from error
    return Table(numbers, text, notes, "Parquet")


def _split(frame: Any, notes: list[str]) -> tuple[dict[str, FloatArray], dict[str, TextColumn]]:
    import polars as pl

    numbers: dict[str, FloatArray] = {}
    text: dict[str, TextColumn] = {}
    left_out = []
    for name, kind in frame.schema.items():
        column = frame[name]
        if kind.is_numeric() or kind == pl.Boolean or kind == pl.Null:
            numbers[name] = _floats(column)
        elif kind == pl.Datetime or kind == pl.Date:
            numbers[name] = _floats(column.cast(pl.Datetime("us")).cast(pl.Int64)) / 1e6
        elif kind == pl.Duration:
            numbers[name] = _floats(column.cast(pl.Duration("us")).cast(pl.Int64)) / 1e6
        elif kind in (pl.String, pl.Categorical, pl.Enum):
            cells = column.cast(pl.String)
            as_numbers = cells.str.strip_chars().cast(pl.Float64, strict=False)
            if as_numbers.is_not_null().sum() > cells.len() / 2:
                numbers[name] = _floats(as_numbers)
            elif (cells.str.len_chars().max() or 0) <= LONGEST_TEXT:
                text[name] = cells.fill_null("").to_list()
            else:
                left_out.append(name)
        elif kind == pl.List and kind.inner.is_numeric():
            numbers[name] = _floats(column.list.mean())
            notes.append(f"Lists of numbers were averaged in each row: {name}.")
        else:
            left_out.append(name)
    if left_out:
        notes.append(f"Columns that are neither numbers nor short texts were left out: {', '.join(left_out[:5])}.")
    return numbers, text


def _floats(column: Any) -> FloatArray:
    import polars as pl

    numbers = column.cast(pl.Float64)
    values = np.array(numbers.fill_null(float("nan")).to_numpy(), dtype=np.float64)
    mark_written(values, numbers.is_nan().fill_null(False).to_numpy())
    return values
