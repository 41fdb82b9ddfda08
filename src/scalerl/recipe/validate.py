"""What a `Recipe` may hold. Each refusal is one line: which setting, what is wrong, and the nearest that is right."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.recipe.recipe import Recipe

# (clip_low, clip_high) of each loss: PAPER section 4 and the table of axes.
CLIPS: dict[str, tuple[float | None, float]] = {
    "cispo": (None, 5.0),
    "grpo": (0.2, 0.2),
    "dapo": (0.2, 0.26),
    "gspo": (3e-3, 4e-3),
}
MOST = 10**7
"""Of tokens, prompts, rollouts, slots: more would not fit any memory, and is a slip."""
_ONLY = {"master_weights": "a step of the usual learning rates rounds to nothing in bf16"}
# Names that other tools or habits bring, whose nearest spelling here would mislead.
_ELSEWHERE = {
    "generator_head_precision": "head_precision, which is one setting for generator and trainer",
    "trainer_head_precision": "head_precision, which is one setting for generator and trainer",
    "epsilon": "clip_low and clip_high",
    "epsilon_high": "clip_high",
    "beta": "kl_coefficient",
    "router_aux_loss_coef": "router_loss",
    "lr": "learning_rate",
    "k": "max_staleness",
    "num_generations": "generations",
    "max_grad_norm": "gradient_clipping",
}


def nearest(word: str, valid: Sequence[str]) -> str:
    """The valid word most like this one."""
    lower = {name.lower(): name for name in valid}
    return lower[get_close_matches(word.lower(), lower, n=1, cutoff=0.0)[0]]


def one_of(name: str, value: Any, valid: tuple[str, ...]) -> str:
    """The value, if it is among the valid ones."""
    if isinstance(value, str) and value in valid:
        return value
    if name in _ONLY:
        raise InputError(f"{name} = {value!r}: {_ONLY[name]}; the only valid one is {valid[0]!r}")
    stem, _, k = str(value).rpartition("-")
    if name == "schedule" and stem in valid and k.isdigit():
        raise InputError(f"schedule = {value!r}: write schedule = {stem!r} and max_staleness = {k}")
    raise InputError(f"{name} = {value!r}: {choice(value, valid)}")


def choice(value: Any, valid: Sequence[str]) -> str:
    """What may be given instead of a value that is none of the valid ones."""
    if value is None or value == "":
        return f"it is empty; give one of {', '.join(valid)}"
    near = get_close_matches(str(value).lower(), valid, n=1, cutoff=0.5)
    if near:
        return f"not known, the nearest valid one is {near[0]!r} (of {', '.join(valid)})"
    return f"not known; give one of {', '.join(valid)}"


def check_names(settings: Mapping[str, Any], recipe: type[Recipe]) -> None:
    """Refuse settings that do not exist."""
    known = get_type_hints(recipe)
    for name in settings:
        if name not in known:
            near = _ELSEWHERE.get(name) or nearest(str(name), tuple(known))
            raise InputError(f"{name}: no such setting of a recipe, the nearest valid one is {near}")


def converted(settings: Mapping[str, Any], recipe: type[Recipe]) -> dict[str, Any]:
    """Values in the types that the recipe declares. Numbers may come as text: YAML reads 5e-7 as such."""
    return {name: _convert(name, settings[name], hint) for name, hint in get_type_hints(recipe).items()}


def _convert(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is types.UnionType:  # a number or null
        if value is None or value in ("null", "none"):
            return None
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return one_of(name, value, get_args(hint))
    if hint is str:
        if not isinstance(value, str):
            raise InputError(f"{name} = {value!r}: a text is needed; put it in quotes")
        if not value:
            raise InputError(f"{name} = '': it is empty; leave it out for its default")
        return value
    try:
        return number(value, hint)
    except InputError as error:
        raise InputError(f"{name} = {value!r}: {error}") from error


def number(value: Any, kind: type[int] | type[float]) -> int | float:
    """A setting's value as a number; text that is one is taken, since YAML reads 5e-7 as such.

    Raises:
        InputError: saying what is needed, without the name.
    """
    wanted = "a whole number" if kind is int else "a number"
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"it is empty; give {wanted}, or leave it out for its default")
    try:
        found = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = None
    except OverflowError:
        found = math.inf
    if found is None:
        raise InputError(f"{wanted} is needed")
    if not math.isfinite(found):
        raise InputError(f"{wanted} is needed, and a finite one")
    if kind is float:
        return found
    if found != round(found):
        raise InputError(f"a whole number is needed, the nearest is {round(found)}")
    return int(value) if isinstance(value, int) else round(found)


def check(recipe: Recipe) -> None:
    """Refuse values out of range and settings that contradict each other."""
    for name, (valid, least, most) in _RANGES.items():
        value = getattr(recipe, name)
        if value is not None and not valid(value):
            near = f"at least {least}" if most is None else f"from {least} to {most}"
            why = f", since {_WHY[name]}" if name in _WHY else ""
            raise InputError(f"{name} = {value!r}: it must be {near}{why}")
    for name, hint in get_type_hints(type(recipe)).items():
        if hint is int and getattr(recipe, name) > MOST:
            raise InputError(f"{name} = {getattr(recipe, name)}: it must be at most {MOST:,}; more would fit no memory")
    _check_sampling(recipe)
    _check_clip(recipe)
    _check_rewards_and_schedule(recipe)
    _check_length(recipe)


def _at_least(least: float) -> tuple[Callable[[float], bool], str, None]:
    return (lambda value: value >= least), f"{least:g}", None


_WHY = {
    "generations": "the only answer of a group is its own mean and teaches nothing",
    "retire_at": "it is the pass rate from which a prompt is drawn no more",
}
_POSITIVE: tuple[Callable[[float], bool], str, None] = ((lambda value: value > 0), "a little above 0", None)
_RANGES: dict[str, tuple[Callable[[float], bool], str, str | None]] = {
    "max_staleness": _at_least(0),
    "kl_coefficient": _at_least(0),
    "router_loss": _at_least(0),
    "retire_at": ((lambda value: 0 < value <= 1), "a little above 0", "1"),
    "thinking_budget_low": _at_least(1),
    "answer_budget": _at_least(1),
    "penalty_longest": _at_least(1),
    "penalty_cache": _at_least(1),
    "completion_tokens": _at_least(1),
    "prompt_tokens": _at_least(1),
    "prompts_per_step": _at_least(1),
    "generations": _at_least(2),
    "learning_rate": ((lambda value: 0 < value <= 1), "a little above 0", "1"),
    "warmup_steps": _at_least(0),
    "adam_beta1": ((lambda value: 0 <= value < 1), "0", "a little below 1"),
    "adam_beta2": ((lambda value: 0 <= value < 1), "0", "a little below 1"),
    "adam_epsilon": _POSITIVE,
    "weight_decay": _at_least(0),
    "gradient_clipping": _POSITIVE,
}


def _check_sampling(recipe: Recipe) -> None:
    if recipe.temperature <= 0:
        raise InputError(
            f"temperature = {recipe.temperature:g}: training samples from the policy, which needs a temperature above "
            "0, e.g. 1"
        )
    for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        value = getattr(recipe, name)
        if value != neutral:
            raise InputError(
                f"{name} = {value:g}: it renormalises the generator's log-probabilities but not the trainer's, so "
                f"every ratio would be wrong; the only valid one in training is {neutral:g}"
            )


def _check_clip(recipe: Recipe) -> None:
    (low, high), (default_low, default_high) = recipe.clip, CLIPS[recipe.loss]
    if recipe.loss == "cispo":
        if low is not None:
            raise InputError(f"clip_low = {low:g}: cispo has an upper bound only; leave clip_low null")
        if high <= 1:
            raise InputError(
                f"clip_high = {high:g}: cispo bounds the ratio itself, which is 1 on fresh weights; the nearest tried "
                "is 4 (4 to 8 are alike); a distance from 1 belongs to dapo"
            )
        return
    if low is None or not 0 < low < 1:
        raise InputError(f"clip_low = {low}: {recipe.loss} needs a distance from 1 between 0 and 1, e.g. {default_low}")
    if not 0 < high < 1:
        raise InputError(
            f"clip_high = {high:g}: {recipe.loss} needs a distance from 1 between 0 and 1, e.g. {default_high}; a "
            "bound on the ratio itself belongs to cispo"
        )


def _check_rewards_and_schedule(recipe: Recipe) -> None:
    if recipe.reward_correct <= recipe.reward_wrong:
        raise InputError(
            f"reward_correct = {recipe.reward_correct:g}: it must be above reward_wrong = {recipe.reward_wrong:g}, "
            "e.g. 1 and -1"
        )
    if recipe.schedule != "lockstep" and recipe.max_staleness < 1:
        raise InputError(
            f"max_staleness = {recipe.max_staleness}: {recipe.schedule} runs ahead by at least 1 step; the nearest "
            "valid is 1, or schedule = 'lockstep'"
        )


def _check_length(recipe: Recipe) -> None:
    if recipe.length_control == "penalty" and recipe.penalty_cache > recipe.penalty_longest:
        raise InputError(
            f"penalty_cache = {recipe.penalty_cache}: the penalty cannot begin before the first token; at most "
            f"penalty_longest = {recipe.penalty_longest}"
        )
    if recipe.length_control != "interruption":
        return
    low, high = recipe.thinking_budget_low, recipe.thinking_budget_high
    if low > high:
        raise InputError(f"thinking_budget_high = {high}: it must be at least thinking_budget_low = {low}")
    if high + recipe.answer_budget > recipe.completion_tokens:
        raise InputError(
            f"completion_tokens = {recipe.completion_tokens}: thinking and answer can take {high} + "
            f"{recipe.answer_budget} tokens and the phrase some more; set it to more than {high + recipe.answer_budget}"
        )
    if not recipe.thinking_end or recipe.thinking_end not in recipe.interruption_phrase:
        raise InputError(
            f"interruption_phrase: it must hold thinking_end = {recipe.thinking_end!r}, or the answer would never begin"
        )
