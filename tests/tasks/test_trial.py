"""A verifier that cannot run is found before training; one that may fail for an answer is not accused."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from test_files import PLAIN

from scalerl.errors import VerifierError
from scalerl.tasks import build_task
from scalerl.tasks.trial import trial

VERIFIERS = """
def misspelt(prompt, completion, answer):
    return flaot(completion) == answer

def missing(prompt, completion, answer):
    from math_verifyy import verify

def types(prompt, completion, answer):
    return completion.strip() == answer + ""

def percent(prompt, completion, answer):
    return 100.0 * (completion == str(answer))

def huge(prompt, completion, answer):
    return 10**5000 * (completion == str(answer))

def nothing(prompt, completion, answer):
    if completion == str(answer):
        print("right")

def picky(prompt, completion, answer):
    return float(int(completion) == answer)

def one_row(prompt, completion, answer):
    return float(completion == str(answer + (0 if prompt != "1+1=" else "")))

def refuses(prompt, completion, answer):
    raise ValueError("boxed answers only")
"""


def files(folder: Path, function: str, isolated: bool) -> dict[str, object]:
    (folder / "mine.py").write_text(textwrap.dedent(VERIFIERS))
    lines = [json.dumps({"prompt": f"{i}+{i}=", "answer": 2 * i}) for i in range(1, 40)]
    (folder / "sums.jsonl").write_text("\n".join(lines))
    return {"name": "file", "path": str(folder / "sums.jsonl"), "verifier": f"mine.py:{function}",
            "verifier_options": {"isolated": isolated}}  # fmt: skip


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("misspelt", "NameError: name 'flaot' is not defined"),
        ("missing", "ModuleNotFoundError: No module named 'math_verifyy'"),
        ("types", "TypeError: unsupported operand"),
        ("percent", "it returned 100: return 1 for correct"),
        ("huge", "it returned an integer of 5,001 digits; it must return a number from -1 to 1"),
        ("nothing", "it returned None; it must return a number"),
    ],
)
def test_a_verifier_that_cannot_run_is_named_with_its_error(
    tmp_path: Path, function: str, message: str, isolated: bool
) -> None:
    task = build_task([{**files(tmp_path, function, isolated)}, {"name": "arithmetic"}], PLAIN)
    with pytest.raises(VerifierError) as refusal:
        trial(task)
    task.close()  # type: ignore[attr-defined]
    said = str(refusal.value)
    assert said.startswith(f"task sums, verifier mine.py:{function}, {tmp_path / 'sums.jsonl'}, line ")
    assert message in said
    assert said.count("mend the verifier") == 1
    assert said.endswith("; mend the verifier, then start again")
    assert "\n" not in said


@pytest.mark.parametrize("function", ["picky", "one_row", "refuses"])
def test_what_may_be_the_answers_fault_is_left_to_the_run(tmp_path: Path, function: str) -> None:
    task = build_task(files(tmp_path, function, isolated=False), PLAIN)
    trial(task)
