"""W&B's own local files: a `.wandb` log, a `run-*` or `offline-run-*` directory, or a `wandb/` directory.

A `.wandb` file is a log of protobuf records; read are the history rows, the run's name and its start. The
columns are as W&B has them: `_step`, `_timestamp` (unix seconds), `_runtime` (seconds), nested keys joined
with `/`. Several files of one run id (a resumed run) become one run, in the order of their start. Pictures,
tables and histograms are left out, with a note.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.runs.formats.protobuf_wire import WireError, as_bytes, as_int, as_text, fields, varint
from scalerl.runs.formats.series_rows import left_out
from scalerl.runs.formats.wandb_log import MAGIC, WandbLog
from scalerl.runs.rows import RowCollector
from scalerl.runs.table import Table, count

_HISTORY, _RUN = 2, 17  # field numbers in Record
_VALUE_JSON = b"\x82\x01"  # the tag of HistoryItem.value_json (field 16)
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BATCH = 5_000
Row = dict[str, Any]


def matches(path: Path, head: bytes) -> bool:
    """A `.wandb` file by its magic; a directory by `.wandb` files where W&B puts them."""
    return next(_files(path), None) is not None if path.is_dir() else head.startswith(MAGIC)


def read(path: Path) -> Table:
    """The history of every run below `path`; `text["run"]` names it (with its id if not unique).

    Raises:
        InputError: not a W&B log, or no history row.
    """
    files = [_RunFile.read(file) for file in (sorted(_files(path)) if path.is_dir() else [path])]
    if not files:
        raise InputError(f"{path}: no .wandb file here or in run directories below; point to the wandb/ directory")
    by_id: dict[str, list[_RunFile]] = {}
    for file in sorted(files, key=lambda f: (f.start, f.path.as_posix())):
        by_id.setdefault(file.run_id, []).append(file)
    notes = [note for file in files for note in file.notes]
    labels = _labels(by_id)
    skipped: dict[str, None] = {}
    collector, runs = RowCollector(), list[str]()
    for run_id, parts in by_id.items():
        if len(parts) > 1:
            notes.append(f"Run {labels[run_id]} was resumed: {len(parts)} files joined in the order of their start.")
        rows = [row for part in parts for row in part.rows]
        for batch in range(0, len(rows), _BATCH):
            collector.add(rows[batch : batch + _BATCH])
        runs += [labels[run_id]] * len(rows)
        skipped |= dict.fromkeys(name for part in parts for name in part.skipped)
    if not runs:
        why = f" ({' '.join(notes)})" if notes else ""
        raise InputError(f"{path}: the W&B log holds no history row{why}; log values with wandb.log")
    if skipped:
        notes.append(left_out([name for name in skipped if name.rpartition("/")[0] not in skipped]))
    table = collector.table("W&B offline", notes)
    table.text["run"] = runs
    return table


def scalars(items: Iterable[tuple[str, Any]], skipped: dict[str, None], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(flat key, number or text) of a history row; media (`_type`), lists and nulls are no values."""
    for key, value in items:
        name = prefix + key
        if isinstance(value, dict):
            if "_type" in value:
                skipped[name] = None
            else:
                yield from scalars(value.items(), skipped, name + "/")
        elif isinstance(value, str):
            yield name, _WORDS.get(value, value)
        elif isinstance(value, list):
            skipped[name] = None
        elif value is not None:
            yield name, value


def _files(root: Path) -> Iterator[Path]:
    """`.wandb` files in a run directory, in `wandb/`, or in the directory that holds `wandb/`."""
    for pattern in ("*.wandb", "*/*.wandb", "wandb/*/*.wandb"):
        found = False
        for file in root.glob(pattern):
            if file.is_file() and not (file.parent != root and file.parent.is_symlink()):  # `latest-run`
                found = True
                yield file
        if found:
            return


def _labels(by_id: dict[str, list[_RunFile]]) -> dict[str, str]:
    names = {run_id: next((p.name for p in reversed(parts) if p.name), run_id) for run_id, parts in by_id.items()}
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {run_id: f"{name} ({run_id})" if name in twice else name for run_id, name in names.items()}


@dataclass
class _RunFile:
    """One `.wandb` file, decoded."""

    path: Path
    run_id: str = ""
    name: str = ""
    start: float = math.inf
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _keys: dict[bytes, str] = field(default_factory=dict)
    _media: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> _RunFile:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror or error}); check the path and its rights"
            ) from None
        file = cls(path, run_id=path.stem.removeprefix("run-"))
        if data and not data.startswith(MAGIC):
            raise InputError(f"{path}: does not start like a .wandb file; it is damaged or of another kind")
        log = WandbLog(data)
        broken = 0
        for record in log.records():
            try:
                file._record(record)
            except (WireError, ValueError, OverflowError):
                broken += 1
        if math.isinf(file.start):
            file.start = next((float(r["_timestamp"]) for r in file.rows if _is_number(r.get("_timestamp"))), math.inf)
        file.notes += log.notes(path.name, len(file.rows))
        if broken:
            file.notes.append(f"{path.name}: {count(broken, 'record')} that cannot be decoded left out.")
        return file

    def _record(self, record: bytes) -> None:
        for number, value in fields(record):
            if number == _HISTORY:
                self._history(as_bytes(value))
            elif number == _RUN:
                self._run(as_bytes(value))

    def _run(self, message: bytes) -> None:
        for number, value in fields(message):
            if number == 1:
                self.run_id = as_text(value) or self.run_id
            elif number == 8:
                self.name = as_text(value)
            elif number == 17:
                self.start = min(self.start, _timestamp(as_bytes(value)))

    def _history(self, message: bytes) -> None:
        row: Row = {}
        step = None
        for number, value in fields(message):
            if number == 1:
                key, item = self._item(as_bytes(value))
                if type(item) is float:
                    row[key] = item
                else:
                    row.update(scalars([(key, item)], self.skipped))
            elif number == 2:
                step = next((as_int(v) for n, v in fields(as_bytes(value)) if n == 1), 0)
        if step is not None:
            row.setdefault("_step", step)
        if self._media:  # `x/_type` marks the parts of a picture or histogram `x`
            for key in [key for key in row if key.rpartition("/")[0] in self._media]:
                del row[key]
        if row:
            self.rows.append(row)

    def _item(self, item: bytes) -> tuple[str, Any]:
        """(key, value) of a HistoryItem. Rows repeat their keys: those bytes are decoded once."""
        at = item.find(_VALUE_JSON)
        if at >= 0:
            size, start = varint(item, at + 2)
            if start + size == len(item):
                prefix = item[:at]
                if prefix not in self._keys:
                    self._keys[prefix] = key = _key(prefix)
                    if key.endswith("/_type"):
                        self._media.add(key.removesuffix("/_type"))
                        self.skipped[key.removesuffix("/_type")] = None
                return self._keys[prefix], _value(item[start:])
        value = next((as_bytes(v) for n, v in fields(item) if n == 16), b"null")
        return _key(item), _value(value)


def _key(item: bytes) -> str:
    parts = [(number, as_text(value)) for number, value in fields(item) if number in (1, 2)]
    return "/".join([text for number, text in parts if number == 2] or [text for _, text in parts])


def _value(text: bytes) -> Any:
    """JSON in W&B's dialect: bare NaN and Infinity occur."""
    try:
        return float(text)  # most values; Python's float knows NaN and Infinity
    except ValueError:
        return json.loads(text)


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _timestamp(message: bytes) -> float:
    parts = {number: as_int(value) for number, value in fields(message) if number in (1, 2)}
    return parts.get(1, 0) + parts.get(2, 0) / 1e9
