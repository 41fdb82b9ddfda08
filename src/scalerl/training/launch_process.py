"""Engines in processes of their own on this machine: generators, a trainer, an evaluating generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalerl.engines.fleet import Fleet
from scalerl.engines.generator import GeneratorSettings
from scalerl.engines.model import named_tensors
from scalerl.engines.process import GeneratorProcess, TrainerProcess
from scalerl.engines.weights import SharedWeights
from scalerl.training.engines import Engines, Launch, Seeds, make_trainer


def launch_processes(ask: Launch) -> Engines:
    """Children of this process; weights go through shared memory."""
    import torch

    engines = ask.settings.engines
    published = torch.bfloat16 if engines.generator_dtype == "bf16" else None
    # Each generator may still compute with a version of its own when the next one is written.
    buffers = engines.weight_buffers + engines.generators - 1
    weights = SharedWeights(named_tensors(ask.model), buffers, published, readers=16 + 2 * engines.generators)
    seeds, own = Seeds(ask.generation), Seeds(ask.evaluation)

    def spawn(number: int) -> GeneratorProcess:
        name = "generator" if number == 0 else f"generator-{number}"
        return _generator(ask, ask.generator_factory, seeds.next(), weights, engines.generator_threads, name)

    def spawn_evaluator(_: int) -> GeneratorProcess:
        return _generator(ask, ask.evaluator_factory, own.next(), weights, engines.evaluation_threads, "evaluator")

    fleet = Fleet(spawn, engines.generators, ask.fleet, ask.wanted())
    ask.closing.callback(fleet.close)
    evaluator = fleet
    if ask.settings.evaluation.every:
        evaluator = Fleet(spawn_evaluator, 1, ask.evaluators, name="evaluator")
        ask.closing.callback(evaluator.close)
    trainer = _trainer(ask, weights)
    ask.closing.callback(trainer.close)
    reader = weights.reader()
    ask.closing.callback(reader.close)
    return Engines(fleet, evaluator, trainer, reader.acquire)


def _trainer(ask: Launch, weights: SharedWeights) -> TrainerProcess:
    engines = ask.settings.engines
    arguments, log = (ask.origin.folder, ask.training), ask.directory / "logs" / "trainer.log"
    threads, step_seconds = engines.trainer_threads or 1, engines.step_seconds
    if engines.trainers == 1:
        return TrainerProcess(make_trainer, arguments, weights, log, threads, step_seconds=step_seconds)
    from scalerl.engines.ranks import TrainerRanks  # torch.distributed takes its time to load

    return TrainerRanks(
        make_trainer, arguments, weights, log, threads, step_seconds=step_seconds, ranks=engines.trainers
    )


def _generator(
    ask: Launch, factory: Callable[..., Any], generation: GeneratorSettings, weights: SharedWeights,
    threads: int | None, name: str,
) -> GeneratorProcess:  # fmt: skip
    arguments = (ask.origin.folder, ask.settings.engines.generator_dtype, generation)
    return GeneratorProcess(factory, arguments, weights, ask.directory / "logs" / f"{name}.log", threads or 1, name)
