"""Any dataset of `reasoning_gym`, by name and parameters, judged by its own scorer.

The scorer runs in a process of its own: several evaluate what the model wrote. See `judge.py` for the rules.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from scalerl.errors import InputError, VerifierError
from scalerl.tasks.encoding import PromptEncoder, Tokenizer, after_thinking
from scalerl.tasks.judge import Judge
from scalerl.tasks.nearest import suggestion
from scalerl.tasks.splits import Split, known_split
from scalerl.types import Prompt

# A dataset makes item i from seed + i, so neighbouring seeds share nearly all items: the held-out seed lies far away.
HELD_OUT_SEED = 2**30
SPARE = 4  # how many times the wanted prompts are tried where a dataset repeats itself


class ReasoningGym:
    """A dataset of reasoning_gym.

    Args:
        dataset: its name, such as "countdown". params: its settings.
        train_prompts, held_out_prompts: most distinct prompts of each split; small datasets have fewer.
        seed: of the train prompts; those held out come from one far away, and are left out of the train prompts.
        partial: give the scorer's partial credit as the reward. Off, only a full score counts, so that the share of
            positive rewards is a pass rate (several scorers give .01 for any answer).
        seconds, memory_mb, workers: limits of the judging processes.
        tokenizer, template, system: see PromptEncoder.
    """

    def __init__(
        self,
        dataset: str,
        *,
        tokenizer: Tokenizer,
        label: str | None = None,
        params: Mapping[str, Any] | None = None,
        train_prompts: int = 1000,
        held_out_prompts: int = 200,
        seed: int = 0,
        partial: bool = False,
        seconds: float = 1.0,
        memory_mb: int = 1024,
        workers: int = 1,
        template: str = "{question}",
        system: str | None = None,
    ) -> None:
        self.name, self.dataset, self.params = label or dataset, dataset, dict(params or {})
        self.sizes: dict[Split, int] = {"train": train_prompts, "held-out": held_out_prompts}
        if min(self.sizes.values()) < 1 or not 0 <= seed < HELD_OUT_SEED // 2:
            raise InputError(f"reasoning_gym: prompts {self.sizes}, seed {seed}; prompts at least 1, seed 0 to 2^29")
        self.seeds: dict[Split, int] = {"train": seed, "held-out": seed + HELD_OUT_SEED}
        self.partial = partial
        self.encoder = PromptEncoder(tokenizer, template, system)
        self._prompts: dict[Split, list[Prompt]] = {}
        _check(dataset, self.params)
        self._entries: dict[str, str] = {}
        self.judge = Judge(
            "scalerl.tasks.reasoning_gym:score",
            4,
            seconds=seconds,
            prepare="scalerl.tasks.reasoning_gym:prepare",
            memory_mb=memory_mb,
            workers=workers,
        )

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Distinct prompts of a split; none is in both."""
        side = known_split(split)
        if not self._prompts:
            for name, entries in _generate(self.dataset, self.params, self.seeds, self.sizes).items():
                self._prompts[name] = self._made(entries)
        if not self._prompts[side]:
            raise InputError(f"reasoning_gym: {self.dataset} has no {side} prompts beyond those of the other split")
        return self._prompts[side]

    def verify(self, prompt: Prompt, completion: str) -> float:
        """The scorer's verdict on what follows the thinking; an unfinished thought is worth 0."""
        text = after_thinking(completion, self.encoder.opens_thought)
        if text is None:
            return 0.0
        if prompt.prompt_id not in self._entries:
            self.prompts("train")  # a prompt from a checkpoint, before any was asked for here
        if prompt.prompt_id not in self._entries:
            raise VerifierError(f"prompt {prompt.prompt_id} is none of {self.name}'s: {prompt.text[:60]!r}")
        place = self.dataset, self.params, self._entries[prompt.prompt_id]
        reward = self.judge.reward((*place, text), (*place, prompt.answer))
        return reward if self.partial else float(reward >= 1.0)

    def close(self) -> None:
        self.judge.close()

    def _made(self, entries: Sequence[dict[str, Any]]) -> list[Prompt]:
        made = []
        questions = [entry["question"] for entry in entries]
        encoded = self.encoder.encode_all(questions, [f"reasoning_gym {self.dataset}"] * len(entries))
        for entry, token_ids in zip(entries, encoded, strict=True):
            answer = None if entry["answer"] is None else str(entry["answer"])
            made.append(Prompt(token_ids, entry["question"], self.name, answer))
            # Scorers need the whole entry. The worker cannot make it anew: some datasets depend on the process.
            self._entries[made[-1].prompt_id] = base64.b64encode(pickle.dumps(entry)).decode()
        return made


def _generate(
    dataset: str, params: Mapping[str, Any], seeds: Mapping[Split, int], sizes: Mapping[Split, int]
) -> dict[Split, list[dict[str, Any]]]:
    """Entries of both splits, made in a process whose hash seed is fixed: five datasets iterate over sets."""
    settings = json.dumps({"dataset": dataset, "params": params, "seeds": seeds, "sizes": sizes})
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from scalerl.tasks.reasoning_gym import generate; generate()", settings],
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise InputError(f"reasoning_gym: {dataset} with {dict(params)} cannot be generated: {' '.join(reason)}")
    made: dict[Split, list[dict[str, Any]]] = pickle.loads(done.stdout)
    return made


def generate() -> None:
    """Runs in the generating process: settings from the command line, entries pickled to the output."""
    settings = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # what a dataset prints must not mix with it
        made: dict[str, list[dict[str, Any]]] = {}
        for split in ("held-out", "train"):
            taken = {entry["question"] for entry in made.get("held-out", [])}
            size = settings["sizes"][split]
            dataset = _dataset(settings["dataset"], settings["params"], settings["seeds"][split], SPARE * size)
            made[split] = _distinct(dataset, size, taken)
        output.write(pickle.dumps(made))


def _distinct(dataset: Any, size: int, taken: set[str]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for index in range(min(len(dataset), SPARE * size)):
        if len(found) == size:
            break
        entry = dataset[index]
        if entry["question"] not in taken:
            found.setdefault(entry["question"], entry)
    return list(found.values())


def prepare() -> None:
    """Runs in the worker before the first answer: the import takes a second."""
    import reasoning_gym  # noqa: F401


def score(dataset: str, params: dict[str, Any], entry: str, answer: str | None) -> float:
    """Runs in the worker: the dataset's own score, in [0, 1], of an answer to one of its entries."""
    scorer = _scorer(dataset, json.dumps(params))
    return float(scorer.score_answer(answer, pickle.loads(base64.b64decode(entry))))


@lru_cache(maxsize=8)
def _scorer(dataset: str, params: str) -> Any:
    return _dataset(dataset, json.loads(params), 0, 1)


def _dataset(name: str, params: Mapping[str, Any], seed: int, size: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=size, **params)


def _check(name: str, params: Mapping[str, Any]) -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise InputError("reasoning_gym is not installed; pip install 'scalerl[train]'")
    from dataclasses import fields

    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise InputError(f'reasoning_gym has no dataset "{name}": {suggestion(name, DATASETS)}')
    known = {field.name for field in fields(DATASETS[name][1])} - {"seed", "size"}
    for key in params:
        if key not in known:
            raise InputError(f'reasoning_gym: {name} has no parameter "{key}": {suggestion(key, known)}')
    try:
        _dataset(name, params, 0, 1)
        json.dumps(params)
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"reasoning_gym: {name} refuses {dict(params)}: {error}") from error
