"""An optimizer step on several ranks against one process; prints one JSON line.

    python bench/ranks.py [--ranks 2] [--repeats 5] [--width 512] [--sequences 128]

Three trainers in processes of their own, one thread each, take the same steps in turn: one process with our fused body,
one rank of the sharded trainer, and several. `seconds` is the wall time of a step with its optimizer and the
publication of its weights, the best repeat of each. `speedup` is that of several ranks over one rank;
`sharding_costs` is one rank's time over the single process's. Gloo on one machine: that is overhead, not a network.

`checkpoint` is of the several ranks, in seconds, on the disk of the temporary folder. No step can begin while one that
is waited for is written (`waited`, to its last rename), or while one that is written beside steps is `copied`; their
ratio is `held_up`. Steps beside the writing (`step_beside`) share cores and disk with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from scalerl.engines.model import build_model, named_tensors
from scalerl.engines.process import TrainerProcess
from scalerl.engines.ranks import TrainerRanks
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.engines.weights import SharedWeights
from scalerl.pipeline.checkpoint import Checkpoints
from scalerl.pipeline.saving import Saver
from scalerl.types import Batch
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


def held_up(trainer: TrainerProcess, data: Batch, folder: Path, repeats: int) -> dict[str, float]:
    """What a checkpoint costs training when it is waited for, and when steps go on beside; medians of repeats."""
    found: dict[str, list[float]] = {"waited": [], "copied": [], "step": [], "step_beside": []}
    checkpoints = Checkpoints(folder)

    def step(name: str) -> None:
        started = time.perf_counter()
        trainer.step(data)
        found[name].append(time.perf_counter() - started)

    for _ in range(repeats):
        for name in ("waited", "copied"):
            step("step")
            saver = Saver(checkpoints, trainer, print, beside=name == "copied")
            started = time.perf_counter()
            saver.begin(1, lambda: ({}, {}))
            found[name].append(time.perf_counter() - started)
            while saver.under_way:
                step("step_beside")
                saver.poll()
            saver.close()
    medians = {name: round(statistics.median(seconds), 4) for name, seconds in found.items()}
    return medians | {"held_up": round(medians["copied"] / medians["waited"], 2)}


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
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = held_up(trainers[f"{asked.ranks} ranks"], steps[0], Path(folder), asked.repeats)
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
                "checkpoint": checkpoint,
                "largest_loss_difference": max(
                    abs(a - b) for values in losses.values() for a, b in zip(values, losses["single"], strict=True)
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
