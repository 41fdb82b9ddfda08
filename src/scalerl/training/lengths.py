"""The recipe's length control in tokens of the model at hand."""

from __future__ import annotations

from typing import Any

from scalerl.engines.length_control import LengthLimits
from scalerl.errors import InputError
from scalerl.recipe.length import Interruption
from scalerl.recipe.recipe import Recipe
from scalerl.tasks.encoding import PromptEncoder


def length_limits(recipe: Recipe, tokenizer: Any, also_ending: tuple[int, ...] = ()) -> LengthLimits:
    """Budgets, and the interruption phrase as the tokenizer writes it.

    Args:
        also_ending: end tokens besides the tokenizer's own, as the model's generation config may name.

    Raises:
        InputError: there is no end token, or the end of thinking is no single token of this tokenizer.
    """
    ends = tuple(dict.fromkeys(t for t in (tokenizer.eos_token_id, *also_ending) if t is not None))
    if not ends:
        raise InputError("model.tokenizer: it has no end token, so no rollout would ever end; set its eos_token")
    if recipe.length_control != "interruption":
        return LengthLimits((0, 0), recipe.completion_tokens, None, (), ends)
    closing = _ids(tokenizer, recipe.thinking_end)
    if len(closing) != 1 or closing[0] == getattr(tokenizer, "unk_token_id", None):
        raise InputError(
            f"recipe.thinking_end = {recipe.thinking_end!r}: it must be one token of the model's tokenizer, which "
            f"writes it with {len(closing)}; for a model that does not think set recipe.length_control = none"
        )
    try:
        PromptEncoder(tokenizer).check(recipe.interruption_phrase, "recipe.interruption_phrase")
    except InputError as error:
        raise InputError(f"{error}; or do without interruption: recipe.length_control = none") from error
    plan = Interruption.of(recipe, _ids(tokenizer, recipe.interruption_phrase))
    assert plan is not None  # it interrupts
    if closing[0] not in plan.phrase:
        raise InputError(
            f"recipe.interruption_phrase = {recipe.interruption_phrase!r}: the tokenizer joins its "
            f"{recipe.thinking_end!r} with other characters; put a space or a line break before it"
        )
    return LengthLimits((plan.budget_low, plan.budget_high), plan.answer_budget, closing[0], plan.phrase, ends)


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"])
