"""The model and tokenizer that a run begins with, as folders: every process loads them from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.cache import cache_folder
from scalerl.engines.model import build_model, export_model, load_model
from scalerl.errors import InputError
from scalerl.tasks.registry import build_task
from scalerl.tasks.tokenizer import load_tokenizer, small_tokenizer
from scalerl.training.settings import Settings
from scalerl.training.warm_start import Progress, content_hash, warm_start

INITIAL = "initial-model"


@dataclass(frozen=True)
class Origin:
    """Where the run begins. `folder`: the model's. `end_tokens`: those its config names."""

    folder: Path
    tokenizer: Any
    end_tokens: tuple[int, ...]


def origin(settings: Settings, directory: Path, progress: Progress = lambda *_: None) -> Origin:
    """Find or make the model.

    Args:
        directory: of the run; random weights are kept there. progress: of a warm start.

    Raises:
        InputError: a folder is missing or holds no model or tokenizer.
    """
    model = settings.model
    if model.warm_start is not None:
        if not (cache_folder() / "warm-start" / content_hash(model.warm_start) / "config.json").is_file():
            _check_task(settings)
        folder = warm_start(model.warm_start, progress=progress)
    elif model.config is not None:
        folder = directory / INITIAL
        if not (folder / "config.json").is_file():
            export_model(build_model(model.config, model.seed), folder)
    else:
        assert model.path is not None  # one of the three, see ModelSettings
        folder = Path(model.path)
        if not (folder / "config.json").is_file():
            raise InputError(
                f"model.path = {str(folder)!r}: no Hugging Face model there; name a folder with config.json"
            )
    tokenizer = _tokenizer(settings, folder)
    return Origin(folder, tokenizer, _end_tokens(folder))


def _check_task(settings: Settings) -> None:
    """Refuse a task that cannot be now, rather than after the minutes of a warm start."""
    task = build_task(settings.task, _tokenizer(settings, Path()), settings.folder)
    getattr(task, "close", lambda: None)()


def vocabulary_fits(model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer that writes tokens which the model does not know.

    Raises:
        InputError: naming both sizes.
    """
    rows = int(model.get_input_embeddings().weight.shape[0])
    if len(tokenizer) > rows:
        raise InputError(f"model.tokenizer: it has {len(tokenizer)} tokens, the model's embedding {rows}; take its own")


def positions_fit(model: Any, prompt: int, completion: int) -> None:
    """Refuse sequences that are longer than the model was made for.

    Args:
        prompt, completion: tokens of the longest.

    Raises:
        InputError: naming both lengths. Learned positions would fail in the middle of the run, rotary ones would go on
            and give nonsense.
    """
    positions = _positions(model.config)
    if positions is not None and prompt + completion > positions:
        raise InputError(
            f"model: the longest prompt and completion take {prompt} + {completion} = {prompt + completion} tokens, "
            f"the model has {positions} positions; lower recipe.completion_tokens (with interruption "
            "recipe.thinking_budget_high and answer_budget), take shorter prompts, or a model with more positions"
        )


def _positions(config: Any) -> int | None:
    """Most tokens of a sequence; None where the config knows no bound.

    `max_position_embeddings` of most scaled rotary models holds the scaling already; where a config keeps the length
    before it there (YaRN, linear, dynamic), that length times the factor counts, so that no model is refused wrongly.
    """
    config = config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):  # one for each kind of layer
        before = part.get("original_max_position_embeddings") or most
        most = max(most, int(before * (part.get("factor") or 1)))
    return most


def _tokenizer(settings: Settings, folder: Path) -> Any:
    if settings.model.tokenizer is not None:
        return load_tokenizer(settings.model.tokenizer)
    if settings.model.config is not None or settings.model.warm_start is not None:
        return small_tokenizer()
    return load_tokenizer(folder)


def _end_tokens(folder: Path) -> tuple[int, ...]:
    """Of the generation config, else of the model's own, as transformers takes them."""
    import json

    for path in (folder / "generation_config.json", folder / "config.json"):
        try:
            found: Any = json.loads(path.read_text()) if path.is_file() else {}
        except ValueError as error:
            raise InputError(f"{path}: not JSON ({error})") from error
        ends = found.get("eos_token_id") if isinstance(found, Mapping) else None
        if ends is not None:
            return tuple(ends) if isinstance(ends, list) else (int(ends),)
    return ()


def loaded(folder: Path, dtype: str = "fp32") -> Any:
    """The model, in fp32 or bf16."""
    import torch

    return load_model(folder, torch.bfloat16 if dtype == "bf16" else torch.float32)
