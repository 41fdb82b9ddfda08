"""Views: no markup, no control characters, the panel, widths; calibration in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scalerl import words
from scalerl.curves import Forecast, forecast
from scalerl.report import terminal
from scalerl.report.terminal import calibration_lines, forecast_view, lines, reading_view, render, verdict_view
from scalerl.runs import Curve


def risen() -> Curve:
    compute = np.arange(25.0, 1001.0, 25.0)
    noise = np.random.default_rng(0).normal(0, 0.004, compute.size)
    return Curve(compute, 0.3 + 0.4 / (1 + (200 / compute) ** 2) + noise, name="r", score_name="val/acc")


@pytest.fixture(scope="module")
def answer() -> Forecast:
    return forecast(risen(), target=0.9)


def test_users_strings_are_no_markup() -> None:
    text = render([lines(["[bold red]x[/] :smile: https://a.b \x1b[31m"])])
    assert "[bold red]x[/] :smile: https://a.b  [31m" in text


def test_long_words_are_folded_not_cut() -> None:
    name = "a" * 150
    text = render([reading_view("log.csv", "CSV", 3, Curve([1, 2], [0.1, 0.2], score_name=name))])
    assert text.replace("\n", "").replace(" ", "").count("a") >= 150


@pytest.mark.parametrize("verdict", list(terminal.STYLE))
def test_panel_says_the_verdict_its_meaning_and_each_reason(verdict: str) -> None:
    text = render([verdict_view(verdict, ["first reason", "second reason"], ["a veto"])])
    for word in (verdict, terminal.MEANING[verdict], "First reason.", "Second reason.", "Veto: a veto."):
        assert word in text


def test_a_veto_that_is_the_reason_is_said_once() -> None:
    text = render([verdict_view("NO-FORECAST", ["no verdict: it collapsed"], ["it collapsed", "too few points"])])
    assert text.count("it collapsed") == 1
    assert "Veto: too few points." in text


@pytest.mark.parametrize("width", [80, 100])
def test_width_is_kept(answer: Forecast, width: int) -> None:
    text = render(forecast_view(answer), width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_no_number_is_cut_whatever_the_unit_is_called() -> None:
    curve = risen()
    long = Curve(curve.compute * 1e7, curve.score, unit="thousand-million-processed-tokens")
    dear = forecast(replace(curve, unit="gpu-hour", compute=curve.compute * 1234), price_per_hour=2.5)
    for fc in (forecast(long), dear):
        check_numbers(fc)


def check_numbers(fc: Forecast) -> None:
    text = render(forecast_view(fc))
    for row in fc.table:
        assert row.cost is None or f"{row.cost:,.0f}" in text
        assert f"{row.score:.3f} [{row.low:.3f}, {row.high:.3f}]" in text
        assert f"[{words.signed(row.gain_low)}, {words.signed(row.gain_high)}]" in text
    assert "A collapse that has not begun cannot be forecast." in text


def test_ascii_boxes_where_the_encoding_has_no_others(answer: Forecast) -> None:
    panel = render([verdict_view("CONTINUE", ["x"], [])], encoding="ascii")
    assert panel.isascii()


def test_a_target_out_of_reach(answer: Forecast) -> None:
    assert "Target 0.9" in render(forecast_view(answer))
    assert answer.target is not None
    unreachable = replace(answer, target=replace(answer.target, low=np.inf, compute=np.inf, high=np.inf))
    assert "not within 100x" in render(forecast_view(unreachable))


def test_a_falling_fit_has_no_ceiling(answer: Forecast) -> None:
    text = render(forecast_view(replace(answer, fit=replace(answer.fit, A=0.2, R0=0.4))))
    assert "does not rise" in text
    assert "0.200" not in text


def test_measured_coverage_is_printed_beside_the_intervals(answer: Forecast, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {"multipliers": [1.0], "bank": {"curves": 60}, "left_out_source": "tinyzero"}
    found["measured"] = {"reach": 2.0, "coverage": 0.91, "curves": 53, "sources": 21}
    monkeypatch.setattr(Forecast, "calibration_summary", lambda self: found)
    said = calibration_lines(answer)
    assert "Measured at 2x" in said[0]
    assert "91 % of 53 real runs of 21 sources" in said[0]
    assert "tinyzero" in said[1]
    monkeypatch.setattr(
        Forecast, "calibration_summary", lambda self: {**found, "measured": None, "left_out_source": None}
    )
    assert calibration_lines(answer) == ["No measured coverage for this reach: take the intervals as the model's own."]
