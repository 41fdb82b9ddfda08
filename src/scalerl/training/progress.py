"""What a run is doing, for people: a live view on a terminal, plain lines elsewhere. Fed with rows of metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scalerl import words
from scalerl.training import verdicts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Row = Mapping[str, Any]
_LINE_EVERY = 5.0
"""Seconds between two lines about steps, where there is no terminal; evaluations and events are always told."""


class State:
    """The newest of everything.

    Attributes:
        train: newest row of its kind. evals: by task, all rows. answers: newest forecast of each. ended: its reason.
    """

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        self.train: Row = {}
        self.evals: dict[str, list[Row]] = {}
        self.answers: dict[str, Row] = {}
        self.events: list[Row] = []
        self.ended: str | None = None
        self.warm_start: str | None = None

    def feed(self, row: Row) -> None:
        """Take in a row."""
        kind = row["kind"]
        if kind == "train":
            self.train, self.ended, self.warm_start = row, None, None
        elif kind == "eval":
            before = self.evals.get(row["task"], [])  # a resumed run does again what was not saved
            self.evals[row["task"]] = [*(r for r in before if r["step"] < row["step"]), row]
        elif kind == "forecast":
            self.answers = dict(row["tasks"])
        elif kind == "event":
            self.events.append(row)
            self.ended = row.get("reason", "") if row["event"] == "end" else None

    def parts(self) -> list[tuple[str, str]]:
        """(what, how it stands), in the order of interest; only what is known."""
        found = []
        if self.warm_start is not None:
            found.append(("warm start", self.warm_start))
        row = self.train
        if row:
            found.append(("step", self._step(row)))
        for task, rows in self.evals.items():
            found.append((f"held-out {task}" if len(self.evals) > 1 else "held-out", held_out(rows)))
        for task, answer in self.answers.items():
            found.append((f"forecast {task}" if len(self.answers) > 1 else "forecast", _forecast(answer)))
        if row:
            found += _pipeline(row)
        found += [(f"verifier {task}", text) for task, text in _excluded(row)]
        if self.events:
            found.append(("last event", _event(self.events[-1])))
        return found

    def _step(self, row: Row) -> str:
        of = f" of {self.steps:,}" if self.steps else ""
        speed = f", {row['seconds_total']:.1f} s" if row.get("seconds_total") is not None else ""
        return (
            f"{row['step']:,}{of}{speed}; pass rate in training {_number(row, 'train_pass_rate', 3)}, "
            f"entropy {_number(row, 'entropy', 3)}, gradient {_number(row, 'grad_norm')}"
        )

    def view(self) -> RenderableType:
        """As a table of two columns."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for name, text in self.parts():
            table.add_row(Text(name), Text(text))
        return table

    def line(self, row: Row) -> str:
        """One row in one line; empty for one that says nothing new."""
        kind = row["kind"]
        if kind == "train":
            text = self._step(row)
            return (
                f"step {text}; idle: generator {_percent(row, 'generator_idle_share')}, "
                f"trainer {_percent(row, 'trainer_idle_share')}; "
                f"truncated {_percent(row, 'truncation_rate')}, staleness {_number(row, 'staleness_mean')}"
            ) + "".join(f"; {task}: {text}" for task, text in _excluded(row))
        if kind == "eval":
            return f"held-out {row['task']} {held_out(self.evals[row['task']])}"
        if kind == "forecast":
            return "; ".join(f"forecast {task} {_forecast(answer)}" for task, answer in row["tasks"].items())
        return _event(row)


class Progress:
    """Shows a state as it changes; a context.

    Args:
        steps: of the run. console: where to. quiet: nothing is shown.
    """

    def __init__(self, steps: int, console: Console, quiet: bool = False) -> None:
        self.state, self.console, self.quiet = State(steps), console, quiet
        self._live: Live | None = None
        self._told = float("-inf")
        self._warming: tuple[int, float] | None = None  # its first step, and when that was taken

    def __enter__(self) -> Progress:
        if not self.quiet and self.console.is_terminal:
            from rich.live import Live

            self._live = Live(get_renderable=self.state.view, console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def row(self, row: Row) -> None:
        """A row of metrics.jsonl, or one of kind "forecast"; from any thread."""
        self.state.feed(row)
        if self.quiet or self._live is not None:
            return
        if row["kind"] != "train" or self._due():
            self._say(self.state.line(row))

    def warm_start(self, step: int, steps: int, loss: float) -> None:
        """A supervised step was taken."""
        now = time.monotonic()
        first, begun = self._warming = self._warming or (step, now)
        text = f"step {step} of {steps}, loss {loss:.3f}"
        if first < step < steps:  # the first one also waited for its data
            text += f"; {_duration((now - begun) / (step - first) * (steps - step))} left, once only"
        self.state.warm_start = text
        if not self.quiet and self._live is None and (step == steps or self._due()):
            self._say(f"warm start: {text}")

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._told < _LINE_EVERY:
            return False
        self._told = now
        return True

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _pipeline(row: Row) -> list[tuple[str, str]]:
    """What tells the ingredients of the recipe at work."""
    idle = f"generator {_percent(row, 'generator_idle_share')}, trainer {_percent(row, 'trainer_idle_share')}"
    rollouts = f"{_percent(row, 'truncation_rate')} truncated, {_percent(row, 'interrupted_share')} interrupted"
    oldest = f"{_number(row, 'staleness_mean')} on average, {_number(row, 'staleness_max', 0)} at most"
    dropped = f"{_number(row, 'dropped_prompts', 0)} dropped of {_number(row, 'groups', 0)}"
    return [
        ("idle", idle),
        ("rollouts", f"{rollouts}, {_number(row, 'completion_length')} tokens"),
        ("staleness", f"{oldest}; {_number(row, 'versions_per_rollout')} versions a rollout"),
        ("prompts", f"{dropped}, {_number(row, 'prompts_retired', 0)} of {_number(row, 'prompts_total', 0)} retired"),
    ]


def held_out(rows: list[Row]) -> str:
    """A task's newest held-out score in words. rows: all of kind `eval`, the oldest first."""
    last, first = rows[-1], rows[0]
    if last.get("pass_rate") is None:
        return f"no score at step {last['step']:,}: nothing could be judged{verdicts.of_evaluation(last)}"
    text = f"{last['pass_rate']:.3f} at step {last['step']:,} (mean@{last.get('mean_at', '?')})"
    text += verdicts.of_evaluation(last)
    if first is last or first.get("pass_rate") is None:
        return text
    return f"{text}, {words.signed(last['pass_rate'] - first['pass_rate'])} since step {first['step']:,}"


def _excluded(row: Row) -> list[tuple[str, str]]:
    return [(task, str(found)) for task, found in verdicts.of_training(row).items() if found.excluded]


def _forecast(answer: Row) -> str:
    if not answer.get("forecast"):
        return f"{answer['verdict']}: {answer['reasons'][0]}"
    row = answer["forecast"][0]
    why = f" ({_brief(answer['reasons'][0])})" if answer["verdict"] == "NO-FORECAST" and answer["reasons"] else ""
    return (
        f"{row['score']:.3f} {words.between(row['low'], row['high'])} at 2x, gain {words.signed(row['gain'])} "
        f"{words.between(row['gain_low'], row['gain_high'], 'signed')}: {answer['verdict']}{why}"
    )


def _brief(reason: str) -> str:
    """What is wrong, without what to do about it: `scalerl forecast` says all."""
    return reason.removeprefix("no verdict: ").partition("; ")[0]


def _event(row: Row) -> str:
    reason = row.get("reason", "")
    return f"step {row['step']}: {row['event']}" + (f" ({reason})" if reason else "")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _percent(row: Row, name: str) -> str:
    value = row.get(name)
    return "unknown" if value is None else words.percent(value)


def _number(row: Row, name: str, digits: int = 2) -> str:
    value = row.get(name)
    return "-" if value is None else f"{value:,.{digits}f}"
