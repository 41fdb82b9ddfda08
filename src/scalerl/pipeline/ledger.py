"""What the run has cost: device-hours by role, tokens, FLOPs. Any of them can be the forecast's axis.

FLOPs are counted, not measured: 2 N a token generated or read, 6 N a token trained, N without embeddings. They are the
same on every machine and in every repetition, where clocks are not. Each rollout counts by itself, whatever an engine
computes once for several that begin alike. Evaluation is counted apart: it trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.errors import InputError

_HOUR = 3600.0


@dataclass
class Ledger:
    """Running totals.

    Attributes:
        parameters: N, of the model without its embeddings.
        generators, trainers, evaluators: devices of each role; what the first two leave unused of the time is idle, and
            paid for as well.
        shared: both roles take turns on the same `generators` devices, as with the inline launcher.
        generate, train, evaluate: device-seconds busy. wall: seconds of the run, without those in which it stood still
            for an evaluation.
        tokens: generated, without prompts. trained_tokens: that entered the loss's forward, prompts included.
        flops: of generation and training. evaluation_tokens, evaluation_flops: of held-out evaluations.
    """

    parameters: int
    generators: float = 1.0
    trainers: float = 1.0
    evaluators: float = 1.0
    shared: bool = False
    wall: float = 0.0
    generate: float = 0.0
    train: float = 0.0
    evaluate: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    trained_tokens: int = 0
    evaluation_tokens: int = 0
    evaluation_flops: float = 0.0

    @property
    def flops(self) -> float:
        """Of generation and training so far."""
        return float(
            2 * self.parameters * (self.tokens + self.prompt_tokens) + 6 * self.parameters * self.trained_tokens
        )

    def time(self, wall: float, generate: float, train: float) -> None:
        """Add a stretch of `wall` seconds, in which each role was busy for so many seconds."""
        self.wall += wall
        self.generate += self.generators * min(generate, wall)
        self.train += (self.generators if self.shared else self.trainers) * min(train, wall)

    def generated(self, prompt_tokens: int, tokens: int) -> None:
        """Add a rollout that has arrived, dropped later or not."""
        self.prompt_tokens += prompt_tokens
        self.tokens += tokens

    def trained(self, tokens: int) -> None:
        """Add a step's batch."""
        self.trained_tokens += tokens

    def evaluated(self, seconds: float, prompt_tokens: int, tokens: int) -> None:
        """Add an evaluation."""
        self.evaluate += self.evaluators * seconds
        self.evaluation_tokens += tokens
        self.evaluation_flops += 2.0 * self.parameters * (prompt_tokens + tokens)

    def compute(self) -> dict[str, Any]:
        """The `compute` object of a row of metrics.jsonl; the sum over its roles is what training is billed for."""
        devices = self.generators if self.shared else self.generators + self.trainers
        idle = max(devices * self.wall - self.generate - self.train, 0.0)
        hours = {"generate": self.generate / _HOUR, "train": self.train / _HOUR, "idle": idle / _HOUR}
        evaluation = {
            "device_hours": self.evaluate / _HOUR,
            "tokens": self.evaluation_tokens,
            "flops": self.evaluation_flops,
        }
        return {"device_hours": hours, "tokens": self.tokens, "flops": self.flops, "evaluation": evaluation}

    def state(self) -> dict[str, float]:
        """Totals for `restore`; JSON can hold them."""
        return {name: getattr(self, name) for name in _TOTALS}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from these totals, on whatever devices there are now."""
        missing = [name for name in _TOTALS if name not in state]
        if missing:
            raise InputError(f"ledger state lacks {', '.join(missing)}: the checkpoint is incomplete")
        for name in _TOTALS:
            setattr(self, name, state[name])


_TOTALS = (
    "wall", "generate", "train", "evaluate", "tokens", "prompt_tokens", "trained_tokens", "evaluation_tokens",
    "evaluation_flops",
)  # fmt: skip
