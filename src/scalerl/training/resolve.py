"""Settings of a run from YAML, a preset and the command line, resolved: nothing is left to be chosen later.

The small model's sizes (`small`) stand in for the paper's where nothing else is said and the model is warm-started
here: 14,000 tokens a rollout mean nothing to a model of a million parameters.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.pipeline.settings import ControllerSettings
from scalerl.recipe.presets import PRESETS
from scalerl.recipe.recipe import Recipe
from scalerl.tasks.arguments import ArgumentError
from scalerl.tasks.arithmetic import LEVELS
from scalerl.tasks.registry import check
from scalerl.training.settings import CONFIG, THREADS, EngineSettings, Settings
from scalerl.training.tree import Sources, Tree, build

_log = logging.getLogger("scalerl.training")


def small(longest: int) -> Tree:
    """Sizes for the small model, whose traces take 4 tokens a step: chains of up to `longest` steps just fit."""
    room = 4 * longest
    recipe = {
        "prompts_per_step": 32, "generations": 16, "thinking_budget_low": room, "thinking_budget_high": room + 4,
        "answer_budget": 4, "interruption_phrase": "time!</think>", "completion_tokens": room + 12,
        "prompt_tokens": max(32, 2 * longest + 4), "penalty_longest": room + 12, "penalty_cache": 8,
        "learning_rate": 1.5e-4, "warmup_steps": 5, "adam_beta2": 0.95,
    }  # fmt: skip
    return {"recipe": recipe, "engines": {"slots": 128}}


def resolve(
    file: Path | None = None, preset: str | None = None, words: Sequence[str] = (), steps: int | None = None,
    stop_when: str | None = None, seed: int | None = None, launch: str | None = None,
) -> Settings:  # fmt: skip
    """Settings from a preset of the recipe, a YAML file, and the command line; each later one wins.

    Raises:
        InputError: naming the file and line or the option, and the nearest valid setting.
    """
    sources = Sources()
    if file is not None:
        sources.read(file)
    options = {"preset": ("--preset", preset), "steps": ("--steps", steps), "seed": ("--seed", seed),
               "forecast.stop_when": ("--stop-when", stop_when), "engines.launch": ("--launch", launch)}  # fmt: skip
    for key, (option, value) in options.items():
        if value is not None:
            sources.put(key, value, f"{option} {value}")
    sources.set(words)
    settings = _resolved(sources, (file.parent if file is not None else Path()).resolve())
    if not Path(settings.folder).is_dir():
        raise InputError(
            f"{sources.place('folder')}: folder = {settings.folder!r}: no such folder; name the one that relative "
            "paths begin in, or leave it out"
        )
    _warn_of_threads(settings.engines)
    return settings


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
    warm = not isinstance(model, Mapping) or (model.get("path") is None and model.get("config") is None)
    task = sources.tree.get("task")
    if isinstance(task, Mapping) and not {"name", "tasks"} & set(task):
        sources.defaults({"task": {"name": "arithmetic"}})  # as without any: `task.level=easy` is enough
    _absolute_folder(sources, folder)
    if warm:
        _put_small_below(sources, name)
        if model is None or isinstance(model, Mapping):
            _start_with(_chains(sources.tree.get("task")), sources)
    return _on_this_machine(build(Settings, sources.tree, sources), sources)


def _absolute_folder(sources: Sources, own: Path) -> None:
    """One that a file names begins at the file, one of the command line where that is typed."""
    said = sources.tree.get("folder", str(own))
    if isinstance(said, str) and said:
        begin = Path() if sources.place("folder").startswith("--set") else own
        said = str((begin / said).resolve())
    sources.tree["folder"] = said


def _warn_of_threads(engines: EngineSettings) -> None:
    cores = os.cpu_count() or 1
    for name in THREADS:
        if (getattr(engines, name) or 0) > cores:
            _log.warning("engines.%s = %d: this machine has %d cores, and more threads than that wait for each other",
                         name, getattr(engines, name), cores)  # fmt: skip


def _chains(task: Any) -> Tree:
    """The level and longest chain of the arithmetic task; nothing where it is another, or one that will be refused."""
    said = task if isinstance(task, Mapping) else {}
    level = str(said.get("level", "medium"))
    if said.get("name") != "arithmetic" or level not in LEVELS:
        return {}
    low, high = said.get("min_steps") or 1, said.get("max_steps") or LEVELS[level][1]
    whole = isinstance(low, int) and isinstance(high, int)
    return {"level": level, "max_steps": max(low, high)} if whole else {}


def _start_with(chains: Tree, sources: Sources) -> None:
    """The warm start shows what the task asks, unless the user says what it shows."""
    model = sources.tree.get("model") or {}
    if model.get("warm_start") is None:
        sources.tree["model"] = {**model, "warm_start": {}}
    sources.defaults({"model": {"warm_start": chains}})


def _put_small_below(sources: Sources, preset: str | None) -> None:
    """Sizes go over a preset's, which are the paper's, and below what the user says."""
    sizes = small(_chains(sources.tree.get("task")).get("max_steps", LEVELS["medium"][1]))
    given = {key.removeprefix("recipe.") for key in sources.places if key.startswith("recipe.")}
    recipe = sources.tree.get("recipe")
    over = {k: v for k, v in sizes["recipe"].items() if k not in given} if preset is not None else {}
    sources.defaults(sizes)
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
    try:
        ControllerSettings(settings.steps, capacity=engines.capacity).check(settings.recipe)
    except InputError as error:
        raise InputError(f"{sources.place('engines.capacity')}: engines.{error}") from error
    under_way = (settings.recipe.max_staleness + 1) * settings.recipe.batch_size
    if engines.slots > max(1024, under_way):
        raise InputError(
            f"{sources.place('engines.slots')}: engines.slots = {engines.slots}: at most {under_way:,} rollouts are "
            "ever under way, and each slot takes memory; set it to that or less"
        )
    half = max(1, (os.cpu_count() or 2) // 2)
    launch = engines.launch if engines.launch != "auto" else "inline" if lockstep else "process"
    for name, number in (("trainers", engines.trainers), ("generators", engines.generators)):
        if launch == "inline" and number > 1:
            raise InputError(
                f"{sources.place(f'engines.{name}')}: engines.{name} = {number}: with launch = inline there is one; "
                "set engines.launch to process or ray"
            )
    names = task_names(settings.task)
    try:
        check(settings.task)
    except ArgumentError as error:
        raise InputError(f"{sources.place(error.key)}: {error}") from error
    verify_threads = 0 if lockstep or set(names) == {"arithmetic"} else 4
    engines = replace(
        engines,
        launch=launch,
        capacity=engines.capacity or _fresh(engines.slots * engines.generators, settings.recipe),
        compute=_compute(settings, sources),
        generator_threads=engines.generator_threads or half,
        trainer_threads=engines.trainer_threads or max(1, half // engines.trainers),
        evaluation_threads=engines.evaluation_threads or half,
        evaluation_slots=engines.evaluation_slots or engines.slots,
        verify_threads=verify_threads if engines.verify_threads is None else engines.verify_threads,
    )
    folder = Path(settings.folder)
    model = settings.model
    model = replace(model, path=_absolute(model.path, folder), tokenizer=_absolute(model.tokenizer, folder))
    return replace(settings, engines=engines, model=model)


def _compute(settings: Settings, sources: Sources) -> Literal["auto", "fp32", "bf16"]:
    """Of the trainer, where it is decided here.

    What is measured as faster may differ from one start to the next, and lockstep must not. A head that is no fp32 one
    runs in the dtype of its side, and in two dtypes is worse than in either (TRAPS 4).
    """
    engines = settings.engines
    if settings.recipe.head_precision == "fp32":
        return "fp32" if engines.compute == "auto" and settings.recipe.schedule == "lockstep" else engines.compute
    if engines.compute not in ("auto", engines.generator_dtype):
        both = f"engines.compute = {engines.compute!r} and engines.generator_dtype = {engines.generator_dtype!r}"
        raise InputError(
            f"{sources.place('recipe.head_precision')}: recipe.head_precision = 'model': {both} would run the two "
            "heads in two precisions, worse than in either; set both alike, or head_precision to 'fp32'"
        )
    return engines.generator_dtype


def _fresh(slots: int, recipe: Recipe) -> int | None:
    """The fewest groups that keep everybody busy: slots full, a batch in training and one waiting for it.

    All that the staleness bound allows would make every rollout as stale as it allows, and no step faster.
    """
    if recipe.schedule != "pipeline":
        return None
    least, most = recipe.prompts_per_step, (recipe.max_staleness + 1) * recipe.prompts_per_step
    return min(most, 2 * least + -(-slots // recipe.generations))


def task_names(task: Any) -> list[str]:
    """Kinds of tasks in the settings; none where they are none."""
    if isinstance(task, str):
        return [task]
    if isinstance(task, Mapping):
        return task_names(task["tasks"]) if "tasks" in task else [str(task.get("name"))]
    return [name for part in task for name in task_names(part)] if isinstance(task, list | tuple) else []


def _absolute(path: str | None, folder: Path) -> str | None:
    return None if path is None else str(folder / path)
