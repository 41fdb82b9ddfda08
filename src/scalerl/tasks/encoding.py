"""From a question to the tokens the model sees, and from its tokens back to the answer that is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from scalerl.errors import InputError
from scalerl.tasks.tokenizer import CHARACTERS, is_small

THINK, END_THINK = "<think>", "</think>"
Messages = Sequence[Mapping[str, str]]


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that tasks use."""

    chat_template: Any
    eos_token_id: Any

    def __call__(self, text: Any, *, add_special_tokens: bool) -> Any: ...
    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...
    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> Any: ...


class PromptEncoder:
    """Writes a question as the model expects it: through the tokenizer's chat template where it has one.

    Args:
        tokenizer: the model's own.
        template: text around the question; "{question}" stands for it.
        system: system message, for a tokenizer with a chat template.
    """

    def __init__(self, tokenizer: Tokenizer, template: str = "{question}", system: str | None = None) -> None:
        if "{question}" not in template:
            raise InputError(f'template {template!r} has no "{{question}}": put it where the question belongs')
        if system is not None and not tokenizer.chat_template:
            raise InputError("system: this tokenizer has no chat template, so no system message; use template")
        self.tokenizer, self.template, self.system = tokenizer, template, system
        rendered = self.render("?") if tokenizer.chat_template else template
        # Templates of reasoning models end with an open <think>: their completions then begin inside the thought.
        self.opens_thought = rendered.rstrip().endswith(THINK)

    def _content(self, question: str | Messages) -> str:
        """What the user and the settings wrote, without the marks of a chat template."""
        if isinstance(question, str):
            return (self.system or "") + self.template.replace("{question}", question)
        return (self.system or "") + "".join(message["content"] for message in question)

    def render(self, question: str | Messages) -> str:
        """The text that is tokenized; for a tokenizer with a chat template, with all its special tokens."""
        if isinstance(question, str):
            question = [{"role": "user", "content": self.template.replace("{question}", question)}]
        if not self.tokenizer.chat_template:
            return "\n\n".join(message["content"] for message in question)
        if self.system is not None and question[0]["role"] != "system":
            question = [{"role": "system", "content": self.system}, *question]
        return str(self.tokenizer.apply_chat_template(list(question), tokenize=False, add_generation_prompt=True))

    def encode(self, question: str | Messages) -> tuple[int, ...]:
        """(p,) token ids of the prompt."""
        return self.encode_all([question])[0]

    def encode_all(
        self, questions: Sequence[str | Messages], places: Sequence[str] | None = None
    ) -> list[tuple[int, ...]]:
        """Token ids of each prompt; one call of the tokenizer, which is far faster than many.

        Args:
            places: what each question is called in a refusal, such as file and line.

        Raises:
            InputError: the tokenizer would read a character as unknown, so that the model would never see it.
        """
        if not questions:
            return []
        templated = bool(self.tokenizer.chat_template)
        texts = [self.render(question) for question in questions]
        rows = self.tokenizer(texts, add_special_tokens=not templated)["input_ids"]
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        for i, row in enumerate(rows):
            if unknown is not None and unknown in row:
                text = self._content(questions[i])
                self.check(text, places[i] if places is not None else f"prompt {text[:40]!r}")
        end = self.tokenizer.eos_token_id
        # A tokenizer that closes what it encodes would hand the model a prompt that has already ended.
        return [tuple(row[:-1] if not templated and len(row) > 1 and row[-1] == end else row) for row in rows]

    def lacking(self, text: str) -> list[str]:
        """Characters that the tokenizer knows only as `<unk>`, in the order of the text."""
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if unknown is None:
            return []
        rows = self.tokenizer([text, *text], add_special_tokens=False)["input_ids"]
        if unknown not in rows[0]:
            return []
        return list(dict.fromkeys(c for c, row in zip(text, rows[1:], strict=True) if unknown in row))

    def check(self, text: str, place: str) -> None:
        """Refuse a text with characters that the tokenizer lacks: the model would neither see nor write them.

        Raises:
            InputError: beginning with the place, naming the characters.
        """
        found = self.lacking(text)
        if found:
            shown = " ".join(map(repr, found[:8])) + (" ..." if len(found) > 8 else "")
            own = f"; the small model's has only {CHARACTERS!r}" if is_small(self.tokenizer) else ""
            raise InputError(
                f"{place}: the model's tokenizer has no {shown} and would read <unk>{own}; write it with other "
                "characters, remove it, or set model.path to a model that knows them"
            )

    def completion_text(self, token_ids: Sequence[int]) -> str:
        """A rollout's tokens as the text that `Task.verify` judges: thinking marks stay, end and padding go."""
        return str(self.tokenizer.decode([int(token) for token in token_ids], skip_special_tokens=True))


def after_thinking(completion: str, opens_thought: bool = False) -> str | None:
    """The answer behind the thinking trace; None where a thought was begun and never ended.

    Args:
        completion: the whole text.
        opens_thought: the prompt itself ended with `<think>`.
    """
    _, mark, answer = completion.rpartition(END_THINK)
    if mark:
        return answer.strip()
    return None if opens_thought or THINK in completion else completion.strip()
