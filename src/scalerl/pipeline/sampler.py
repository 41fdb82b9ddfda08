"""Which prompt is drawn next: a curriculum a task, tasks in proportion to their weights, all by content hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.errors import InputError
from scalerl.protocols import Task
from scalerl.recipe.curriculum import Curriculum
from scalerl.recipe.recipe import Recipe
from scalerl.types import Prompt


class Sampler:
    """Draws prompts until all are retired.

    A task whose prompts are all retired leaves its share to the others.

    Args:
        prompts: by task; one that comes twice counts once.
        recipe: its curriculum and `retire_at`.
        weights: of the tasks; equal if None.
        seed: of the orders.
    """

    def __init__(
        self,
        prompts: Mapping[str, Sequence[Prompt]],
        recipe: Recipe,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self._prompts = {prompt.prompt_id: prompt for pool in prompts.values() for prompt in pool}
        self._task = {prompt.prompt_id: task for task, pool in prompts.items() for prompt in pool}
        if not self._prompts:
            raise InputError(f"tasks {', '.join(prompts) or '(none)'}: no prompt to train on; check the train split")
        self._curricula = {
            task: Curriculum((p.prompt_id for p in pool), recipe.curriculum, recipe.retire_at, seed)
            for task, pool in prompts.items()
        }
        self._weights = {task: 1.0 if weights is None else weights[task] for task in prompts}
        self._behind = dict.fromkeys(prompts, 0.0)
        """Draws due to each task and not yet made; the sum stays 0."""

    @classmethod
    def of(cls, task: Task, recipe: Recipe, seed: int = 0) -> Sampler:
        """Over the train split of a task, or of each task of a mixture."""
        parts: Mapping[str, Task] = getattr(task, "tasks", {task.name: task})
        prompts = {name: part.prompts("train") for name, part in parts.items()}
        return cls(prompts, recipe, getattr(task, "weights", None), seed)

    def draw(self) -> Prompt | None:
        """The next prompt; None when all are retired, which ends the training (trap 27)."""
        open_tasks = [
            name for name, curriculum in self._curricula.items() if curriculum.retired < len(curriculum.prompt_ids)
        ]
        if not open_tasks:
            return None
        total = sum(self._weights[name] for name in open_tasks)
        for name in open_tasks:
            self._behind[name] += self._weights[name] / total
        chosen = max(open_tasks, key=lambda name: self._behind[name])
        self._behind[chosen] -= 1.0
        prompt_id = self._curricula[chosen].draw()
        assert prompt_id is not None  # only open tasks are asked
        return self._prompts[prompt_id]

    def prompt(self, prompt_id: str) -> Prompt:
        """By its content hash.

        Raises:
            InputError: it is not among the tasks' prompts any more.
        """
        if prompt_id not in self._prompts:
            raise InputError(
                f"prompt {prompt_id} was under way in the checkpoint but is no longer in the tasks' train split: "
                "resume with the prompts that the run was started with"
            )
        return self._prompts[prompt_id]

    def record(self, prompt: Prompt, passed: int, judged: int) -> None:
        """What a draw of a prompt came to: `passed` of `judged` rollouts at full marks."""
        self._curricula[self._task[prompt.prompt_id]].record(prompt.prompt_id, passed, judged)

    @property
    def total(self) -> int:
        """Different prompts."""
        return len(self._prompts)

    @property
    def retired(self) -> int:
        """Prompts that will not be drawn again."""
        return sum(curriculum.retired for curriculum in self._curricula.values())

    @property
    def epoch(self) -> int:
        """Of the task that is least far."""
        return min(curriculum.epoch for curriculum in self._curricula.values())

    def state(self) -> dict[str, Any]:
        """For `restore`; JSON can hold it."""
        curricula = {name: curriculum.state() for name, curriculum in self._curricula.items()}
        return {"curricula": curricula, "behind": dict(self._behind)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; a task that joined since starts at its beginning."""
        for name, curriculum in self._curricula.items():
            if name in state["curricula"]:
                curriculum.restore(state["curricula"][name])
                self._behind[name] = float(state["behind"][name])
