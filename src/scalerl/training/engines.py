"""What every launcher builds: the engines of a run, and how one of each is made in whatever process it runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl.engines.fleet import FleetSettings
from scalerl.engines.generator import GeneratorSettings, TorchGenerator
from scalerl.engines.model import empty_model, export_model
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.engines.vllm_engine import VLLMEngine
from scalerl.engines.vllm_generator import VLLMGenerator
from scalerl.engines.vllm_options import VLLMOptions
from scalerl.engines.vllm_server import VLLMServer
from scalerl.errors import InputError
from scalerl.pipeline.evaluation import Hold
from scalerl.protocols import GeneratorPool
from scalerl.training.model import Origin, loaded
from scalerl.training.settings import MOST_GENERATORS, Settings

GENERATORS = "generators"
"""File of a run directory that says how many generators there should be: `echo 6 > RUN/generators`."""


@dataclass
class Engines:
    """What computes. `hold` pins a version for evaluation; None where nothing is trained meanwhile."""

    generator: GeneratorPool
    evaluator: GeneratorPool
    trainer: Any
    hold: Hold | None = None

    def export(self, path: Path, tokenizer: Any) -> None:
        """Write the trained model as a Hugging Face folder."""
        call = getattr(self.trainer, "call", None)  # a proxy's way to any method of its trainer
        if call is not None:
            call("export", path, tokenizer)
        else:
            self.trainer.export(path, tokenizer)


@dataclass(frozen=True)
class Launch:
    """What a launcher is given. `closing`: ends what it started. `model`: shapes of the weights; its values are read
    from `origin` where they are needed."""

    settings: Settings
    directory: Path
    origin: Origin
    generation: GeneratorSettings
    model: Any
    closing: contextlib.ExitStack

    @property
    def evaluation(self) -> GeneratorSettings:
        """Of the evaluating generator: slots and random numbers of its own."""
        slots = self.settings.engines.evaluation_slots or self.generation.slots
        return replace(self.generation, slots=slots, seed=self.settings.seed + 1)

    @property
    def training(self) -> TrainerSettings:
        """Of the trainer."""
        engines = self.settings.engines
        return TrainerSettings.from_recipe(
            self.settings.recipe, engines.micro_batch_tokens, engines.compute, engines.activation_checkpointing,
            engines.compiled, engines.reshard_after_forward,
        )  # fmt: skip

    @property
    def fleet(self) -> FleetSettings:
        """Of the generators together."""
        engines = self.settings.engines
        return FleetSettings(
            in_flight=engines.slots + 4 * self.settings.recipe.generations,  # some wait, so that no slot ever does
            silent_seconds=engines.silent_seconds,
            start_seconds=max(engines.start_seconds, engines.silent_seconds),
            rollout_seconds=engines.rollout_seconds,
        )

    @property
    def evaluators(self) -> FleetSettings:
        """Of the evaluating generator: a fleet of one, whose rollouts are all waited for."""
        in_flight = self.evaluation.slots + 4 * self.settings.evaluation.samples
        return replace(self.fleet, in_flight=in_flight, rollout_seconds=None)

    @property
    def generator_factory(self) -> Callable[..., Any]:
        """Makes a generator from (folder, dtype, settings), in whichever process it runs."""
        return self._factory(self.settings.engines.generator_threads)

    @property
    def evaluator_factory(self) -> Callable[..., Any]:
        """The same engine, but beside a server: that one has the newest weights, and an evaluation needs its own."""
        if self.settings.engines.vllm.url is not None:
            return make_generator
        return self._factory(self.settings.engines.evaluation_threads)

    def _factory(self, threads: int | None) -> Callable[..., Any]:
        engines = self.settings.engines
        if engines.generator == "torch":
            return make_generator
        return functools.partial(make_vllm_generator, engines.vllm, threads or 1)

    def wanted(self) -> Callable[[], int | None]:
        """How many generators the run directory asks for, if it does; `InputError` where that is no number for it."""
        file = self.directory / GENERATORS

        def read() -> int | None:
            try:
                text = file.read_bytes()[:40].decode(errors="replace").strip()
            except OSError:  # not there
                return None
            if not text:  # being written
                return None
            if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MOST_GENERATORS:
                raise InputError(f"{file}: {text!r} is no number from 1 to {MOST_GENERATORS}")
            return int(text)

        return read


class Seeds:
    """Settings of one generator after another: each draws other random numbers, those that replace a dead one too."""

    def __init__(self, generation: GeneratorSettings) -> None:
        self._generation, self._made = generation, 0

    def next(self) -> GeneratorSettings:
        """For another one."""
        self._made += 1
        return replace(self._generation, seed=self._generation.seed + 7919 * (self._made - 1))


class ExportingTrainer(TorchTrainer):
    """A trainer that can also write its model for others, where its weights are."""

    def export(self, path: Path, tokenizer: Any) -> None:
        """Write a Hugging Face folder."""
        export_model(self.model, path, tokenizer)


def make_generator(folder: Path, dtype: str, settings: GeneratorSettings) -> TorchGenerator:
    """In whichever process it runs."""
    return TorchGenerator(loaded(folder, dtype), settings)


def make_vllm_generator(
    options: VLLMOptions, threads: int, folder: Path, dtype: str, settings: GeneratorSettings
) -> VLLMGenerator:
    """In whichever process it runs; vLLM starts children of its own, or is asked at its URL."""
    kind = "bfloat16" if dtype == "bf16" else "float32"
    if options.url is not None:
        return VLLMGenerator(VLLMServer(settings, options, kind), settings)
    return VLLMGenerator(VLLMEngine(folder, settings, options, kind, threads), settings)


def make_trainer(folder: Path, settings: TrainerSettings) -> TorchTrainer:
    """In whichever process it runs; with a frozen copy of the first weights where the recipe measures against them.

    Where ranks have joined one another, each call makes one rank's.
    """
    from torch import distributed

    load: Callable[[Path], Any] = loaded
    made: type[TorchTrainer] = ExportingTrainer
    if distributed.is_initialized():
        from scalerl.engines.fsdp import FSDPTrainer

        made = FSDPTrainer
        load = loaded if distributed.get_rank() == 0 else empty_model  # rank 0 hands its weights out
    return made(load(folder), settings, load(folder) if settings.kl_coefficient else None)
