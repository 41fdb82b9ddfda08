"""Engines in actors of a Ray cluster: a pool of generators spread over the nodes, the trainer's ranks close together.

What the nodes must share: the folder of the run, and that of the model (a network file system on a real cluster).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalerl.engines.fleet import Fleet
from scalerl.errors import InputError
from scalerl.training.engines import Engines, Launch, Seeds, make_trainer


def launch_ray(ask: Launch) -> Engines:
    """Actors; weights go through the object store.

    Raises:
        InputError: Ray is not installed, there is no cluster, or not as much of it as was asked for.
    """
    try:
        import ray as _  # noqa: F401
    except ImportError as error:
        raise InputError("engines.launch = ray: Ray is not installed; pip install 'scalerl[ray]'") from error
    import torch

    from scalerl.engines.ray_cluster import connected, options, reserved
    from scalerl.engines.ray_generator import RayGenerator
    from scalerl.engines.ray_trainer import RayTrainer

    engines, folder = ask.settings.engines, ask.origin.folder
    cluster, closing = engines.ray, ask.closing
    evaluators = int(bool(ask.settings.evaluation.every))
    cpus = (engines.generators + evaluators) * cluster.generator.get("CPU", 0)
    cpus += engines.trainers * cluster.trainer.get("CPU", 0)
    closing.enter_context(connected(cluster.address, cluster.runtime_env, cpus))
    pool = closing.enter_context(
        reserved(
            engines.generators + evaluators, cluster.generator, "SPREAD", "engines.ray.generator", cluster.wait_seconds
        )
    )
    ranks = closing.enter_context(
        reserved(engines.trainers, cluster.trainer, "PACK", "engines.ray.trainer", cluster.wait_seconds)
    )

    def generators(
        factory: Callable[..., Any], seeds: Seeds, name: str, threads: int | None, first: int
    ) -> Callable[[int], RayGenerator]:
        def spawn(number: int) -> RayGenerator:
            place = first + number
            room = pool if place < engines.generators + evaluators else None  # one that joined later
            arguments = (folder, engines.generator_dtype, seeds.next())
            where = options(cluster.generator, room, place)
            return RayGenerator(factory, arguments, where, threads or 1, f"{name} {number}")

        return spawn

    spawn = generators(ask.generator_factory, Seeds(ask.generation), "generator", engines.generator_threads, evaluators)
    devices = cluster.generator.get("GPU", 0) or 1
    fleet = Fleet(spawn, engines.generators, ask.fleet, ask.wanted(), devices)
    closing.callback(fleet.close)
    evaluator = fleet
    if evaluators:
        own = generators(ask.evaluator_factory, Seeds(ask.evaluation), "evaluator", engines.evaluation_threads, 0)
        evaluator = Fleet(own, 1, ask.evaluators, devices=devices, name="evaluator")
        closing.callback(evaluator.close)
    published = torch.bfloat16 if engines.generator_dtype == "bf16" else None
    places = [options(cluster.trainer, ranks, rank) for rank in range(engines.trainers)]
    trainer = RayTrainer(
        make_trainer, (folder, ask.training), places, engines.trainer_threads or 1, published, engines.step_seconds
    )
    closing.callback(trainer.close)
    return Engines(fleet, evaluator, trainer, trainer.hold)
