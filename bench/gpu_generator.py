"""Questions of bench/gpu.py to a generator, and to generator and trainer together on the same card."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu_arithmetic import Shape, Sizes, digits, mismatch
from gpu_trainer import training_batch
from scalerl.engines.fsdp import FSDPTrainer
from scalerl.engines.vllm_generator import VLLMGenerator
from scalerl.recipe.assemble import make_batch
from scalerl.recipe.recipe import Recipe
from scalerl.types import Group, Prompt, Rollout

Answer = dict[str, Any]
_PROBE = 32
"""Tokens of a completion that only tells the speed or the mismatch."""
_PATIENCE = 120.0
"""Seconds without an end of what was asked for; then the question has failed."""


def generating(generator: VLLMGenerator, shape: Shape, sizes: Sizes, seconds: float) -> Answer:
    """Tokens a second, from submission to the last token, for some numbers of requests at once."""
    found = []
    for number in sizes.at_once:
        run(generator, random_prompts(number, sizes.prompt, shape.vocabulary), _PROBE)  # warms up
        times, deadline = [], time.perf_counter() + seconds / len(sizes.at_once)
        while not times or time.perf_counter() + min(times) < deadline:
            asked = random_prompts(number, sizes.prompt, shape.vocabulary, len(times) + 1)
            started = time.perf_counter()
            rollouts = run(generator, asked, sizes.completion)
            times.append(time.perf_counter() - started)
        tokens = sum(len(r.token_ids) for r in rollouts)
        if tokens != number * sizes.completion:
            raise RuntimeError(f"{tokens} tokens came of {number} x {sizes.completion}")
        taken = statistics.median(times)
        found.append(
            {
                "at_once": number,
                "tokens_per_second": digits(tokens / taken),
                "ms_per_token": digits(1e3 * taken / sizes.completion),
                "flops_per_second": shape.generation_flops(number, sizes.prompt, sizes.completion) / taken,
                "bytes_per_second": shape.decode_bytes(number, sizes.prompt, sizes.completion) / taken,
                "waves": len(times),
                "seconds_fastest_and_slowest": [digits(min(times)), digits(max(times))],
            }
        )
    return {"prompt": sizes.prompt, "completion": sizes.completion, "runs": found}


def run(generator: VLLMGenerator, prompts: Sequence[Prompt], tokens: int) -> list[Rollout]:
    """Exactly so many tokens for each."""
    before = generator.settings
    generator.settings = replace(before, limits=replace(before.limits, answer=tokens))
    try:
        generator.submit(list(enumerate(prompts)))
        return finished(generator)
    finally:
        generator.settings = before


def finished(generator: VLLMGenerator) -> list[Rollout]:
    """All that runs, by group."""
    found: list[Rollout] = []
    last = time.monotonic()
    while not generator.idle:
        generator.step()
        new = generator.poll()
        found += new
        last = time.monotonic() if new else last
        if time.monotonic() > last + _PATIENCE:
            raise RuntimeError(f"no request ended within {_PATIENCE:.0f} s: {dict(generator.state())}")
    return sorted([*found, *generator.poll()], key=lambda r: r.group_id)


def random_prompts(number: int, length: int, vocabulary: int, seed: int = 0) -> list[Prompt]:
    """Unlike each other from their first token on, so that nothing is shared."""
    rng = np.random.default_rng([seed, number])
    ids = rng.integers(2, vocabulary, (number, length))
    return [Prompt(tuple(row.tolist()), f"{seed} {i}", "bench") for i, row in enumerate(ids)]


def mismatching(generator: VLLMGenerator, trainer: FSDPTrainer, folder: Path, shape: Shape, sizes: Sizes) -> Answer:
    """Of rollouts of the generator, computed again by the trainer; same weights, same precision of the head."""
    prompts = text_prompts(folder, sizes) or random_prompts(sizes.probes, sizes.prompt, shape.vocabulary, 7)
    rollouts = run(generator, prompts, sizes.completion)
    nats = -np.concatenate([r.generator_logprobs for r in rollouts]).astype(np.float64)
    return mismatch(deltas(trainer, rollouts)) | {"nats_per_token": digits(nats.mean()), "prompts": prompts[0].task}


def deltas(trainer: FSDPTrainer, rollouts: Sequence[Rollout]) -> np.ndarray[Any, Any]:
    """Trainer's less generator's log-probabilities of the sampled tokens."""
    groups = [Group(i, (rollout,), np.ones(1, np.float32)) for i, rollout in enumerate(rollouts)]
    batch = make_batch(groups, Recipe(zero_variance="keep", length_control="none"), 0)
    found = trainer.logprobs(batch).numpy()
    return found[batch.loss_mask] - batch.generator_logprobs[batch.loss_mask]


def text_prompts(folder: Path, sizes: Sizes) -> list[Prompt] | None:
    """Of the arithmetic task, in the words of the model's tokenizer; None where the folder has none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    from transformers import AutoTokenizer

    from scalerl.tasks.arithmetic import Arithmetic
    from scalerl.tasks.tokenizer import is_small

    tokenizer = AutoTokenizer.from_pretrained(folder)
    task = Arithmetic(tokenizer=None if is_small(tokenizer) else tokenizer, train_prompts=sizes.probes)
    return [p for p in task.prompts("train") if len(p.token_ids) <= sizes.prompt] or None


def updating(generator: VLLMGenerator, trainer: FSDPTrainer, shape: Shape, sizes: Sizes, seconds: float) -> Answer:
    """Updates under running requests, as many of their tokens as fit the time; then whether what was sent arrived."""
    few, running = sizes.probes // 4, random_prompts(sizes.running, sizes.prompt, shape.vocabulary, 12)
    before = run(generator, random_prompts(few, sizes.prompt, shape.vocabulary, 11), _PROBE)
    started = time.perf_counter()
    run(generator, running, _PROBE)
    a_token = (time.perf_counter() - started) / _PROBE
    length = int(np.clip(seconds / a_token, _PROBE, sizes.longest))
    for seed in range(2):
        trainer.step(training_batch(shape, sizes.sequence // 2, 4 * sizes.sequence, seed))
    rollouts, answer = update_under(generator, trainer, running, length, sizes.updates, a_token)
    after = run(generator, random_prompts(few, sizes.prompt, shape.vocabulary, 13), _PROBE)
    arrived, moved = (mismatch(deltas(trainer, of))["mismatch_kl"] for of in (after, before))
    answer |= {"bytes_sent": 2 * shape.stored, "kl_after_updates": arrived, "kl_if_none_had_arrived": moved}
    _check_updates(answer, rollouts)
    return answer


def update_under(
    generator: VLLMGenerator, trainer: FSDPTrainer, prompts: Sequence[Prompt], length: int, updates: int, a_token: float
) -> tuple[list[Rollout], Answer]:
    """The rollouts of these prompts, all of the same length, and what the updates within it took.

    Args:
        a_token: seconds; the updates are spread over the first half of the time that the completions take.
    """
    limits, old = replace(generator.settings.limits, answer=length), generator.state()
    generator.settings = replace(generator.settings, limits=limits)
    generator.submit(list(enumerate(prompts)))
    pauses, copies = [], []
    for _ in range(updates):
        time.sleep(0.5 * length * a_token / (updates + 1))
        if generator.idle:
            break
        past = generator.state()
        generator.update_weights(generator.version + 1, trainer.weights())
        now = generator.state()
        pauses.append(1e3 * (now["seconds_update_pause"] - past["seconds_update_pause"]))
        copies.append(1e3 * (now["seconds_update_copy"] - past["seconds_update_copy"]))
    rollouts = finished(generator)
    spans = [len(set(r.policy_versions.tolist())) for r in rollouts]
    return rollouts, {
        "updates": len(pauses),
        "pause_ms": [digits(p) for p in pauses],
        "pause_ms_median": digits(statistics.median(pauses or [np.nan])),
        "copy_ms_median": digits(statistics.median(copies or [np.nan])),
        "running": len(prompts),
        "spanning": sum(n > 1 for n in spans),
        "versions_a_rollout": digits(np.mean(spans)),
        "tokens_a_rollout": length,
        "tokens_lost": len(prompts) * length - sum(len(r.token_ids) for r in rollouts),
        "restarted": generator.state()["restarted"] - old["restarted"],
    }


def _check_updates(answer: Answer, rollouts: Sequence[Rollout]) -> None:
    wrong = []
    if not answer["spanning"]:
        wrong.append("no request ran on over an update")
    if answer["tokens_lost"]:
        wrong.append(f"{answer['tokens_lost']} tokens were lost")
    if any((np.diff(r.policy_versions) < 0).any() for r in rollouts):
        wrong.append("versions went back within a rollout")
    if answer["kl_after_updates"] > 0.1 * answer["kl_if_none_had_arrived"]:
        wrong.append("the generator does not compute what the trainer does after the updates")
    if wrong:
        raise RuntimeError(f"{'; '.join(wrong)}: {json.dumps(answer)}")
