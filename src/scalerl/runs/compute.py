"""The compute axis: a column, steps x a factor, wall time x devices without the gaps, or durations summed up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.runs import aliases
from scalerl.runs.table import FloatArray, Table, count

GAP = 1800.0  # seconds without a row after which the run was not computing, but waiting for its next allocation


@dataclass(frozen=True)
class Axis:
    """Compute at each row, in the order of training.

    Args:
        values: (rows,) compute, NaN where unknown.
        unit: of `values`.
    """

    values: FloatArray
    unit: str


def column_values(table: Table, name: str) -> FloatArray | None:
    """A column of numbers; a text column of dates comes as seconds since 1970; None if there is no such column."""
    if name in table.columns:
        return table.columns[name]
    if name in table.text:
        return _dates(list(table.text[name]))
    return None


def _dates(cells: list[str]) -> FloatArray | None:
    seconds = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        word = cell.strip().replace(",", ".").replace(" UTC", "+00:00")
        if not word:
            continue
        try:
            seconds[i] = datetime.fromisoformat(word).timestamp()
        except (ValueError, OverflowError, OSError):
            clock = re.fullmatch(r"(?:(\d+) days?,? )?(\d+):(\d\d):(\d\d(?:\.\d*)?)", word)
            if clock:
                days, hours, minutes, rest = clock.groups(default="0")
                seconds[i] = int(days) * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(rest)
    filled = sum(bool(c.strip()) for c in cells)
    return seconds if filled and np.count_nonzero(~np.isnan(seconds)) > 0.8 * filled else None


def is_time(name: str) -> bool:
    """Whether a column measures time, by its name."""
    low = aliases.canonical(name)
    return aliases.unit_of(name) == "second" or bool(
        re.search(r"(?:^|[/_.])(?:time|timing|timing_s|runtime|seconds|secs?|duration)(?:$|[/_.])", low)
    )


def time_candidates(table: Table) -> list[str]:
    """Columns of time, likeliest first."""
    names = [*table.columns, *table.text]
    known = aliases.find(names, aliases.TIMES)
    return [n for n in known if (v := column_values(table, n)) is not None and np.isfinite(v).sum() > 1]


def axis(
    values: FloatArray,
    name: str,
    seam: NDArray[np.bool_],
    step: FloatArray | None,
    path: str,
    notes: list[str],
    devices: float | None = None,
    factor: float | None = None,
) -> Axis:
    """Turn a column into the compute axis.

    Args:
        values: (rows,) the column, rows in the order of training.
        name: of the column.
        seam: (rows,) true where a restart took over.
        step: (rows,) training step, or None if unknown.
        devices: multiplies time; the unit is then gpu-hour.
        factor: multiplies the values.

    Raises:
        InputError: the column goes up and down, is negative, or the factor is unusable.
    """  # fmt: skip
    for given, option in ((devices, "devices"), (factor, "factor")):
        if given is not None and not (np.isfinite(given) and given > 0):
            raise InputError(f"{path}: --{option} must be a number above 0, not {given:g}")
    known = np.flatnonzero(np.isfinite(values))
    result = np.full(values.size, np.nan)
    v = values[known]
    if v.size == 0:
        raise InputError(f"{path}: column {name!r} holds no finite number; choose another --x")
    unit = aliases.unit_of(name)
    timed = is_time(name)
    if timed:
        v = _elapsed(v, name, seam[known], _starts_at_zero(step, known), notes)
        unit = "second"
    elif aliases.canonical(name) in aliases.PER_STEP or (re.search("token|flop", name.lower()) and _is_wavy(v)):
        _refuse_negative(v, name, path)
        notes.append(f"{name!r} is counted anew for each step; it was summed up along the run.")
        v = np.cumsum(v)
    elif (np.diff(v) < 0).any():
        v = _mend_counter(v, name, path, notes)
    result[known] = v
    if devices is not None:
        if not timed:
            raise InputError(
                f"{path}: --devices multiplies time, but {name!r} is no time; give --factor, or a column of time as --x"
            )
        return Axis(result * devices / 3600 * (factor or 1.0), "gpu-hour")
    if factor is not None:
        return Axis(result * factor, f"{unit} x {factor:g}")
    return Axis(result, unit)


def at_rows(
    values: FloatArray, rows: NDArray[np.intp], step: FloatArray | None, name: str, notes: list[str]
) -> FloatArray:
    """Compute at the rows of the score; where the row itself has none it is taken from the rows around it.

    Training rows often carry tokens or time and evaluation rows do not; they share the step.
    """
    here = np.asarray(values[rows], dtype=np.float64)
    missing = np.isnan(here)
    if not missing.any():
        return here
    known = np.flatnonzero(~np.isnan(values))
    if step is None:
        place, support = rows.astype(np.float64), known.astype(np.float64)
        how = "from the row before"
    else:
        place, support = step[rows], step[known]
        how = "by the step"
    usable = missing & ~np.isnan(place)
    sound = ~np.isnan(support)
    support, known = support[sound], known[sound]
    if usable.any() and known.size:
        if step is None:
            before = np.maximum(np.searchsorted(support, place[usable], side="right") - 1, 0)
            here[usable] = values[known[before]]
        else:
            support, first = np.unique(support[::-1], return_index=True)  # the last row of a step holds its final count
            known = known[::-1][first]
            here[usable] = np.interp(place[usable], support, values[known])
            if support[0] > 0:  # before the first known row: in proportion, as compute starts at zero
                early = usable & (place < support[0])
                here[early] = values[known[0]] * np.maximum(place[early], 0) / support[0]
        notes.append(f"{count(int(usable.sum()), 'row')} of the score without {name!r}: taken {how}.")
    return here


def _starts_at_zero(step: FloatArray | None, known: NDArray[np.intp]) -> bool:
    return step is not None and bool(step[known[0]] == 0)


def _elapsed(v: FloatArray, name: str, seam: NDArray[np.bool_], from_zero: bool, notes: list[str]) -> FloatArray:
    """Seconds of computing up to each row, from durations, elapsed times or time stamps."""
    low = aliases.canonical(name)
    if v[0] > 1e8:
        for limit in (1e17, 1e14, 1e11):  # nano-, micro- and milliseconds since 1970
            if v[0] > limit:
                v = v / (limit / 1e8)
                break
    elif (low in aliases.PER_STEP and not _is_rising(v)) or _is_wavy(v) or _is_flat(v):
        notes.append(f"{name!r} holds the time of each step; it was summed up along the run.")
        return np.cumsum(np.maximum(v, 0))
    stamps = bool(v[0] > 1e8)
    ahead = np.diff(v)
    usual = float(np.median(ahead[ahead > 0])) if (ahead > 0).any() else 0.0
    back = ahead < 0
    if back.any():
        ahead = np.where(back, usual if stamps else np.maximum(v[1:], 0), ahead)
        notes.append(f"{name!r} falls back {count(int(back.sum()), 'time')} (restarts): the time was counted on.")
    limit = max(GAP, 3 * usual)
    gap = ahead > limit
    if gap.any():
        hours = float((ahead[gap] - usual).sum()) / 3600
        notes.append(
            f"{count(int(gap.sum()), 'gap')} longer than {limit / 60:.0f} minutes "
            f"left out of {name!r} ({hours:.1f} hours)."
        )
    ahead = np.where(gap | (seam[1:] & stamps), usual, ahead)
    start = (0.0 if from_zero else usual) if stamps else max(float(v[0]), 0.0)
    return start + np.concatenate([[0.0], np.cumsum(ahead)])


def _is_wavy(v: FloatArray) -> bool:
    """Whether values go down so often that they cannot be a running total."""
    falls = int(np.count_nonzero(np.diff(v) < 0))
    return v.size >= 3 and falls > 0.2 * (v.size - 1)


def _is_flat(v: FloatArray) -> bool:
    """Whether values stand still, as durations of equal steps do."""
    return bool(v.size >= 3 and v[0] > 0 and v.max() < 2 * v[0]) and bool(
        np.count_nonzero(np.diff(v) <= 0) > 0.2 * (v.size - 1)
    )


def _is_rising(v: FloatArray) -> bool:
    """Whether values are a running total although their name is that of a duration."""
    return v.size >= 4 and bool((np.diff(v) > 0).all()) and v[-1] > 0.25 * v.size * max(v[0], 1e-12)


def _refuse_negative(v: FloatArray, name: str, path: str) -> None:
    if (v < 0).any():
        raise InputError(f"{path}: {name!r} holds {v.min():g}, and compute cannot be negative; choose another --x")


def _mend_counter(v: FloatArray, name: str, path: str, notes: list[str]) -> FloatArray:
    """A total that starts again after a restart is counted on; one that goes up and down is no compute."""
    ahead = np.diff(v)
    falls = ahead < 0
    again = v[1:][falls] <= 0.5 * v[:-1][falls]
    if not again.all() or _is_wavy(v):
        raise InputError(
            f"{path}: {name!r} goes up and down, so it is no compute axis; choose a step, time or token column as --x"
        )
    notes.append(f"{name!r} starts again {count(int(falls.sum()), 'time')} (restarts): it was counted on.")
    return np.cumsum(np.concatenate([v[:1], np.where(falls, v[1:], ahead)]))
