"""Idle shares from the generator's own clock, which reports only now and then."""

from __future__ import annotations

import time

import pytest

from scalerl.pipeline.clocks import Clocks


def test_phases_and_the_rest_add_up() -> None:
    clocks = Clocks()
    clocks.turn(in_flight=False)
    with clocks.phase("verify"):
        time.sleep(0.02)
    with clocks.phase("evaluate"):
        time.sleep(0.03)
    clocks.turn(in_flight=True)
    clocks.train = 0.01
    wall, busy, metrics = clocks.restart({}, inline=False)
    assert wall == pytest.approx(metrics["seconds_total"] - metrics["seconds_evaluate"])
    assert metrics["seconds_verify"] >= 0.02
    assert metrics["seconds_controller"] < 0.02
    assert busy == pytest.approx(wall, rel=0.2)
    assert 0 < metrics["trainer_idle_share"] < 1
    assert clocks.restart({}, inline=False)[1] == 0


def test_a_report_holds_until_the_next() -> None:
    clocks = Clocks()
    shares = [
        clocks.restart(report, inline=False)[2]["generator_idle_share"]
        for report in (
            {"seconds_busy": 3.0, "seconds_idle": 1.0},
            {"seconds_busy": 3.0, "seconds_idle": 1.0},
            {"seconds_busy": 4.0, "seconds_idle": 2.0},
            {"seconds_busy": 0.9, "seconds_idle": 0.1},  # another process
        )
    ]
    assert shares == pytest.approx([0.25, 0.25, 0.5, 0.1])


def test_the_pause_of_an_update_is_that_of_the_step() -> None:
    clocks = Clocks()
    pauses = [
        clocks.restart({"updates": updates, "seconds_update_pause": pause}, inline=False)[2].get("update_pause_ms")
        for updates, pause in ((2, 0.5), (2, 0.5), (3, 0.6), (1, 0.1), (2, 0.4))  # one was lost after the third
    ]
    assert pauses == pytest.approx([250, None, 100, None, 300])
