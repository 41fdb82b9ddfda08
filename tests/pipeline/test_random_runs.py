"""The whole controller against random settings, delays and deaths: every step taken, nothing lost, nothing too old."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_stubs import Run, StubGenerator, StubTask, recipe

from scalerl.engines.fleet import Fleet, FleetSettings


@settings(max_examples=40)
@given(
    st.integers(1, 4), st.integers(2, 4), st.integers(1, 5), st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(1, 25), st.lists(st.integers(1, 40), max_size=6), st.integers(1, 12),
    st.sampled_from(["pipeline", "ppo-off-policy", "lockstep"]), st.sampled_from([0, 2]),
)  # fmt: skip
def test_any_run_keeps_its_promises(
    P: int, G: int, k: int, slots: list[int], polls: int, deaths: list[int], in_flight: int, schedule: str,
    threads: int,
) -> None:  # fmt: skip
    lives = iter(deaths)

    def spawn(place: int) -> StubGenerator:
        return StubGenerator(slots[place], polls, seed=place, dies_after=next(lives, None))

    fleet = Fleet(spawn, len(slots), FleetSettings(in_flight, attempts=10))
    settings = recipe(schedule, k, prompts_per_step=P, generations=G, curriculum="uniform")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(
            Path(folder), settings, steps=12, task=StubTask(size=500), generator=fleet, threads=threads,
            checkpoint_every=3,
        )  # fmt: skip
        assert run.controller.run().step == 12
        rows, events = run.rows("train"), run.rows("event")
        assert [row["step"] for row in rows] == list(range(1, 13))
        assert all(row["groups"] == P and row["rollouts"] == P * G for row in rows)
        stalest = max(int(s) for row in rows for s in row["staleness_histogram"])
        assert 0 <= stalest <= {"pipeline": k, "ppo-off-policy": k - 1, "lockstep": 0}[schedule]
        # Nothing was drawn beyond what was trained: prompts are drawn only for steps that will be taken.
        assert run.controller._buffer.next_group == 12 * P
        assert len(run.controller._buffer) == 0
        assert events[-1]["outstanding_groups"] == 0
        replaced = [event for event in events if event["event"] == "generator replaced"]
        assert sum(event["rollouts_asked_again"] for event in replaced) >= rows[-1]["rollouts_asked_again"] >= 0
