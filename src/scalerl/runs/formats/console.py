"""Console logs: HF trainer dict lines, verl's `step:7 - k:v - k:v`, and free text such as `7/100 | reward=0.25`.

Only lines that carry numbers of training become rows; banners, warnings and progress bars are passed over. A log is
taken as the kind of line that it holds most of: verl, then dict lines, then free text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import aliases
from scalerl.runs.formats import console_lines as lines
from scalerl.runs.formats.console_lines import Fields
from scalerl.runs.rows import RowCollector, percent_note
from scalerl.runs.source import blocks, is_text
from scalerl.runs.table import Table, count

_BATCH = 4096
_CLOSED = ("}", "]", ")")


def matches(path: Path, head: bytes) -> bool:
    """Whether it is text at all: the first rows may stand far behind the banners, so this format is tried last."""
    return is_text(head)


def read(path: Path) -> Table:
    """Read the rows of a console log.

    Raises:
        InputError: no line holds numbers of training.
    """
    kind = _kind(path)
    if kind is None:
        raise InputError(
            f"{path}: text without known log lines; expected lines such as {{'reward': 0.3, 'epoch': 0.1}}, "
            "step:7 - critic/score/mean:0.3, or 7/100 | reward=0.25"
        )
    notes: list[str] = []
    readers: dict[str, Callable[[list[str]], _Reader]] = {"verl": _Verl, "dict": _Dicts, "text": _FreeText}
    reader = readers[kind](notes)
    for line in _lines(path, notes):
        reader.line(line)
    return reader.table()


def _lines(path: Path, notes: list[str]) -> Iterator[str]:
    """Lines without colours and prefixes; what a progress bar overwrote counts as a line of its own.

    A last line without an end may stop within a number (0.6 of 0.6422): it is left out unless a bracket closes it.
    """
    for block in blocks(path, notes):
        text = lines.ANSI.sub("", block.decode("utf-8", errors="replace"))
        *whole, rest = re.split(r"[\n\r]+", text)
        for line in whole:
            if line and not line.isspace():
                yield line
        if rest.rstrip(" ,").endswith(_CLOSED):
            yield rest
        elif rest.strip():
            notes.append("The last line is cut off (it has no line end): left out.")


def _kind(path: Path) -> str | None:
    found = {"verl": 0, "dict": 0, "text": 0}
    in_step = False
    for line in _lines(path, []):
        if lines.verl_fields(line):
            found["verl"] += 1
        elif lines.dict_fields(line):
            found["dict"] += 1
        else:
            in_step |= lines.text_step(line) is not None
            found["text"] += in_step and bool(lines.text_fields(line)[0])
        if max(found.values()) >= 50:
            break
    if found["verl"]:
        return "verl"
    if found["dict"] and found["dict"] * 4 >= found["text"]:
        return "dict"
    return "text" if found["text"] else None


class _Reader(ABC):
    """Collects rows and notes what was passed over."""

    name = "console log"

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.rows = RowCollector()
        self.batch: list[Fields] = []
        self.broken = 0
        self.percent: set[str] = set()

    @abstractmethod
    def line(self, line: str) -> None:
        """Take one line of the log."""

    def put(self, row: Fields) -> None:
        self.batch.append(row)
        if len(self.batch) == _BATCH:
            self.rows.add(self.batch)
            self.batch = []

    def table(self) -> Table:
        self.rows.add(self.batch)
        if self.broken:
            self.notes.append(f"{count(self.broken, 'line')} cut off or garbled: what could be read was kept.")
        if self.percent:
            self.notes.append(percent_note(self.percent))
        return self.rows.table(self.name, self.notes)


class _Verl(_Reader):
    name = "verl console"

    def line(self, line: str) -> None:
        fields = lines.verl_fields(line)
        if fields is None:
            return
        row, broken = fields
        self.broken += broken
        if stamp := lines.time_stamp(line):
            row["timestamp"] = stamp
        self.put(row)


class _Dicts(_Reader):
    """HF's printed dicts hold no step; it is taken from the progress bar, or else rows are counted."""

    name = "HF console"

    def __init__(self, notes: list[str]) -> None:
        super().__init__(notes)
        self.bars: list[tuple[int, int, int]] = []  # (rows before, done, of)
        self.steps_known = False
        self.trained: list[bool] = []  # rows of training steps, which are counted where nothing tells the step

    def line(self, line: str) -> None:
        for done, total in lines.progress(line):
            self.bars.append((self.total_rows(), done, total))
        for row, broken in lines.dict_rows(line):
            self.broken += broken
            if stamp := lines.time_stamp(line):
                row["timestamp"] = stamp
            self.trained.append(any(k in row for k in ("loss", "reward", "learning_rate")))
            self.put(row)

    def total_rows(self) -> int:
        return self.rows.count + len(self.batch)

    def table(self) -> Table:
        table = super().table()
        self.steps_known |= bool(aliases.step_candidates(table.columns))
        if not self.steps_known and (steps := self._steps(table)) is not None:
            table.columns["step"] = np.array(steps)
        return table

    def _steps(self, table: Table) -> list[float] | None:
        """The training step of each row, by the bar just before it or, where tqdm redraws it, just after it."""
        rows = table.rows
        before: list[float | None] = [None] * rows
        after: list[float | None] = [None] * rows
        between = [0] * (rows + 1)
        for row, done in self._training_bar():
            between[row] += 1
            if row < rows:
                before[row] = done  # the last one printed before row `row`
            if row > 0 and after[row - 1] is None:
                after[row - 1] = done
        redrawn = between[-1] > 0 or sum(n > 1 for n in between) > rows // 2
        first, second = (after, before) if redrawn else (before, after)
        picked = [a if a is not None else b for a, b in zip(first, second, strict=True)]
        if sum(p is not None for p in picked) < max(0.5 * rows, 1):
            self._count_rows(table)
            return None
        self.notes.append("These lines hold no step; it was taken from the progress bar beside them.")
        return [float("nan") if p is None else float(p) for p in picked]

    def _training_bar(self) -> list[tuple[int, int]]:
        """(rows before, done) of the one bar that goes through the whole log; those of generation start ever again."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for row, done, total in self.bars:
            groups.setdefault(total, []).append((row, done))
        steady = [g for g in groups.values() if all(a[1] <= b[1] for a, b in pairwise(g)) and g[0][1] < g[-1][1]]
        return max(steady, key=lambda g: len({done for _, done in g}), default=[])

    def _count_rows(self, table: Table) -> None:
        marks = self.trained if any(self.trained) else [True] * table.rows
        epochs = table.columns.get("epoch", np.full(table.rows, np.nan))
        numbers: list[float] = []
        counted: list[float] = []  # the epoch of each row that was counted, rising
        for is_step, epoch in zip(marks, epochs.tolist(), strict=True):
            if is_step:
                if counted and epoch < counted[-1]:  # a restart: the count goes back to where the epoch stood
                    del counted[bisect_left(counted, epoch) :]
                counted.append(epoch if epoch == epoch else (counted[-1] if counted else 0.0))
            numbers.append(float(len(counted)))
        table.columns["row"] = np.array(numbers)
        self.notes.append(
            "These lines hold no step: training rows were counted; give --factor N if a row stands for N steps."
        )


class _FreeText(_Reader):
    """A row a step: what stands on the line of the step and on the lines below it, until the next step."""

    name = "free text log"

    def __init__(self, notes: list[str]) -> None:
        super().__init__(notes)
        self.row: Fields | None = None
        self.filled = False

    def line(self, line: str) -> None:
        step = lines.text_step(line)
        if step is None and self.row is None:
            return
        fields, percent = lines.text_fields(line)
        if step is not None:
            self.flush()
            self.row = {}
            if stamp := lines.time_stamp(line):
                step["timestamp"] = stamp
        assert self.row is not None
        self.filled |= bool(fields)
        self.percent |= percent
        for name, value in (fields | (step or {})).items():
            self.row.setdefault(name, value)

    def flush(self) -> None:
        if self.row and self.filled:
            self.put(self.row)
        self.row, self.filled = None, False

    def table(self) -> Table:
        self.flush()
        return super().table()
