"""Chooses the compute axis of a log: what was asked for, or the likeliest of the known names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import aliases, compute, selection
from scalerl.runs.table import FloatArray, Table

Unknown = Callable[[str, str], InputError]


def choose_x(
    table: Table, x: str | None, score: FloatArray, devices: float | None, path: str, notes: list[str], unknown: Unknown
) -> str:
    """Name of the column of the compute axis; where none is known, a column `row` is added to the table.

    Raises:
        InputError: `x` is unknown, or `devices` is given and nothing tells the time.
    """
    names = [*table.columns, *table.text]
    if x is not None:
        found = selection.resolve(x, names)
        if found is None or compute.column_values(table, found) is None:
            raise unknown(x, "x")
        return found
    if devices is not None:
        times = compute.time_candidates(table)
        if not times:
            raise InputError(
                f"{path}: --devices needs a column of time and none is known here; name it with --x, or give --factor"
            )
        notes.append(f"x = {times[0]!r} x devices (guessed; --x overrides).")
        return times[0]
    if table.axis is not None and compute.column_values(table, table.axis) is not None:
        notes.append(f"x = {table.axis!r} (the run's own forecast.axis; --x overrides).")
        return table.axis
    return _guess(table, score, notes)


def _guess(table: Table, score: FloatArray, notes: list[str]) -> str:
    """The likeliest column that most rows of the score have, or can take from the rows beside them."""
    scored = np.isfinite(score)
    usable = []
    for name in aliases.axis_candidates([*table.columns, *table.text]):
        values = compute.column_values(table, name)
        if values is None or score is values:
            continue
        known = values[np.isfinite(values)]
        if known.size and (known.size == 1 or known.min() < known.max() or scored.sum() <= 1):
            usable.append((name, int(np.isfinite(values[scored]).sum())))
    if not usable:
        table.columns.setdefault("row", np.arange(1.0, table.rows + 1))
        notes.append("x = number of the row, as no column of steps, tokens or time is known here (--x overrides).")
        return "row"
    most = max(n for _, n in usable)
    enough = [(n, there) for n, there in usable if there >= 0.8 * most]
    name = enough[0][0]
    if name in aliases.step_candidates([name]):  # of the counts of steps, one that the rows of the score have
        steps = [(n, there) for n, there in enough if n in aliases.step_candidates([n]) and n not in aliases.LAST_STEPS]
        fullest = max((there for _, there in steps), default=0)
        name = next((n for n, there in steps if there == fullest), name)
    others = [n for n, _ in usable if n != name]
    notes.append(
        f"x = {name!r} (guessed; --x overrides{'; also: ' + selection.shortlist(others, 4) if others else ''})."
    )
    if aliases.canonical(name) == "_step" or (table.format == "W&B export" and name == "Step"):
        notes.append(
            f"{name!r} is W&B's count of log calls, which need not be the training step; "
            "export with the step as x axis."
        )
    return name
