"""What could not be judged stands beside every score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import settings

from scalerl.cli.training_options import tell
from scalerl.training.progress import State
from scalerl.training.train import train
from scalerl.training.verdicts import Judged, newest, of_training


def evaluation(step: int, rate: float | None, trials: int, excluded: int) -> dict[str, Any]:
    return {
        "kind": "eval", "step": step, "task": "t", "pass_rate": rate, "trials": trials, "excluded": excluded,
        "mean_at": 4,
    }  # fmt: skip


def shown(*found: dict[str, Any]) -> dict[str, str]:
    state = State()
    for row in found:
        state.feed(row)
    return dict(state.parts())


def test_excluded_answers_stand_beside_the_held_out_score() -> None:
    assert shown(evaluation(5, 0.0, 2, 30))["held-out"] == "0.000 at step 5 (mean@4), 30 of 32 excluded"
    assert shown(evaluation(5, 0.5, 32, 0))["held-out"] == "0.500 at step 5 (mean@4)"
    none = shown(evaluation(0, 0.5, 32, 0), evaluation(5, None, 0, 32))["held-out"]
    assert none == "no score at step 5: nothing could be judged, 32 of 32 excluded"


def test_counts_of_training_are_taken_from_the_newest_row() -> None:
    old = {"kind": "train", "step": 1, "verified/t": 8.0}
    new = old | {"step": 2, "excluded/t": 3.0, "excluded/t/KeyError": 1.0, "excluded/t/Timeout": 2.0, "verified/u": 1.0}
    assert newest([old, evaluation(1, 0.5, 2, 0), new])[0] == new
    found = of_training(new)
    assert found == {"t": Judged(8, 3, {"KeyError": 1, "Timeout": 2}), "u": Judged(1)}
    assert str(found["t"]) == "3 of 11 excluded (KeyError 1, Timeout 2)"


@pytest.mark.usefixtures("model")
def test_the_summary_of_a_run_tells_what_was_excluded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"prompt": f"{i}+{j}=", "answer": (i + j) % 10}) for i in range(5) for j in range(4)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    (tmp_path / "v.py").write_text(
        "def verify(prompt, completion, answer):\n    return 1 // (int(prompt[0]) % 2) * (len(completion) % 2)\n"
    )
    words = [f"folder={tmp_path}", "task={name: file, path: p.jsonl, held_out: 0.4, verifier: 'v.py:verify'}"]
    finished = train(settings("recipe.schedule=lockstep", "steps=1", *words), tmp_path / "run")
    assert tell(finished, as_json=False) == 0
    text = capsys.readouterr().out
    assert tell(finished, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    held, training = told["held_out"]["p"], told["training"]["p"]
    assert held["step"] == 1
    assert held["trials"] + held["excluded"] == 16
    assert f", {held['excluded']} of 16 excluded" in text
    assert 0 < training["excluded"] == training["errors"]["ZeroDivisionError"]
    assert f"training p: {training['excluded']} of {training['judged'] + training['excluded']} excluded (Zero" in text
