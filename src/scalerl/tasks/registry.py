"""Tasks from settings: `{"name": "arithmetic", "level": "medium"}`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.protocols import Task
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
        InputError: naming the task, the key and the nearest valid one.
    """
    if isinstance(settings, str):
        settings = {"name": settings}
    if not isinstance(settings, Mapping):
        return _mixture({"tasks": settings}, tokenizer, folder)
    options = dict(settings)
    name = options.pop("name", None)
    if name == "mixture":
        return _mixture(options, tokenizer, folder)
    if name not in TASKS:
        raise InputError(f'task {{"name": {name!r}}}: no such task; {suggestion(name, [*TASKS, "mixture"])}')
    make = TASKS[name]()
    _check(name, make, options)
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


def _mixture(options: Mapping[str, Any], tokenizer: Tokenizer | None, folder: str | Path) -> Task:
    from scalerl.tasks.mixture import Mixture

    for key in options:
        if key not in ("tasks", "label"):
            raise InputError(f'task mixture: no key "{key}": {suggestion(key, ["tasks", "label"])}')
    parts = options.get("tasks") or []
    if isinstance(parts, str | Mapping) or not all(isinstance(part, Mapping) for part in parts):
        raise InputError('task mixture: tasks must be a list of mappings, such as {"name": "arithmetic", "weight": 2}')
    weights = [part.get("weight", 1.0) for part in parts]
    if not all(isinstance(w, int | float) and not isinstance(w, bool) for w in weights):
        raise InputError(f"task mixture: weights {weights}; each must be a number above 0")
    tasks = [build_task({k: v for k, v in part.items() if k != "weight"}, tokenizer, folder) for part in parts]
    return Mixture(tasks, [float(w) for w in weights], name=options.get("label", "mixture"))


def _check(name: str, make: Callable[..., Task], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(make).parameters
    known = set(parameters) - _GIVEN
    for key in options:
        if key not in known:
            raise InputError(f'task {name}: no key "{key}": {suggestion(key, sorted(known))}')
    for key, parameter in parameters.items():
        if key not in options and key in known and parameter.default is parameter.empty:
            raise InputError(f'task {name}: the key "{key}" is missing')


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
