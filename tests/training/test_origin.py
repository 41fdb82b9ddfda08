"""Models as others publish them: several end tokens, and embeddings with rows to spare (TRAPS 19)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import rows, settings

from scalerl.errors import InputError
from scalerl.tasks.tokenizer import VOCABULARY, save_tokenizer, small_tokenizer
from scalerl.training.assemble import decoder
from scalerl.training.lengths import length_limits
from scalerl.training.model import origin
from scalerl.training.resolve import resolve
from scalerl.training.settings import ModelSettings, Settings
from scalerl.training.train import train

CONFIG = {
    "model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 32, "vocab_size": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("generation", "model", "also"),
    [
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 5}, (7, 9)),
        ({"eos_token_id": 7}, {}, (7,)),
        ({"do_sample": True}, {"eos_token_id": [5, 6]}, (5, 6)),
        (None, {"eos_token_id": 5}, (5,)),
        (None, {"eos_token_id": None}, ()),
    ],
)
def test_every_end_token_that_the_folder_names_ends_a_rollout(
    tmp_path: Path, generation: dict[str, object] | None, model: dict[str, object], also: tuple[int, ...]
) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(model))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    made = settings()
    found = origin(Settings(model=ModelSettings(path=str(tmp_path)), engines=made.engines), tmp_path / "run")
    limits = length_limits(made.recipe, found.tokenizer, found.end_tokens)
    assert limits.end_tokens == (VOCABULARY["<eos>"], *also)


def test_a_config_that_is_cut_off_is_named(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id"')
    with pytest.raises(InputError, match=r"generation_config\.json: not JSON"):
        origin(Settings(model=ModelSettings(path=str(tmp_path))), tmp_path / "run")


def test_tokens_beyond_the_tokenizers_are_no_text() -> None:
    seven = VOCABULARY["7"]
    decode = decoder(small_tokenizer())
    assert decode(np.array([seven, 63, seven, VOCABULARY["<eos>"]])) == "77"


def test_an_embedding_with_rows_to_spare_trains(tmp_path: Path) -> None:
    words = [f"model.config={json.dumps(CONFIG)}", "task.name=arithmetic", "task.min_steps=1", "task.max_steps=1",
             "task.train_prompts=8", "task.held_out_prompts=2", "steps=1", "recipe.prompts_per_step=2",
             "recipe.generations=2", "recipe.length_control=none", "recipe.completion_tokens=12",
             "recipe.zero_variance=keep",
             "recipe.schedule=lockstep", "engines.slots=4",
             "evaluation.every=0"]  # fmt: skip
    train(resolve(words=words), tmp_path / "run")
    assert rows(tmp_path / "run", "train")[0]["tokens"] > 0


def test_a_phrase_that_the_tokenizer_cannot_write_is_refused() -> None:
    recipe = resolve(words=["recipe.interruption_phrase=stop</think>"]).recipe
    with pytest.raises(InputError, match=r"recipe\.interruption_phrase: the model's tokenizer has no 's' 't' 'o' 'p' "):
        length_limits(recipe, small_tokenizer())
    length_limits(resolve().recipe, small_tokenizer())


def test_a_task_that_cannot_be_is_refused_before_the_warm_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    made = resolve(words=["task={name: file, path: nowhere.jsonl}"])
    with pytest.raises(InputError, match=r"nowhere\.jsonl: no such file"):
        origin(made, tmp_path, lambda *_: pytest.fail("it has begun"))
