"""Settings of a user's checked against the arguments of what they are for: names, and types as they are annotated."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Union, get_args, get_origin, get_type_hints

from scalerl.errors import InputError
from scalerl.recipe.validate import MOST, number
from scalerl.tasks.nearest import suggestion


class ArgumentError(InputError):
    """A setting of a task that cannot be. `key`: where it stands, dotted, such as `task.0.weight`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}{message}")
        self.key = key


def checked(
    make: Callable[..., Any], given: Mapping[str, Any], at: str, what: str, hidden: Collection[str] = ()
) -> dict[str, Any]:
    """The settings in the types of the arguments.

    Args:
        make: class or function. given: name -> value. at: the dotted key that they stand under. what: their owner, in
            words. hidden: arguments that are no settings.

    Raises:
        ArgumentError: an unknown name, with the nearest; a missing one; a value of another type.
    """
    parameters = {name: p for name, p in inspect.signature(make).parameters.items() if name not in hidden}
    for name in given:
        if name not in parameters:
            raise ArgumentError(f"{at}.{name}", f': {what} has no key "{name}": {suggestion(name, sorted(parameters))}')
    for name, parameter in parameters.items():
        if name not in given and parameter.default is parameter.empty:
            raise ArgumentError(at, f': {what} needs the key "{name}", which is missing')
    hints = _hints(make)
    return {name: _converted(value, hints.get(name, Any), f"{at}.{name}", name) for name, value in given.items()}


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    inner: Any = make.func if isinstance(make, partial) else make
    return get_type_hints(inner.__init__ if inspect.isclass(inner) else inner)


def _converted(value: Any, hint: Any, key: str, name: str) -> Any:
    if get_origin(hint) in (types.UnionType, Union):
        options = [option for option in get_args(hint) if option is not type(None)]
        if value is None and len(options) < len(get_args(hint)):
            return None
        hint = options[0]
    where = f" = {value!r}: "
    if hint in (int, float):
        try:
            found = number(value, hint)
        except InputError as error:
            raise ArgumentError(key, f"{where}{error}") from error
        if hint is int and name != "seed" and found > MOST:
            raise ArgumentError(key, f"{where}it must be at most {MOST:,}")
        return found
    if hint is bool and not isinstance(value, bool):
        raise ArgumentError(key, f"{where}true or false is needed")
    if hint is str and not isinstance(value, str):
        raise ArgumentError(key, f"{where}a text is needed; put it in quotes")
    if hint is str and not value:
        raise ArgumentError(key, f"{where}it is empty; give a text, or leave it out for its default")
    if get_origin(hint) in (Mapping, dict) and not isinstance(value, Mapping):
        raise ArgumentError(key, f"{where}a mapping is needed")
    if get_origin(hint) is Sequence and (isinstance(value, str) or not isinstance(value, Sequence)):
        raise ArgumentError(key, f"{where}a list is needed")
    return value
