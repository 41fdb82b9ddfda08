"""MLflow's local stores, without MLflow: the file store `mlruns/EXPERIMENT/RUN` and SQLite's `mlflow.db`.

Any level of the file store will do: `mlruns`, an experiment or one run. The columns are `step`, `wall_time`
(unix seconds) and one a metric; `text["run"]` is the run's name. Deleted runs are left out, with a note.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.runs.formats.series_rows import SeriesRows, stack_runs
from scalerl.runs.table import Table, count

_SQLITE = b"SQLite format 3\0"
_LARGEST = 1.7976931348623157e308  # how MLflow writes an infinite value into a database
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)  # the latter when SQLite quotes damaged bytes in its own message
_LEVELS = ("meta.yaml", "*/meta.yaml", "*/*/meta.yaml", "mlruns/*/meta.yaml", "mlruns/*/*/meta.yaml")
Event = tuple[str, int, float, float]  # name, step, unix seconds, value


@dataclass
class _Run:
    run_id: str
    name: str
    start: float
    rows: SeriesRows


def matches(path: Path, head: bytes) -> bool:
    """A directory with MLflow's `meta.yaml` files or an `mlflow.db`; an SQLite file with MLflow's tables."""
    if path.is_dir():
        return next(_metas(path), None) is not None or _database_in(path) is not None
    return head.startswith(_SQLITE) and _has_tables(path)


def read(path: Path) -> Table:
    """All metrics of all runs in `path`.

    Raises:
        InputError: no run with a metric, or a file that cannot be read.
    """
    notes: list[str] = []
    if path.is_dir() and next(_metas(path), None) is not None:
        runs = _file_store(path, notes)
    else:
        runs = _database(path if not path.is_dir() else _database_in(path) or path, notes)
    runs = sorted((run for run in runs if len(run.rows)), key=lambda run: run.start)
    if not runs:
        why = f" ({' '.join(notes)})" if notes else ""
        raise InputError(f"{path}: MLflow holds no run with a metric{why}; log one with mlflow.log_metric")
    names = [run.name for run in runs]
    labels = [f"{run.name} ({run.run_id[:8]})" if names.count(run.name) > 1 else run.name for run in runs]
    columns, text = stack_runs([(label, run.rows.columns()) for label, run in zip(labels, runs, strict=True)])
    return Table(columns=columns, text={"run": text}, notes=notes, format="MLflow")


def _rows(events: list[Event]) -> SeriesRows:
    """Rows from the events of one run; the store keeps metrics apart: time tells what came together."""
    rows = SeriesRows()
    for event in sorted(events, key=lambda event: event[2]):  # stable: what one millisecond saw stays in order
        rows.add(*event)
    return rows


def _seconds(timestamp: float) -> float:
    return timestamp / 1000 if abs(timestamp) > 1e11 else timestamp  # the first versions wrote seconds


# --- the file store ---


def _metas(root: Path) -> Iterator[Path]:
    """The `meta.yaml` files of experiments and runs, whichever level `root` is."""
    for pattern in _LEVELS:
        for file in sorted(root.glob(pattern)):
            if ".trash" not in file.relative_to(root).parts and b"experiment_id" in _content(file):
                yield file


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error}); check its rights") from None


def _file_store(root: Path, notes: list[str]) -> list[_Run]:
    runs, deleted = [], 0
    for meta in _metas(root):
        content = _content(meta)
        if b"run_id" not in content and b"run_uuid" not in content:
            continue  # an experiment's
        settings = _settings(meta, content, notes)
        if settings.get("lifecycle_stage") == "deleted":
            deleted += 1
            continue
        folder = meta.parent
        name = settings.get("run_name") or _content(folder / "tags" / "mlflow.runName").decode(errors="replace")
        events = [event for file in sorted((folder / "metrics").rglob("*")) for event in _metric(file, folder, notes)]
        start = settings.get("start_time")
        start = float(start) if isinstance(start, int | float) else math.inf
        runs.append(_Run(folder.name, str(name or folder.name).strip(), start, _rows(events)))
    if deleted:
        notes.append(f"{count(deleted, 'deleted run')} left out.")
    return runs


def _settings(meta: Path, content: bytes, notes: list[str]) -> dict[str, Any]:
    import yaml

    try:
        settings = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError):
        settings = None
    if isinstance(settings, dict):
        return settings
    notes.append(f"{meta.parent.name}/meta.yaml is damaged; the run goes by the name of its directory.")
    return {}


def _metric(file: Path, folder: Path, notes: list[str]) -> Iterator[Event]:
    """The lines `timestamp value step` of one metric; its name is the path below `metrics/`."""
    if not file.is_file():
        return
    name = file.relative_to(folder / "metrics").as_posix()
    *lines, last = _content(file).split(b"\n")
    broken = 0
    for line in lines:
        cells = line.split()
        if not cells:
            continue
        try:
            step = int(cells[2]) if len(cells) > 2 else 0
            yield name, _within_64_bits(step), _seconds(float(cells[0])), float(cells[1])
        except (ValueError, IndexError):
            broken += 1
    if broken:
        notes.append(f"Metric {name}: {count(broken, 'line')} that cannot be read left out.")
    if last.strip():  # MLflow ends each line, so this one is unfinished and its number may be cut short
        notes.append(f"Metric {name} is cut off: its last, unfinished line ({count(len(last), 'byte')}) left out.")


def _within_64_bits(step: int) -> int:
    if not -(1 << 63) <= step < 1 << 63:
        raise ValueError(step)
    return step


# --- SQLite ---


def _database_in(folder: Path) -> Path | None:
    file = folder / "mlflow.db"
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return file if opened.read(len(_SQLITE)) == _SQLITE else None


def _connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return connection


def _has_tables(file: Path) -> bool:
    try:
        with closing(_connect(file)) as database:
            return {"runs", "metrics"} <= {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    except _DAMAGE:
        return True  # damaged: `read` says how


def _database(file: Path, notes: list[str]) -> list[_Run]:
    try:
        with closing(_connect(file)) as database:
            known = {row[1] for row in database.execute("PRAGMA table_info(runs)")}
            fields = [f if f in known else "NULL" for f in ("run_uuid", "name", "lifecycle_stage", "start_time")]
            found = database.execute(f"SELECT {', '.join(fields)} FROM runs").fetchall()
            deleted = sum(stage == "deleted" for _, _, stage, _ in found)
            if deleted:
                notes.append(f"{count(deleted, 'deleted run')} left out.")
            return [
                _Run(
                    str(run_id),
                    str(name or run_id),
                    float(start) if isinstance(start, int | float) else math.inf,
                    _rows(list(_stored_events(database, run_id, str(name or run_id), notes))),
                )
                for run_id, name, stage, start in found
                if stage != "deleted"
            ]
    except _DAMAGE as error:
        raise InputError(f"{file}: cannot be read as an MLflow database ({error}); check that it is whole") from None


def _stored_events(database: sqlite3.Connection, run_id: object, name: str, notes: list[str]) -> Iterator[Event]:
    known = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
    step, is_nan = ("step" if "step" in known else "0"), ("is_nan" if "is_nan" in known else "0")
    query = f"SELECT key, {step}, timestamp, value, {is_nan} FROM metrics WHERE run_uuid = ? ORDER BY rowid"
    kept = broken = 0
    try:
        for key, at, timestamp, value, nan in database.execute(query, (run_id,)):
            try:
                number = math.nan if nan else float(value)
                event = (str(key), _within_64_bits(int(at)), _seconds(float(timestamp)), number)
            except (TypeError, ValueError, OverflowError):
                broken += 1
                continue
            kept += 1
            yield event if not abs(number) >= _LARGEST else (*event[:3], math.copysign(math.inf, number))
    except _DAMAGE as error:
        notes.append(f"Run {name}: the database is damaged ({error}); {count(kept, 'value')} kept, the rest lost.")
    if broken:
        notes.append(f"Run {name}: {count(broken, 'value')} that cannot be read left out.")
