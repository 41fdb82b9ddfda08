"""Maths by Math-Verify: equal answers in many forms, and hostile ones."""

import time

import pytest
from test_judge import at_most

from scalerl.errors import VerifierError

pytest.importorskip("math_verify")
from scalerl.tasks.maths import Maths


@pytest.fixture(scope="module")
def maths():
    made = Maths(seconds=0.3)
    made.judge.check()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        (r"so it is \boxed{42}", "42", 1),
        (r"\boxed{\frac{1}{2}}", "0.5", 1),
        (r"\boxed{0.5}", r"\frac12", 1),
        (r"$x = \sqrt{8}$", r"2\sqrt{2}", 1),
        (r"\boxed{(1, 2)}", "$(1,2)$", 1),
        (r"\boxed{x^2+2x+1}", "$(x+1)^2$", 1),
        (r"\boxed{43}", "42", 0),
        (r"2\sqrt{2}", r"\sqrt{8}", 1),  # without delimiters, where Math-Verify alone would see a 2
        (r"2\sqrt{2}", "2", 0),
        ("2", r"2\sqrt{2}", 0),
        ("the sum of 3 and 4 is 7", "7", 1),
        ("50%", "0.5", 1),
        ("Paris", "Paris", 1),
        ("Pairs", "Paris", 0),
        (r"\boxed{\text{Paris}}", "Paris", 1),
        ("9**9", "387420489", 1),
        ("18", "#### 18", 1),
        ("(2,1)", "(1,2)", 0),
        ("3.14", r"\pi", 0),
        ("-5", "5", 0),
        ("", "42", 0),
        ("I do not know", "42", 0),
    ],
)
def test_equal_is_what_is_equal_in_mathematics(maths: Maths, completion: str, answer: str, reward: int) -> None:
    assert maths("", completion, answer) == reward


@pytest.mark.parametrize(
    "completion",
    [
        "9**9**9**9",
        r"\boxed{9^{9^{9^9}}}",
        r"\boxed{99999999!}",
        r"\boxed{" + r"\frac{1}{" * 300 + "2" + "}" * 300 + "}",
        r"\boxed{" + r"\sqrt{" * 2000 + "2" + "}" * 2000 + "}",
        "(" * 5000 + "1" + ")" * 5000,
        "\\boxed{\ud800\x00}",
    ],
    ids=lambda text: text[:12].encode("ascii", "replace").decode(),
)
def test_hostile_answers_are_worth_nothing_within_two_seconds(maths: Maths, completion: str) -> None:
    began = time.monotonic()
    assert maths("", completion, "42") == 0.0
    assert time.monotonic() - began < at_most(2.0)


def test_the_judge_is_unharmed(maths: Maths) -> None:
    assert maths.judge.hostile >= 2
    assert maths("", r"\boxed{42}", "42") == 1.0


def test_a_reference_that_is_no_mathematics_excludes(maths: Maths) -> None:
    with pytest.raises(VerifierError, match=r"even the reference answer cannot be judged .*no mathematics in"):
        maths("", r"\boxed{42}", "no idea at all")
