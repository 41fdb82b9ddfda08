"""Puts rows into the order of training and the score between 0 and 1. Every action is a note with counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.runs import aliases
from scalerl.runs.table import FloatArray, count

Scale = str | float | tuple[float, float] | None
# A reward of -1 or 1 is negative now and then; one of 0 or 1 only dips below 0, by a penalty here or there.
_SURELY_NEGATIVE, _BELOW_ZERO, _SHARE_BELOW = -0.2, -0.05, 0.05
_SHUFFLED = 3  # rows between two steps back, on average: with fewer the rows are unsorted, not restarted


@dataclass(frozen=True)
class Order:
    """Rows that survive, in the order of training.

    Args:
        index: (kept,) positions of rows in the file.
        seam: (kept,) true where the row before was written by a process that a restart replaced.
        cuts: steps at which restarts took over.
    """

    index: NDArray[np.intp]
    seam: NDArray[np.bool_]
    cuts: tuple[float, ...]


def forward_fill(values: FloatArray) -> FloatArray:
    """The last known value at each row; rows before the first known one take it."""
    known = np.flatnonzero(~np.isnan(values))
    if known.size == 0:
        return values
    last = np.searchsorted(known, np.arange(values.size), side="right") - 1
    return np.asarray(values[known[np.maximum(last, 0)]], dtype=np.float64)


def unroll_epochs(step: FloatArray, epoch: FloatArray | None, notes: list[str]) -> FloatArray:
    """A step that counts from the start in every epoch becomes one that counts through."""
    rows = np.flatnonzero(~np.isnan(step))
    falls = np.flatnonzero(np.diff(step[rows]) < 0)
    if epoch is None or falls.size == 0:
        return step
    epochs = forward_fill(epoch)[rows]
    rises = np.diff(epochs)
    if (rises < 0).any() or not (rises[falls] > 0).all() or np.count_nonzero(rises > 0) > falls.size:
        return step
    first = step[rows].min()
    span = step[rows][falls] + (1 - first if first <= 1 else 0)
    offset = np.zeros(rows.size)
    offset[falls + 1] = span
    result = step.copy()
    result[rows] = step[rows] + np.cumsum(offset)
    notes.append(f"The step starts again in each of {falls.size + 1:,} epochs; it was counted through.")
    return result


def order_rows(step: FloatArray, series: Sequence[FloatArray], score: FloatArray, name: str, notes: list[str]) -> Order:
    """Resolve restarts (the later run wins) and sort.

    A restart shows as a step back in one *kind* of row, so it is looked for within each of `series`: an evaluation that
    is logged late, beside training rows that have gone on, is none.

    Args:
        step: (rows,) training step, NaN where a row has none.
        series: columns whose rows are each checked for steps back.
        score: (rows,) to count what is lost, and to tell exact repeats.
        name: of the step column, for notes.
    """
    known = ~np.isnan(step)
    cuts: list[tuple[int, float]] = []
    for column in series:
        rows = np.flatnonzero(known & ~np.isnan(column))
        cuts += [(int(rows[i]), float(step[rows[i]])) for i in _restarts(step[rows])]
    filled = forward_fill(step)
    keep = np.ones(step.size, dtype=np.bool_)
    if cuts:
        limit = np.full(step.size + 1, np.inf)
        for row, value in cuts:
            limit[row] = min(limit[row], value)
        limit = np.minimum.accumulate(limit[::-1])[::-1][1:]
        keep = filled < limit
        _note_restart(cuts, keep, filled, score, name, notes)
    index = np.flatnonzero(keep)
    in_order = filled[index]
    if (np.diff(in_order) < 0).any():
        rows_of_score = np.flatnonzero(keep & ~np.isnan(score) & known)
        if (falls := int(np.count_nonzero(np.diff(step[rows_of_score]) < 0))) > 0:
            newest = falls == rows_of_score.size - 1
            notes.append(f"Rows were not in order of {name}{' (newest first)' if newest else ''}; they were sorted.")
        index = index[np.argsort(in_order, kind="stable")]
    seam = np.zeros(index.size, dtype=np.bool_)
    if cuts:
        seam[1:] = np.diff(index) != 1
    return Order(index, seam, tuple(sorted({value for _, value in cuts})))


def _restarts(step: FloatArray) -> list[int]:
    """Positions at which a restarted process takes over."""
    falls = np.flatnonzero(np.diff(step) < 0)
    if falls.size == 0 or step.size < _SHUFFLED * (falls.size + 1):
        return []
    if falls.size > 200:
        return [int(i) + 1 for i in falls]
    found = []
    for at, end in zip(falls + 1, [*(falls[1:] + 1), step.size], strict=True):
        part, before = step[at:end], step[:at]
        redone = before[before >= part[0]]
        repeats = bool(np.isin(part, redone).any())
        interleaves = part.size >= 3 and redone.size >= 2 and bool(part.max() > redone.min())
        if repeats or interleaves:
            found.append(int(at))
    return found


def _note_restart(
    cuts: list[tuple[int, float]],
    keep: NDArray[np.bool_],
    step: FloatArray,
    score: FloatArray,
    name: str,
    notes: list[str],
) -> None:
    scored = ~np.isnan(score)
    lost = np.flatnonzero(~keep & scored)
    what = "row"
    if lost.size == 0:
        lost, what = np.flatnonzero(~keep), "row without the score"
    left = np.flatnonzero(keep & scored)
    again = dict(zip(step[left], score[left], strict=True))
    if lost.size and all(again.get(step[i]) == score[i] for i in lost):
        notes.append(f"{count(lost.size, 'row')} repeated exactly (a block that stands twice): counted once.")
        return
    by_row: dict[int, float] = {}
    for row, value in sorted(cuts):  # the score's own step back follows the first rows of the same restart
        if not by_row or value < max(step[max(by_row) : row], default=np.inf) or not keep[max(by_row)]:
            by_row[row] = value
    steps = sorted(set(by_row.values()))
    at = f"a restart at {name} {steps[0]:g}"
    if len(steps) > 1:
        at = (
            f"{len(steps)} restarts at {name} "
            + ", ".join(f"{s:g}" for s in steps[:5])
            + (", ..." if len(steps) > 5 else "")
        )
    notes.append(f"{count(lost.size, what, what.replace('row', 'rows', 1))} repeated by {at}: the later run wins.")
    if left.size and lost.size and step[lost].max() > step[left].max():
        notes.append(
            f"The run before the restart had reached {name} {step[lost].max():g}, "
            f"the later one only {step[left].max():g}; if these are two runs, split the file."
        )


def merge_equal(
    x: FloatArray, y: FloatArray, trials: FloatArray | None, notes: list[str]
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Average the rows that share a step; rows that say exactly the same are one measurement, not several."""
    unique, inverse, sizes = np.unique(x, return_inverse=True, return_counts=True)
    surplus = x.size - unique.size
    if surplus == 0:
        return x, y, trials
    weight = np.ones_like(y) if trials is None else trials
    total = np.bincount(inverse, weights=weight)
    mean = np.bincount(inverse, weights=weight * y) / total
    low, high = np.full(unique.size, np.inf), np.full(unique.size, -np.inf)
    np.minimum.at(low, inverse, y)
    np.maximum.at(high, inverse, y)
    same = low == high
    mean = np.where(same, low, mean)
    if same.all():
        notes.append(f"{count(surplus, 'row')} repeated exactly: counted once.")
    else:
        notes.append(
            f"Up to {sizes.max()} rows a step (micro-batches, ranks or prompts): "
            f"{x.size:,} rows averaged to {unique.size:,} points."
        )
    return unique, mean, None if trials is None else np.where(same, total / sizes, total)


def to_fraction(y: FloatArray, name: str, scale: Scale, path: str, notes: list[str]) -> FloatArray:
    """The score between 0 and 1.

    Args:
        y: (n,) finite values.
        scale: None decides by name and range; a number divides; "percent"; "signed" for a reward of -1 or 1;
            (low, high) or "low:high" maps that range to [0, 1]; "none" leaves the values alone.

    Raises:
        InputError: the values are no pass rate, and no scale was given.
    """
    if y.size == 0:
        return y
    if scale is not None:
        return _given_scale(y, name, scale, path, notes)
    low, high = float(y.min()), float(y.max())
    if low >= 0 and high <= 1 + 1e-6:
        if "percent" in aliases.canonical(name) or name.rstrip().endswith("%"):
            notes.append(f"{name!r} is called a percentage, but no value is above 1: read as a fraction.")
        return np.minimum(y, 1.0)
    if aliases.looks_percent(name, y):
        _refuse_mixed(y, name, path)
        notes.append(f"{name!r} runs up to {high:g}: read as percent and divided by 100.")
        return y / 100
    if low < 0 and low >= -1 - 1e-6 and high <= 1 + 1e-6:
        if aliases.is_rate(name) and "reward" not in name.lower():
            raise InputError(
                f"{path}: {name!r} falls to {low:g}, and a pass rate cannot be negative; "
                "choose another --y or give --scale"
            )
        if low >= _SURELY_NEGATIVE and np.mean(y < _BELOW_ZERO) < _SHARE_BELOW:
            notes.append(
                f"{name!r} falls to {low:.3g}, too little and too rarely for a reward of -1 or 1: kept as it is; "
                "--scale signed reads it as one."
            )
            return np.minimum(y, 1.0)
        notes.append(
            f"{name!r} lies between {low:.3g} and {high:.3g}: read as a reward of -1 or 1, "
            "so the pass rate is (reward + 1) / 2; --scale none keeps it as it is."
        )
        return np.clip((y + 1) / 2, 0.0, 1.0)
    percent = " (--scale percent if these are percents)" if low >= 0 and 2 < high <= 100 else ""
    span = f"from {low:.4g} to {high:.4g}"
    raise InputError(
        f"{path}: {name!r} runs {span}, so it is a shaped reward and not a pass rate; choose a pass rate with --y, "
        f"or give its range with --scale {min(low, 0.0):.2g}:{_round_up(high):g}{percent}"
    )


def _round_up(value: float) -> float:
    size = 10.0 ** np.floor(np.log10(value)) if 0 < value < 1e300 else 1.0
    return float(np.ceil(value / size) * size)


def _refuse_mixed(y: FloatArray, name: str, path: str) -> None:
    """A column that changes from fractions to percent on the way cannot be read either way."""
    below = (y > 0) & (y <= 1)
    jump = np.flatnonzero(
        below[:-1] & (y[1:] > 20 * np.maximum(y[:-1], 0.05)) | below[1:] & (y[:-1] > 20 * np.maximum(y[1:], 0.05))
    )
    if below.sum() >= 2 and (y > 1.5).sum() >= 2 and jump.size:
        i = int(jump[0])
        raise InputError(
            f"{path}: {name!r} jumps from {y[i]:g} to {y[i + 1]:g}, "
            "so it mixes fractions and percent; bring it to one scale first"
        )


def _given_scale(y: FloatArray, name: str, scale: Scale, path: str, notes: list[str]) -> FloatArray:
    low, high = _range_of(scale, path)
    if np.isnan(low):
        return y
    result = (y - low) / (high - low)
    outside = np.count_nonzero((result < -1e-9) | (result > 1 + 1e-9))
    if outside:
        worst = y[np.argmax(np.abs(result - 0.5))]
        raise InputError(
            f"{path}: {name!r} holds {worst:g}, outside the range {low:g}:{high:g} of --scale; widen the range"
        )
    notes.append(f"{name!r} scaled from {low:g}:{high:g} to 0:1, as told.")
    return np.clip(result, 0.0, 1.0)


def _range_of(scale: Scale, path: str) -> tuple[float, float]:
    if isinstance(scale, str):
        known = {"percent": (0.0, 100.0), "signed": (-1.0, 1.0), "none": (np.nan, np.nan), "fraction": (0.0, 1.0)}
        word = scale.strip().lower()
        if word in known:
            return known[word]
        numbers = re.split(r":", word)
        try:
            parts = [float(n) for n in numbers]
        except ValueError:
            parts = []
        scale = (parts[0], parts[1]) if len(parts) == 2 else parts[0] if len(parts) == 1 else (0.0, 0.0)
    low, high = scale if isinstance(scale, tuple) else (0.0, float(scale or 0.0))
    if not (np.isfinite(low) and np.isfinite(high) and high > low):
        raise InputError(f"{path}: --scale must be percent, signed, none, a divisor above 0, or LOW:HIGH such as 0:1.5")
    return low, high
