"""`RunLog`: a log that was read, and the way from it to a `Curve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import aliases, cleaning, compute, selection
from scalerl.runs.axis_choice import choose_x
from scalerl.runs.cleaning import Scale
from scalerl.runs.curve import Curve
from scalerl.runs.detect import read_table
from scalerl.runs.reshape import reshape
from scalerl.runs.score import choose_score, choose_trials, missing_tail
from scalerl.runs.table import FloatArray, Table, count
from scalerl.runs.truncation import Truncation, find_truncation

X = str | None
Y = str | Sequence[str] | None


@dataclass
class RunLog:
    """All series of a log, with where they came from.

    Args:
        path: of the log.
        table: its rows, after layouts were brought to one.
        labels: (rows,) the run of each row, None if there is one run.
    """

    path: str
    table: Table
    labels: selection.Labels | None = field(default=None, repr=False)

    @property
    def columns(self) -> dict[str, FloatArray]:
        """name -> (rows,) float64, NaN where missing, in the row order of the file."""
        return self.table.columns

    @property
    def format(self) -> str:
        """Human name of the format that was found."""
        return self.table.format

    @property
    def notes(self) -> list[str]:
        """What the reader decided or salvaged, one sentence each; `curve` adds its own to the curve."""
        return self.table.notes

    @property
    def runs(self) -> list[str]:
        """Names of the runs in the log; empty if it holds one run without a name."""
        return [] if self.labels is None else [r for r in dict.fromkeys(self.labels) if r]

    def run(self, name: str) -> RunLog:
        """The log of one of several runs.

        Raises:
            InputError: no such run; the message lists them.
        """
        if self.labels is None:
            raise InputError(
                f"{self.path}: holds a single run, so there is no run {name!r}; leave --run out or name --run-column"
            )
        notes = list(self.table.notes)
        found = selection.which_run(self.labels, name, self.path, notes)
        table = self.table.take(self.labels == found)
        table.notes = notes
        labels = self.labels[np.isin(self.labels, [found])]
        return RunLog(self.path, table, labels)

    def is_run(self, y: str) -> bool:
        """Whether a name asked for as a score is a run: a wide table has a column a run."""
        return y in self.runs and y not in self.columns

    def series(self, name: str) -> FloatArray:
        """(rows,) values of a column.

        Raises:
            InputError: no such column; the message names the nearest.
        """
        found = selection.resolve(name, [*self.columns, *self.table.text])
        values = None if found is None else compute.column_values(self.table, found)
        if values is None:
            raise self._unknown(name, "column")
        return values

    def curve(
        self,
        x: X = None,
        y: Y = None,
        devices: float | None = None,
        factor: float | None = None,
        trials: float | str | None = None,
        run: str | None = None,
        unit: str | None = None,
        scale: Scale = None,
    ) -> Curve:
        """The score against compute, cleaned; its `notes` tell what was chosen and done.

        Args:
            x: column of the compute axis; guessed if None.
            y: column of the score, or several that continue each other; guessed if None.
            devices: number of accelerators: compute is then wall time x devices, in GPU-hours.
            factor: compute of one unit of x, such as GPU-hours a step.
            trials: rollouts behind each score, a number or a column.
            run: name of the run if the log holds several.
            unit: name of the unit of compute.
            scale: of the score, see `cleaning.to_fraction`.

        Raises:
            InputError: a name is unknown, several runs are in the log and none is chosen, or the score is no pass rate.
        """
        if run is None and isinstance(y, str) and self.is_run(y):
            run, y = y, None
        log = self._single(run, y)
        if log is not self:
            return log.curve(x, y, devices, factor, trials, None, unit, scale)
        title = self._name()
        if run is not None and y is None and self.labels is None and run in self.columns:
            y = title = run  # a wide table with a column a run
        notes = list(self.notes)
        name, score = choose_score(self.table, y, self.path, notes, self._unknown)
        chosen = choose_x(self.table, x, score, devices, self.path, notes, self._unknown)
        order, step, ordered_by = self._order(chosen, score, notes)
        values = compute.column_values(self.table, chosen)
        assert values is not None  # `_choose_x` gives columns that exist
        steps = step[order.index]
        ax = compute.axis(
            values[order.index] if chosen != ordered_by else steps, chosen, order.seam, steps if ordered_by else None,
            self.path, notes, devices, factor,
        )  # fmt: skip
        scored = score[order.index]
        tail = missing_tail(scored, name, notes)
        infinite = int(np.isinf(scored).sum())
        if infinite:
            notes.append(f"{count(infinite, 'infinite value')} of {name!r} left out.")
        rows = np.flatnonzero(np.isfinite(scored))
        if rows.size < scored.size:
            notes.append(f"{rows.size:,} of {scored.size:,} rows hold {name!r}.")
        here = compute.at_rows(ax.values, rows, steps if ordered_by and chosen != ordered_by else None, chosen, notes)
        sound = np.isfinite(here) & (here >= 0)
        if not sound.all():
            notes.append(f"{int((~sound).sum())} rows of the score without a usable {chosen!r} left out.")
        rows, here = rows[sound], here[sound]
        if rows.size == 0:
            raise InputError(f"{self.path}: no row holds both {chosen!r} and {name!r}; choose another --x or --y")
        fraction = cleaning.to_fraction(scored[rows], name, scale, self.path, notes)
        weights = choose_trials(self.table, trials, name, order.index[rows], self.path, notes, self._unknown)
        here, fraction, weights = cleaning.merge_equal(here, fraction, weights, notes)
        self._note_late_start(here, ax.unit, notes)
        return Curve(here, fraction, weights, unit or ax.unit, title, name, tuple(notes), tail)

    def truncation(self, x: X = None, run: str | None = None) -> Truncation | None:
        """The rate of truncated rollouts along the run, or None if the log does not tell (which is not zero)."""
        log = self._single(run, None)
        found = find_truncation(log.table)
        if found is None:
            return None
        column, rate, warning = found
        table = Table({**log.columns, "truncation_rate": rate}, log.table.text, [], log.format)
        curve = RunLog(self.path, table, log.labels).curve(x=x, y="truncation_rate", scale="none")
        return Truncation(curve.compute, curve.score, column, warning)

    def _single(self, run: str | None, y: Y) -> RunLog:
        runs = self.runs
        if run is not None and not (self.labels is None and run in self.columns and y is None) and runs != [run]:
            return self.run(run)
        if len(runs) > 1:
            raise selection.several_runs(runs, self.path)
        return self

    def _name(self) -> str:
        if self.runs:
            return self.runs[0]
        for column in aliases.find(self.table.text, aliases.RUN_COLUMNS[:3]):
            names = [n for n in dict.fromkeys(self.table.text[column]) if n]
            if len(names) == 1:
                return str(names[0])
        return Path(self.path).name or self.path

    def _note_late_start(self, x: FloatArray, unit: str, notes: list[str]) -> None:
        if unit == "step" and x.size > 3 and x[0] > 10 and x[0] > 5 * float(np.median(np.diff(x))):
            notes.append(f"The log begins at step {x[0]:g}: what came before is not in it.")

    def _order(self, x: str, score: FloatArray, notes: list[str]) -> tuple[cleaning.Order, FloatArray, str | None]:
        """Rows in the order of training, by the step, or by x itself if it counts training."""
        candidates = (
            [x]
            if x in aliases.find([x], (*aliases.STEPS, *aliases.EPISODES, *aliases.EPOCHS, *aliases.COMPUTE, "_step"))
            else []
        )
        scored = np.isfinite(score)
        steps = aliases.step_candidates(self.columns)
        steps.sort(key=lambda n: -np.count_nonzero(np.isfinite(self.columns[n][scored])))  # stable: the likeliest first
        candidates = [n for n in candidates + steps if n in self.columns]
        rows = self.table.rows
        if not candidates:
            if compute.is_time(x) or x == "row":
                return cleaning.Order(np.arange(rows), np.zeros(rows, dtype=np.bool_), ()), np.full(rows, np.nan), None
            candidates = [x]
        name = candidates[0]
        step = compute.column_values(self.table, name)
        assert step is not None
        step = np.where(np.isfinite(step), step, np.nan)
        if name.endswith("global_step"):  # OpenRLHF counts in `eval/global_step` and `train/global_step` by turns
            for other in (n for n in steps if n.endswith("global_step") and n != name):
                step = np.where(np.isnan(step), self.columns[other], step)
        epochs = [n for n in aliases.find(self.columns, aliases.EPOCHS) if n != name]
        step = cleaning.unroll_epochs(step, self.columns[epochs[0]] if epochs else None, notes)
        order = cleaning.order_rows(step, [score, self._reference(score)], score, name, notes)
        return order, step, name

    def _reference(self, score: FloatArray) -> FloatArray:
        """The fullest column of training rows, which show every restart.

        Best one that no row of the score has: an evaluation is logged late, at what its policy had cost.
        """
        axes, scored = set(aliases.axis_candidates(self.columns)), ~np.isnan(score)
        others = {
            n: (not (~np.isnan(c) & scored).any(), int(np.count_nonzero(~np.isnan(c))))
            for n, c in self.columns.items()
            if n not in axes and c is not score
        }
        return self.columns[max(others, key=others.__getitem__)] if others else score

    def _unknown(self, name: str, what: str) -> InputError:
        candidates = aliases.axis_candidates(self.columns) if what == "x" else aliases.score_candidates(self.columns)
        listed = candidates or list(self.columns)
        near = selection.nearest(name, self.columns)
        if name in self.table.text:
            return InputError(
                f"{self.path}: column {name!r} holds text, not numbers; candidates: {selection.shortlist(listed)}"
            )
        option = what if what == "column" else f"column for --{what}"
        asked = selection.shortlist([name])
        return InputError(f"{self.path}: no {option} {asked!r}{near or ';'} candidates: {selection.shortlist(listed)}")


def read_run(path: str | Path, run: str | None = None, run_column: str | None = None) -> RunLog:
    """Read a log of any known format.

    Args:
        path: file, folder, or `wandb://entity/project/run`.
        run: name of the run if the log holds several.
        run_column: column that names the runs; guessed if None.

    Raises:
        InputError: one line that names the file, what is wrong and how to mend it.
    """
    table = reshape(read_table(path))
    log = RunLog(str(path), table, selection.run_labels(table, run_column, str(path)))
    if run is None:
        return log
    if log.labels is None and run in log.columns:  # a wide table: the run is a column
        kept = {run, *aliases.axis_candidates(log.columns)}
        table = Table({n: c for n, c in log.columns.items() if n in kept}, table.text, table.notes, table.format)
        return RunLog(log.path, table)
    return log.run(run)


def read_curve(
    path: str | Path,
    x: X = None,
    y: Y = None,
    devices: float | None = None,
    factor: float | None = None,
    trials: float | str | None = None,
    run: str | None = None,
    unit: str | None = None,
    scale: Scale = None,
    run_column: str | None = None,
) -> Curve:
    """`read_run(path).curve(...)` in one call; see there."""
    log = read_run(path, run_column=run_column)
    return log.curve(x, y, devices, factor, trials, run, unit, scale)
