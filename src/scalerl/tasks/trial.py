"""One answer judged before anything is trained: a verifier that cannot run at all is found in seconds.

It proves no verifier right. Only what points at the code itself is refused: a name or a module that is not there, at
once; a wrong type or attribute, or a return value that is no score, where it comes for the reference answers of several
prompts. What else fails may fail for one prompt, and is excluded and counted as ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from scalerl.errors import VerifierError
from scalerl.protocols import Task
from scalerl.tasks.encoding import END_THINK
from scalerl.tasks.guard import kind_of, origin, score, told
from scalerl.types import Prompt

_BROKEN = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError", "OffScale")
_SUSPECT = ("TypeError", "AttributeError", "VerifierError")
_PROMPTS = 3


def trial(task: Task) -> None:
    """Let each task's verifier judge the reference answer of a train prompt or a few, and an empty answer.

    Raises:
        VerifierError: it cannot work, naming it and the error.
    """
    parts: Mapping[str, Task] = getattr(task, "tasks", {task.name: task})
    for part in parts.values():
        _try(part)


def _try(task: Task) -> None:
    prompts = task.prompts("train")[:_PROMPTS]
    _suspicion(task, prompts[0], "")
    suspicions = []
    for prompt in prompts:
        found = _suspicion(task, prompt, str(prompt.answer))
        if found is None:
            return
        suspicions.append(found)
    raise VerifierError(f"{suspicions[0]}, even where the answer is the reference; mend the verifier, then start again")


def _suspicion(task: Task, prompt: Prompt, answer: str) -> str | None:
    """What went wrong, if it points at the code but may come of this one answer."""
    try:
        score(task.verify(prompt, END_THINK + answer))
    except (Exception, SystemExit) as error:
        kind, message = kind_of(error), f"{origin(task, prompt)}: {told(error)}"
        if kind in _BROKEN:
            raise VerifierError(f"{message}; mend the verifier, then start again") from error
        return message if kind in _SUSPECT else None
    return None
