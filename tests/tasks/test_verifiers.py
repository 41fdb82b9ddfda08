"""Truth tables of the verifiers by name, and what counts as the answer behind the thinking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.tasks.encoding import after_thinking
from scalerl.tasks.verifiers import NAMED, Choice, Contains, Exact, Numeric, verifier


@pytest.mark.parametrize(
    ("completion", "opens", "answer"),
    [
        ("<think>x</think> 6 ", False, "6"),
        ("x</think>6", True, "6"),
        ("a</think>1</think>2", False, "2"),
        ("6", False, "6"),  # a model that does not think
        ("6", True, None),  # the prompt opened the thought, and it never ended
        ("<think>6", False, None),
        ("", False, ""),
    ],
)
def test_the_answer_is_what_follows_the_thought(completion: str, opens: bool, answer: str | None) -> None:
    assert after_thinking(completion, opens) == answer


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("42", "42", 1),
        ("42", 42, 1),
        ("the answer is 42.", "42", 1),
        ("first 41, then 42", "42", 1),
        ("first 42, then 41", "42", 0),
        ("1,234.5", "1234.5", 1),
        ("\\boxed{7} of 8", "7", 1),
        ("\\boxed{1} then \\boxed{-3/4}", "-0.75", 1),
        ("\\boxed{nothing} 7", "7", 0),  # what is boxed counts
        ("#### 18", "#### 18", 1),
        ("-5", "5", 0),
        ("−5", "-5", 1),
        ("5e2", "500", 1),
        (".5", "0.5", 1),
        ("5.", "5", 1),
        ("1/0", "1", 0),
        ("", "1", 0),
        ("none", "1", 0),
        ("NaN", "1", 0),
        ("1e999", "1", 0),
        ("9" * 100_000, "9", 0),
        ("9**9**9**9", "9", 1),  # four numbers, the last of them 9
        ("0.3333333333", "1/3", 1),
        ("0.34", "1/3", 0),
        ("1e-9", "0", 1),
        ("0.1", "0", 0),
    ],
)
def test_numeric(completion: str, answer: object, reward: int) -> None:
    assert Numeric()("", completion, answer) == reward


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("B", "B", 1),
        ("(B)", "b", 1),
        ("b.", "(B)", 1),
        ("B) Paris", "B", 1),
        ("The answer is B, not C.", "B", 1),
        ("The answer is (B).", "B", 1),
        ("answer: **B**", "B", 1),
        ("Option A is wrong. The answer is B", "B", 1),
        ("\\boxed{\\text{B}}", "B", 1),
        ("It must be C", "C", 1),
        ("A or B", "A", 0),
        ("A or B", "B", 0),
        ("", "A", 0),
        ("Because", "B", 0),
        ("C", "B", 0),
    ],
)
def test_choice(completion: str, answer: str, reward: int) -> None:
    assert Choice()("", completion, answer) == reward


@pytest.mark.parametrize(
    ("made", "completion", "answer", "reward"),
    [
        (Exact(), " a  b\n", "a b", 1),
        (Exact(), "A b", "a b", 0),
        (Exact(ignore_case=True), "A b", "a B", 1),
        (Exact(), "a b.", "a b", 0),
        (Exact(), "3", 3, 1),
        (Contains(), "it is 12, I think", "12", 1),
        (Contains(), "it is 120", "12", 0),
        (Contains(), "a.c", "a.c", 1),
        (Contains(), "abc", "a.c", 0),
        (Contains(ignore_case=True), "PARIS!", "paris", 1),
    ],
)
def test_text(made: Exact, completion: str, answer: object, reward: int) -> None:
    assert made("", completion, answer) == reward


@given(st.text(max_size=200), st.sampled_from(["exact", "contains", "numeric", "choice"]))
def test_no_text_makes_a_verifier_raise(text: str, name: str) -> None:
    for completion in (text, "\\boxed{" + text, "\\boxed{" * 50 + text, "the answer is " + text):
        assert verifier(name)("", completion, "A 1") in (0.0, 1.0)


def test_unknown_verifiers_and_options_name_the_nearest() -> None:
    with pytest.raises(InputError, match='no verifier "numerc": did you mean "numeric"'):
        verifier("numerc")
    with pytest.raises(InputError, match=r"task.verifier_options.tolerence: .* did you mean .tolerance."):
        verifier("numeric", {"tolerence": 1})
    with pytest.raises(InputError, match="tolerance 3"):
        verifier("numeric", {"tolerance": 3})
    assert set(NAMED) == {"exact", "contains", "numeric", "choice", "maths"}
