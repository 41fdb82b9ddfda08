"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from scalerl import words as n


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.5321, "0.532"), (12.34, "12.3"), (999.4, "999"), (1328.0, "1,328"), (21234.4, "21,234"),
        (1.5e6, "1,500,000"), (1.234e21, "1.23e+21"), (4e-5, "4.00e-05"), (math.inf, "never"), (math.nan, "-"),
        (None, "-"),
    ],
)  # fmt: skip
def test_amount(value: float | None, text: str) -> None:
    assert n.amount(value) == text


def test_no_minus_zero() -> None:
    assert n.signed(-0.0001) == "+0.000"
    assert n.signed(-0.0006) == "-0.001"


@pytest.mark.parametrize(
    ("value", "text"), [(2.0, "2x"), (1.5, "1.5x"), (1.668, "1.67x"), (12.3, "12x"), (2.0001, "2x")]
)
def test_multiple(value: float, text: str) -> None:
    assert n.multiple(value) == text


@pytest.mark.parametrize(
    ("unit", "text"),
    [("step", "steps"), ("gpu-hour", "gpu-hours"), ("compute", "compute"), ("step x 0.5", "step x 0.5")],
)
def test_plural(unit: str, text: str) -> None:
    assert n.plural(unit) == text


def test_short_keeps_both_ends_and_drops_the_ending() -> None:
    assert n.short("run.jsonl") == "run"
    assert n.short("v1.5") == "v1.5"
    name = n.short("qwen3-8b-scalerl-seed-0000000000000000-fp32.csv", 20)
    assert len(name) == 20
    assert name.startswith("qwen3-8b-")
    assert name.endswith("-fp32")


@pytest.mark.parametrize(("compute", "unit"), [(21234.0, 1e4), (50.0, 10.0), (0.4, 0.1), (0.0, 1.0)])
def test_handy_unit(compute: float, unit: float) -> None:
    assert n.handy_unit(compute) == pytest.approx(unit)


@pytest.mark.parametrize(("value", "text"), [(1e4, "10k"), (100.0, "100"), (1e6, "1M"), (0.1, "0.1"), (1e21, "1e+21")])
def test_brief(value: float, text: str) -> None:
    assert n.brief(value) == text


def test_nominal_level_is_not_rounded() -> None:
    assert n.nominal(0.975) == "97.5 %"
    assert n.nominal(0.9) == "90 %"
