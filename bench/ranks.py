"""An optimizer step on several ranks against one process; prints one JSON line.

    python bench/ranks.py [--ranks 2] [--repeats 5] [--width 512] [--sequences 128]

Three trainers in processes of their own, one thread each, take the same steps in turn: one process with our fused body,
one rank of the sharded trainer, and several. `seconds` is the wall time of a step with its optimizer and the
publication of its weights, the best repeat of each. `speedup` is that of several ranks over one rank;
`sharding_costs` is one rank's time over the single process's. Gloo on one machine: that is overhead, not a network.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from scalerl.engines.model import build_model, named_tensors
from scalerl.engines.process import TrainerProcess
from scalerl.engines.ranks import TrainerRanks
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.engines.weights import SharedWeights
from trainer import CONFIGS, batch

SETTINGS = TrainerSettings(learning_rate=1e-5, compute="fp32", micro_batch_tokens=4096)


def config(width: int) -> dict[str, Any]:
    """Four layers."""
    return {
        "model_type": "qwen3", "hidden_size": width, "num_hidden_layers": 4, "vocab_size": 64,
        "tie_word_embeddings": True, "max_position_embeddings": 512, **CONFIGS[width],
    }  # fmt: skip


def single(width: int) -> TorchTrainer:
    """In its process."""
    return TorchTrainer(build_model(config(width)), SETTINGS)


def sharded(width: int) -> TorchTrainer:
    """Of one rank, in its process."""
    from scalerl.engines.fsdp import FSDPTrainer

    return FSDPTrainer(build_model(config(width)), SETTINGS)


def main() -> None:
    """Print the line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--width", type=int, default=512, choices=sorted(CONFIGS))
    parser.add_argument("--sequences", type=int, default=128)
    asked = parser.parse_args()
    weights = SharedWeights(named_tensors(build_model(config(asked.width))))
    arguments = (asked.width,)
    trainers: dict[str, TrainerProcess] = {
        "single": TrainerProcess(single, arguments, weights),
        "1 rank": TrainerRanks(sharded, arguments, weights, ranks=1),
        f"{asked.ranks} ranks": TrainerRanks(sharded, arguments, weights, ranks=asked.ranks),
    }
    steps = [batch(asked.sequences, seed) for seed in range(asked.repeats + 1)]
    best = dict.fromkeys(trainers, float("inf"))
    losses: dict[str, list[float]] = {name: [] for name in trainers}
    for i, data in enumerate(steps):
        for name, trainer in trainers.items():
            stats = trainer.step(data)
            losses[name].append(stats["loss"])
            if i:  # the first one warms up
                best[name] = min(best[name], stats["seconds_step"] + stats["seconds_publish"])
    for trainer in trainers.values():
        trainer.close()
    one, many = best["1 rank"], best[f"{asked.ranks} ranks"]
    print(
        json.dumps(
            {
                "bench": Path(__file__).stem,
                "width": asked.width,
                "seconds": {name: round(seconds, 4) for name, seconds in best.items()},
                "speedup": round(one / many, 2),
                "sharding_costs": round(one / best["single"], 2),
                "largest_loss_difference": max(
                    abs(a - b) for values in losses.values() for a, b in zip(values, losses["single"], strict=True)
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
