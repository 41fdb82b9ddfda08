"""TRAPS 21-26 at the buffer: slots, order, losses, and what a checkpoint carries."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import CheckpointError
from scalerl.pipeline.admission import Admission
from scalerl.pipeline.buffer import Buffer, Entry
from scalerl.types import Prompt, Rollout

PROMPTS = {p.prompt_id: p for p in (Prompt((1, i), f"question {i}", "t") for i in range(50))}


def rollout(group_id: int, prompt: Prompt, version: int = 0, n: int = 3) -> Rollout:
    logprobs = np.linspace(-1, 0, n, dtype=np.float32) - group_id
    mask = np.arange(n) % 2 == 0
    return Rollout(prompt, group_id, np.arange(n) + group_id, logprobs, mask, np.full(n, version), "stop", n > 2)


def full(P: int = 2, k: int = 2, G: int = 2, in_order: bool = False) -> tuple[Buffer, list[Entry]]:
    buffer = Buffer(Admission(P, k), G, in_order)
    prompts = list(PROMPTS.values())
    return buffer, [buffer.submit(prompts[i], 0) for i in range((k + 1) * P)]


def finish(buffer: Buffer, entry: Entry, reward: float | None = 1.0, n: int = 3) -> None:
    while buffer.wants(entry.group_id):
        place = buffer.add(rollout(entry.group_id, entry.prompt, entry.version, n))
        assert place is not None
        buffer.judge(entry.group_id, place, reward)


def test_who_finished_first_is_trained_first_unless_order_is_asked_for() -> None:
    for in_order, expected in ((False, [4, 1]), (True, [1, 4])):
        buffer, entries = full(in_order=in_order)
        for i in (4, 1):
            finish(buffer, entries[i])
        batch = buffer.take()
        assert batch is not None
        assert [entry.group_id for entry in batch] == expected


def test_slots_are_held_until_trained() -> None:
    buffer, entries = full()
    for entry in entries:
        finish(buffer, entry)
    batch = buffer.take()
    assert batch is not None
    assert buffer.admission.free == 0
    assert len(buffer) == 6
    buffer.trained(batch)
    assert buffer.admission.free == 2
    assert len(buffer) == 4


def test_a_group_that_falls_due_is_waited_for() -> None:
    buffer, entries = full(P=1, k=1)
    finish(buffer, entries[1])
    batch = buffer.take()
    assert batch is not None
    buffer.trained(batch)
    young = buffer.submit(next(iter(PROMPTS.values())), 1)
    finish(buffer, young)
    assert buffer.take() is None
    finish(buffer, entries[0])
    batch = buffer.take()
    assert batch == [entries[0]]


def test_rollouts_of_no_group_or_too_many_are_counted_and_dropped() -> None:
    buffer, entries = full(G=2)
    assert buffer.add(rollout(99, entries[0].prompt)) is None
    finish(buffer, entries[0])
    assert buffer.add(rollout(0, entries[0].prompt)) is None
    assert buffer.surplus == 2
    assert not buffer.wants(99)
    assert not buffer.wants(0)


def test_a_rollout_from_before_its_submission_is_asked_for_again() -> None:
    buffer = Buffer(Admission(1, 2, step=5), 1)
    entry = buffer.submit(next(iter(PROMPTS.values())), 5)
    assert buffer.add(rollout(0, entry.prompt, version=4)) is None
    assert buffer.too_old == 1
    assert buffer.wants(0)
    assert buffer.add(rollout(0, entry.prompt, version=5)) == 0


def test_excluded_rollouts_are_nan_and_finish_their_group() -> None:
    buffer, entries = full()
    finish(buffer, entries[0], reward=None)
    assert buffer.finished == 1
    assert np.isnan(entries[0].group().rewards).all()


def test_what_a_dead_generator_had_is_asked_for_again_and_only_that() -> None:
    buffer, entries = full(P=1, k=3, G=3)
    finish(buffer, entries[0])
    place = buffer.add(rollout(1, entries[1].prompt))
    assert place is not None
    batch = buffer.take()
    assert batch is not None
    buffer.trained(batch)
    asked = Counter(group_id for group_id, _ in buffer.start_again(version=1))
    assert asked == {1: 2, 2: 3, 3: 3}
    assert entries[1].deadline == 3  # its first rollout is of version 0
    assert entries[2].deadline == 4
    assert buffer.add(rollout(2, entries[2].prompt, version=0)) is None  # a late one of the dead generator


@settings(max_examples=60)
@given(st.data())
def test_a_checkpoint_carries_every_group(data: st.DataObject) -> None:
    G = data.draw(st.integers(1, 3))
    buffer, entries = full(P=data.draw(st.integers(1, 3)), k=data.draw(st.integers(0, 3)), G=G)
    order = data.draw(st.permutations(entries))
    for entry in order[: data.draw(st.integers(0, len(order)))]:
        finish(buffer, entry, data.draw(st.sampled_from([1.0, 0.0])), n=data.draw(st.integers(0, 4)))
    open_group = next((e for e in order if not e.rollouts), None)
    if open_group is not None and G > 1:
        place = buffer.add(rollout(open_group.group_id, open_group.prompt))
        assert place == 0
        buffer.judge(open_group.group_id, place, 1.0)
    state, arrays = buffer.state()
    other = Buffer(Admission(buffer.admission.prompts_per_step, buffer.admission.max_staleness), G)
    other.restore(orjson.loads(orjson.dumps(state)), arrays, PROMPTS.__getitem__)
    assert (other.finished, other.unfinished, len(other)) == (buffer.finished, buffer.unfinished, len(buffer))
    assert other.next_group == buffer.next_group
    for mine, theirs in zip(buffer._entries.values(), other._entries.values(), strict=True):
        assert (mine.group_id, mine.deadline, mine.state, mine.prompt) == (
            theirs.group_id, theirs.deadline, theirs.state, theirs.prompt,
        )  # fmt: skip
        np.testing.assert_array_equal(mine.group().rewards, theirs.group().rewards)
        for one, two in zip(mine.rollouts, theirs.rollouts, strict=True):
            for name in ("token_ids", "generator_logprobs", "loss_mask", "policy_versions"):
                np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
                assert getattr(one, name).dtype == getattr(two, name).dtype
            assert (one.finish_reason, one.interrupted) == (two.finish_reason, two.interrupted)
    mine, theirs = buffer.take(), other.take()
    assert [e.group_id for e in mine or []] == [e.group_id for e in theirs or []]


def test_what_was_not_judged_or_only_failed_is_judged_after_a_resume() -> None:
    buffer, entries = full(P=1, k=3, G=2)
    for entry, rewards in zip(entries, ([1.0, None], [None, None], [1.0]), strict=False):
        for reward in rewards:
            place = buffer.add(rollout(entry.group_id, entry.prompt))
            assert place is not None
            buffer.judge(entry.group_id, place, reward)
    assert buffer.add(rollout(2, entries[2].prompt)) == 1  # hangs in its verifier
    state, arrays = buffer.state()
    other = Buffer(Admission(1, 3), 2)
    other.restore(orjson.loads(orjson.dumps(state)), arrays, PROMPTS.__getitem__)
    assert [(group_id, place) for group_id, place, _ in other.unjudged()] == [(1, 0), (1, 1), (2, 1)]
    assert (other.finished, other.unfinished) == (1, 3)
    assert [group_id for group_id, _ in other.start_again(0)] == [3, 3]
    for group_id, place, _ in other.unjudged():
        other.judge(group_id, place, 0.0)
    assert (other.finished, other.unfinished) == (3, 1)
    np.testing.assert_array_equal(other._entries[0].rewards, [1.0, np.nan])


def test_a_buffer_is_not_saved_in_the_middle_of_a_step() -> None:
    buffer, entries = full()
    for entry in entries[:2]:
        finish(buffer, entry)
    buffer.take()
    with pytest.raises(RuntimeError, match="between steps"):
        buffer.state()


def test_arrays_of_another_checkpoint_are_refused() -> None:
    buffer, entries = full()
    finish(buffer, entries[0])
    state, arrays = buffer.state()
    wrong: dict[str, Any] = arrays | {"token_ids": arrays["token_ids"][:-1]}
    with pytest.raises(CheckpointError, match="does not hold the tokens"):
        Buffer(Admission(2, 2), 2).restore(state, wrong, PROMPTS.__getitem__)
