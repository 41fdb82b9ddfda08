"""No-Positive-Resampling: what is retired, what is drawn, and what survives a restart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.recipe import Curriculum

NPR = "no-positive-resampling"
IDS = [f"prompt-{i}" for i in range(12)]


def epoch(curriculum: Curriculum, n: int) -> list[str | None]:
    return [curriculum.draw() for _ in range(n)]


def test_each_prompt_once_an_epoch_in_a_new_order() -> None:
    curriculum = Curriculum([*IDS, IDS[0]], NPR, 0.9)
    first, second = epoch(curriculum, 12), epoch(curriculum, 12)
    assert sorted(first) == sorted(second) == sorted(IDS)
    assert first != second
    assert first != sorted(IDS)
    assert epoch(Curriculum(reversed(IDS), NPR, 0.9), 12) == first  # the order of the file means nothing
    assert epoch(Curriculum(IDS, NPR, 0.9, seed=1), 12) != first


@pytest.mark.parametrize(
    ("passed", "judged", "retired"), [(14, 16, 0), (15, 16, 1), (9, 10, 1), (89, 100, 0), (18, 20, 1)]
)
def test_a_pass_rate_at_the_threshold_retires_for_good(passed: int, judged: int, retired: int) -> None:
    curriculum = Curriculum(IDS, NPR, 0.9)
    curriculum.record("prompt-3", passed, judged)
    assert curriculum.retired == retired
    curriculum.record("prompt-3", 0, 16)  # a rollout in flight that comes back wrong does not bring it back
    assert ("prompt-3" in epoch(curriculum, 36)) == (not retired)


def test_the_latest_draw_decides() -> None:
    curriculum = Curriculum(IDS, NPR, 0.9)
    for passed in (0, 4, 16):
        curriculum.record("prompt-1", passed, 16)
    assert curriculum.retired == 1
    assert curriculum.pass_rate("prompt-1") == 1
    assert curriculum.history["prompt-1"] == [(0, 16), (4, 16), (16, 16)]
    assert curriculum.pass_rate("prompt-2") is None


def test_trap_20_a_draw_without_verified_rollouts_says_nothing() -> None:
    curriculum = Curriculum(IDS, NPR, 0.9)
    curriculum.record("prompt-1", 0, 0)
    assert curriculum.history == {}
    with pytest.raises(ValueError, match="3 passed of 2 judged"):
        curriculum.record("prompt-1", 3, 2)


def test_uniform_never_retires() -> None:
    curriculum = Curriculum(IDS, "uniform", 0.9)
    for prompt_id in IDS:
        curriculum.record(prompt_id, 16, 16)
    assert curriculum.retired == 0
    assert sorted(epoch(curriculum, 12)) == sorted(IDS)
    assert curriculum.pass_rate(IDS[0]) == 1


def test_all_retired_is_an_end_and_no_loop() -> None:
    curriculum = Curriculum(IDS, NPR, 0.9)
    drawn = []
    while (prompt_id := curriculum.draw()) is not None:
        drawn.append(prompt_id)
        curriculum.record(prompt_id, 16, 16)
    assert sorted(drawn) == sorted(IDS)
    assert curriculum.draw() is None
    assert Curriculum([], NPR, 0.9).draw() is None


@given(before=st.integers(0, 40), passed=st.lists(st.integers(0, 16), max_size=40))
def test_a_restored_state_goes_on_as_if_nothing_had_happened(before: int, passed: list[int]) -> None:
    curriculum = Curriculum(IDS, NPR, 0.9, seed=5)
    scores = iter(passed)
    for _ in range(before):
        prompt_id = curriculum.draw()
        if prompt_id is not None:
            curriculum.record(prompt_id, next(scores, 0), 16)
    other = Curriculum(IDS, NPR, 0.9)
    other.restore(json.loads(json.dumps(curriculum.state())))
    assert epoch(other, 40) == epoch(curriculum, 40)
    assert other.history == curriculum.history
    assert other.retired == curriculum.retired
    assert other.state() == curriculum.state()


def test_history_is_by_content_so_a_changed_file_keeps_it() -> None:
    curriculum = Curriculum(IDS, NPR, 0.9)
    curriculum.record("prompt-2", 16, 16)
    drawn = epoch(curriculum, 5)
    changed = Curriculum(["new", *reversed(IDS[1:])], NPR, 0.9)
    changed.restore(curriculum.state())
    rest = epoch(changed, 12)
    assert "prompt-2" not in rest
    this_epoch = rest[: rest.index(None)] if None in rest else rest
    still_due = set(IDS[1:]) - set(drawn) - {"prompt-2"}
    assert set(this_epoch[: len(still_due)]) <= still_due | {"new"}


def test_an_incomplete_state_is_refused() -> None:
    with pytest.raises(InputError, match="curriculum state lacks history, last"):
        Curriculum(IDS, NPR, 0.9).restore({"seed": 0, "epoch": 1, "retired": []})
