"""Guard, mixture, registry and reasoning_gym."""

import math
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from test_files import PLAIN, Characters

from scalerl.errors import InputError, VerifierError
from scalerl.tasks import Guard, build_task
from scalerl.tasks.guard import OffScale, score
from scalerl.tasks.mixture import Mixture
from scalerl.types import Prompt


class Stub:
    """A task of numbered prompts whose verifier does as it is told."""

    def __init__(self, name: str, size: int = 10, outcome: object = 1.0) -> None:
        self.name, self.size, self.outcome = name, size, outcome

    def prompts(self, split: str) -> list[Prompt]:
        return [Prompt((i,), f"{split}{i}", self.name, i) for i in range(self.size)]

    def verify(self, prompt: Prompt, completion: str) -> float:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome  # type: ignore[return-value]


@pytest.mark.parametrize("outcome", [1, 0.0, True, -1, np.float32(0.5), np.int64(1)])
def test_numbers_from_minus_1_to_1_are_scores(outcome: object) -> None:
    guard = Guard(Stub("t", outcome=outcome))
    assert guard.verify(Prompt((), "q", "t"), "") == float(outcome)
    assert guard.counts() == {"verified/t": 1.0}


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (ValueError("x"), "ValueError"),
        (MemoryError(), "MemoryError"),
        (RecursionError(), "RecursionError"),
        (SystemExit(1), "SystemExit"),
        (VerifierError("x"), "VerifierError"),
        (None, "VerifierError"),
        ("1.0", "VerifierError"),
        ([1.0], "VerifierError"),
        (math.nan, "VerifierError"),
        (math.inf, "VerifierError"),
        (10**400, "VerifierError"),
    ],
)
def test_what_raises_or_is_no_number_is_excluded_and_counted(
    outcome: object, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(Stub("t", outcome=outcome))
    assert guard.verify(Prompt((), "what\nis it?", "t"), "") is None
    assert guard.counts() == {"excluded/t": 1.0, f"excluded/t/{kind}": 1.0}
    if not isinstance(outcome, BaseException):
        with pytest.raises(VerifierError, match="it returned"):
            score(outcome)
    [warning] = caplog.messages
    assert warning.startswith("task t, its verifier, on prompt 'what is it?': no verdict (")
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("outcome", "size"),
    [
        (10**400, "an integer of 401 digits"),
        (1 - 10**5000, "an integer of 5,000 digits"),
        (Fraction(10**400), "too large a Fraction"),
    ],
    ids=["int", "longer than str takes", "Fraction"],
)
def test_a_number_too_large_is_told_by_its_size(outcome: object, size: str) -> None:
    with pytest.raises(VerifierError, match=f"it returned {size}; it must return a number from -1 to 1"):
        score(outcome)


@pytest.mark.parametrize("outcome", [2, 100.0, -1.5, np.float32(1.01)])
def test_a_score_off_the_scale_ends_the_run(outcome: float) -> None:
    guard = Guard(Stub("t", outcome=outcome))
    with pytest.raises(OffScale, match=rf"task t, .* 'q'\: it returned {float(outcome):g}: return 1 for correct"):
        guard.verify(Prompt((), "q", "t"), "")
    assert guard.counts() == {}
    with pytest.raises(OffScale, match=r"between 0 and 1; mend the verifier$"):
        guard.verify(Prompt((), "q", "t"), "")


def test_an_interrupt_still_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        Guard(Stub("t", outcome=KeyboardInterrupt())).verify(Prompt((), "q", "t"), "")


def test_a_verifier_that_only_fails_ends_the_run_with_its_error() -> None:
    task = Stub("t", outcome=ValueError("broken"))
    guard = Guard(task, give_up_after=5)
    prompt = Prompt((), "q", "t")
    for _ in range(3):
        assert [guard.verify(prompt, "") for _ in range(4)] == [None] * 4
        task.outcome = 1.0
        assert guard.verify(prompt, "") == 1.0
        task.outcome = ValueError("broken")
    with pytest.raises(VerifierError, match=r"task t, .*ValueError: broken\), the 5th failure in a row"):
        list(map(guard.verify, [prompt] * 5, [""] * 5))


def test_every_stretch_of_a_mixture_holds_each_task_by_its_weight() -> None:
    mixed = Mixture([Stub("a", 10), Stub("b", 300), Stub("c", 3)], [1, 8, 1])
    train = mixed.prompts("train")
    assert len(train) == 375  # as long as b needs
    assert {p.prompt_id for p in train} == {p.prompt_id for t in mixed.tasks.values() for p in t.prompts("train")}
    for start in range(0, 350, 10):
        counts = Counter(p.task for p in train[start : start + 20])
        assert abs(counts["b"] - 16) <= 1
        assert counts["a"] >= 1
        assert counts["c"] >= 1
    assert train == mixed.prompts("train")
    assert Counter(p.task for p in mixed.prompts("held-out")) == {"a": 10, "b": 300, "c": 3}
    assert sum(mixed.weights.values()) == pytest.approx(1)


def test_a_mixture_verifies_with_the_task_of_the_prompt() -> None:
    mixed = Mixture([Stub("a", outcome=1.0), Stub("b", outcome=ValueError("x"))])
    guard = Guard(mixed)
    assert [guard.verify(p, "") for p in mixed.prompts("train")[:4]].count(None) == 2
    assert guard.counts() == {"verified/a": 2.0, "excluded/b": 2.0, "excluded/b/ValueError": 2.0}
    assert guard.verify(Prompt((), "q", "aa"), "") is None


def test_mixtures_that_cannot_be() -> None:
    for tasks, weights, message in (
        ([], None, "no tasks"),
        ([Stub("a"), Stub("a")], None, "two tasks have one name"),
        ([Stub("a")], [0], "each needs one above 0"),
        ([Stub("a")], [1, 2], "for 1 tasks"),
    ):
        with pytest.raises(InputError, match=message):
            Mixture(tasks, weights)
    with pytest.raises(InputError, match="task a has no train prompts"):
        Mixture([Stub("a", 0)]).prompts("train")
    with pytest.raises(InputError, match="task b has too many prompts for its weight"):
        Mixture([Stub("a"), Stub("b", 1000)], [1, 1e-6]).prompts("train")


def test_settings_become_tasks() -> None:
    pytest.importorskip("transformers")
    small = {"train_prompts": 20, "held_out_prompts": 5}
    parts = [
        {"name": "arithmetic", "label": "easy", "level": "easy", "weight": 3, **small},
        {"name": "arithmetic", "label": "hard", "level": "hard", **small},
    ]
    for settings in (parts, {"name": "mixture", "tasks": parts}):
        task = build_task(settings)
        assert isinstance(task, Mixture)
        assert task.weights == {"easy": 0.75, "hard": 0.25}
        prompt = task.prompts("train")[0]
        assert task.verify(prompt, f"</think>{prompt.answer}") == 1.0
    assert build_task("arithmetic").name == "arithmetic"
    words = build_task({"name": "arithmetic", **small}, Characters()).prompts("train")[0]
    assert "".join(map(chr, words.token_ids)).startswith("Compute from left to right")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("arithmatic", 'no such task; did you mean "arithmetic"'),
        ({"level": "easy"}, "task: no name; known: arithmetic, reasoning_gym, maths, file, mixture"),
        ({"name": "arithmetic", "max_step": 3}, 'no key "max_step": did you mean "max_steps"'),
        ({"name": "arithmetic", "tokenizer": 3}, 'no key "tokenizer"'),
        ({"name": "arithmetic", "min_steps": "three"}, "task.min_steps = 'three': a whole number is needed"),
        ({"name": "file"}, 'task file needs the key "path"'),
        ({"name": "mixture", "task": []}, 'task.task: a mixture has no such key: did you mean "tasks"'),
        ({"name": "mixture", "tasks": "arithmetic"}, "task.tasks = 'arithmetic': .*a list of mappings"),
        ([{"name": "arithmetic", "weight": "much"}], "task.0.weight = 'much': a number is needed"),
        ([], "task = .*a list of mappings"),
        (
            [{"name": "arithmetic"}, {"name": "arithmetic"}],
            "task.1: two tasks are called .arithmetic.; give each a label",
        ),
        ([{"name": "arithmetic", "weight": 0}], "task.0.weight = 0: it must be above 0"),
        ([{"name": "arithmetic", "weight": float("nan")}], "task.0.weight = nan: a number is needed, and a finite one"),
        (["arithmetic"], "task.0 = 'arithmetic': a list of mappings"),
        ({"name": "arithmetic", "label": "a/b"}, "task.label = 'a/b': .*no slash"),
        ({"name": "arithmetic", "label": ""}, "task.label = '': it is empty"),
        ({"name": "arithmetic", "train_prompts": 10**12}, "task.train_prompts = .* at most 10,000,000"),
        ({"name": "file", "path": 3}, "task.path = 3: a text is needed"),
        ({"name": "file", "path": "x", "keep_thinking": 1}, "task.keep_thinking = 1: true or false"),
        ({"name": "file", "path": "x", "verifier_options": [1]}, "task.verifier_options = .*: a mapping is needed"),
        (
            {"name": "file", "path": "x", "verifier": "exakt"},
            'task.verifier: no verifier "exakt": did you mean "exact"',
        ),
        (
            {"name": "file", "path": "x", "verifier": "a:b", "verifier_options": {"target": 1}},
            'task.verifier_options.target: verifier a:b has no key "target": known: isolated, memory_mb',
        ),
        (
            {"name": "file", "path": "x", "verifier": "maths", "verifier_options": {"seconds": "long"}},
            "task.verifier_options.seconds = 'long': a number is needed",
        ),
        ({"name": "mixture", "tasks": [{"name": "arithmetic", "seed": "x"}]}, "task.tasks.0.seed = 'x'"),
        ({"name": "reasoning_gym", "dataset": "cuntdown"}, 'no dataset "cuntdown": did you mean "countdown"'),
        (
            {"name": "reasoning_gym", "dataset": "leg_counting", "params": {"min_animal": 3}},
            'no parameter "min_animal": did you mean "min_animals"',
        ),
        ({"name": "reasoning_gym", "dataset": "leg_counting", "params": {"min_animals": 99}}, "refuses"),
        ({"name": "reasoning_gym", "dataset": "leg_counting", "seed": -1}, "seed -1"),
    ],
)
def test_unusable_settings_name_the_nearest(settings: object, message: str) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("reasoning_gym")
    with pytest.raises(InputError, match=message):
        build_task(settings, PLAIN)


def test_a_task_of_ones_own_needs_the_tokenizer() -> None:
    with pytest.raises(InputError, match="needs the model's tokenizer"):
        build_task({"name": "file", "path": "x"})


def test_importing_the_tasks_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, scalerl.tasks; print({'torch', 'transformers', 'polars', 'reasoning_gym'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def countdown():
    pytest.importorskip("reasoning_gym")
    settings = {"name": "reasoning_gym", "dataset": "countdown", "train_prompts": 12, "held_out_prompts": 4}
    task = build_task(settings | {"seconds": 0.3}, PLAIN)
    yield task
    task.close()


def test_reasoning_gym_is_judged_by_its_own_scorer(countdown) -> None:
    prompt = countdown.prompts("train")[0]
    assert countdown.verify(prompt, f"<think>hm</think>{prompt.answer}") == 1.0
    assert countdown.verify(prompt, f"{prompt.answer} + 0 * 1") == 0.0
    assert countdown.verify(prompt, f"<think>{prompt.answer}") == 0.0
    assert countdown.verify(prompt, "9**9**9**9") == 0.0
    assert countdown.verify(prompt, "") == 0.0
    countdown.partial = True
    assert 0 < countdown.verify(prompt, "nonsense") < 1  # why partial credit is no pass rate
    countdown.partial = False
    with pytest.raises(VerifierError, match="none of countdown's"):
        countdown.verify(Prompt((), "q", "countdown", "1"), "1")


def test_reasoning_gym_splits_share_nothing(countdown) -> None:
    train, held = countdown.prompts("train"), countdown.prompts("held-out")
    assert (len(train), len(held)) == (12, 4)
    assert len({p.prompt_id for p in (*train, *held)}) == 16


@pytest.mark.slow
def test_reasoning_gym_prompts_do_not_depend_on_the_process() -> None:
    pytest.importorskip("reasoning_gym")
    from scalerl.tasks.reasoning_gym import ReasoningGym

    # This one iterates over a set: left alone it differs between any two processes.
    made = [ReasoningGym("isomorphic_strings", tokenizer=PLAIN, train_prompts=3, held_out_prompts=2) for _ in range(2)]
    first, second = ([p.prompt_id for p in task.prompts("train")] for task in made)
    assert first == second
