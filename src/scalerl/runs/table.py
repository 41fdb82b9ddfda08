"""`Table`: what every format reader returns, columns in the row order of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError

FloatArray = NDArray[np.float64]
TextColumn = Sequence[str] | NDArray[np.object_]
_WRITTEN = np.uint64(0x7FF8_0000_0000_0001)  # as R tells NaN from NA: a payload, which copies of the array keep


def mark_written(values: FloatArray, where: NDArray[np.bool_] | NDArray[np.intp]) -> None:
    """Mark, in place, the NaNs that the log itself writes, as against rows that have no such value."""
    values.view(np.uint64)[where] = _WRITTEN


def written_nan(values: FloatArray) -> NDArray[np.bool_]:
    """Where the log writes NaN, as a run does that has diverged; false where a row merely has no value."""
    return np.asarray(np.ascontiguousarray(values).view(np.uint64) == _WRITTEN)


@dataclass
class Table:
    """The content of one log, before anything is chosen or cleaned.

    Args:
        columns: name -> (rows,) float64, NaN where the row has no such value (see `written_nan`).
        text: name -> (rows,) strings for what is not a number (run names, `kind`, `task`), "" where missing.
        notes: what the reader decided or salvaged, one plain sentence each.
        format: human name, such as "verl console".
        axis: column of the compute axis that the run itself names, if it does.

    Raises:
        InputError: the columns differ in length (a fault of the reader).
    """

    columns: dict[str, FloatArray]
    text: dict[str, TextColumn] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    format: str = "table"
    axis: str | None = None

    def __post_init__(self) -> None:
        lengths = {len(c) for c in self.columns.values()} | {len(c) for c in self.text.values()}
        if len(lengths) > 1:
            raise InputError(
                f"{self.format}: columns differ in length ({sorted(lengths)}); this is a fault of the reader"
            )

    @property
    def rows(self) -> int:
        """Number of rows."""
        for column in self.columns.values():
            return len(column)
        for text in self.text.values():
            return len(text)
        return 0

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Table:
        """The rows of a mask or an index, in that order; columns left without any value are dropped."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        columns = {name: column[index] for name, column in self.columns.items()}
        text = {name: [column[i] for i in index] for name, column in self.text.items()}
        return Table(
            {name: column for name, column in columns.items() if not np.isnan(column).all()},
            {name: column for name, column in text.items() if any(column)},
            list(self.notes),
            self.format,
            self.axis,
        )


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`3 rows`, `1 row`: for notes."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
