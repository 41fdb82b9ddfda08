"""Nested settings as YAML and the command line give them, and where each one was written.

Every refusal names the place (`run.yaml:7` or `--set steps=x`), what is wrong, and the nearest that is right.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from scalerl.errors import InputError
from scalerl.recipe.validate import choice, number

T = TypeVar("T")
_DEEPEST = 50
_OF_MODELS = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
Tree = dict[str, Any]


class Sources:
    """Settings merged from several places, the later ones over the earlier.

    Attributes:
        tree: nested mappings. places: dotted key -> where it was written last.
    """

    def __init__(self) -> None:
        self.tree: Tree = {}
        self.places: dict[str, str] = {}

    def defaults(self, tree: Mapping[str, Any]) -> None:
        """Put settings below everything that was given."""
        self.tree = _merged(tree, self.tree)

    def read(self, path: Path) -> None:
        """Take a YAML file over what there is.

        Raises:
            InputError: it cannot be read, is no mapping, names a key twice, or has no end.
        """
        try:
            text = path.read_text("utf-8")
            node, tree = _parsed(text, str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
            raise InputError(f"{where}: no YAML ({getattr(error, 'problem', None) or error})") from error
        if tree is None:
            return
        if not isinstance(tree, dict):
            raise InputError(f"{path}: settings are a mapping, such as `steps: 100`")
        self._locate(node, str(path), "")
        self.tree = _merged(self.tree, tree)

    def set(self, words: Sequence[str]) -> None:
        """Take `key=value` words over what there is; values are YAML.

        Raises:
            InputError: a word without "=", or a value that is no YAML.
        """
        for word in words:
            key, equals, text = word.removeprefix("--").partition("=")
            key = key.strip()
            if not equals or not key or not all(key.split(".")):
                raise InputError(f"--set {word}: write key=value, e.g. recipe.loss=dapo")
            try:
                _, value = _parsed(text, f"--set {word[:80]}")
            except yaml.YAMLError as error:
                raise InputError(f"--set {word}: the value is no YAML ({error.args[0]}); put it in quotes") from error
            self.put(key, value, f"--set {word}")

    def put(self, key: str, value: Any, place: str) -> None:
        """One setting by its dotted key."""
        at = self.tree
        *above, last = key.split(".")
        for i, part in enumerate(above):
            inner = at.setdefault(part, {})
            if isinstance(inner, list):
                raise InputError(f"{place}: {'.'.join(above[: i + 1])} is a list; give the whole list instead")
            if not isinstance(inner, dict):
                inner = at[part] = {"name": inner} if part == "task" and isinstance(inner, str) else {}
            at = inner
        at[last] = value
        self.places[key] = place

    def place(self, key: str) -> str:
        """Where a key, or the nearest one above or below it, was written; the key itself where nowhere."""
        parts = key.split(".")
        for n in range(len(parts), 0, -1):
            found = self.places.get(".".join(parts[:n]))
            if found is not None:
                return found
        return next((place for name, place in self.places.items() if name.startswith(f"{key}.")), "settings")

    def _locate(self, node: Any, path: str, prefix: str) -> None:
        if isinstance(node, yaml.SequenceNode):
            for i, part in enumerate(node.value):
                self.places[f"{prefix}{i}"] = f"{path}:{part.start_mark.line + 1}"
                self._locate(part, path, f"{prefix}{i}.")
        if not isinstance(node, yaml.MappingNode):
            return
        seen = set()
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen:
                raise InputError(f"{path}:{line}: {prefix}{key} is there twice; remove one")
            seen.add(key)
            self.places[f"{prefix}{key}"] = f"{path}:{line}"
            self._locate(value_node, path, f"{prefix}{key}.")


def _parsed(text: str, place: str) -> tuple[Any, Any]:
    """(nodes, values) of YAML that ends: an alias may hold what it is in itself."""

    def walk(node: Any, level: int) -> None:
        if level > _DEEPEST:
            where = place if place.startswith("--set") else f"{place}:{node.start_mark.line + 1}"
            raise InputError(f"{where}: an alias holds itself, or more than {_DEEPEST} levels are nested")
        if isinstance(node, yaml.CollectionNode):
            for part in node.value:
                for inner in part if isinstance(part, tuple) else (part,):
                    walk(inner, level + 1)

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        walk(node, 0)
        return node, yaml.safe_load(text)
    except RecursionError:
        raise InputError(f"{place}: more than {_DEEPEST} levels are nested; settings need a few") from None


def build(cls: type[T], tree: Any, sources: Sources, prefix: str = "") -> T:
    """A dataclass from its part of the tree.

    Raises:
        InputError: an unknown key, a value of the wrong type, or what the class itself refuses.
    """
    if not isinstance(tree, Mapping):
        raise InputError(
            f"{sources.place(prefix.rstrip('.'))}: {prefix.rstrip('.')} holds settings of its own, such as "
            f"{prefix}{fields(cls)[0].name}"  # type: ignore[arg-type]
        )
    hints = get_type_hints(cls)
    for name in tree:
        if name not in hints:
            raise InputError(
                f"{sources.place(f'{prefix}{name}')}: there is no setting {prefix}{name}; "
                f"{_instead(str(name), tree[name], prefix, hints)}"
            )
    values = {name: _convert(value, hints[name], sources, f"{prefix}{name}") for name, value in tree.items()}
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(_placed(str(error), sources, prefix, tuple(hints))) from error


def _instead(name: str, value: Any, prefix: str, hints: Mapping[str, Any]) -> str:
    """What may have been meant by a setting that does not exist."""
    if value is None and ":" in name:
        return f"write a space behind the colon: {name.replace(':', ': ', 1)}"
    if prefix == "model." and name.partition(":")[0] in ("model_type", *_OF_MODELS):
        return f"it belongs to a Hugging Face config: model.config.{name}"
    near = get_close_matches(name, hints, n=1, cutoff=0.0)[0]
    return f"the nearest is {prefix}{near}"


def _placed(message: str, sources: Sources, prefix: str, names: Sequence[str]) -> str:
    """A refusal that begins with a setting's name, with the place in front."""
    name = message.split(":")[0].split(" ")[0]
    key = f"{prefix}{name}"
    return f"{sources.place(key)}: {prefix}{message}" if name in names else message


def _convert(value: Any, hint: Any, sources: Sources, key: str) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else build(hint, value, sources, f"{key}.")
    if origin in (types.UnionType, Union):
        inner = next(o for o in options if o is not type(None))
        if value is None or (inner in (int, float) and value in ("null", "none")):
            return None
        return _convert(value, inner, sources, key)
    if hint is Any:
        return value
    where = f"{sources.place(key)}: {key} = {value!r}"
    if origin is Literal:
        if value in options:
            return value
        raise InputError(f"{where}: {choice(value, options)}")
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise InputError(f"{where}: true or false is needed")
    if hint is str:
        if value is None or value == "":
            raise InputError(f"{where}: it is empty; give a text, or leave it out for its default")
        if isinstance(value, str):
            return value
        raise InputError(f"{where}: a text is needed; put it in quotes")
    if hint in (int, float):
        try:
            return number(value, hint)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    if origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(v, options[0], sources, key) for v in value)
        raise InputError(f"{where}: a list is needed")
    if isinstance(value, Mapping):
        return dict(value)
    raise InputError(f"{where}: a mapping is needed")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """`above` over `below`, mapping by mapping."""
    found = dict(below)
    for key, value in above.items():
        inner = found.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        found[key] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return found
