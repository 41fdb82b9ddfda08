"""From (name, step, time, value) events, as TensorBoard and MLflow keep them, to rows with one column a name.

Events of one step share a row when they follow each other, or when they came within a minute; otherwise the
step gets another row, so that the wall time of a row is true for all its values (an evaluation may come hours
after its step, and some loggers count epochs for one series and batches for another). Rows are sorted by step
within a *session*. A session ends where a restart repeats steps; sessions stay in time order, so that "the
later run wins" can be applied.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from scalerl.runs.table import mark_written

_SAME_ROW_SECONDS = 60.0


class SeriesRows:
    """Collects the events of one run, fed in the order of writing; `columns()` gives the table."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], list[int]] = {}  # (session, step) -> its rows
        self._step, self._time, self._session = array("q"), array("d"), array("q")
        self._filled: list[int] = []  # of a row: a bit for each series that has a value in it
        self._where: dict[str, tuple[int, array[int], array[float]]] = {}  # name -> bit, rows, values
        self._last: dict[str, int] = {}  # name -> its latest step in this session
        self._from_earlier_file: set[str] = set()
        self._first_step: int | None = None
        self._current = 0
        self._latest_row = -1

    def __len__(self) -> int:
        return len(self._step)

    def new_file(self) -> None:
        """Events from here on come from a later process: a series that steps back marks a restart."""
        self._from_earlier_file = set(self._last)
        self._latest_row = -1

    def add(self, name: str, step: int, time: float, value: float) -> None:
        """One value of one series; `time` in unix seconds (NaN if unknown)."""
        last = self._last.get(name)
        if last is not None and step < last and self._is_restart(name, step, last):
            self.new_session()
        self._from_earlier_file.discard(name)
        self._last[name] = step if last is None else max(step, self._last.get(name, step))
        if name not in self._where:
            self._where[name] = (1 << len(self._where), array("q"), array("d"))
        bit, rows, values = self._where[name]
        row = self._row(step, time, bit)
        self._filled[row] |= bit
        rows.append(row)
        values.append(value)

    def new_session(self) -> None:
        """What follows repeats steps that are already there."""
        if not self._last:
            return
        self._current += 1
        self._last.clear()
        self._from_earlier_file.clear()
        self._first_step, self._latest_row = None, -1

    def _is_restart(self, name: str, step: int, last: int) -> bool:
        """A step back is a restart if in a later file, to a known step or far; else the event came late."""
        if name in self._from_earlier_file:
            return True
        bit = self._where[name][0]
        if any(self._filled[row] & bit for row in self._rows.get((self._current, step), ())):
            return True
        return last - step > 0.25 * (last - (self._first_step or 0))

    def _row(self, step: int, time: float, bit: int) -> int:
        latest = self._latest_row
        if latest >= 0 and self._step[latest] == step and not self._filled[latest] & bit:
            return latest
        candidates = self._rows.setdefault((self._current, step), [])
        for row in candidates:
            if not self._filled[row] & bit and abs(self._time[row] - time) <= _SAME_ROW_SECONDS:
                break
        else:
            row = len(self._step)
            candidates.append(row)
            self._step.append(step)
            self._time.append(time)
            self._session.append(self._current)
            self._filled.append(0)
            self._first_step = step if self._first_step is None else min(step, self._first_step)
        self._latest_row = row
        return row

    def columns(self, step: str = "step", time: str = "wall_time") -> dict[str, NDArray[np.float64]]:
        """One float64 column a series, NaN where it has no value, after `step` and `time` (unix seconds)."""
        n = len(self._step)
        times = np.array(self._time, dtype=np.float64)
        steps = np.array(self._step, dtype=np.int64)
        order = np.lexsort((times, steps, np.array(self._session, dtype=np.int64)))
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        table = {step: steps[order].astype(np.float64), time: times[order]}
        for name, (_, rows, values) in self._where.items():
            column, logged = np.full(n, np.nan), np.array(values, dtype=np.float64)
            mark_written(logged, np.isnan(logged))
            column[place[np.array(rows, dtype=np.int64)]] = logged
            table[free_name(name, table)] = column
        return table


def free_name(name: str, taken: dict[str, NDArray[np.float64]]) -> str:
    """`name`, or `name (logged)` where a series carries the name of the step or time column."""
    while name in taken:
        name += " (logged)"
    return name


def stack_runs(
    runs: list[tuple[str, dict[str, NDArray[np.float64]]]],
) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
    """The rows of several runs below each other (NaN where a run lacks a column), and the run of each row."""
    names = list(dict.fromkeys(name for _, columns in runs for name in columns))
    sizes = [len(next(iter(columns.values()))) if columns else 0 for _, columns in runs]
    stacked = {
        name: np.concatenate(
            [columns.get(name, np.full(n, np.nan)) for (_, columns), n in zip(runs, sizes, strict=True)]
        )
        for name in names
    }
    return stacked, [run for (run, _), n in zip(runs, sizes, strict=True) for _ in range(n)]


def left_out(names: list[str]) -> str:
    """The note for series that are not numbers."""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names):,} series without numbers (pictures, histograms, ...) left out: {shown}."
