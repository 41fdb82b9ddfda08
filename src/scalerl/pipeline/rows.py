"""What a row of kind `train` says: the recipe's counts, the trainer's statistics, staleness, shares and seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.errors import VerifierError
from scalerl.pipeline.buffer import Buffer, Entry
from scalerl.pipeline.sampler import Sampler
from scalerl.recipe.recipe import Recipe
from scalerl.recipe.rewards import is_correct
from scalerl.types import Batch


def train_row(
    recipe: Recipe, batch: Batch, entries: Sequence[Entry], stats: Mapping[str, float], buffer: Buffer, sampler: Sampler
) -> dict[str, Any]:
    """All of a step that does not depend on clocks.

    Args:
        batch: as it was trained; its `policy_version` is that before the step. entries: its groups.
        stats: the trainer's.
    """
    info = dict(batch.info)
    filtered = recipe.zero_variance == "filter"
    row: dict[str, Any] = {
        "truncation_rate": info.pop("truncated_share"),  # the name that readers of logs know
        "train_pass_rate": info.pop("pass_rate"),  # the bare name is that of the held-out score, in rows of kind eval
        "effective_batch": info["trained_rollouts"],
        "dropped_prompts": info["prompts_all_correct"] + info["prompts_all_wrong"] if filtered else 0.0,
        # Whoever asks can see that none was trained twice. As text, for it is no curve.
        "group_ids": " ".join(str(entry.group_id) for entry in entries),
        "staleness_histogram": staleness_histogram(entries, batch.policy_version),
        "prompts_retired": sampler.retired,
        "prompts_total": sampler.total,
        "epoch": sampler.epoch,
        "outstanding_groups": len(buffer),
        "surplus_rollouts": buffer.surplus,
        "too_old_rollouts": buffer.too_old,
    }
    by_task = pass_rates(entries)
    if len(by_task) > 1:
        row["pass_rate_by_task"] = by_task
    # A trainer reports its own version; the step's row is of the controller's.
    return row | info | {name: value for name, value in stats.items() if name != "policy_version"}


def fleet_counts(generator: Mapping[str, Any]) -> dict[str, Any]:
    """What generators say in their `state()`, each as far as it knows it."""
    names = {
        "engines_up": "generators_up", "asked_again": "rollouts_asked_again", "late": "rollouts_late",
        "restarted": "rollouts_restarted",
    }  # fmt: skip
    return {name: generator[own] for own, name in names.items() if own in generator}


def staleness_histogram(entries: Sequence[Entry], version: int) -> dict[str, int]:
    """Rollouts by the trainer's version minus the oldest version in them."""
    counts = Counter(version - r.oldest_version for e in entries for r in e.rollouts if len(r.token_ids))
    return {str(staleness): counts[staleness] for staleness in sorted(counts)}


def pass_rates(entries: Sequence[Entry]) -> dict[str, float]:
    """Share of full marks among the judged rollouts of each task."""
    passed: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    for entry in entries:
        good, all_judged = verdicts(entry)
        passed[entry.prompt.task] += good
        judged[entry.prompt.task] += all_judged
    return {task: passed[task] / n for task, n in sorted(judged.items()) if n}


def verdicts(entry: Entry) -> tuple[int, int]:
    """(rollouts at full marks, rollouts judged) of a group."""
    judged = [reward for reward in entry.rewards if reward is not None and reward == reward]  # without NaN
    return int(is_correct(judged).sum()), len(judged)


def refuse_unjudged(entries: Sequence[Entry], counts: Mapping[str, float], step: int) -> None:
    """Refuse to take a step of which no answer could be judged: it would teach nothing, and so would the next.

    Args:
        counts: `Guard.counts`.

    Raises:
        VerifierError: naming the commonest error.
    """
    answers = sum(rollout.finish_reason != "late" for entry in entries for rollout in entry.rollouts)
    errors = {name: n for name, n in counts.items() if name.startswith("excluded/") and name.count("/") > 1}
    if not answers or not errors or any(verdicts(entry)[1] for entry in entries):
        return
    name = max(errors, key=lambda name: errors[name])
    task, _, error = name.removeprefix("excluded/").rpartition("/")
    raise VerifierError(
        f"none of the {answers:,} answers of step {step} could be judged; the commonest error of all so far is {error} "
        f"of task {task}, {errors[name]:,.0f} times; mend the verifier, then go on with `scalerl resume`"
    )
