"""Several tasks in one run. Each keeps its name, so each gets its own curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalerl.errors import InputError, VerifierError
from scalerl.protocols import Task
from scalerl.tasks.nearest import suggestion
from scalerl.tasks.splits import known_split
from scalerl.types import Prompt

MOST_PROMPTS = 2_000_000


class Mixture:
    """Tasks drawn in proportion to their weights.

    Attributes:
        tasks: by name. weights: by name, summing to 1.
    """

    def __init__(self, tasks: Sequence[Task], weights: Sequence[float] | None = None, name: str = "mixture") -> None:
        self.name = name
        self.tasks: Mapping[str, Task] = {task.name: task for task in tasks}
        if not tasks:
            raise InputError("mixture: no tasks; list them under tasks")
        if len(self.tasks) < len(tasks):
            raise InputError(
                "mixture: two tasks have one name; give each its own label, so that each has its own curve"
            )
        weights = [1.0] * len(tasks) if weights is None else list(weights)
        if len(weights) != len(tasks) or not all(0 < w < float("inf") for w in weights):
            raise InputError(f"mixture: weights {weights} for {len(tasks)} tasks; each needs one above 0")
        self.weights = {task.name: w / sum(weights) for task, w in zip(tasks, weights, strict=True)}
        self._train: list[Prompt] | None = None

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Held-out: all prompts of all tasks. Train: interleaved so that every stretch holds each task by its weight.

        The sequence is as long as it takes to show every prompt once; prompts of the other tasks come again.
        """
        if known_split(split) == "held-out":
            return [prompt for task in self.tasks.values() for prompt in task.prompts(split)]
        if self._train is None:
            self._train = self._interleaved()
        return self._train

    def verify(self, prompt: Prompt, completion: str) -> float:
        """Reward from the task that made the prompt."""
        task = self.tasks.get(prompt.task)
        if task is None:
            raise VerifierError(f'no task "{prompt.task}" in this mixture: {suggestion(prompt.task, self.tasks)}')
        return task.verify(prompt, completion)

    def close(self) -> None:
        """End the worker processes of all tasks."""
        for task in self.tasks.values():
            close = getattr(task, "close", None)
            if close is not None:
                close()

    def _interleaved(self) -> list[Prompt]:
        pools = {name: task.prompts("train") for name, task in self.tasks.items()}
        empty = [name for name, pool in pools.items() if not pool]
        if empty:
            raise InputError(f"mixture: task {empty[0]} has no train prompts")
        longest = max(pools, key=lambda name: len(pools[name]) / self.weights[name])
        total = len(pools[longest]) / self.weights[longest]
        if total > MOST_PROMPTS:
            raise InputError(
                f"mixture: task {longest} has too many prompts for its weight; raise it, or limit the prompts"
            )
        taken = dict.fromkeys(pools, 0)
        row: list[Prompt] = []
        for place in range(1, round(total) + 1):
            # Whoever is furthest behind its due comes next.
            name = max(pools, key=lambda n: place * self.weights[n] - taken[n])
            row.append(pools[name][taken[name] % len(pools[name])])
            taken[name] += 1
        return row
