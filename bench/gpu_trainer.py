"""The question of bench/gpu.py to a trainer: whole optimizer steps of `FSDPTrainer`, one rank."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_arithmetic import GIB, Shape, Sizes, digits
from gpu_machine import wait_for_device
from scalerl.engines.fsdp import FSDPTrainer
from scalerl.engines.model import load_model
from scalerl.engines.trainer import TrainerSettings
from scalerl.types import Batch

Answer = dict[str, Any]


def training(folder: Path, settings: TrainerSettings, shape: Shape, sizes: Sizes, seconds: float, cpu: bool) -> Answer:
    """Tokens a second of whole optimizer steps, on sequences of unequal lengths."""
    if not cpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = FSDPTrainer(load_model(folder, torch.bfloat16), settings)
    batch = training_batch(shape, sizes.sequence, sizes.step)
    stats = trainer.step(batch)  # warms up
    times, deadline = [], time.perf_counter() + seconds
    while not times or time.perf_counter() + min(times) < deadline:
        wait_for_device(cpu)
        started = time.perf_counter()
        stats = trainer.step(batch)
        wait_for_device(cpu)
        times.append(time.perf_counter() - started)
    if not np.isfinite(stats["grad_norm"]):
        raise RuntimeError(f"the gradient's norm is {stats['grad_norm']}")
    taken = statistics.median(times)
    lengths = (np.bincount(batch.sequence_ids) - 1).tolist()
    flops = shape.training_flops(lengths, int(batch.loss_mask.sum()))
    return {
        "tokens_per_second": digits(stats["input_tokens"] / taken),
        "flops_per_second": flops / taken,
        "micro_batch_tokens": settings.micro_batch_tokens,
        "micro_batches": int(stats["micro_batches"]),
        "input_tokens": int(stats["input_tokens"]),
        "padded_share": digits(stats["padded_share"]),
        "steps": len(times),
        "seconds_a_step": digits(taken),
        "memory_gib": None if cpu else round(torch.cuda.max_memory_allocated() / GIB, 1),
    }


def training_batch(shape: Shape, longest: int, tokens: int, seed: int = 0) -> Batch:
    """Random sequences of log-normal lengths up to so many tokens; an eighth of the longest is each one's prompt."""
    rng = np.random.default_rng(seed)
    prompt, lengths = longest // 8, [longest]
    while sum(lengths) < tokens:
        lengths.append(int(np.clip(rng.lognormal(np.log(longest / 2), 0.5), prompt + 2, longest)))
    positions = np.concatenate([np.arange(n) for n in lengths])
    mask, n = positions >= prompt, len(positions)
    return Batch(
        token_ids=rng.integers(2, shape.vocabulary, n),
        positions=positions,
        sequence_ids=np.repeat(np.arange(len(lengths)), lengths),
        generator_logprobs=np.full(n, -np.log(shape.vocabulary), np.float32),
        advantages=rng.normal(size=n).astype(np.float32),
        weights=(mask / mask.sum()).astype(np.float32),
        loss_mask=mask,
        policy_version=0,
    )
