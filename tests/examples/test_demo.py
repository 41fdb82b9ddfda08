"""The demo that trains: what it says of an end inside and outside its forecast. The run itself is `.ci/run`'s."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import demo
from scalerl.training.resolve import resolve

OUTCOME = demo.Outcome(0, 0.27, 0.86, 31, 6e12, 1.1e13, 0.85, 0.81, 0.9, True, 290.0)


def test_a_miss_is_said() -> None:
    assert "rose from 0.270 to 0.860 in 31 evaluations" in demo.verdict(OUTCOME)
    assert "lies inside the 90 % interval" in demo.verdict(OUTCOME)
    assert "lies outside the 90 % interval" in demo.verdict(replace(OUTCOME, held=False))


def test_a_failing_command_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("steps: 4\nengines: {slotts: 3}\n")
    monkeypatch.setattr(demo, "SETTINGS", broken)
    assert demo.main([str(tmp_path / "demo")]) == 1
    told = capfd.readouterr().err
    assert "slots" in told
    assert "demo failed: scalerl train" in told


def test_its_settings_are_the_papers_recipe_with_the_small_sizes() -> None:
    found, plain = resolve(demo.SETTINGS), resolve(preset="scalerl")
    assert found.recipe == plain.recipe
    assert found.steps // found.evaluation.every >= 24
    assert (found.recipe.schedule, found.recipe.max_staleness, found.recipe.loss) == ("pipeline", 8, "cispo")


def test_the_notes_of_a_quiet_command_are_shown_only_where_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    log = Path(__file__).parents[2] / "examples" / "logs" / "run.jsonl"
    assert '"forecast"' in demo.scalerl("forecast", log, "--json", show=False)
    assert capfd.readouterr().err == ""
    with pytest.raises(demo.DemoFailed, match="ended with 2\nscalerl: nowhere"):
        demo.scalerl("forecast", "nowhere", show=False)
