"""Every choice of a run that can be made from outside, in one validated tree; `config.yaml` holds it resolved.

    task, model, recipe (with `preset`), engines, evaluation, checkpoints, forecast, steps, seed

The small model's sizes (`SMALL`) stand in for the paper's where nothing else is said and the model is warm-started
here: 14,000 tokens a rollout mean nothing to a model of a million parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from scalerl.errors import InputError
from scalerl.pipeline.settings import ControllerSettings
from scalerl.recipe.presets import PRESETS
from scalerl.recipe.recipe import Recipe
from scalerl.training.stop_when import StopWhen
from scalerl.training.tree import Sources, Tree, build

CONFIG = "config.yaml"
Axis = Literal["flops", "tokens", "device_hours", "step"]


@dataclass(frozen=True)
class WarmStart:
    """The small model, and the supervised steps on worked examples that it begins with.

    Attributes:
        level, min_steps, max_steps, corruption, interrupted, seed: of the examples, see `tasks.arithmetic`.
        steps, batch, learning_rate: of the supervised training.
        hidden_size to head_dim: of the model, a Qwen3.
    """

    level: str = "medium"
    min_steps: int = 1
    max_steps: int = 8
    corruption: float = 0.1
    interrupted: float = 0.1
    seed: int = 0
    steps: int = 500
    batch: int = 128
    learning_rate: float = 1e-3
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 384

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate_size"):
            _at_least(name, getattr(self, name), 1)
        if self.learning_rate <= 0:
            raise InputError(f"learning_rate = {self.learning_rate}: it must be above 0, e.g. 1e-3")
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads = {self.kv_heads}: it must divide heads = {self.heads}")


@dataclass(frozen=True)
class ModelSettings:
    """Where the policy comes from: one of three.

    Attributes:
        path: a Hugging Face folder with a causal language model. config: or its config, for random weights.
        warm_start: or the small model of the arithmetic task, which is what happens if neither is given.
        tokenizer: folder of the tokenizer, where it is not the model's own.
        seed: of random weights.
    """

    path: str | None = None
    config: Mapping[str, Any] | None = None
    warm_start: WarmStart | None = None
    tokenizer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = [n for n in ("path", "config", "warm_start") if getattr(self, n) is not None]
        if len(given) > 1:
            raise InputError(f"{given[1]}: a model has one origin, and {given[0]} is given too; remove one")


@dataclass(frozen=True)
class EngineSettings:
    """How the work is spread over this machine; nothing here changes what is learnt, but for rounding.

    Attributes:
        launch: process: generator, trainer and evaluation in processes of their own. inline: all in one, for tests and
            for lockstep. auto: inline for lockstep, else process.
        generator_threads, trainer_threads, evaluation_threads: of torch; null: half of the cores each.
        slots: rollouts that are generated at once. evaluation_slots: null: as many.
        generator_dtype: of the weights that generate.
        compute: of the trainer's matmuls; auto measures which is faster.
        micro_batch_tokens: of one forward pass of the trainer, padding included.
        activation_checkpointing, compiled: of the trainer.
        verify_threads: answers judged at once beside the loop; null: none for arithmetic and in lockstep, else 4.
        capacity: most prompts under way in the pipeline; null: all that max_staleness allows.
        weight_buffers: copies of the weights in shared memory.
    """

    launch: Literal["auto", "process", "inline"] = "auto"
    generator_threads: int | None = None
    trainer_threads: int | None = None
    evaluation_threads: int | None = None
    slots: int = 64
    evaluation_slots: int | None = None
    generator_dtype: Literal["fp32", "bf16"] = "fp32"
    compute: Literal["auto", "fp32", "bf16"] = "auto"
    micro_batch_tokens: int = 4096
    activation_checkpointing: bool = False
    compiled: bool = False
    verify_threads: int | None = None
    capacity: int | None = None
    weight_buffers: int = 6

    def __post_init__(self) -> None:
        least = {"slots": 1, "micro_batch_tokens": 1, "weight_buffers": 5, "verify_threads": 0}
        for name in ("generator_threads", "trainer_threads", "evaluation_threads", "evaluation_slots"):
            least[name] = 1
        for name, low in least.items():
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), low)


@dataclass(frozen=True)
class EvaluationSettings:
    """Held-out mean@k. `every`: steps between two; 0 for none. `prompts`: most of each task; null: all."""

    every: int = 5
    samples: int = 4
    prompts: int | None = None

    def __post_init__(self) -> None:
        _at_least("every", self.every, 0)
        _at_least("samples", self.samples, 1)
        if self.prompts is not None:
            _at_least("prompts", self.prompts, 1)


@dataclass(frozen=True)
class CheckpointSettings:
    """`every`: steps between two; a stop and the end write one too. `keep`: how many of the newest stay."""

    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least("every", self.every, 1)
        _at_least("keep", self.keep, 1)


@dataclass(frozen=True)
class ForecastSettings:
    """The forecast beside the run.

    Attributes:
        renew: whether it is made anew at each evaluation. axis: compute that it is made in.
        threshold: gain that is worth the budget, for the verdict.
        stop_when: condition that ends the run, such as "gain_high < 0.01 at 2x"; null: none.
    """

    renew: bool = True
    axis: Axis = "flops"
    threshold: float = 0.01
    stop_when: str | None = None

    def __post_init__(self) -> None:
        if self.stop_when is not None:
            StopWhen.parse(self.stop_when)
            if not self.renew:
                raise InputError("stop_when: it needs forecasts; set renew to true")


@dataclass(frozen=True)
class Settings:
    """One run. `task`: a name, a mapping, or a list of mappings for a mixture, as `tasks.build_task` takes it.

    `folder`: what relative paths are relative to.
    """

    steps: int = 100
    seed: int = 0
    task: Any = "arithmetic"
    folder: str = "."
    model: ModelSettings = field(default_factory=ModelSettings)
    engines: EngineSettings = field(default_factory=EngineSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    forecast: ForecastSettings = field(default_factory=ForecastSettings)
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 0)
        _at_least("seed", self.seed, 0)

    @property
    def inline(self) -> bool:
        """Whether everything runs in this process."""
        return self.engines.launch == "inline"

    def to_dict(self) -> Tree:
        """Plain values, all resolved."""
        return asdict(self)

    def to_yaml(self) -> str:
        """As `config.yaml` holds it."""
        return yaml.safe_dump(_plain(self.to_dict()), sort_keys=False, allow_unicode=True, width=110)

    def write(self, directory: Path) -> None:
        """Write `config.yaml`."""
        (directory / CONFIG).write_text(self.to_yaml(), "utf-8")


SMALL: Tree = {
    "recipe": {
        "prompts_per_step": 32, "generations": 16, "thinking_budget_low": 26, "thinking_budget_high": 40,
        "answer_budget": 4, "interruption_phrase": "time!</think>", "completion_tokens": 48, "prompt_tokens": 32,
        "penalty_longest": 48, "penalty_cache": 16, "learning_rate": 1e-4, "warmup_steps": 5,
    },
    "engines": {"slots": 256},
}  # fmt: skip
"""Sizes for the small model."""


def resolve(
    file: Path | None = None, preset: str | None = None, words: Sequence[str] = (), steps: int | None = None,
    stop_when: str | None = None, seed: int | None = None,
) -> Settings:  # fmt: skip
    """Settings from a YAML file, a preset of the recipe, and the command line; each later one wins.

    Raises:
        InputError: naming the file and line or the option, and the nearest valid setting.
    """
    sources = Sources()
    if file is not None:
        sources.read(file)
    options = {"preset": ("--preset", preset), "steps": ("--steps", steps), "seed": ("--seed", seed),
               "forecast.stop_when": ("--stop-when", stop_when)}  # fmt: skip
    for key, (option, value) in options.items():
        if value is not None:
            sources.put(key, value, f"{option} {value}")
    sources.set(words)
    return _resolved(sources, (file.parent if file is not None else Path()).resolve())


def read(directory: Path) -> Settings:
    """The settings of a run directory.

    Raises:
        InputError: it holds none, or they were changed into something impossible.
    """
    sources = Sources()
    if not (directory / CONFIG).is_file():
        raise InputError(f"{directory}: no {CONFIG} there; name a run directory that scalerl train has written")
    sources.read(directory / CONFIG)
    return _resolved(sources, directory.resolve())


def _resolved(sources: Sources, folder: Path) -> Settings:
    name = sources.tree.pop("preset", None)
    if name is not None:
        _check_preset(name, sources)
        sources.defaults({"recipe": _of_preset(name, sources)})
    model = sources.tree.get("model")
    small = not isinstance(model, Mapping) or (model.get("path") is None and model.get("config") is None)
    if small:
        _put_small_below(sources, name)
    task = sources.tree.get("task")
    if isinstance(task, Mapping) and not {"name", "tasks"} & set(task):
        sources.defaults({"task": {"name": "arithmetic"}})  # as without any: `task.level=easy` is enough
    sources.defaults({"folder": str(folder)})
    if small and (model is None or isinstance(model, Mapping)):
        sources.defaults({"model": {"warm_start": {}}})
        if sources.tree["model"] is None or sources.tree["model"]["warm_start"] is None:
            sources.tree["model"] = {**(sources.tree["model"] or {}), "warm_start": {}}
    return _on_this_machine(build(Settings, sources.tree, sources), sources)


def _put_small_below(sources: Sources, preset: str | None) -> None:
    """Sizes go over a preset's, which are the paper's, and below what the user says."""
    given = {key.removeprefix("recipe.") for key in sources.places if key.startswith("recipe.")}
    recipe = sources.tree.get("recipe")
    over = {k: v for k, v in SMALL["recipe"].items() if k not in given} if preset is not None else {}
    sources.defaults(SMALL)
    if isinstance(recipe, Mapping):
        sources.tree["recipe"] = {**sources.tree["recipe"], **over}


def _of_preset(name: str, sources: Sources) -> Tree:
    """Its settings; bounds of its own loss do not go to another."""
    settings, recipe = PRESETS[name].settings, sources.tree.get("recipe")
    loss = recipe.get("loss") if isinstance(recipe, Mapping) else None
    other = loss is not None and loss != settings.get("loss", "cispo")
    return {k: v for k, v in settings.items() if not (other and k in ("clip_low", "clip_high"))}


def _check_preset(name: Any, sources: Sources) -> None:
    if name not in PRESETS:
        from scalerl.recipe.validate import nearest

        near = nearest(str(name), tuple(PRESETS))
        raise InputError(
            f"{sources.place('preset')}: no preset {name!r}; the nearest is {near!r} (of {', '.join(PRESETS)})"
        )


def _on_this_machine(settings: Settings, sources: Sources) -> Settings:
    """What is left to choose, chosen: so that config.yaml tells what ran."""
    engines, lockstep = settings.engines, settings.recipe.schedule == "lockstep"
    if lockstep and engines.launch == "process":
        raise InputError(
            f"{sources.place('engines.launch')}: engines.launch = 'process': lockstep is one process, so that it can "
            "be repeated bit for bit; set it to 'inline' or 'auto'"
        )
    try:
        ControllerSettings(settings.steps, capacity=engines.capacity).check(settings.recipe)
    except InputError as error:
        raise InputError(f"{sources.place('engines.capacity')}: engines.{error}") from error
    half = max(1, (os.cpu_count() or 2) // 2)
    launch = engines.launch if engines.launch != "auto" else "inline" if lockstep else "process"
    try:
        names = task_names(settings.task)
    except InputError as error:
        raise InputError(f"{sources.place('task')}: {error}") from error
    verify_threads = 0 if lockstep or set(names) == {"arithmetic"} else 4
    engines = replace(
        engines,
        launch=launch,
        # What is measured as faster may differ from one start to the next, and lockstep must not.
        compute="fp32" if lockstep and engines.compute == "auto" else engines.compute,
        generator_threads=engines.generator_threads or half,
        trainer_threads=engines.trainer_threads or half,
        evaluation_threads=engines.evaluation_threads or half,
        evaluation_slots=engines.evaluation_slots or engines.slots,
        verify_threads=verify_threads if engines.verify_threads is None else engines.verify_threads,
    )
    folder = Path(settings.folder)
    model = settings.model
    model = replace(model, path=_absolute(model.path, folder), tokenizer=_absolute(model.tokenizer, folder))
    return replace(settings, engines=engines, model=model)


def task_names(task: Any) -> list[str]:
    """Kinds of tasks in the settings.

    Raises:
        InputError: they are neither a name nor a mapping nor a list.
    """
    if isinstance(task, str):
        return [task]
    if isinstance(task, Mapping):
        return task_names(task["tasks"]) if "tasks" in task else [str(task.get("name"))]
    if isinstance(task, list | tuple) and task:
        return [name for part in task for name in task_names(part)]
    raise InputError(f"task = {task!r}: give a name, a mapping with name, or a list of such mappings")


def _absolute(path: str | None, folder: Path) -> str | None:
    return None if path is None else str(folder / path)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} = {value}: it must be at least {least}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
