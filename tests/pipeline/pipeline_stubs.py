"""Engines and a task in a few lines: one weight, called skill, that raises the chance of a right answer."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import EngineDied
from scalerl.pipeline.checkpoint import Checkpoints
from scalerl.pipeline.controller import Controller
from scalerl.pipeline.evaluation import Evaluation
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import MetricsLog
from scalerl.pipeline.sampler import Sampler
from scalerl.pipeline.settings import ControllerSettings
from scalerl.pipeline.verification import Verification
from scalerl.protocols import WeightSource
from scalerl.recipe.recipe import Recipe
from scalerl.types import Batch, Prompt, Rollout

RIGHT, WRONG = 7, 8


class StubTask:
    """Prompts of different difficulty; `judged` lists the prompts in the order of their verdicts."""

    def __init__(self, name: str = "stub", size: int = 40, held_out: int = 6) -> None:
        self.name, self.size, self.held_out = name, size, held_out
        self.judged: list[str] = []

    def prompts(self, split: str) -> Sequence[Prompt]:
        first, n = (0, self.size) if split == "train" else (10_000, self.held_out)
        return [Prompt((1, 2, i % 5), f"{split} {i}", self.name, i % 5) for i in range(first, first + n)]

    def verify(self, prompt: Prompt, completion: str) -> float:
        self.judged.append(prompt.prompt_id)
        return float(completion == "right")


def decode(token_ids: Sequence[int]) -> str:
    return {RIGHT: "right", WRONG: "wrong"}[token_ids[-1]]


class StubWeights:
    def __init__(self, skill: float) -> None:
        self.skill = skill

    def metadata(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        return [("skill", "float64", ())]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield "skill", self.skill


class StubTrainer:
    """Its step depends on every token, so that two runs are equal only if their batches were."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.skill, self.version, self.seconds = 0.0, 0, seconds
        self.batches: list[Batch] = []
        self.keep = True
        self.dead: EngineDied | None = None

    def check(self) -> None:
        if self.dead is not None:
            raise self.dead

    def step(self, batch: Batch) -> Mapping[str, float]:
        time.sleep(self.seconds)
        if self.keep:
            self.batches.append(batch)
        gradient = float((batch.advantages * batch.weights * (batch.token_ids == RIGHT)).sum())
        self.skill += 0.5 * gradient + 1e-6 * float(batch.generator_logprobs.sum())
        self.version += 1
        return {"loss": -gradient, "entropy": 0.5, "mismatch_kl": 0.0, "policy_version": float(self.version)}

    def weights(self) -> WeightSource:
        return StubWeights(self.skill)

    def begin_save(self, path: Path) -> None:
        self.save(path)

    def saved(self, wait: bool) -> bool:
        return True

    def save(self, path: Path) -> None:
        (path / "trainer.json").write_text(json.dumps({"skill": self.skill, "version": self.version}))

    def load(self, path: Path) -> None:
        saved = json.loads((path / "trainer.json").read_text())
        self.skill, self.version = saved["skill"], saved["version"]


class StubGenerator:
    """An engine, or a pool of one. Rollouts take a random number of polls, out of order, and know each token's
    version."""

    def __init__(self, slots: int = 32, most_polls: int = 5, seed: int = 0, dies_after: int | None = None) -> None:
        self.slots, self.most_polls, self.dies_after = slots, most_polls, dies_after
        self.queue: list[tuple[int, Prompt]] = []
        self.running: list[tuple[int, int, Prompt, list[int]]] = []
        self.version, self.skill, self.polls, self.made = -1, 0.0, 0, 0
        self.silent_seconds = 0.0
        self.reseed(seed)

    def reseed(self, *key: int) -> None:
        self.random = np.random.default_rng(key)

    def news(self) -> list[dict[str, Any]]:
        return []

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        self.queue += prompts

    def update_weights(self, version: int, source: WeightSource) -> None:
        self.version, self.skill = version, dict(source)["skill"]

    def state(self) -> Mapping[str, Any]:
        return {"version": self.version}

    def close(self, hangs: bool = False) -> None:
        pass

    def poll(self) -> list[Rollout]:
        self.polls += 1
        if self.dies_after is not None and self.polls > self.dies_after:
            raise EngineDied("the stub process was killed by signal 9")
        free = self.slots - len(self.running)
        taken, self.queue = self.queue[:free], self.queue[free:]
        for group_id, prompt in taken:
            self.running.append((int(self.random.integers(1, self.most_polls + 1)), group_id, prompt, []))
        finished, still = [], []
        for left, group_id, prompt, versions in self.running:
            versions.append(self.version)
            if left == 1:
                finished.append(self._rollout(group_id, prompt, versions))
            else:
                still.append((left - 1, group_id, prompt, versions))
        self.running = still
        self.made += len(finished)
        return finished

    def _rollout(self, group_id: int, prompt: Prompt, versions: list[int]) -> Rollout:
        p = 1 / (1 + math.exp(prompt.answer - 2 - self.skill))
        n = len(versions)
        tokens = np.full(n, 3, dtype=np.int64)
        tokens[-1] = RIGHT if self.random.random() < p else WRONG
        logprobs = -self.random.random(n).astype(np.float32)
        reason = "length" if self.random.random() < 0.05 else "stop"
        mask = np.ones(n, dtype=np.bool_)
        return Rollout(prompt, group_id, tokens, logprobs, mask, np.array(versions, dtype=np.int64), reason, n > 3)


def recipe(schedule: str = "pipeline", k: int = 4, **changes: Any) -> Recipe:
    changes = {"prompts_per_step": 4, "generations": 4, "retire_at": 1.0} | changes
    return Recipe.preset("scalerl").with_(schedule=schedule, max_staleness=k, **changes)


class Run:
    """A controller with all it needs, in a directory; `resume` makes another in the same one."""

    def __init__(
        self,
        directory: Path,
        recipe: Recipe,
        *,
        steps: int = 20,
        task: StubTask | None = None,
        generator: Any = None,
        trainer: StubTrainer | None = None,
        resume: bool = False,
        evaluate_every: int = 5,
        checkpoint_every: int = 5,
        evaluator: Any = None,
        threads: int = 0,
        capacity: int | None = None,
        listener: Any = None,
    ) -> None:
        self.task = task or StubTask()
        self.trainer = trainer or StubTrainer()
        self.raw = generator or StubGenerator()
        self.directory, self.checkpoints = directory, Checkpoints(directory)
        self.ledger = Ledger(parameters=1000)
        saved = self.checkpoints.load(path) if resume and (path := self.checkpoints.latest()) else None
        size = saved[0]["metrics_size"] if saved else 0
        lockstep = recipe.schedule == "lockstep"
        evaluating = self.raw if lockstep else evaluator or StubGenerator(seed=99)
        self.evaluation = Evaluation(evaluating, self.task, 4, self.task.verify, decode, threads=threads)
        self.controller = Controller(
            recipe,
            ControllerSettings(steps, evaluate_every, checkpoint_every, capacity, pause=0.0),
            sampler=Sampler.of(self.task, recipe),
            generator=self.raw,
            trainer=self.trainer,
            verification=Verification(self.task.verify, decode, threads),
            ledger=self.ledger,
            metrics=MetricsLog(directory, size, listener),
            checkpoints=self.checkpoints,
            evaluation=self.evaluation if evaluate_every else None,
        )
        if saved:
            state, arrays, folder = saved
            self.trainer.load(folder)
            self.controller.restore(state, arrays)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == kind]


def without_clocks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as a deterministic run repeats them."""
    clocks = ("seconds", "idle_share", "timestamp")
    kept = [{k: v for k, v in row.items() if not any(word in k for word in clocks)} for row in rows]
    for row in kept:
        for part in (row["compute"], row["compute"]["evaluation"]):
            part.pop("device_hours")
    return kept
