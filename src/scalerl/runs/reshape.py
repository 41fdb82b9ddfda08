"""Brings long and wide layouts to one: a row a step, a column a metric, a text column `run` where runs share a file."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from scalerl.runs import aliases
from scalerl.runs.table import FloatArray, Table, TextColumn, count, written_nan

_EXPORT_SUFFIX = re.compile(r"__(?:MIN|MAX)$")
_NUMBERED = re.compile(r"(?:[A-Za-z_.\-/]*[_\-/= ]?)?(\d{1,12})(?:\s*/\s*\d+)?")
_SPLIT_WORDS = frozenset(
    {"train", "training", "eval", "evaluation", "val", "valid", "validation", "test", "event", "dev", "rollout"}
)


def reshape(table: Table) -> Table:
    """All reshapings, each of which leaves a table alone that has not its layout."""
    axis = table.axis
    for step in (numbered, wandb_export, tidy_metrics, splits, tasks, device_hours, column_a_run):
        table = step(table)
    table.axis = axis
    return table


def numbered(table: Table) -> Table:
    """Steps within text, as `checkpoint-100` or `7/100`, become numbers."""
    for name in aliases.find(table.text, aliases.STEPS):
        cells = list(table.text[name])
        found = {cell: _NUMBERED.fullmatch(cell.strip()) for cell in set(cells) if cell.strip()}
        if name in table.columns or not found or not all(found.values()):
            continue
        numbers = {cell: float(match[1]) for cell, match in found.items() if match}
        values = np.array([numbers.get(cell, np.nan) for cell in cells])
        text = {n: c for n, c in table.text.items() if n != name}
        notes = [*table.notes, f"{name!r} holds texts such as {cells[-1][:40]!r}: its numbers were taken."]
        table = Table({**table.columns, name: values}, text, notes, table.format)
    return table


def wandb_export(table: Table) -> Table:
    """W&B's CSV export: `Step`, `run - metric`, `run - metric__MIN`, `run - metric__MAX` -> rows with a `run`."""
    drop = {n for n in table.columns if _EXPORT_SUFFIX.search(n) and _EXPORT_SUFFIX.sub("", n) in table.columns}
    headings = [n for n in table.columns if " - " in n and n not in drop]
    shared = [n for n in table.columns if " - " not in n and n not in drop]
    runs: dict[str, dict[str, FloatArray]] = {}
    for name in headings:
        run, metric = name.rsplit(" - ", 1)
        runs.setdefault(run.strip(), {})[metric.strip()] = table.columns[name]
    if not headings or len(shared) > 3 or not (drop or aliases.axis_candidates(shared)):
        return table
    metrics = list(dict.fromkeys(m for run in runs.values() for m in run))
    parts: list[tuple[str, np.ndarray]] = []
    for run, series in runs.items():
        parts.append((run, np.flatnonzero(_is_logged(np.array(list(series.values()))).all(axis=0))))
    columns = {n: np.concatenate([table.columns[n][rows] for _, rows in parts]) for n in shared}
    for metric in metrics:
        empty = np.full(table.rows, np.nan)
        columns[metric] = np.concatenate([runs[run].get(metric, empty)[rows] for run, rows in parts])
    text: dict[str, TextColumn] = {"run": [run for run, rows in parts for _ in rows]}
    notes = [
        *table.notes,
        f"W&B export: {count(len(runs), 'run')} with {', '.join(metrics[:5])}; __MIN and __MAX columns left out.",
    ]
    return Table(columns, text, notes, "W&B export")


def tidy_metrics(table: Table) -> Table:
    """A row a value (`step`, `metric`, `value`) -> a column a metric."""
    values = aliases.find(table.columns, ("value", "metric_value"))
    names = aliases.find(table.text, aliases.METRIC_COLUMNS)
    if not values or not names or aliases.canonical(names[0]) == aliases.canonical(values[0]):
        return table
    value, labels = table.columns[values[0]], table.text[names[0]]
    found = list(dict.fromkeys(label for label in labels if label))
    if not found or len(found) > 2000:
        return table
    columns = {n: c for n, c in table.columns.items() if n != values[0]}
    where = {label: i for i, label in enumerate(found)}
    code = np.array([where.get(label, -1) for label in labels])
    for i, label in enumerate(found):
        if label not in columns:
            columns[label] = np.where(code == i, value, np.nan)
    text = {n: c for n, c in table.text.items() if n != names[0]}
    notes = [*table.notes, f"A row a value: {names[0]!r} holds {count(len(found), 'metric')}, each now a column."]
    return Table(columns, text, notes, table.format)


def splits(table: Table) -> Table:
    """A text column with train and eval: metrics that stand in both kinds of rows become `train/x` and `eval/x`."""
    for name in aliases.find(table.text, aliases.SPLIT_COLUMNS):
        words = {word: word.strip().lower() for word in set(table.text[name])}
        labels = np.array(list(map(words.__getitem__, table.text[name])), dtype=object)
        kinds = [k for k in dict.fromkeys(labels) if k]
        if len(kinds) < 2 or not set(kinds) <= _SPLIT_WORDS:
            continue
        axes = set(aliases.axis_candidates(table.columns)) | {n for n in table.columns if n.startswith("compute/")}
        columns: dict[str, FloatArray] = {}
        parted = []
        for metric, column in table.columns.items():
            known = ~np.isnan(column)
            within = [k for k in kinds if (known & (labels == k)).any()]
            if metric in axes or len(within) < 2:
                columns[metric] = column
                continue
            parted.append(metric)
            for kind in within:
                columns[f"{kind}/{metric}"] = np.where(labels == kind, column, np.nan)
        if parted:
            text = f"{name!r} parts {', '.join(parted[:5])} into {', '.join(f'{k}/...' for k in kinds)}."
            return Table(columns, table.text, [*table.notes, text], table.format)
    return table


def tasks(table: Table) -> Table:
    """Our own evaluations of several tasks: `pass_rate` and `trials` -> `eval/TASK/pass_rate`, `eval/TASK/trials`."""
    rate = next((n for n in ("pass_rate", "eval/pass_rate") if n in table.columns), None)
    name = next(iter(aliases.find(table.text, aliases.TASK_COLUMNS)), None)
    if rate is None or name is None:
        return table
    known = ~np.isnan(table.columns[rate])
    labels = np.array(table.text[name], dtype=object)
    found = [t for t in dict.fromkeys(labels[known]) if t]
    if len(found) < 2:
        return table
    columns = dict(table.columns)
    for metric in (rate, rate.replace("pass_rate", "trials")):
        if metric in columns:
            whole = columns.pop(metric)
            for task in found:
                columns[f"eval/{task}/{metric.rpartition('/')[2]}"] = np.where(labels == task, whole, np.nan)
    return Table(
        columns,
        table.text,
        [*table.notes, f"Evaluations of {count(len(found), 'task')}: {', '.join(found[:5])}."],
        table.format,
    )


def device_hours(table: Table) -> Table:
    """Our ledger counts device hours by role; the compute of the run is their sum."""
    roles = [n for n in table.columns if n.startswith("compute/device_hours/")]
    if not roles or "compute/device_hours" in table.columns:
        return table
    parts = np.array([table.columns[n] for n in roles])
    total = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    return Table({**table.columns, "compute/device_hours": total}, table.text, list(table.notes), table.format)


def column_a_run(table: Table) -> Table:
    """A wide table of scores, a column a run under the run's own name -> rows with a `run` and a `score`.

    Taken as such if no column has a name known for anything but the axis, and all others hold fractions or percents.
    """
    known_axes = set(aliases.axis_candidates(table.columns))
    axes = [n for n in table.columns if n in known_axes]
    runs = [n for n, c in table.columns.items() if n not in known_axes and np.isfinite(c).any()]
    known = aliases.score_candidates(table.columns) or any(map(aliases.ruled_out, runs))
    if not axes or len(runs) < 2 or table.text or known:
        return table
    scores = np.stack([table.columns[n] for n in runs])
    low, high = float(np.nanmin(scores)), float(np.nanmax(scores))
    if low < 0 or high > 100:
        return table
    run_of, row = np.nonzero(_is_logged(scores))
    columns = {n: table.columns[n][row] for n in axes}
    columns["score"] = scores[run_of, row]
    text: dict[str, TextColumn] = {"run": [runs[i] for i in run_of]}
    notes = [*table.notes, f"Wide table: {count(len(runs), 'column')} taken as runs: {', '.join(runs[:5])}."]
    return Table(columns, text, notes, table.format)


def _is_logged(values: FloatArray) -> NDArray[np.bool_]:
    """Where a number stands, or a NaN that the log itself writes."""
    return ~np.isnan(values) | written_nan(values)
