"""What was changed in a run's settings since its checkpoint: a curve that bends there has its reason beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from scalerl.errors import InputError
from scalerl.training.settings import CONFIG, Settings

_WIDTH = 60
_UNSET = "unset"


def changes(checkpoint: Path, settings: Settings) -> str | None:
    """`recipe.learning_rate: 0.001 -> 0.002; steps: 4 -> 6`; None where all is as it was, or nothing is known.

    Args:
        checkpoint: a folder that holds the settings it was written with.

    Raises:
        InputError: a model of random weights was made long ago, and would not be made anew.
    """
    file = checkpoint / CONFIG
    if not file.is_file():  # of a version that did not keep them
        return None
    old, new = (dict(_flat("", yaml.safe_load(text))) for text in (file.read_text("utf-8"), settings.to_yaml()))
    names = [name for name in {**old, **new} if old.get(name, _UNSET) != new.get(name, _UNSET)]
    fixed = next((name for name in names if name.startswith("model.config.")), None)
    if fixed is not None and settings.model.config is not None:
        raise InputError(
            f"{CONFIG}: {fixed} was {_short(old.get(fixed, _UNSET))} when {checkpoint.name} was written, and a run "
            "keeps its model; put it back, or start a new run in another directory"
        )
    return "; ".join(f"{n}: {_short(old.get(n, _UNSET))} -> {_short(new.get(n, _UNSET))}" for n in names) or None


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping) or not value:
        yield prefix, value
        return
    for name, part in value.items():
        yield from _flat(f"{prefix}.{name}" if prefix else str(name), part)


def _short(value: Any) -> str:
    text = "null" if value is None else " ".join(str(value).split())
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
