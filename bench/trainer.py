"""Speed of an optimizer step against the measured matmul peak, and what bounds it; prints one JSON line.

    python bench/trainer.py [--threads 1] [--repeats 5] [--widths 128,512] [--micro-batch-tokens N]

Per width, the four ways to compute the body (our fused one and Hugging Face's own, in fp32 and bf16) take the same
steps in turn, so that a busy machine slows all alike; the best repeat counts. `tokens_per_second` is of inputs without
padding, per CPU second of one step with its optimizer. `peak_share` is of 6 FLOPs a parameter and token to the best
large matmul in the same dtype. `bound_by` splits the fastest variant's time with torch's profiler.
Left out on purpose: attention's FLOPs, which are few at these lengths, and generation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from scalerl.engines.compute import make_body, plain_body
from scalerl.engines.memory import keep_freed_memory
from scalerl.engines.model import build_model, count_parameters
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.types import Batch

CONFIGS: dict[int, dict[str, Any]] = {
    128: {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 384},
    512: {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1536},
}
SEQUENCES = {128: 512, 512: 128}
KINDS = {
    "matmul": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("aten::_scaled_dot_product",),
    "optimizer": ("aten::_fused_adamw", "aten::_foreach", "aten::linalg_vector_norm"),
}


def batch(sequences: int, seed: int = 0) -> Batch:
    """Sequences of about 40 tokens, log-normal, the first 10 of which are prompt."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.6, 0.4, sequences).astype(np.int64), 12, 96)
    positions = np.concatenate([np.arange(n) for n in lengths])
    mask = positions >= 10
    n = len(positions)
    return Batch(
        token_ids=rng.integers(0, 64, n),
        positions=positions,
        sequence_ids=np.repeat(np.arange(sequences), lengths),
        generator_logprobs=np.full(n, -4.2, np.float32),
        advantages=rng.normal(size=n).astype(np.float32),
        weights=(mask / mask.sum()).astype(np.float32),
        loss_mask=mask,
        policy_version=0,
    )


def trainer(width: int, fused: bool, compute: str, tokens: int) -> TorchTrainer:
    """A trainer whose body is computed in one of the four ways."""
    config = {
        "model_type": "qwen3", "hidden_size": width, "num_hidden_layers": 4, "vocab_size": 64,
        "tie_word_embeddings": True, "max_position_embeddings": 512, **CONFIGS[width],
    }  # fmt: skip
    settings = TrainerSettings(learning_rate=1e-5, compute=compute, micro_batch_tokens=tokens)  # type: ignore[arg-type]
    made = TorchTrainer(build_model(config), settings)
    made._body = (make_body if fused else plain_body)(made.model, compute == "bf16")
    return made


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process: another's load on shared cores counts less than in wall time."""
    started = time.process_time()
    work()
    return time.process_time() - started


def peak_gflops(dtype: torch.dtype, threads: int) -> float:
    """Best of ten multiplications of 2048 x 2048, per second of one core's time times the threads."""
    a, b = torch.randn(2048, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
    best = min(cpu_seconds(lambda: a @ b) for _ in range(10))
    return 2 * 2048**3 / best * threads / 1e9


def shares(made: TorchTrainer, data: Batch) -> dict[str, float]:
    """Of one step's profiled time, by kind of work; "rest" is pointwise passes over memory, copies and Python."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        made.step(data)
    total = sum(e.self_cpu_time_total for e in seen.key_averages())
    found = {
        kind: sum(e.self_cpu_time_total for e in seen.key_averages() if e.key.startswith(names)) / total
        for kind, names in KINDS.items()
    }
    found["rest"] = 1 - sum(found.values())
    return {kind: round(share, 3) for kind, share in found.items()}


def measure(width: int, repeats: int, threads: int, tokens: int) -> dict[str, Any]:
    """All variants at one width, in turn."""
    data = batch(SEQUENCES[width])
    variants = {
        f"{'fused' if fused else 'plain'}_{compute}": trainer(width, fused, compute, tokens)
        for fused in (True, False)
        for compute in ("bf16", "fp32")
    }
    best = dict.fromkeys(variants, float("inf"))
    stats: dict[str, float] = {}
    for _ in range(repeats + 1):  # the first warms up
        for name, made in variants.items():
            best[name] = min(best[name], cpu_seconds(lambda made=made: stats.update(made.step(data))))  # type: ignore[misc]
    peak = {"bf16": peak_gflops(torch.bfloat16, threads), "fp32": peak_gflops(torch.float32, threads)}
    flops = 6 * count_parameters(variants["fused_fp32"].model) * stats["input_tokens"]
    fastest = min(best, key=lambda name: best[name])
    return {
        "tokens_per_second": {name: round(stats["input_tokens"] / seconds * threads) for name, seconds in best.items()},
        "peak_gflops": {name: round(value) for name, value in peak.items()},
        "peak_share": {
            name: round(flops / seconds * threads / 1e9 / peak[name.split("_")[1]], 3) for name, seconds in best.items()
        },
        "fastest": fastest,
        "bound_by": shares(variants[fastest], data),
        "padded_share": round(stats["padded_share"], 3),
        "optimizer_seconds": round(stats["seconds_optimizer"], 4),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--widths", default="128,512")
    parser.add_argument("--micro-batch-tokens", type=int, default=TrainerSettings.micro_batch_tokens)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as a trainer process does
    found = {
        width: measure(int(width), options.repeats, options.threads, options.micro_batch_tokens)
        for width in options.widths.split(",")
    }
    print(
        json.dumps(
            {
                "bench": "trainer",
                "threads": options.threads,
                "micro_batch_tokens": options.micro_batch_tokens,
                "widths": found,
            }
        )
    )


if __name__ == "__main__":
    main()
