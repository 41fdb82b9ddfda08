"""Runs that take seconds: what the tests of training share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scalerl.training.resolve import resolve
from scalerl.training.settings import Settings, WarmStart

WARM = WarmStart(
    level="easy", max_steps=1, steps=300, batch=32, learning_rate=1e-2, hidden_size=32, layers=1, heads=2, kv_heads=1,
    head_dim=16, intermediate_size=64, interrupted=0.2, corruption=0.05,
)  # fmt: skip
WORDS = [
    f"model.warm_start={json.dumps(WARM.__dict__)}", "task.name=arithmetic", "task.min_steps=1", "task.max_steps=1",
    "task.train_prompts=60", "task.held_out_prompts=12", "recipe.prompts_per_step=4", "recipe.generations=4",
    "recipe.thinking_budget_low=4", "recipe.thinking_budget_high=8", "recipe.answer_budget=3", "recipe.retire_at=0.25",
    "recipe.learning_rate=1e-3", "recipe.max_staleness=2", "engines.slots=16", "engines.compute=fp32",
    "engines.generator_threads=1", "engines.trainer_threads=1", "evaluation.every=2", "evaluation.samples=2",
    "checkpoints.every=2", "steps=6",
]  # fmt: skip


def large_digits(folder: Path) -> str:
    """A task, of files in `folder`, that is learnt within 60 steps: to answer any sum with a large digit."""
    prompts = [json.dumps({"prompt": f"{i}+{j}=", "answer": "56789"}) for i in range(10) for j in range(10)]
    (folder / "prompts.jsonl").write_text("\n".join(prompts))
    (folder / "verifier.py").write_text(
        "def verify(prompt, completion, answer):\n    return float(completion[-1:] in answer)\n"
    )
    task = {"name": "file", "path": str(folder / "prompts.jsonl"), "held_out": 0.2}
    return "task=" + json.dumps(task | {"verifier": f"{folder / 'verifier.py'}:verify"})


def settings(*words: str) -> Settings:
    """A tiny run; later words win."""
    return resolve(words=[*WORDS, *words])


def rows(directory: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Of metrics.jsonl."""
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if kind in (None, row["kind"])]


def without_clocks(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what differs from one repetition to the next."""
    kept = []
    for row in found:
        compute = {k: v for k, v in row.get("compute", {}).items() if k in ("tokens", "flops")}
        drop, clocks = ("compute", "timestamp"), ("seconds", "idle", "update_pause")
        same = {k: v for k, v in row.items() if k not in drop and not any(word in k for word in clocks)}
        kept.append(same | {"compute": compute})
    return kept
