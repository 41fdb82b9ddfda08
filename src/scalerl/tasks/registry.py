"""Tasks from settings: `{"name": "arithmetic", "level": "medium"}`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.protocols import Task
from scalerl.recipe.validate import number
from scalerl.tasks.arguments import ArgumentError, checked
from scalerl.tasks.encoding import Tokenizer
from scalerl.tasks.nearest import suggestion

Settings = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
_GIVEN = {"tokenizer", "folder"}  # by the assembly, not by the settings


def build_task(settings: Settings, tokenizer: Tokenizer | None = None, folder: str | Path = ".") -> Task:
    """A task, or a mixture where the settings are a list or name one.

    Args:
        settings: a name; or a mapping with `name`, optionally `label` (the name of its curve), and the arguments of its
            class; or a list of such mappings, each optionally with a `weight`. `{"name": "mixture", "tasks": [...]}` is
            the list spelt out.
        tokenizer: the model's; only arithmetic brings its own.
        folder: what relative paths are relative to.

    Raises:
        InputError: naming the key and the nearest valid one.
    """
    check(settings)
    return _built(settings, tokenizer, folder)


def _built(settings: Settings, tokenizer: Tokenizer | None, folder: str | Path) -> Task:
    parts = _parts(settings, "task")
    if parts is not None:
        from scalerl.tasks.mixture import Mixture

        tasks = [_built(part, tokenizer, folder) for _, part, _ in parts]
        label = settings.get("label", "mixture") if isinstance(settings, Mapping) else "mixture"
        return Mixture(tasks, [weight for _, _, weight in parts], name=label)
    assert isinstance(settings, str | Mapping)
    name, make, options = _single(settings, "task")
    if "tokenizer" in inspect.signature(make).parameters:
        if tokenizer is None and name != "arithmetic":
            raise InputError(f"task {name}: needs the model's tokenizer; only arithmetic brings its own")
        options["tokenizer"] = tokenizer
    if "folder" in inspect.signature(make).parameters:
        options["folder"] = folder
    try:
        return make(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"task {name}: unusable value among {settings!r} ({error})") from error


def check(settings: Any, at: str = "task") -> list[str]:
    """Refuse what can be seen without reading any data.

    Args:
        settings: as `build_task` takes them. at: the dotted key that they stand under.

    Returns:
        The labels, one for each curve.

    Raises:
        ArgumentError: with the key of what is wrong.
    """
    parts = _parts(settings, at)
    if parts is None:
        return [_label(*_single(settings, at), at)]
    labels: list[str] = []
    for key, part, _ in parts:
        found = check(part, key)
        twice = set(found) & set(labels)
        if twice:
            name = min(twice)
            raise ArgumentError(
                key, f': two tasks are called "{name}"; give each a label of its own, for its own curve'
            )
        labels += found
    return labels


def _parts(settings: Any, at: str) -> list[tuple[str, Mapping[str, Any], float]] | None:
    """(key, settings, weight) of each task of a mixture; None where it is none."""
    if isinstance(settings, Mapping) and settings.get("name", "mixture" if "tasks" in settings else None) == "mixture":
        for key in settings:
            if key not in ("name", "tasks", "label"):
                raise ArgumentError(
                    f"{at}.{key}", f": a mixture has no such key: {suggestion(key, ['tasks', 'label'])}"
                )
        settings, at = settings.get("tasks"), f"{at}.tasks"
    elif isinstance(settings, str | Mapping):
        return None
    example = "a list of mappings, such as {name: arithmetic, weight: 2}, is needed"
    if not isinstance(settings, list | tuple) or not settings:
        raise ArgumentError(at, f" = {settings!r}: a name, a mapping with name, or {example}")
    parts: list[tuple[str, Mapping[str, Any], float]] = []
    for i, part in enumerate(settings):
        if not isinstance(part, Mapping):
            raise ArgumentError(f"{at}.{i}", f" = {part!r}: {example}")
        options = dict(part)
        parts.append((f"{at}.{i}", options, _weight(options.pop("weight", 1.0), f"{at}.{i}.weight")))
    return parts


def _weight(value: Any, key: str) -> float:
    try:
        found = float(number(value, float))
    except InputError as error:
        raise ArgumentError(key, f" = {value!r}: {error}") from error
    if found <= 0:
        raise ArgumentError(key, f" = {value!r}: it must be above 0; leave the task out instead")
    return found


def _single(settings: str | Mapping[str, Any], at: str) -> tuple[str, Callable[..., Task], dict[str, Any]]:
    """A task's name, what makes it, and its settings, checked."""
    options: dict[str, Any] = {"name": settings} if isinstance(settings, str) else dict(settings)
    name = options.pop("name", None)
    if name is None:
        raise ArgumentError(at, f": no name; {suggestion(name, [*TASKS, 'mixture'])}")
    if name not in TASKS:
        near = suggestion(name, [*TASKS, "mixture"])
        raise ArgumentError(f"{at}.name", f" = {name!r}: no such task; {near}")
    make = TASKS[name]()
    options = checked(make, options, at, f"task {name}", _GIVEN)
    if "verifier" in inspect.signature(make).parameters:
        from scalerl.tasks.verifiers import checked_options

        verifier = options.get("verifier", inspect.signature(make).parameters["verifier"].default)
        checked_options(verifier, options.get("verifier_options"), at)
    return name, make, options


def _label(name: str, make: Callable[..., Task], options: Mapping[str, Any], at: str) -> str:
    label = options.get("label")
    if label is None:
        path = options.get("path")
        return str(options.get("dataset", name)) if path is None else Path(str(path)).stem
    if "/" in str(label):
        raise ArgumentError(f"{at}.label", f" = {label!r}: names of metrics are made of it, so it must have no slash")
    return str(label)


def _arithmetic() -> Callable[..., Task]:
    from scalerl.tasks.arithmetic import Arithmetic

    return Arithmetic


def _reasoning_gym() -> Callable[..., Task]:
    from scalerl.tasks.reasoning_gym import ReasoningGym

    return ReasoningGym


def _file() -> Callable[..., Task]:
    from scalerl.tasks.files import FileTask

    return FileTask


def _maths() -> Callable[..., Task]:
    from scalerl.tasks.files import FileTask

    return partial(FileTask, verifier="maths")


TASKS: Mapping[str, Callable[[], Callable[..., Task]]] = {
    "arithmetic": _arithmetic,
    "reasoning_gym": _reasoning_gym,
    "maths": _maths,
    "file": _file,
}
