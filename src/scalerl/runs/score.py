"""Chooses the score of a log and the trials behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.runs import aliases, selection
from scalerl.runs.table import FloatArray, Table, count, written_nan

Unknown = Callable[[str, str], InputError]


def choose_score(
    table: Table, y: str | Sequence[str] | None, path: str, notes: list[str], unknown: Unknown
) -> tuple[str, FloatArray]:
    """Name and (rows,) values of the score.

    Raises:
        InputError: a name is unknown, or nothing looks like a score and several columns could be.
    """
    if y is not None:
        return _given(table, [y] if isinstance(y, str) else list(y), notes, unknown)
    candidates = aliases.score_candidates(table.columns)
    if not candidates:
        candidates = _only_bounded(table, path)
    if table.format.startswith("scalerl") and "pass_rate" in candidates:
        candidates.sort(key=lambda name: name != "pass_rate")  # the key of our own evaluations: nothing to guess
    name = candidates[0]
    others = f"; also: {selection.shortlist(candidates[1:], 4)}" if len(candidates) > 1 else ""
    notes.append(f"y = {name!r} (guessed; --y overrides{others}).")
    return _with_rename(table, name, candidates[1:], notes)


def choose_trials(
    table: Table,
    trials: float | str | None,
    score: str,
    rows: NDArray[np.intp],
    path: str,
    notes: list[str],
    unknown: Unknown,
) -> FloatArray | None:
    """(n,) trials behind each score, or None if unknown.

    Raises:
        InputError: the column is unknown or holds values that are not above 0.
    """
    if isinstance(trials, str):
        try:
            trials = float(trials)
        except ValueError:
            name = selection.resolve(str(trials), list(table.columns))
            if name is None:
                raise unknown(str(trials), "trials") from None
            values = table.columns[name][rows]
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise InputError(
                    f"{path}: trials column {name!r} has empty cells or values not above 0; give one number"
                ) from None
            return values
    if trials is not None:
        if not (np.isfinite(trials) and trials > 0):
            raise InputError(f"{path}: --trials must be above 0, not {trials:g}; leave it out if unknown")
        return np.full(rows.size, float(trials))
    guess = aliases.trials_column(score, table.columns)
    if guess is None:
        return None
    values = table.columns[guess][rows]
    if not (np.isfinite(values).all() and (values >= 1).all()):
        return None
    notes.append(f"Trials behind each score from {guess!r} (guessed; --trials overrides).")
    return values


def _given(table: Table, names: list[str], notes: list[str], unknown: Unknown) -> tuple[str, FloatArray]:
    columns = list(table.columns)
    if len(names) == 1 and selection.resolve(names[0], columns) is None and "," in names[0]:
        names = [n.strip() for n in names[0].split(",")]
    found = []
    for name in names:
        column = selection.resolve(name, columns)
        if column is None:
            raise unknown(name, "y")
        if column != name:
            notes.append(f"--y {name!r} taken as {column!r}.")
        found.append(column)
    if not found:
        raise unknown("", "y")
    score = table.columns[found[0]].copy()
    for other in found[1:]:
        score = _joined(score, table.columns[other])
    if len(found) > 1:
        notes.append(f"y joined from {', '.join(map(repr, found))}; where several stand in a row the first counts.")
    else:
        heirs = [n for n in aliases.score_candidates(table.columns) if _continues(table, found[0], n)]
        if heirs:
            notes.append(
                f"{found[0]!r} and {heirs[0]!r} follow each other; if it was renamed, give --y '{found[0]},{heirs[0]}'."
            )
    return found[0], score


def _only_bounded(table: Table, path: str) -> list[str]:
    """The one column left that could be a score, in a table whose names tell nothing."""
    axes = set(aliases.axis_candidates(table.columns))
    left = [n for n, c in table.columns.items() if n not in axes and np.isfinite(c).any() and not aliases.ruled_out(n)]
    empty = [n for n in (*table.columns, *table.text) if aliases.score_rank(n) is not None]
    if empty:
        raise InputError(
            f"{path}: {empty[0]!r} holds no number; choose another column with --y, or wait for the first evaluation"
        )
    inside = [n for n in left if np.nanmin(table.columns[n]) >= 0 and np.nanmax(table.columns[n]) <= 1]
    if len(inside) == 1:
        return inside
    if len(left) == 1:
        return left
    listed = inside or left or [n for n in table.columns if n not in axes] or list(table.columns)
    raise InputError(f"{path}: no column is known as a score; choose one with --y: {selection.shortlist(listed)}")


def _with_rename(table: Table, name: str, others: list[str], notes: list[str]) -> tuple[str, FloatArray]:
    """Join a metric that goes on under another name of the same kind."""
    score = table.columns[name]
    kind = (aliases.is_held_out(name), aliases.is_rate(name))
    for other in others:
        alike = aliases.is_rate(other) == kind[1] or aliases.share_a_word(name, other)
        if aliases.is_held_out(other) == kind[0] and alike and _continues(table, name, other):
            first, second = sorted((name, other), key=lambda n: int(np.flatnonzero(~np.isnan(table.columns[n]))[0]))
            ends, begins = (table.columns[n][np.isfinite(table.columns[n])] for n in (first, second))
            if abs(ends[-3:].mean() - begins[:3].mean()) > 0.2:
                notes.append(f"{first!r} ends where {second!r} begins, but the values jump: not joined.")
                continue
            notes.append(
                f"{first!r} goes on as {second!r}: joined, as the metric seems renamed mid-run (--y overrides)."
            )
            return name, _joined(score, table.columns[other])
    return name, score


def missing_tail(score: FloatArray, name: str, notes: list[str]) -> int:
    """How many NaNs the log writes after the last number; none if it writes as many between numbers as a matter of
    course, as where training rows hold NaN for the evaluation.

    Args:
        score: (rows,) in the order of training.
    """
    written = np.cumsum(written_nan(score))
    known = np.flatnonzero(np.isfinite(score))
    if known.size == 0:
        return 0
    tail = int(written[-1] - written[known[-1]])
    if tail <= np.diff(written[known]).max(initial=0):
        return 0
    notes.append(f"The log ends in {count(tail, 'row')} where {name!r} is NaN.")
    return tail


def _joined(score: FloatArray, other: FloatArray) -> FloatArray:
    """The first where it has a value, else the other; a NaN that was written outlasts a value that is missing."""
    return np.where(np.isnan(score) & ~(written_nan(score) & np.isnan(other)), other, score)


def _continues(table: Table, one: str, other: str) -> bool:
    """Whether the rows of two columns follow each other without overlap, each with at least 3 points."""
    a, b = (np.flatnonzero(np.isfinite(table.columns[n])) for n in (one, other))
    return one != other and min(a.size, b.size) >= 3 and bool(a[-1] < b[0] or b[-1] < a[0])
