"""The default task: chains of digits modulo 10, worked out step by step in the thinking trace.

    prompt      3+5-2=            (the small tokenizer's template adds <bos> and <think>)
    completion  3+5=8-2=6</think>6

Computed from left to right, and every result is reduced modulo 10. A model of under a million parameters learns it in
minutes on two cores, and the length of the chain sets how hard it is. Left out on purpose: precedence and larger
numbers, which so small a model does not learn in that time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalerl.errors import InputError
from scalerl.tasks.encoding import END_THINK, PromptEncoder, Tokenizer
from scalerl.tasks.nearest import suggestion
from scalerl.tasks.splits import Split, is_held_out, known_split
from scalerl.tasks.tokenizer import is_small, quick_ids, small_tokenizer
from scalerl.types import Prompt

LEVELS: dict[str, tuple[int, int, str]] = {  # shortest chain, longest chain, operators
    "easy": (1, 4, "+-"),
    "medium": (3, 6, "+-"),
    "hard": (5, 10, "+-"),
    "times": (3, 6, "+-*"),
}
HELD_OUT_SHARE = 0.1
_IN_WORDS = (
    "Compute from left to right and keep only the last digit after every step: {question}\n"
    "Think between <think> and </think>, then give nothing but the final digit."
)


@dataclass(frozen=True)
class Example:
    """One supervised example of the warm start: (p,) prompt and (t,) completion tokens, the end token included."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


class Arithmetic:
    """Chains of digits; see the file's head.

    Args:
        level: "easy", "medium", "hard" or "times"; the next three change a part of it.
        min_steps, max_steps: operations in a chain, drawn uniformly. operators: of "+-*".
        train_prompts, held_out_prompts: how many distinct prompts each split has.
        seed: another seed draws other prompts, but never moves one between the splits.
        tokenizer: the model's; the small one of `tokenizer.py` where there is none.
        template, system: around the chain; for a tokenizer not made for this task, an instruction in words.
    """

    def __init__(
        self,
        *,
        label: str = "arithmetic",
        level: str = "medium",
        min_steps: int | None = None,
        max_steps: int | None = None,
        operators: str | None = None,
        train_prompts: int = 4096,
        held_out_prompts: int = 256,
        seed: int = 0,
        tokenizer: Tokenizer | None = None,
        template: str | None = None,
        system: str | None = None,
    ) -> None:
        if level not in LEVELS:
            raise InputError(f'arithmetic: no level "{level}": {suggestion(level, LEVELS)}')
        low, high, signs = LEVELS[level]
        self.name, self.seed = label, seed
        self.min_steps = low if min_steps is None else min_steps
        self.max_steps = max(high, self.min_steps) if max_steps is None else max_steps
        self.operators = signs if operators is None else operators
        self.sizes: dict[Split, int] = {"train": train_prompts, "held-out": held_out_prompts}
        self._check()
        if template is None:
            template = "{question}" if tokenizer is None or is_small(tokenizer) else _IN_WORDS
        if tokenizer is None:
            tokenizer = small_tokenizer()
        self.encoder = PromptEncoder(tokenizer, template, system)
        self._quick = is_small(tokenizer) and template == "{question}" and system is None
        self._prompts: dict[Split, list[Prompt]] = {}

    def prompts(self, split: str) -> Sequence[Prompt]:
        """The first `train_prompts` or `held_out_prompts` distinct prompts of the split's stream."""
        side = known_split(split)
        if side not in self._prompts:
            questions = self._distinct(side, self.sizes[side])
            encoded = self.encoder.encode_all(questions)
            self._prompts[side] = [
                Prompt(token_ids, question, self.name, answer_of(question))
                for question, token_ids in zip(questions, encoded, strict=True)
            ]
        return self._prompts[side]

    def stream(self, split: str) -> Iterator[Prompt]:
        """Prompts of a split without end, the same for the same seed; short chains come more than once."""
        for question in self._questions(known_split(split)):
            yield Prompt(self.encoder.encode(question), question, self.name, answer_of(question))

    def verify(self, prompt: Prompt, completion: str) -> float:
        """1 where exactly the right digit follows the first `</think>`, else 0. Never raises."""
        _, closed, answer = completion.partition(END_THINK)
        return float(bool(closed) and answer.strip() == prompt.answer)

    def warm_start(
        self,
        count: int,
        *,
        corruption: float = 0.1,
        interrupted: float = 0.0,
        min_steps: int = 1,
        max_steps: int | None = None,
        seed: int = 0,
    ) -> list[Example]:
        """Supervised examples; none of them is a held-out prompt.

        Args:
            count: how many. min_steps, max_steps: of their chains.
            corruption: share of steps with a wrong result, from which the chain then goes on. It leaves the policy
                errors to learn from, and the pass rate below what reinforcement can reach.
            interrupted: share of traces cut off after a random number of steps, or of none or all of them, with the
                interruption phrase of the small tokenizer, and then the last result so far: what is known by then. (The
                right answer in its place cannot be read off the trace, and teaches to guess even where the trace is
                whole; that the answer stands there was then a second thing for reinforcement to find out.)
            seed: of the examples.
        """
        top = self.max_steps if max_steps is None else max_steps
        if not 1 <= min_steps <= top:
            raise InputError(f"warm start: min_steps {min_steps} and max_steps {top}; 1 <= min_steps <= max_steps")
        shares = {"corruption": corruption, "interrupted": interrupted}
        for key, share in shares.items():
            if not 0 <= share <= 1:
                raise InputError(f"warm start: {key} {share} is no share; give one from 0 to 1")
        rng = random.Random(f"warm-start/{self.seed}/{seed}")
        questions: list[str] = []
        while len(questions) < count:
            question = _chain(rng, rng.randint(min_steps, top), self.operators)
            if not is_held_out(question, HELD_OUT_SHARE):
                questions.append(question)
        return self._examples(questions, [_worked(rng, q, corruption, interrupted) for q in questions])

    def _examples(self, questions: list[str], completions: list[str]) -> list[Example]:
        if not questions:
            return []
        tokenizer = self.encoder.tokenizer
        end = (int(tokenizer.eos_token_id),)
        if self._quick:
            rows, prompts = quick_ids(completions), quick_ids([f"<bos>{question}<think>" for question in questions])
        else:
            rows = tokenizer(completions, add_special_tokens=False)["input_ids"]
            prompts = self.encoder.encode_all(questions)
        return [Example(prompt, (*row, *end)) for prompt, row in zip(prompts, rows, strict=True)]

    def _questions(self, split: Split) -> Iterator[str]:
        rng = random.Random(f"{self.seed}/{split}")  # seeded by text: the same in every process
        while True:
            question = _chain(rng, rng.randint(self.min_steps, self.max_steps), self.operators)
            if is_held_out(question, HELD_OUT_SHARE) == (split == "held-out"):
                yield question

    def _distinct(self, split: Split, size: int) -> list[str]:
        found: dict[str, None] = {}
        for tries, question in enumerate(self._questions(split)):
            if len(found) == size:
                break
            if tries > 1000 + 50 * size:
                raise InputError(
                    f"arithmetic: only {len(found)} distinct {split} chains of {self.min_steps} to {self.max_steps} "
                    f"steps were found, not {size}; ask for fewer prompts or raise max_steps"
                )
            found[question] = None
        return list(found)

    def _check(self) -> None:
        if not 1 <= self.min_steps <= self.max_steps <= 1000:
            raise InputError(
                f"arithmetic: min_steps {self.min_steps} and max_steps {self.max_steps}; "
                "1 <= min_steps <= max_steps <= 1000"
            )
        if not self.operators or set(self.operators) - set("+-*"):
            raise InputError(f'arithmetic: operators {self.operators!r}; use some of "+-*"')
        for split, size in self.sizes.items():
            if size < 1:
                raise InputError(f"arithmetic: {size} {split} prompts; at least 1")


def answer_of(question: str) -> str:
    """The digit a chain `3+5-2=` comes to."""
    value = int(question[0])
    for sign, digit in _steps(question):
        value = _step(value, sign, digit)
    return str(value)


def trace_of(question: str) -> str:
    """The thinking trace without errors: `3+5=8-2=6`."""
    return _worked(random.Random(0), question, 0.0, 0.0).partition(END_THINK)[0]


def _chain(rng: random.Random, steps: int, operators: str) -> str:
    parts = [str(rng.randrange(10))]
    for _ in range(steps):
        parts += rng.choice(operators), str(rng.randrange(10))
    return "".join(parts) + "="


def _steps(question: str) -> Iterator[tuple[str, int]]:
    for place in range(1, len(question) - 1, 2):
        yield question[place], int(question[place + 1])


def _step(value: int, sign: str, digit: int) -> int:
    return {"+": value + digit, "-": value - digit, "*": value * digit}[sign] % 10


def _worked(rng: random.Random, question: str, corruption: float, interrupted: float) -> str:
    """Trace and answer; both follow an error made on the way."""
    value = int(question[0])
    steps = list(_steps(question))
    stop = rng.randrange(len(steps) + 1) if rng.random() < interrupted else None
    trace = [question[0]]
    for sign, digit in steps[:stop]:
        value = _step(value, sign, digit)
        if rng.random() < corruption:
            value = (value + rng.randint(1, 9)) % 10
        trace.append(f"{sign}{digit}={value}")
    phrase = "" if stop is None else "time!"
    return f"{''.join(trace)}{phrase}{END_THINK}{value}"
