"""The user's own prompts and answers, and a verifier by name or import path."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.tasks.encoding import Messages, PromptEncoder, Tokenizer, after_thinking
from scalerl.tasks.rows import Row, rows, value
from scalerl.tasks.splits import Split, held_out_part, known_split
from scalerl.tasks.verifiers import Checks
from scalerl.tasks.verifiers import verifier as make_verifier
from scalerl.types import Prompt

_log = logging.getLogger("scalerl.tasks")
_SPELT = ("exact", "contains", "choice")  # verifiers for which the completion must spell the answer


class FileTask:
    """Prompts from a file or folder.

    Args:
        path: JSON Lines, Parquet or a folder of Hugging Face datasets. split: which part of a folder.
        prompt, answer: their columns; `reward_model.ground_truth` reaches into nested ones. A prompt is text, or a list
            of chat messages with role and content.
        verifier: "exact", "contains", "numeric", "choice", "maths", or the user's own, `my_module:my_function` or
            `my_file.py:my_function`.
        verifier_options: its settings.
        held_out: share of the distinct prompts that is held out: those with the smallest hashes of their content.
        held_out_path: a file or folder of its own for them instead; prompts also in it are left out of training.
        held_out_split: or a split of the same folder.
        keep_thinking: hand the verifier the whole completion instead of what follows `</think>`.
        max_prompt_tokens: longer prompts are left out, and their number is logged.
        folder: what relative paths are relative to.
        tokenizer, template, system: see PromptEncoder.
    """

    def __init__(
        self,
        path: str,
        *,
        tokenizer: Tokenizer,
        label: str | None = None,
        split: str = "train",
        prompt: str = "prompt",
        answer: str = "answer",
        verifier: str = "exact",
        verifier_options: Mapping[str, Any] | None = None,
        held_out: float = 0.1,
        held_out_path: str | None = None,
        held_out_split: str | None = None,
        keep_thinking: bool = False,
        max_prompt_tokens: int | None = None,
        template: str = "{question}",
        system: str | None = None,
        folder: str | Path = ".",
    ) -> None:
        self.path = Path(folder, path)
        self.name = label or self.path.stem
        self.columns = prompt, answer
        self.keep_thinking, self.max_prompt_tokens = keep_thinking, max_prompt_tokens
        self.encoder = PromptEncoder(tokenizer, template, system)
        if not 0 < held_out < 1:
            raise InputError(f"{self.name}: held_out {held_out} is no share; give one between 0 and 1, such as 0.1")
        paths = list(dict.fromkeys(str(Path(place).resolve()) for place in (".", folder, self.path.parent)))
        self.verifier_name = verifier
        self._verifier = make_verifier(verifier, verifier_options, paths)
        self._spelt = verifier in _SPELT
        self._places: dict[str, str] = {}
        self._too_long = 0
        other = held_out_path or held_out_split
        self._separate = other is not None
        if other is None:
            both = self._read(self.path, split)
            kept_out = held_out_part((content for content, _ in both), held_out)
            sides = {
                "held-out": [p for c, p in both if c in kept_out],
                "train": [p for c, p in both if c not in kept_out],
            }
        else:
            place = Path(folder, held_out_path) if held_out_path else self.path
            kept = self._read(place, held_out_split or split)
            known = {content for content, _ in kept}
            sides = {
                "held-out": [p for _, p in kept],
                "train": [p for c, p in self._read(self.path, split) if c not in known],
            }
        self._prompts: dict[str, list[Prompt]] = sides
        for side, found in sides.items():
            if not found:
                raise InputError(f"{self.path}: no {side} prompts {self._why_none(side)}")

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Prompts of a split, in the order of the file."""
        side: Split = known_split(split)
        return self._prompts[side]

    def verify(self, prompt: Prompt, completion: str) -> float:
        """The verifier's verdict; an unfinished thought is worth 0. What the verifier raises is raised."""
        text = completion if self.keep_thinking else after_thinking(completion, self.encoder.opens_thought)
        return 0.0 if text is None else self._verifier(prompt.text, text, prompt.answer)

    def judged_by(self, prompt: Prompt) -> str:
        """The verifier and the row of a prompt, for messages."""
        return f"verifier {self.verifier_name}, {self._places.get(prompt.prompt_id, self.path)}"

    def close(self) -> None:
        """End the verifier's processes, if it has some."""
        close = getattr(self._verifier, "close", None)
        if close is not None:
            close()

    def _why_none(self, side: str) -> str:
        read = f"among {len(self._places)} that can be used"
        if self._too_long:
            limit = f"{self._too_long} have more than {self.max_prompt_tokens} tokens"
            return f"{read}; {limit}: raise recipe.prompt_tokens, or the task's max_prompt_tokens, or shorten them"
        if not self._places:
            return "in it; add rows"
        if side == "train" and self._separate:
            return f"{read}: all of them are held out too; add rows that are not"
        return f"{read}; add rows, or give held_out_path"

    def _read(self, path: Path, split: str) -> list[tuple[str, Prompt]]:
        """(content, prompt) of every distinct row; content is what decides the split."""
        asked, answers, places = [], [], []
        for row in rows(path, split):
            asked.append(_question(row, self.columns[0]))
            answers.append(self._answer(row))
            places.append(row[0])
        encoded = self.encoder.encode_all(asked, [f'{place}, key "{self.columns[0]}"' for place in places])
        if self._spelt:
            self._check_spelling(answers, places)
        found: dict[str, tuple[str, Prompt]] = {}
        too_long = 0
        for question, answer, ids, place in zip(asked, answers, encoded, places, strict=True):
            if self.max_prompt_tokens is not None and len(ids) > self.max_prompt_tokens:
                too_long += 1
                continue
            prompt = Prompt(ids, _readable(question), self.name, answer)
            self._places.setdefault(prompt.prompt_id, place)
            found.setdefault(prompt.prompt_id, (prompt.text, prompt))
        self._too_long += too_long
        repeated = len(asked) - too_long - len(found)
        if too_long or repeated:
            _log.warning(
                "%s: of %d rows, %d have more than %s prompt tokens and %d repeat another; they are left out",
                path, len(asked), too_long, self.max_prompt_tokens, repeated,
            )  # fmt: skip
        return list(found.values())

    def _check_spelling(self, answers: Sequence[Any], places: Sequence[str]) -> None:
        """Refuse an answer that no completion could ever spell, since it would be worth 0 for ever."""
        foreign = set(self.encoder.lacking("".join(dict.fromkeys("".join(map(str, answers))))))
        for answer, place in zip(answers, places, strict=True):
            if foreign & set(str(answer)):
                self.encoder.check(str(answer), f'{place}, key "{self.columns[1]}"')

    def _answer(self, row: Row) -> Any:
        answer = value(row, self.columns[1])
        problem = "is empty" if answer is None else None
        if problem is None and isinstance(self._verifier, Checks):
            problem = self._verifier.problem(answer)
        if problem is not None:
            raise InputError(
                f'{row[0]}, key "{self.columns[1]}": {str(answer)[:60]!r} {problem}; mend or remove the row'
            )
        try:
            json.dumps(answer)
        except (TypeError, ValueError):
            return str(answer)  # dates and the like
        return answer


def _question(row: Row, key: str) -> str | Messages:
    found = value(row, key)
    if any("\ud800" <= character <= "\udfff" for character in str(found)):
        raise InputError(f'{row[0]}, key "{key}": half of a surrogate pair, which is no text; mend or remove the row')
    if isinstance(found, str) and found.strip():
        return found
    if found is None or found == [] or (isinstance(found, str) and not found.strip()):
        raise InputError(f'{row[0]}, key "{key}": the prompt is empty; write one, or remove the row')
    if isinstance(found, list):
        texts = [
            isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in found
        ]
        if all(texts):
            return [dict(message) for message in found]
    raise InputError(
        f'{row[0]}, key "{key}": {str(found)[:60]!r} is neither text nor a list of messages with role and content; '
        "mend or remove the row"
    )


def _readable(question: str | Messages) -> str:
    if isinstance(question, str):
        return question
    return "\n\n".join(message["content"] for message in question)
