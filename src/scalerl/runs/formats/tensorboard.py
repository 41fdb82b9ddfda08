"""TensorBoard event files: one file, a log directory with several (restarts), or a directory of those (runs).

Scalars are read in both shapes, `simple_value` (TF1, PyTorch, tensorboardX) and a rank-0 tensor (TF2).
The columns are `step`, `wall_time` (unix seconds) and one a tag. Histograms, images and texts are left out,
with a note. Restarts stay in the rows, in time order: which of them wins is decided by the cleaning.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.formats import tfrecord
from scalerl.runs.formats.protobuf_wire import (
    Value,
    WireError,
    as_bytes,
    as_float,
    as_int,
    as_text,
    fields,
    varint,
)
from scalerl.runs.formats.series_rows import SeriesRows, left_out, stack_runs
from scalerl.runs.table import Table, count

_DEPTH = 4  # directories below the given one that are searched
_MAX_BYTES = 4 << 30
_BFLOAT16, _HALF = 14, 19
_DENSE = dict(zip((1, 2, 3, 4, 5, 6, 9, 10, 17, _HALF, 22, 23), "fdiBhbq?HeIQ", strict=True))  # TensorFlow's types


def matches(path: Path, head: bytes) -> bool:
    """An event file by its first record; a directory by files that TensorBoard itself would pick up."""
    if path.is_dir():
        return next(_walk(path), None) is not None
    return b"brain.Event:" in head[:64] or (tfrecord.starts_with_record(head) and head[12:13] == b"\x09")


def read(path: Path) -> Table:
    """All scalars below `path`; `text["run"]` is the directory of each row, relative to `path`.

    Raises:
        InputError: no event file, or none with a scalar.
    """
    if not path.is_dir():
        by_run = {path.absolute().parent.name: [path]}
    else:
        by_run = {}
        for file in sorted(_walk(path)):
            relative = file.parent.relative_to(path).as_posix()
            by_run.setdefault(path.absolute().name if relative == "." else relative, []).append(file)
    if not by_run:
        raise InputError(f"{path}: no TensorBoard event file (*tfevents*) within {_DEPTH} directory levels")
    runs, notes = [], []
    for name, files in by_run.items():
        where = f"Run {name}: " if len(by_run) > 1 else ""
        rows, found = _read_run(files)
        notes += [where + note for note in found]
        if len(rows):
            runs.append((name, rows.columns()))
    if not runs:
        why = f" ({' '.join(notes)})" if notes else ""
        raise InputError(f"{path}: the TensorBoard events hold no scalar{why}; log scalars with add_scalar")
    columns, labels = stack_runs(runs)
    return Table(columns=columns, text={"run": labels}, notes=notes, format="TensorBoard")


def _walk(root: Path) -> Iterator[Path]:
    base = len(root.parts)
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        if len(here.parts) - base >= _DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (here / f for f in files if "tfevents" in f and not f.endswith(".profile-empty"))


def _read_run(files: list[Path]) -> tuple[SeriesRows, list[str]]:
    """The rows of one log directory; files in the order of their first event."""
    parsed = [_EventFile(file) for file in files]
    parsed.sort(key=lambda file: (file.first_time, file.path.name))
    rows, notes = SeriesRows(), []
    not_scalar: Counter[str] = Counter()
    for index, file in enumerate(parsed):
        if index:
            rows.new_file()
        file.add_to(rows)
        notes += file.notes()
        not_scalar.update(file.not_scalar)
    used = [file for file in parsed if file.events]
    if len(used) > 1:
        notes.insert(0, f"{len(used)} event files of one directory were joined in the order of their start.")
        if any(b.first_time < a.last_time and a.tags & b.tags for a, b in pairwise(used)):
            notes.append("Event files with the same tags overlap in time; the later one counts as a restart.")
    if not_scalar:
        notes.append(left_out(list(not_scalar)))
    return rows, notes


class _EventFile:
    """One event file, decoded: its scalars in the order of writing, and what could not be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[tuple[str, int, float, float]] = []
        self.purges: set[int] = set()  # indexes into `events` where the writer itself says that it starts over
        self.not_scalar: Counter[str] = Counter()
        self._not_a_message = 0
        data = _bytes_of(path)
        self._records = tfrecord.find_records(data)
        self._empty = not data
        for start, stop in zip(self._records.start.tolist(), self._records.stop.tolist(), strict=True):
            self._event(data[start:stop])
        times = [time for _, _, time, _ in self.events]
        self.first_time, self.last_time = min(times, default=np.inf), max(times, default=-np.inf)
        self.tags = {tag for tag, *_ in self.events}

    def add_to(self, rows: SeriesRows) -> None:
        for index, event in enumerate(self.events):
            if index in self.purges:
                rows.new_session()
            rows.add(*event)

    def notes(self) -> list[str]:
        name, lost = self.path.name, self._records
        notes = []
        if self._empty:
            notes.append(f"{name} is empty.")
        if lost.cut_bytes:
            whole = count(lost.start.size, "record")
            notes.append(f"{name} is cut off: {whole} kept, the last {count(lost.cut_bytes, 'byte')} lost.")
        if lost.damaged:
            notes.append(f"{name}: {count(lost.damaged, 'record')} with a wrong checksum left out.")
        if lost.lost_bytes:
            notes.append(f"{name}: {count(lost.lost_bytes, 'damaged byte')} skipped between records.")
        if self._not_a_message:
            notes.append(f"{name}: {count(self._not_a_message, 'record')} that cannot be decoded left out.")
        return notes

    def _event(self, record: bytes) -> None:
        time, step, summary, start = np.nan, 0, None, False
        try:
            for number, value in fields(record):
                if number == 1:
                    time = as_float(value)
                elif number == 2:
                    step = as_int(value)
                elif number == 5:
                    summary = as_bytes(value)
                elif number == 7:  # SessionLog; status 1 is START
                    start = any(n == 1 and v == 1 for n, v in fields(as_bytes(value)))
            found = list(_scalars(summary)) if summary is not None else []
        except (WireError, struct.error):
            self._not_a_message += 1
            return
        if start and step > 0:
            self.purges.add(len(self.events))
        for tag, scalar in found:
            if scalar is None:
                self.not_scalar[tag] += 1
            else:
                self.events.append((tag, step, time, scalar))


def _bytes_of(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path}: more than 4 GiB; export the scalars you need as CSV from TensorBoard")
        return path.read_bytes()
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{path}: cannot be read ({why}); check the path and its permissions") from None


def _scalars(summary: bytes) -> Iterator[tuple[str, float | None]]:
    """(tag, value) of a Summary message; None for what is no scalar."""
    for number, item in fields(summary):
        if number != 1:
            continue
        tag, value, plugin = "", None, "scalars"
        for part, content in fields(as_bytes(item)):
            if part == 1:
                tag = as_text(content)
            elif part == 2:
                value = as_float(content)
            elif part == 8:
                value = _tensor_scalar(as_bytes(content))
            elif part == 9:
                plugin = _plugin(as_bytes(content)) or plugin
        if tag:
            yield tag, value if plugin == "scalars" else None


def _plugin(metadata: bytes) -> str:
    for number, value in fields(metadata):
        if number == 1:
            return "".join(as_text(name) for n, name in fields(as_bytes(value)) if n == 1)
    return ""


def _tensor_scalar(tensor: bytes) -> float | None:
    """The number in a rank-0 TensorProto (or one of a single element); None for any other tensor."""
    kind, content, values = 0, b"", dict[int, Value]()
    for number, value in fields(tensor):
        if number == 1:
            kind = as_int(value)
        elif number == 2:
            if any(size != 1 for size in _sizes(as_bytes(value))):
                return None
        elif number == 4:
            content = as_bytes(value)
        elif number in (5, 6, 7, 10, 11, 13):
            values[number] = value
    if kind not in _DENSE and kind != _BFLOAT16:
        return None
    if content:
        if kind == _BFLOAT16:
            return float(struct.unpack("<f", b"\0\0" + content[:2])[0])
        return float(struct.unpack_from("<" + _DENSE[kind], content)[0])
    if not values:
        return 0.0  # the format leaves zeros out
    number, value = next(iter(values.items()))
    return _typed_value(kind, number, value)


def _sizes(shape: bytes) -> Iterator[int]:
    for number, dim in fields(shape):
        if number == 2:
            yield next((as_int(size) for n, size in fields(as_bytes(dim)) if n == 1), 0)


def _typed_value(kind: int, number: int, value: Value) -> float:
    """The first element of a (packed or single) `float_val`, `double_val`, `int_val`, ... field."""
    if number == 5:
        return as_float(as_bytes(value)[:4])
    if number == 6:
        return as_float(as_bytes(value)[:8])
    integer = as_int(value if isinstance(value, int) else varint(value, 0)[0])
    if kind == _HALF:
        return float(struct.unpack("<e", struct.pack("<H", integer & 0xFFFF))[0])
    if kind == _BFLOAT16:
        return float(struct.unpack("<f", struct.pack("<I", (integer & 0xFFFF) << 16))[0])
    return float(integer)
