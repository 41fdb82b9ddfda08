"""Verifiers by name, and the user's own by import path.

A verifier is a function `verify(prompt, completion, answer) -> float`; the completion comes without its thinking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from scalerl.errors import InputError
from scalerl.tasks.arguments import ArgumentError, checked
from scalerl.tasks.judge import Judge
from scalerl.tasks.maths import Maths
from scalerl.tasks.nearest import suggestion

MOST_DIGITS = 400  # longer numbers are no answer, and converting them takes time that grows with their square
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.?)(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d+)?")
_BOXED = re.compile(r"\\boxed\s*\{")
_SAID = re.compile(r"(?i:answer|option|choice)(?i:\s+is)?\s*[:\-]?\s*[\(\[\*]*([A-Z])\b")
_LETTER = re.compile(r"(?<![A-Za-z0-9'])[\(\[\*]*([A-Z])[\)\]\*]*(?![A-Za-z0-9'])")


class Verifier(Protocol):
    """Judges one completion. May also offer `problem(answer)`, asked of every reference at loading, and `close()`."""

    def __call__(self, prompt: str, completion: str, answer: Any, /) -> float: ...


@runtime_checkable
class Checks(Protocol):
    """A verifier that can tell an unusable reference answer: None, or what is wrong with it."""

    def problem(self, answer: Any) -> str | None: ...


class Exact:
    """1 where the text is the answer, letter for letter, but for space around it and runs of space within."""

    def __init__(self, ignore_case: bool = False) -> None:
        self.ignore_case = ignore_case

    def __call__(self, prompt: str, completion: str, answer: Any) -> float:
        return float(self._plain(completion) == self._plain(str(answer)))

    def _plain(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text


class Contains(Exact):
    """1 where the answer occurs in the text as words of its own ("12" is not in "120")."""

    def __call__(self, prompt: str, completion: str, answer: Any) -> float:
        wanted = re.escape(self._plain(str(answer)))
        return float(re.search(rf"(?<!\w){wanted}(?!\w)", self._plain(completion)) is not None)

    def problem(self, answer: Any) -> str | None:
        return None if str(answer).strip() else "is empty, and every text contains that"


class Numeric:
    """1 where the number in the last `\\boxed{}`, or else the last number of the text, is the answer.

    Args:
        tolerance: largest |difference| allowed, relative to the answer (absolute where the answer is 0).
    """

    def __init__(self, tolerance: float = 1e-6) -> None:
        if not 0 <= tolerance < 1:
            raise InputError(f"verifier numeric: tolerance {tolerance}; it must be at least 0 and below 1")
        self.tolerance = tolerance

    def __call__(self, prompt: str, completion: str, answer: Any) -> float:
        given, wanted = last_number(completion), last_number(str(answer))
        if given is None or wanted is None:
            return 0.0
        return float(abs(given - wanted) <= self.tolerance * (abs(wanted) or 1.0))

    def problem(self, answer: Any) -> str | None:
        return None if last_number(str(answer)) is not None else "is no number"


class Choice:
    """1 where the letter chosen is the answer's: `B`, `(B)`, `B) Paris`, `the answer is B`, `\\boxed{B}`."""

    def __call__(self, prompt: str, completion: str, answer: Any) -> float:
        return float(chosen_letter(completion) == str(answer).strip().strip("()").upper())

    def problem(self, answer: Any) -> str | None:
        return None if re.fullmatch(r"\(?[A-Za-z]\)?", str(answer).strip()) else "is no single letter"


class Imported:
    """The user's own function, `my_module:my_verifier` or `my_file.py:my_verifier`.

    Args:
        target: import path. seconds, memory_mb, workers: limits of its processes.
        isolated: run it in a process of its own, so that it can neither hang nor crash the training; False for one that
            needs a debugger, a GPU or shared state.
        paths: where to look for the module.
    """

    def __init__(
        self,
        target: str,
        *,
        seconds: float = 10.0,
        memory_mb: int = 4096,
        workers: int = 1,
        isolated: bool = True,
        paths: Sequence[str] = (),
    ) -> None:
        self.judge: Judge | None = None
        self.function: Callable[..., Any]
        if isolated:
            self.function = self.judge = Judge(
                target, 3, seconds=seconds, patience=seconds, memory_mb=memory_mb, workers=workers, paths=paths
            )
            self.judge.check()
        else:
            self.function = _in_process(target, paths)

    def __call__(self, prompt: str, completion: str, answer: Any) -> float:
        """What the function returns. What it raises excludes the rollout; so does a timeout."""
        return self.function(prompt, completion, answer)  # type: ignore[no-any-return]

    def close(self) -> None:
        if self.judge is not None:
            self.judge.close()


def last_number(text: str) -> float | None:
    """The number in the last box, or the last one of the text; `1,234.5`, `-3/4`, `2e3`, `.5`. None without any."""
    box = last_boxed(text)
    found = _NUMBER.findall((text if box is None else box)[-10_000:].replace("−", "-"))
    found = [number for number in found if any(character.isdigit() for character in number)]
    if not found or len(found[-1]) > MOST_DIGITS:
        return None
    above, _, below = found[-1].replace(",", "").partition("/")
    try:
        value = float(Decimal(above)) / (float(Decimal(below)) if below else 1.0)
    except (InvalidOperation, ZeroDivisionError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}`, braces balanced; None without one or where it is not closed."""
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return None
    depth = 1
    for place in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[starts[-1] : place]
    return None


def chosen_letter(text: str) -> str | None:
    """The letter of a multiple choice: boxed, else after "answer is", else the only capital that stands alone."""
    box = last_boxed(text)
    if box is not None:
        text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", box)
    text = text[-10_000:].strip()
    if re.fullmatch(r"[\(\[\*]*[A-Za-z][\)\]\*\.:]*", text):
        return text.strip("()[]*.:").upper()
    said = _SAID.findall(text)
    if said:
        return str(said[-1]).upper()
    leading = re.match(r"[\(\[\*]*([A-Z])[\)\]\*\.:]+\s", text)
    alone = set(_LETTER.findall(text))
    return leading.group(1) if leading else alone.pop() if len(alone) == 1 else None


NAMED: Mapping[str, Callable[..., Verifier]] = {
    "exact": Exact,
    "contains": Contains,
    "numeric": Numeric,
    "choice": Choice,
    "maths": Maths,
}


def verifier(name: str, options: Mapping[str, Any] | None = None, paths: Sequence[str] = ()) -> Verifier:
    """A verifier by name or import path.

    Args:
        name: one of NAMED, `module:function` or `file.py:function`.
        options: its settings.
        paths: where the user's module may lie, besides what is installed.

    Raises:
        InputError: unknown name or option, or a function that cannot be imported.
    """
    own = checked_options(name, options)
    if ":" in name:
        return Imported(_located(name, paths), paths=paths, **own)
    return NAMED[name](**own)


def checked_options(name: str, options: Mapping[str, Any] | None, at: str = "task") -> dict[str, Any]:
    """A verifier's options in their types.

    Args:
        at: the dotted key of the task.

    Raises:
        ArgumentError: unknown name, or an option that cannot be.
    """
    if ":" not in name and name not in NAMED:
        near = suggestion(name, NAMED)
        raise ArgumentError(
            f"{at}.verifier", f': no verifier "{name}": {near}; your own is named my_module:my_function'
        )
    make = Imported if ":" in name else NAMED[name]
    return checked(make, options or {}, f"{at}.verifier_options", f"verifier {name}", ("target", "paths"))


def _located(target: str, paths: Sequence[str]) -> str:
    """`file.py:function` with the file's full path; other targets as they are."""
    place, _, function = target.rpartition(":")
    if not place.endswith(".py"):
        return target
    for folder in (".", *paths):
        file = Path(folder, place).resolve()
        if file.is_file():
            return f"{file}:{function}"
    raise InputError(f"verifier {target}: no file {place} in {' or '.join(dict.fromkeys(['.', *paths]))}")


def _in_process(target: str, paths: Sequence[str]) -> Callable[..., Any]:
    import sys

    from scalerl.tasks.judge_worker import load

    sys.path += [path for path in paths if path not in sys.path]
    try:
        return load(target, 3)
    except Exception as error:
        raise InputError(f"verifier {target}: {type(error).__name__}: {error}") from error
