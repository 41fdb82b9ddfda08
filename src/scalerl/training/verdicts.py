"""How many answers could not be judged. They are neither right nor wrong, so a score without them says too much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]


@dataclass
class Judged:
    """Rollouts of one task's training so far. `errors`: what the verifier raised -> how often."""

    judged: int = 0
    excluded: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """`30 of 32 excluded (ZeroDivisionError 30)`."""
        kinds = ", ".join(f"{name} {count:,}" for name, count in self.errors.items())
        return f"{self.excluded:,} of {self.judged + self.excluded:,} excluded ({kinds})"


def of_training(row: Row) -> dict[str, Judged]:
    """Task -> counts, from the newest row of kind `train`: those of metrics.jsonl run on."""
    found: dict[str, Judged] = {}
    for name, count in row.items():
        what, _, rest = name.partition("/")
        task, _, error = rest.partition("/")
        if what == "verified":
            found.setdefault(rest, Judged()).judged = int(count)
        elif what == "excluded" and error:
            found.setdefault(task, Judged()).errors[error] = int(count)
        elif what == "excluded":
            found.setdefault(task, Judged()).excluded = int(count)
    return found


def newest(rows: Iterable[Row]) -> tuple[Row, dict[str, Row]]:
    """The newest row of kind `train`, empty where there is none, and of kind `eval` for each task."""
    train: Row = {}
    evals: dict[str, Row] = {}
    for row in rows:
        if row["kind"] == "train":
            train = row
        elif row["kind"] == "eval":
            evals[row["task"]] = row
    return train, evals


def of_evaluation(row: Row) -> str:
    """`, 30 of 32 excluded` behind a held-out score; empty where every answer could be judged."""
    excluded, trials = row.get("excluded") or 0, row.get("trials") or 0
    return f", {excluded:,} of {excluded + trials:,} excluded" if excluded else ""
