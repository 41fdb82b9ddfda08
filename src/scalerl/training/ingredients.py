"""What a run's metrics show of each ingredient of its recipe (PAPER.md, "recipe") at work.

A setting that is on may still do nothing: budgets no trace reaches, a filter that finds nothing. The counts tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl import words
from scalerl.pipeline import metrics
from scalerl.recipe.recipe import Recipe

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Ingredient:
    """One choice of the recipe. `setting`: as the recipe has it. `seen`: what the metrics counted, in words."""

    name: str
    setting: str
    seen: str


def rows_of(directory: Path) -> list[Row]:
    """All rows of the run in a directory."""
    path = directory / metrics.NAME
    return list(metrics.rows_of(path.read_bytes(), path)) if path.is_file() else []


def ingredients(recipe: Recipe, rows: Iterable[Row]) -> list[Ingredient]:
    """From rows of metrics.jsonl; those of other kinds than `train` say nothing of it."""
    steps = [row for row in rows if row["kind"] == "train"]
    if not steps:
        return []
    schedule = f"{recipe.schedule}-{recipe.max_staleness}" if recipe.schedule != "lockstep" else "lockstep"
    mixed = recipe.schedule == "pipeline"
    bound = "" if recipe.clip_high is None else f", bound {recipe.clip_high:g}"
    return [
        Ingredient("off-policy schedule", schedule, _staleness(steps)),
        Ingredient("in-flight updates", "on" if mixed else "off", _versions(steps)),
        Ingredient("loss", f"{recipe.loss}{bound}", _ratios(steps)),
        Ingredient("precision of the head", recipe.head_precision, _mismatch(steps)),
        Ingredient("loss aggregation", recipe.aggregation, _weights(steps)),
        Ingredient("advantage normalisation", recipe.advantage_normalization, _advantages(steps)),
        Ingredient("length control", recipe.length_control, _lengths(steps)),
        Ingredient("zero-variance prompts", recipe.zero_variance, _zero_variance(steps)),
        Ingredient("curriculum", recipe.curriculum, _retired(steps)),
    ]


def _staleness(steps: list[Row]) -> str:
    counts: Counter[int] = Counter()
    for row in steps:
        counts.update({int(age): number for age, number in row.get("staleness_histogram", {}).items()})
    total = sum(counts.values())
    if not total:
        return "no rollout was trained"
    mean = sum(age * number for age, number in counts.items()) / total
    parts = ", ".join(f"{age}: {words.percent(counts[age] / total)}" for age in sorted(counts))
    return f"staleness {mean:.2f} steps on average, {max(counts)} at most ({parts})"


def _versions(steps: list[Row]) -> str:
    mean = _mean(steps, "versions_per_rollout")
    return "unknown" if mean is None else f"{mean:.2f} policy versions a rollout on average"


def _ratios(steps: list[Row]) -> str:
    tokens = _sum(steps, "tokens")
    if not tokens:
        return "no token was trained: no answer could be judged, or all of a group were alike"
    at_bound = sum((row.get("ratio_at_bound") or 0.0) * (row.get("tokens") or 0) for row in steps)
    largest = max(row.get("ratio_max") or 0.0 for row in steps if row.get("tokens"))
    return f"ratios up to {largest:.3g}; {at_bound:,.0f} of {tokens:,.0f} tokens at the bound"


def _mismatch(steps: list[Row]) -> str:
    kl = _mean(steps, "mismatch_kl")
    return "unknown" if kl is None else f"KL between generator and trainer {kl:.2g} nats a token, staleness included"


def _weights(steps: list[Row]) -> str:
    prompts, rollouts = (_mean(steps, name) or 0.0 for name in ("trained_prompts", "effective_batch"))
    return f"{prompts:.1f} prompts and {rollouts:.0f} rollouts a step"


def _advantages(steps: list[Row]) -> str:
    deviation = _mean(steps, "advantage_std")
    return "unknown" if deviation is None else f"standard deviation {deviation:.3f} in the batch"


def _lengths(steps: list[Row]) -> str:
    interrupted, truncated = (_mean(steps, name) or 0.0 for name in ("interrupted_share", "truncation_rate"))
    return f"{words.percent(interrupted)} of the rollouts interrupted, {words.percent(truncated)} truncated"


def _zero_variance(steps: list[Row]) -> str:
    alike = _sum(steps, "prompts_all_correct") + _sum(steps, "prompts_all_wrong")
    dropped, prompts = _sum(steps, "dropped_prompts"), _sum(steps, "prompts")
    return f"{dropped:,.0f} of {prompts:,.0f} dropped; {alike:,.0f} were all right or all wrong"


def _retired(steps: list[Row]) -> str:
    retired, total = (_sum(steps[-1:], name) for name in ("prompts_retired", "prompts_total"))
    return f"{retired:,.0f} of {total:,.0f} prompts retired"


def _sum(steps: list[Row], name: str) -> float:
    return sum(row.get(name) or 0 for row in steps)


def _mean(steps: list[Row], name: str) -> float | None:
    found = [row[name] for row in steps if row.get(name) is not None]
    return sum(found) / len(found) if found else None
