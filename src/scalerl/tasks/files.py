"""The user's own prompts and answers, and a verifier by name or import path."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, VerifierError
from scalerl.tasks.encoding import Messages, PromptEncoder, Tokenizer, after_thinking
from scalerl.tasks.rows import Row, rows, value
from scalerl.tasks.splits import Split, is_held_out, known_split
from scalerl.tasks.verifiers import Checks
from scalerl.tasks.verifiers import verifier as make_verifier
from scalerl.types import Prompt

_log = logging.getLogger("scalerl.tasks")


class FileTask:
    """Prompts from a file or folder.

    Args:
        path: JSON Lines, Parquet or a folder of Hugging Face datasets. split: which part of a folder.
        prompt, answer: their columns; `reward_model.ground_truth` reaches into nested ones. A prompt is text, or a list
            of chat messages with role and content.
        verifier: "exact", "contains", "numeric", "choice", "maths", or the user's own, `my_module:my_function` or
            `my_file.py:my_function`.
        verifier_options: its settings.
        held_out: share of the prompts that is held out, by a hash of their content.
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
        self._verifier = make_verifier(verifier, verifier_options, paths)
        self._places: dict[str, str] = {}
        other = held_out_path or held_out_split
        if other is None:
            both = self._read(self.path, split)
            cut = {content: is_held_out(content, held_out) for content, _ in both}
            sides = {side: [p for c, p in both if cut[c] == (side == "held-out")] for side in ("train", "held-out")}
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
                mend = "add rows, change held_out, or give held_out_path"
                raise InputError(f"{self.path}: no {side} prompts among {len(self._places)}; {mend}")

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Prompts of a split, in the order of the file."""
        side: Split = known_split(split)
        return self._prompts[side]

    def verify(self, prompt: Prompt, completion: str) -> float:
        """The verifier's verdict; an unfinished thought is worth 0.

        Raises:
            VerifierError: naming the row, where the verifier failed.
        """
        text = completion if self.keep_thinking else after_thinking(completion, self.encoder.opens_thought)
        if text is None:
            return 0.0
        try:
            return self._verifier(prompt.text, text, prompt.answer)
        except VerifierError as error:
            raise VerifierError(f"{self._places.get(prompt.prompt_id, self.path)}: {error}") from error

    def close(self) -> None:
        """End the verifier's processes, if it has some."""
        close = getattr(self._verifier, "close", None)
        if close is not None:
            close()

    def _read(self, path: Path, split: str) -> list[tuple[str, Prompt]]:
        """(content, prompt) of every distinct row; content is what decides the split."""
        asked, answers, places = [], [], []
        for row in rows(path, split):
            asked.append(_question(row, self.columns[0]))
            answers.append(self._answer(row))
            places.append(row[0])
        encoded = self.encoder.encode_all(asked)
        found: dict[str, tuple[str, Prompt]] = {}
        too_long = 0
        for question, answer, ids, place in zip(asked, answers, encoded, places, strict=True):
            if self.max_prompt_tokens is not None and len(ids) > self.max_prompt_tokens:
                too_long += 1
                continue
            prompt = Prompt(ids, _readable(question), self.name, answer)
            self._places.setdefault(prompt.prompt_id, place)
            found.setdefault(prompt.prompt_id, (prompt.text, prompt))
        repeated = len(asked) - too_long - len(found)
        if too_long or repeated:
            _log.warning(
                "%s: of %d rows, %d have more than %s prompt tokens and %d repeat another; they are left out",
                path, len(asked), too_long, self.max_prompt_tokens, repeated,
            )  # fmt: skip
        return list(found.values())

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
    if isinstance(found, list) and found:
        texts = [
            isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in found
        ]
        if all(texts):
            return [dict(message) for message in found]
    raise InputError(
        f'{row[0]}, key "{key}": {str(found)[:60]!r} is neither text nor a list of messages with role and content'
    )


def _readable(question: str | Messages) -> str:
    if isinstance(question, str):
        return question
    return "\n\n".join(message["content"] for message in question)
