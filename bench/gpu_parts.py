"""The measurements of bench/gpu.py, a part in a process of its own; prints a JSON line a question.

    python bench/gpu_parts.py PART --folder MODEL --seconds 40 [--cpu]

A part that ends early, by whatever means, loses only its own questions. All runs through the project's own classes:
`VLLMGenerator` over vLLM's AsyncLLM, and `FSDPTrainer` of one rank, in this process, on the same card.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpu_arithmetic import Shape, Sizes, choose_sizes
from gpu_generator import generating, mismatching, updating
from gpu_machine import card_memory, prepare, shape_of
from gpu_trainer import training
from scalerl.engines.fsdp import FSDPTrainer
from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import load_model
from scalerl.engines.ranks import joined
from scalerl.engines.trainer import TrainerSettings
from scalerl.engines.vllm_engine import VLLMEngine
from scalerl.engines.vllm_generator import VLLMGenerator
from scalerl.engines.vllm_options import VLLMOptions

Answer = dict[str, Any]
Tell = Callable[[str, Callable[[], Answer]], None]
"""Prints what a question's function answers, or why it fails."""


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=["prepare", "fp32", "bf16", "trainer"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM writes its log to standard output, from all its processes

    def tell(question: str, ask: Callable[[], Answer]) -> None:
        try:
            answer = ask()
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        gc.collect()
        if not options.cpu:
            torch.cuda.empty_cache()
        print(json.dumps({"question": question} | answer), file=lines, flush=True)

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    if options.part == "prepare":
        tell("machine", lambda: prepare(options.folder, options.cpu))
        return
    shape = shape_of(options.folder)
    sizes = choose_sizes(shape, card_memory(options.cpu))
    with tempfile.TemporaryDirectory() as scratch, joined(0, 1, f"file://{scratch}/rendezvous"):
        if options.part == "trainer":
            trainings(options.folder, shape, sizes, options.seconds, options.cpu, tell)
        else:
            head = options.part == "fp32"
            transfer = "ipc" if head and not options.cpu else "shared"
            engines(options.folder, shape, sizes, options.seconds, options.cpu, head, transfer, tell)
    lines.close()


def trainings(folder: Path, shape: Shape, sizes: Sizes, seconds: float, cpu: bool, tell: Tell) -> None:
    """The same step with one setting changed at a time."""
    for question, changes in (
        ("trainer", {}),
        ("trainer_activation_checkpointing", {"activation_checkpointing": True}),
        ("trainer_head_bf16", {"fp32_head": False}),
    ):
        settings = TrainerSettings(compute="bf16", micro_batch_tokens=sizes.micro_batch, **changes)
        tell(question, lambda chosen=settings: training(folder, chosen, shape, sizes, seconds / 2, cpu))  # type: ignore[misc]


def engines(
    folder: Path, shape: Shape, sizes: Sizes, seconds: float, cpu: bool, fp32: bool, transfer: Any, tell: Tell
) -> None:
    """All questions to a generator with a head in fp32 or bf16; the first answers for its start too."""
    head = "fp32" if fp32 else "bf16"
    speed, kl, update = f"generator_head_{head}", f"mismatch_head_{head}", f"update_{transfer}"
    settings = GeneratorSettings(
        sizes.slots, sizes.prompt, LengthLimits((0, 0), sizes.longest, None, (), ()), fp32_head=fp32
    )
    options = VLLMOptions(
        gpu_memory=sizes.gpu_memory,
        kv_cache_gib=sizes.kv_cache_gib,
        check="sampled" if transfer == "shared" else "none",
        transfer=transfer,
    )
    made: list[VLLMGenerator] = []
    trainers: list[FSDPTrainer] = []

    def generator() -> VLLMGenerator:
        if not made:
            raise RuntimeError("the generator did not start")
        return made[0]

    def trainer() -> FSDPTrainer:
        if not trainers:
            generator()
            found = TrainerSettings(
                fp32_head=fp32, compute="bf16", learning_rate=3e-4, warmup_steps=0, activation_checkpointing=True,
                micro_batch_tokens=2 * sizes.sequence,
            )  # fmt: skip
            trainers.append(FSDPTrainer(load_model(folder, torch.bfloat16), found))
        return trainers[0]

    def first() -> Answer:
        started = time.perf_counter()
        threads = torch.get_num_threads()
        made.append(VLLMGenerator(VLLMEngine(folder, settings, options, "bfloat16", threads), settings))
        start = round(time.perf_counter() - started, 1)
        return generating(generator(), shape, sizes, seconds) | {"seconds_start": start}

    try:
        tell(speed, first)
        tell(kl, lambda: mismatching(generator(), trainer(), folder, shape, sizes))
        if fp32 or not cpu:  # on CPU both would be the same
            tell(update, lambda: updating(generator(), trainer(), shape, sizes, seconds))
    finally:
        if made:
            made[0].close()


if __name__ == "__main__":
    main()
