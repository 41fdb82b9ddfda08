"""Which rows are of which run, and which column is meant by a name that a user typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.runs import aliases
from scalerl.runs.table import Table, count

Labels = NDArray[np.object_]


def shortlist(names: Iterable[str], most: int = 8) -> str:
    """`a, b, c and 12 more`, for messages of one line."""
    listed = [_plain(n) for n in names]
    while most > 1 and sum(map(len, listed[:most])) > 600:
        most -= 1
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'x' or 'y'?`, or nothing."""
    listed = list(names)
    by_low = {n.lower(): n for n in listed}
    close = [by_low[n] for n in difflib.get_close_matches(name.lower(), list(by_low), 3, 0.6)]
    close += [n for n in listed if name and n not in close and name.lower() in n.lower()][: 3 - len(close)]
    return f"; did you mean {' or '.join(repr(_plain(n)) for n in close)}?" if close else ""


def resolve(name: str, names: Sequence[str]) -> str | None:
    """The column meant: the same name, or the only one that differs in case or blanks, or ends with `/name`."""
    if name in names:
        return name
    same = [n for n in names if aliases.canonical(n) == aliases.canonical(name)]
    ends = [n for n in names if n.endswith("/" + name)]
    for found in (same, ends):
        if len(found) == 1:
            return found[0]
    return None


def run_labels(table: Table, run_column: str | None, path: str) -> Labels | None:
    """(rows,) the run of each row, or None if the log holds a single run.

    Raises:
        InputError: `run_column` is no column.
    """
    if run_column is not None:
        found = resolve(run_column, [*table.text, *table.columns])
        if found is None:
            options = [*table.text, *table.columns]
            hint = nearest(run_column, options) or "; columns: " + shortlist(options)
            raise InputError(f"{path}: no column {run_column!r} for --run-column{hint}")
        return _labels(table, found)
    chosen: Labels | None = None
    for name in aliases.find([*table.text, *table.columns], aliases.RUN_COLUMNS):
        labels = _labels(table, name)
        found_runs = [r for r in dict.fromkeys(labels) if r]
        if not 2 <= len(found_runs) <= max(table.rows // 2, 2) or not _parts(table, chosen, labels):
            continue
        chosen = (
            labels
            if chosen is None
            else np.array(
                [f"{a} / {b}" if a and b else a or b for a, b in zip(chosen, labels, strict=True)], dtype=object
            )
        )
    return chosen


def which_run(labels: Labels, run: str, path: str, notes: list[str]) -> str:
    """The label of the run that is meant.

    Raises:
        InputError: there is no such run; the message lists the runs.
    """
    runs = [r for r in dict.fromkeys(labels) if r]
    found = run if run in runs else None
    if found is None:
        close = [r for r in runs if run.lower() == r.lower()] or [r for r in runs if run and run.lower() in r.lower()]
        if len(close) != 1:
            raise InputError(f"{path}: no run {_plain(run)!r}{nearest(run, runs)}; runs: {shortlist(runs, 20)}")
        found = close[0]
        notes.append(f"Run {run!r} taken as {found!r}.")
    return str(found)


def several_runs(runs: Sequence[str], path: str) -> InputError:
    """The error for a log of several runs when none was chosen."""
    return InputError(f"{path}: holds {count(len(runs), 'run')}; choose one with --run: {shortlist(runs, 20)}")


def _labels(table: Table, name: str) -> Labels:
    if name in table.text:
        return np.array(list(table.text[name]), dtype=object)
    return np.array(["" if np.isnan(v) else f"{v:.12g}" for v in table.columns[name]], dtype=object)


def _parts(table: Table, chosen: Labels | None, labels: Labels) -> bool:
    """Whether these labels part rows that would otherwise share a step, which is what makes them runs."""
    steps = aliases.step_candidates(table.columns)
    if not steps:
        return chosen is None
    step = table.columns[steps[0]]
    if chosen is None:
        shared: dict[float, str] = {}
        return any(r and shared.setdefault(s, r) != r for s, r in zip(step.tolist(), labels, strict=True) if s == s)
    seen: dict[tuple[str, float], str] = {}
    return any(seen.setdefault((c, s), r) != r for c, s, r in zip(chosen, step.tolist(), labels, strict=True) if s == s)


def _plain(name: str) -> str:
    """A name that keeps an error on one line."""
    text = "".join(c if c.isprintable() else "?" for c in name)
    return text if len(text) <= 80 else text[:77] + "..."
