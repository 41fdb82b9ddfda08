"""The small tokenizer of the arithmetic task: one token a character, and one each for the marks of the thinking.

A real Hugging Face tokenizer, so that nothing downstream knows a special case. Built in code: the same everywhere.
Left out on purpose: letters. Unknown characters become `<unk>`; every token more slows sampling and blurs exploration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
MARKS = ("<think>", "</think>", "time!")  # not special: decoding must keep them for the verifier
CHARACTERS = "0123456789+-*=() "
INTERRUPTION = "time!</think>"
VOCABULARY = {token: index for index, token in enumerate([*SPECIAL, *MARKS, *CHARACTERS])}
TEMPLATE = "<bos>{% for message in messages %}{{ message['content'] }}{% endfor %}<think>"


_TOKEN = re.compile("|".join(map(re.escape, [*SPECIAL, *MARKS])) + r"|[\s\S]")


def small_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, 24 tokens. Its chat template writes `<bos>3+5-2=<think>`: completions begin inside the thought."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    build: Any = PreTrainedTokenizerFast  # transformers leaves its constructor untyped
    inner = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    inner.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])
    tokenizer: PreTrainedTokenizerFast = build(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def is_small(tokenizer: Any) -> bool:
    """Whether this is the small tokenizer, as built or as loaded from a model trained with it."""
    return bool(tokenizer.chat_template == TEMPLATE and tokenizer.get_vocab() == VOCABULARY)


def quick_ids(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """What the small tokenizer makes of texts, ten times as fast: a warm start has tens of thousands."""
    unknown = VOCABULARY["<unk>"]
    return [tuple([VOCABULARY.get(token, unknown) for token in _TOKEN.findall(text)]) for text in texts]


def save_tokenizer(folder: str | Path) -> Path:
    """Write the small tokenizer as an ordinary Hugging Face folder."""
    small_tokenizer().save_pretrained(str(folder))
    return Path(folder)


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model's folder; never from the network."""
    from transformers import AutoTokenizer

    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; a tokenizer is read from a model's folder")
    try:
        found: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder}: holds no tokenizer that transformers reads ({reason})") from error
    return found  # type: ignore[no-any-return]
