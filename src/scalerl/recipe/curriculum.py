"""Which prompt comes next: epochs without those already solved (No-Positive-Resampling, PAPER section 4, item 8).

Everything is keyed by the hash of a prompt's content, so a shuffled, extended or shortened file changes neither the
history nor the order of what is left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from scalerl.errors import InputError

CurriculumKind = Literal["no-positive-resampling", "uniform"]
KEPT_DRAWS = 4  # of each prompt: memory and checkpoints stay flat however long the run


class Curriculum:
    """Draws prompts epoch by epoch, each once an epoch in random order, and remembers their pass rates.

    A prompt is retired for good once a draw of it passes at `retire_at` or above. The draw decides, not the average
    over all draws: failures of a much younger policy say nothing about the present one.

    Args:
        prompt_ids: hashes of content; one that comes twice counts once.
        kind: "no-positive-resampling", or "uniform", which never retires.
        retire_at: pass rate, 0 < retire_at <= 1.
        seed: of the orders.
    """

    def __init__(self, prompt_ids: Iterable[str], kind: CurriculumKind, retire_at: float, seed: int = 0) -> None:
        self.kind = kind
        self.retire_at = retire_at
        self.seed = seed
        self.prompt_ids = tuple(sorted(set(prompt_ids)))
        self.history: dict[str, list[tuple[int, int]]] = {}
        self.epoch = 0
        self._last = ""  # key of the prompt drawn last in this epoch; every key is greater than ""
        self._retired: set[str] = set()
        self._active = set(self.prompt_ids)
        self._queue = self._order()

    @property
    def retired(self) -> int:
        """Prompts that will not be drawn again."""
        return len(self.prompt_ids) - len(self._active)

    def draw(self) -> str | None:
        """Id of the next prompt; None when all are retired, which ends the training."""
        if not self._active:
            return None
        while True:
            while self._queue:
                self._last, prompt_id = self._queue.pop()
                if prompt_id in self._active:
                    return prompt_id
            self.epoch += 1
            self._last = ""
            self._queue = self._order()

    def record(self, prompt_id: str, passed: int, judged: int) -> None:
        """Add a draw: `passed` of `judged` rollouts at full marks. A draw without judged rollouts says nothing."""
        if not 0 <= passed <= judged:
            raise ValueError(f"{passed} passed of {judged} judged")
        if judged == 0:
            return
        draws = self.history.setdefault(prompt_id, [])
        draws.append((passed, judged))
        del draws[:-KEPT_DRAWS]
        if self.kind == "no-positive-resampling" and passed / judged >= self.retire_at - 1e-9:
            self._retired.add(prompt_id)
            self._active.discard(prompt_id)

    def pass_rate(self, prompt_id: str) -> float | None:
        """Of the latest draw; None before the first."""
        draws = self.history.get(prompt_id)
        return draws[-1][0] / draws[-1][1] if draws else None

    def state(self) -> dict[str, Any]:
        """All that `restore` needs; JSON can hold it."""
        history = {prompt_id: [list(draw) for draw in draws] for prompt_id, draws in self.history.items()}
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "last": self._last,
            "retired": sorted(self._retired),
            "history": history,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, over the present prompts: new ones join, missing ones are passed over."""
        missing = {"seed", "epoch", "last", "retired", "history"} - state.keys()
        if missing:
            raise InputError(f"curriculum state lacks {', '.join(sorted(missing))}: the checkpoint is incomplete")
        self.seed = int(state["seed"])
        self.epoch = int(state["epoch"])
        self._last = str(state["last"])
        self._retired = set(state["retired"])
        self._active = set(self.prompt_ids) - self._retired
        self.history = {key: [(int(p), int(j)) for p, j in draws] for key, draws in state["history"].items()}
        self._queue = self._order()

    def _order(self) -> list[tuple[str, str]]:
        """(key, prompt_id) of what is left of this epoch, next one last. The keys are random, new in each epoch."""
        keyed = ((self._key(prompt_id), prompt_id) for prompt_id in self._active)
        return sorted((pair for pair in keyed if pair[0] > self._last), reverse=True)

    def _key(self, prompt_id: str) -> str:
        return hashlib.sha256(f"{self.seed}:{self.epoch}:{prompt_id}".encode()).hexdigest()
