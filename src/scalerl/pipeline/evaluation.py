"""Held-out mean@k of exactly one policy version, beside training.

The evaluating generator gets the weights of the version and keeps them until the last rollout is in; the version is
pinned meanwhile, so that nobody overwrites what it reads. One evaluation runs at a time. One that falls due meanwhile
is made afterwards, of the version that is newest then: each row tells the step that it is really of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalerl.pipeline.verification import Decode, Verification, Verify
from scalerl.protocols import GeneratorPool, Task, WeightSource
from scalerl.recipe.rewards import is_correct
from scalerl.types import Prompt, Rollout


class Held(Protocol):
    """Weights that nobody overwrites before `release`."""

    def release(self) -> None:
        """Let them go."""
        ...


Hold = Callable[[int], Held | None]
"""Pins a version where it lies, None if it is gone: `engines.weights.WeightReader.acquire`."""


@dataclass
class _Score:
    """Sums over the rollouts of one task."""

    passed: int = 0
    judged: int = 0
    excluded: int = 0
    truncated: int = 0
    interrupted: int = 0
    tokens: int = 0


@dataclass
class _Running:
    """The evaluation under way."""

    step: int
    version: int
    source: WeightSource
    held: Held | None
    begun: float
    missing: int = 0
    scores: dict[str, _Score] = field(default_factory=dict)
    prompt_tokens: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Result:
    """One evaluation.

    Attributes:
        rows: for metrics.jsonl, one a task. seconds: from its beginning to its last rollout.
        prompt_tokens, tokens: read and generated, for the ledger.
    """

    rows: list[dict[str, Any]]
    seconds: float
    prompt_tokens: int
    tokens: int


class Evaluation:
    """Evaluates the held-out prompts.

    Args:
        generator: its own, or the training one where nothing else runs meanwhile (lockstep).
        task: whose held-out split is asked; a mixture gives a row a task.
        samples: k of mean@k.
        verify, decode, threads: as for `Verification`.
        hold: pins a version; None where nothing is trained meanwhile.
        seed: of the sampling. limit: most prompts of each task.
    """

    def __init__(
        self,
        generator: GeneratorPool,
        task: Task,
        samples: int,
        verify: Verify,
        decode: Decode,
        *,
        threads: int = 0,
        hold: Hold | None = None,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        self.generator, self.samples, self._hold, self._seed = generator, samples, hold, seed
        parts: Mapping[str, Task] = getattr(task, "tasks", {task.name: task})
        self._prompts: list[tuple[str, Prompt]] = [
            (name, prompt) for name, part in parts.items() for prompt in part.prompts("held-out")[:limit]
        ]
        self._verification: Verification[str] = Verification(verify, decode, threads)
        self._running: _Running | None = None

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self._running is not None

    def begin(self, step: int, version: int, source: WeightSource) -> None:
        """Start evaluating these weights; the same step makes the same requests, whatever was evaluated before.

        Raises:
            RuntimeError: one is under way.
        """
        if self._running is not None:
            raise RuntimeError("one evaluation at a time")
        held = None
        if self._hold is not None:
            held = self._hold(version)
            if held is None:
                raise RuntimeError(f"version {version} was overwritten before its evaluation could pin it")
        self._running = _Running(step, version, source, held, time.monotonic())
        self._ask()

    def poll(self) -> Result | None:
        """Collect; the result when it is complete.

        Raises:
            EngineDied: no generator is left. VerifierError: the verifier is broken.
        """
        rollouts, run = self.generator.poll(), self._running
        if run is None:
            return None
        for rollout in rollouts:
            name = self._task_of(rollout, run)
            if name is not None:
                self._verification.submit(name, rollout)
        for name, rollout, reward in self._verification.poll():
            self._count(run, name, rollout, reward)
        if run.missing:
            return None
        self._release()
        rows = [self._row(run, name, score) for name, score in run.scores.items()]
        return Result(rows, time.monotonic() - run.begun, run.prompt_tokens, run.tokens)

    def halt(self) -> None:
        """Judge no further answer: the run ends, and evaluates again after a resume."""
        self._verification.until = 0.0

    def close(self) -> None:
        """End the verifier's threads and give the pinned weights free."""
        self._verification.close()
        self._release()

    def _release(self) -> None:
        if self._running is not None and self._running.held is not None:
            self._running.held.release()
        self._running = None

    def _ask(self) -> None:
        run = self._running
        assert run is not None
        run.missing = len(self._prompts) * self.samples
        run.scores = {name: _Score() for name, _ in self._prompts}
        self.generator.reseed(self._seed, 1, run.step)
        self.generator.update_weights(run.version, run.source)
        # Ids tell the evaluations apart, so that a late rollout of another one is not counted.
        first = run.step * len(self._prompts)
        requests = [(first + i, prompt) for i, (_, prompt) in enumerate(self._prompts) for _ in range(self.samples)]
        self.generator.submit(requests)

    def _task_of(self, rollout: Rollout, run: _Running) -> str | None:
        place = rollout.group_id - run.step * len(self._prompts)
        if not 0 <= place < len(self._prompts):
            return None
        if len(rollout.policy_versions) and set(rollout.policy_versions.tolist()) != {run.version}:
            raise RuntimeError(
                f"an evaluation of version {run.version} holds tokens of version {rollout.policy_versions.tolist()[0]}"
            )
        return self._prompts[place][0]

    @staticmethod
    def _count(run: _Running, name: str, rollout: Rollout, reward: float | None) -> None:
        score = run.scores[name]
        run.missing -= 1
        run.prompt_tokens += len(rollout.prompt.token_ids)
        run.tokens += len(rollout.token_ids)
        score.tokens += len(rollout.token_ids)
        score.truncated += rollout.truncated
        score.interrupted += rollout.interrupted
        if reward is None:
            score.excluded += 1
        else:
            score.judged += 1
            score.passed += bool(is_correct(reward))

    def _row(self, run: _Running, name: str, score: _Score) -> dict[str, Any]:
        # Counts, under names of their own: a reader that looks for a held-out score shall find one rate here.
        return {
            "step": run.step,
            "policy_version": run.version,
            "task": name,
            "pass_rate": score.passed / score.judged if score.judged else None,
            "trials": score.judged,
            "mean_at": self.samples,
            "excluded": score.excluded,
            "truncated_rollouts": score.truncated,
            "interrupted_rollouts": score.interrupted,
            "evaluated_tokens": score.tokens,
        }
