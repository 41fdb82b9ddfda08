"""The default task: its truth table, its splits, its warm start; and the small tokenizer."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.tasks.arithmetic import LEVELS, Arithmetic, answer_of, trace_of
from scalerl.tasks.splits import is_held_out
from scalerl.types import Prompt

pytest.importorskip("transformers")
from scalerl.tasks.tokenizer import (
    INTERRUPTION,
    VOCABULARY,
    is_small,
    load_tokenizer,
    quick_ids,
    save_tokenizer,
    small_tokenizer,
)


@pytest.fixture(scope="module")
def task() -> Arithmetic:
    return Arithmetic(train_prompts=300, held_out_prompts=60)


def test_a_chain_is_worked_from_left_to_right_modulo_ten() -> None:
    assert answer_of("3+5-2=") == "6"
    assert answer_of("0-1=") == "9"
    assert answer_of("7+8*3=") == "5"  # (7 + 8) mod 10, times 3
    assert trace_of("3+5-9*2=") == "3+5=8-9=9*2=8"


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("3+5=8-2=6</think>6", 1),
        ("</think> 6\n", 1),
        ("anything at all</think>6", 1),
        ("3+5=8-2=6</think>7", 0),
        ("3+5=8-2=6", 0),  # never stopped thinking
        ("6", 0),
        ("", 0),
        ("</think>", 0),
        ("</think>66", 0),
        ("</think>6 6", 0),
        ("</think>06", 0),
        ("</think>6.0", 0),
        ("</think>٦", 0),  # a six, but not the one asked for
        ("</think>5</think>6", 0),  # two answers are no answer
        ("</think>6</think>", 0),
        ("</THINK>6", 0),
        ("9**9**9**9</think>9**9**9**9", 0),
    ],
)
def test_only_the_right_digit_behind_the_thought_is_rewarded(task: Arithmetic, completion: str, reward: int) -> None:
    assert task.verify(Prompt((), "3+5-2=", "arithmetic", "6"), completion) == reward


@given(st.text())
def test_no_completion_raises(text: str) -> None:
    shared = Arithmetic(train_prompts=1, held_out_prompts=1) if not _SHARED else _SHARED[0]
    _SHARED[:] = [shared]
    assert shared.verify(Prompt((), "3+5-2=", "arithmetic", "6"), text) in (0.0, 1.0)
    assert shared.verify(Prompt((), "3+5-2=", "arithmetic", "6"), "</think>" + text) == float(text.strip() == "6")


_SHARED: list[Arithmetic] = []


def test_splits_are_disjoint_distinct_and_as_large_as_asked(task: Arithmetic) -> None:
    train, held = task.prompts("train"), task.prompts("held-out")
    assert (len(train), len(held)) == (300, 60)
    ids = {p.prompt_id for p in train} | {p.prompt_id for p in held}
    assert len(ids) == 360
    assert {(len(p.text) - 2) // 2 for p in train} == set(range(3, 7))
    assert all(answer_of(p.text) == p.answer for p in train)
    assert all(is_held_out(p.text, 0.1) for p in held)


def test_another_seed_never_moves_a_prompt_between_the_splits() -> None:
    short = {"min_steps": 1, "max_steps": 2, "held_out_prompts": 200}
    first, second = (Arithmetic(seed=seed, train_prompts=2000, **short) for seed in (0, 1))
    train = {p.text for p in first.prompts("train")}
    assert train & {p.text for p in second.prompts("train")}
    assert not train & {p.text for p in second.prompts("held-out")}


def test_prompts_are_the_same_in_another_process(task: Arithmetic) -> None:
    code = (
        "from scalerl.tasks.arithmetic import Arithmetic;"
        "t = Arithmetic(train_prompts=300, held_out_prompts=60);"
        "print(*[p.prompt_id for s in ('train', 'held-out') for p in t.prompts(s)]);"
        "print(hash(tuple(t.warm_start(50, corruption=.5, interrupted=.2))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    ids, examples = done.stdout.splitlines()
    assert ids.split() == [p.prompt_id for split in ("train", "held-out") for p in task.prompts(split)]
    assert int(examples) == hash(tuple(task.warm_start(50, corruption=0.5, interrupted=0.2)))


def test_the_stream_has_no_end_and_begins_like_the_prompts(task: Arithmetic) -> None:
    stream = task.stream("train")
    assert [next(stream).prompt_id for _ in range(20)] == [p.prompt_id for p in task.prompts("train")[:20]]
    tiny = Arithmetic(min_steps=1, max_steps=1, operators="+", train_prompts=5, held_out_prompts=1).stream("held-out")
    assert len([next(tiny) for _ in range(100)]) == 100  # of about ten that exist


def test_too_few_chains_are_refused_with_their_number() -> None:
    few = Arithmetic(min_steps=1, max_steps=1, operators="+", held_out_prompts=50)
    with pytest.raises(InputError, match=r"only \d+ distinct held-out chains of 1 to 1 steps .*raise max_steps"):
        few.prompts("held-out")


def test_levels_and_settings_that_cannot_be() -> None:
    for level, (low, high, _) in LEVELS.items():
        made = Arithmetic(level=level, train_prompts=50, held_out_prompts=5)
        assert {low <= (len(p.text) - 2) // 2 <= high for p in made.prompts("train")} == {True}
    with pytest.raises(InputError, match='did you mean "medium"'):
        Arithmetic(level="medum")
    for wrong in ({"operators": "/"}, {"min_steps": 9}, {"max_steps": 0}, {"train_prompts": 0}, {"operators": ""}):
        with pytest.raises(InputError, match="arithmetic"):
            Arithmetic(**({"max_steps": 8} | wrong))
    with pytest.raises(InputError, match='no split "heldout": did you mean "held-out"'):
        Arithmetic().prompts("heldout")


def test_clean_examples_earn_their_reward_and_none_is_held_out(task: Arithmetic) -> None:
    for example in task.warm_start(300, corruption=0.0):
        question = text_of(example.prompt_ids).removeprefix("<bos>").removesuffix("<think>")
        completion = text_of(example.completion_ids)
        assert completion == f"{trace_of(question)}</think>{answer_of(question)}<eos>"
        assert not is_held_out(question, 0.1)


def test_a_tenth_of_the_steps_is_corrupted_and_the_chain_goes_on_from_the_error(task: Arithmetic) -> None:
    wrong = steps = 0
    for example in task.warm_start(3000, corruption=0.1):
        trace, _, answer = text_of(example.completion_ids).removesuffix("<eos>").partition("</think>")
        value, rest = trace[0], trace[1:]
        assert len(rest) % 4 == 0
        for sign, digit, _, result in (rest[i : i + 4] for i in range(0, len(rest), 4)):
            wrong += answer_of(f"{value}{sign}{digit}=") != result
            steps, value = steps + 1, result
        assert answer == value
    assert abs(wrong / steps - 0.1) < 0.01


def test_interrupted_examples_end_with_the_phrase_and_the_last_result(task: Arithmetic) -> None:
    left = set()
    for example in task.warm_start(300, corruption=0.0, interrupted=1.0):
        question = text_of(example.prompt_ids).removeprefix("<bos>").removesuffix("<think>")
        trace, _, answer = text_of(example.completion_ids).partition(INTERRUPTION)
        assert trace_of(question).startswith(trace)
        assert answer == f"{trace[-1]}<eos>"
        left.add((len(trace_of(question)) - len(trace)) // 4)
    assert left >= {0, 1, 2}  # steps that were not reached; with none left, the answer is right


def test_quick_ids_are_the_tokenizers_own(task: Arithmetic) -> None:
    tokenizer = small_tokenizer()
    texts = ["3+5=8-2=6</think>6", "<bos>3+5=<think>", "4time!</think>4", "(x) \n<eos> tim e!", "", "<thin k>é日"]
    assert quick_ids(texts) == [tuple(row) for row in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    slow = Arithmetic(train_prompts=1, held_out_prompts=1, tokenizer=tokenizer)
    slow._quick = False
    assert slow.warm_start(40) == task.warm_start(40)


@given(st.text(alphabet="0123456789+-*=() "))
def test_tokens_are_characters_and_decode_to_the_same_text(text: str) -> None:
    ids = quick_ids([text])[0]
    assert len(ids) == len(text)
    assert text_of(ids) == text


def test_the_tokenizer_survives_its_folder_and_keeps_the_marks(tmp_path) -> None:
    loaded = load_tokenizer(save_tokenizer(tmp_path / "model"))
    fresh = small_tokenizer()
    assert is_small(loaded)
    assert is_small(fresh)
    assert len(loaded) == len(VOCABULARY) == 24
    assert loaded.backend_tokenizer.to_str() == fresh.backend_tokenizer.to_str()
    ids = loaded("3+5=8time!</think>8<eos><pad>", add_special_tokens=False)["input_ids"]
    assert len(ids) == 10
    assert loaded.decode(ids, skip_special_tokens=True) == "3+5=8time!</think>8"
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    with pytest.raises(InputError, match="no such folder"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no tokenizer"):
        load_tokenizer(tmp_path / "empty")


def test_a_model_loaded_with_the_small_tokenizer_sees_the_same_prompts(task: Arithmetic, tmp_path) -> None:
    again = Arithmetic(tokenizer=load_tokenizer(save_tokenizer(tmp_path)), train_prompts=300, held_out_prompts=60)
    assert again.prompts("train") == task.prompts("train")
    assert text_of(task.prompts("train")[0].token_ids).endswith("=<think>")


def text_of(ids: tuple[int, ...]) -> str:
    names = {index: token for token, index in VOCABULARY.items()}
    return "".join(names[i] for i in ids)
