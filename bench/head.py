"""Mismatch of generator and trainer with the FP32 head and without it, both bodies in bf16; prints one JSON line.

    python bench/head.py [--model FOLDER] [--threads 1]

The generator samples rollouts in bf16; the trainer, of the same weights, computes their tokens again in its bf16 body.
Both take the head's matmul in fp32, or both in bf16, or only the generator in fp32: on the very rollouts of the first.
`mismatch_kl` is the mean of ratio - 1 - log ratio in nats a token, `ratio` trainer's to generator's probability and
`delta` its logarithm. Without --model: the warm-started model of the arithmetic task; SmolLM2 by examples/smollm2.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from scalerl.engines.generator import GeneratorSettings, TorchGenerator
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import load_model
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.recipe.assemble import make_batch
from scalerl.recipe.recipe import Recipe
from scalerl.tasks.arithmetic import Arithmetic
from scalerl.tasks.tokenizer import is_small
from scalerl.training.settings import WarmStart
from scalerl.training.warm_start import warm_start
from scalerl.types import Group, Rollout

PROMPTS, GENERATIONS, TOKENS = 16, 4, 32


def rollouts(folder: Path, task: Arithmetic, end: int, fp32_head: bool) -> list[Rollout]:
    """Of a bf16 generator."""
    prompts = list(task.prompts("train"))[:PROMPTS]
    longest = max(len(prompt.token_ids) for prompt in prompts)
    limits = LengthLimits((0, 0), TOKENS, None, (), (end,))
    settings = GeneratorSettings(PROMPTS * GENERATIONS, longest, limits, fp32_head=fp32_head)
    generator = TorchGenerator(load_model(folder).to(torch.bfloat16), settings)
    generator.submit([(i, prompt) for i, prompt in enumerate(prompts) for _ in range(GENERATIONS)])
    while not generator.idle:
        generator.step()
    return generator.poll()


def mismatch(folder: Path, found: list[Rollout], fp32_head: bool) -> dict[str, Any]:
    """Statistics over all sampled tokens of these rollouts, with a trainer whose head is in fp32 or not."""
    groups = []
    for i in range(PROMPTS):
        own = tuple(r for r in found if r.group_id == i)
        groups.append(Group(i, own, np.arange(len(own), dtype=np.float32) % 2))
    recipe = Recipe(zero_variance="keep", length_control="none")
    batch = make_batch(groups, recipe, 0)
    # The masters' values are those that the generator rounds: what differs is the computation alone.
    model = load_model(folder).to(torch.bfloat16).float()
    trainer = TorchTrainer(model, TrainerSettings(fp32_head=fp32_head, compute="bf16"))
    ours = trainer.logprobs(batch).numpy()[batch.loss_mask]
    delta = (ours - batch.generator_logprobs[batch.loss_mask]).astype(np.float64)
    ratio = np.exp(delta)
    return {
        "tokens": len(delta),
        "mismatch_kl": _digits(np.mean(ratio - 1 - delta)),
        "delta_mean": _digits(delta.mean()),
        "delta_mean_abs": _digits(np.abs(delta).mean()),
        "delta_max_abs": _digits(np.abs(delta).max()),
        "ratio_max": round(float(ratio.max()), 3),
        "share_outside_.8_to_1.25": round(float(((ratio < 0.8) | (ratio > 1.25)).mean()), 5),
        "share_at_cispo_bound": round(float((ratio >= recipe.clip[1]).mean()), 5),
    }


def _digits(value: Any) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.model or warm_start(WarmStart(), options.threads)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    task = Arithmetic(tokenizer=None if is_small(tokenizer) else tokenizer)
    exact, plain = (rollouts(folder, task, int(tokenizer.eos_token_id), fp32) for fp32 in (True, False))
    heads = {
        "fp32_head": mismatch(folder, exact, True),
        "bf16_head": mismatch(folder, plain, False),
        "fp32_head_of_generator_only": mismatch(folder, exact, False),
    }
    print(json.dumps({"bench": "head", "model": folder.name, "vocabulary": len(tokenizer), **heads}))


if __name__ == "__main__":
    main()
