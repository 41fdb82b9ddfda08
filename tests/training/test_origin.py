"""Models as others publish them: several end tokens, and embeddings with rows to spare (TRAPS 19)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import rows, settings

from scalerl.errors import InputError
from scalerl.tasks.tokenizer import VOCABULARY, save_tokenizer, small_tokenizer
from scalerl.training.assemble import decoder
from scalerl.training.lengths import length_limits
from scalerl.training.model import origin, positions_fit
from scalerl.training.resolve import resolve
from scalerl.training.resume import resume
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
    wider = f"model.config={json.dumps(CONFIG | {'hidden_size': 32})}"
    resolve(words=[wider, *words[1:]]).write(tmp_path / "run")
    with pytest.raises(InputError, match=r"model\.config\.hidden_size was 16 when step-00000001 was written"):
        resume(tmp_path / "run")


GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 15}


@pytest.mark.parametrize("config", [CONFIG | {"max_position_embeddings": 15}, GPT2])
def test_sequences_longer_than_the_models_positions_are_refused_before_training(
    tmp_path: Path, config: dict[str, object]
) -> None:
    words = [f"model.config={json.dumps(config)}", "task.name=arithmetic", "task.min_steps=1", "task.max_steps=1",
             "task.train_prompts=4", "task.held_out_prompts=2", "steps=1", "recipe.length_control=none",
             "recipe.completion_tokens=12", "recipe.schedule=lockstep"]  # fmt: skip
    with pytest.raises(InputError, match=r"take 6 \+ 12 = 18 tokens, the model has 15 positions; lower recipe\.comple"):
        train(resolve(words=words), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("rope", "most"),
    [
        ({"rope_type": "default"}, 16),
        ({"rope_type": "linear", "factor": 4.0}, 64),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}, 16),
        ({"full_attention": {"factor": 2.0}, "sliding_attention": {"rope_type": "default"}}, 32),
        (None, 16),
    ],
)
def test_positions_count_with_the_scaling_that_the_config_leaves_out(rope: object, most: int) -> None:
    config = SimpleNamespace(max_position_embeddings=16, rope_parameters=rope)
    config.get_text_config = lambda: config
    model = SimpleNamespace(config=config)
    positions_fit(model, most // 2, most // 2)
    with pytest.raises(InputError, match=f"the model has {most} positions"):
        positions_fit(model, most // 2, most // 2 + 1)
    config.max_position_embeddings = None
    positions_fit(model, 10**6, 1)


def test_a_phrase_that_the_tokenizer_cannot_write_is_refused() -> None:
    recipe = resolve(words=["recipe.interruption_phrase=stop</think>"]).recipe
    with pytest.raises(
        InputError,
        match=r"recipe\.interruption_phrase: the model's tokenizer has no 's' 't' 'o' 'p' .*length_control = none",
    ):
        length_limits(recipe, small_tokenizer())
    length_limits(resolve().recipe, small_tokenizer())


def test_a_task_that_cannot_be_is_refused_before_the_warm_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    made = resolve(words=["task={name: file, path: nowhere.jsonl}"])
    with pytest.raises(InputError, match=r"nowhere\.jsonl: no such file"):
        origin(made, tmp_path, lambda *_: pytest.fail("it has begun"))
