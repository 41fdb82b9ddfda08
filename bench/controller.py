"""The controller's own cost: rollouts a second of bookkeeping on one core, and memory over a long run.

    python bench/controller.py [--rollouts 1000000]

A simulated pool of 1,000 generators hands out finished rollouts at once, and the trainer takes no time, so what is left
is sampling, admission, verdicts, batches, ledger and metrics. Prints one row a tenth of the run.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.pipeline.checkpoint import Checkpoints
from scalerl.pipeline.controller import Controller
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import MetricsLog
from scalerl.pipeline.sampler import Sampler
from scalerl.pipeline.settings import ControllerSettings
from scalerl.pipeline.verification import Verification
from scalerl.recipe.recipe import Recipe
from scalerl.tasks.guard import Guard
from scalerl.types import Batch, Prompt, Rollout

GENERATORS = 1000
TOKENS = 64


class Pool:
    """1,000 generators, each with one rollout at a time; a random share of them finishes at every poll."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.queue: deque[tuple[int, Prompt]] = deque()
        self.running: list[tuple[int, Prompt, int]] = []
        self.version = 0
        self.tokens = [np.append(np.full(TOKENS - 1, 5), last) for last in (0, 1)]
        self.logprobs, self.mask = np.full(TOKENS, -0.5, dtype=np.float32), np.ones(TOKENS, dtype=np.bool_)

    def submit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        self.queue.extend(prompts)

    def poll(self) -> list[Rollout]:
        while self.queue and len(self.running) < GENERATORS:
            self.running.append((*self.queue.popleft(), self.version))
        lucky = self.random.random(len(self.running)) < 0.1
        done = [item for item, ends in zip(self.running, lucky, strict=True) if ends]
        self.running = [item for item, ends in zip(self.running, lucky, strict=True) if not ends]
        return [self._rollout(*item) for item in done]

    def update_weights(self, version: int, source: Any) -> None:
        self.version = version

    def state(self) -> Mapping[str, Any]:
        return {}

    def reseed(self, *key: int) -> None: ...

    def news(self) -> list[dict[str, Any]]:
        return []

    def _rollout(self, group_id: int, prompt: Prompt, begun: int) -> Rollout:
        versions = np.full(TOKENS, begun)
        versions[TOKENS // 2 :] = self.version
        tokens = self.tokens[int(self.random.random() < 0.4)]
        return Rollout(prompt, group_id, tokens, self.logprobs, self.mask, versions, "stop")


class Trainer:
    """Takes no time."""

    def step(self, batch: Batch) -> Mapping[str, float]:
        return {"loss": 0.0}

    def weights(self) -> Any:
        return self

    def metadata(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        return []

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(())

    def begin_save(self, path: Path) -> None:
        (path / "trainer.json").write_text("{}")

    def saved(self, wait: bool) -> bool:
        return True

    def load(self, path: Path) -> None: ...

    def check(self) -> None: ...


class Bits:
    """10,000 prompts."""

    name = "bits"

    def prompts(self, split: str) -> Sequence[Prompt]:
        return [Prompt((1, 2, 3), str(i), self.name) for i in range(10_000)]

    def verify(self, prompt: Prompt, completion: str) -> float:
        return float(completion == "1")


def memory() -> float:
    """Resident MB now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    rollouts = parser.parse_args().rollouts
    recipe = Recipe.preset("scalerl").with_(curriculum="uniform")
    steps = max(rollouts // recipe.batch_size, 10)
    guard = Guard(Bits())
    begun = last = time.process_time()
    print("rollouts   a second   memory MB")

    def listener(row: dict[str, Any]) -> None:
        nonlocal last
        if row["kind"] == "train" and row["step"] % (steps // 10) == 0:
            now = time.process_time()
            made = steps // 10 * recipe.batch_size
            print(f"{row['step'] * recipe.batch_size:>9,} {made / (now - last):>9,.0f} {memory():>10.1f}", flush=True)
            last = now

    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        controller = Controller(
            recipe,
            ControllerSettings(steps, checkpoint_every=100, pause=0.0),
            sampler=Sampler.of(guard.task, recipe),
            generator=Pool(),
            trainer=Trainer(),
            verification=Verification(guard.verify, lambda ids: str(ids[-1])),
            ledger=Ledger(1_000_000),
            metrics=MetricsLog(directory, listener=listener),
            checkpoints=Checkpoints(directory),
            counts=guard.counts,
        )
        controller.run()
    spent = time.process_time() - begun
    print(f"{steps * recipe.batch_size / spent:,.0f} rollouts a second of CPU time, simulated engines included")


if __name__ == "__main__":
    main()
