"""Vetoes and warnings: each condition is seen, and a healthy run has none. TRAPS 35 and 36, and A.15."""

import numpy as np
import pytest

import scalerl
from scalerl.curves.diagnostics import find_collapse, vetoes, warnings
from scalerl.curves.synthetic import KINDS, ar1_noise, collapsed, simulate
from scalerl.curves.verdict import NO_FORECAST
from scalerl.runs import Curve

HEALTHY = simulate("iid", np.random.default_rng(3), points=60, reach=4.0).curve


def said(curve: Curve, truncation: np.ndarray | None = None) -> tuple[str, str]:
    fitted = scalerl.fit(curve, since=0)
    return " | ".join(vetoes(curve, fitted)), " | ".join(warnings(curve, fitted, truncation))


def test_a_healthy_run_has_no_veto() -> None:
    assert said(HEALTHY, np.zeros(60)) == ("", "")


def test_a_collapse_is_vetoed_with_its_numbers_and_no_verdict_is_given() -> None:
    score = HEALTHY.score.copy()
    score[48:] -= np.linspace(0.01, 0.15, 12)
    curve = Curve(HEALTHY.compute, score)
    assert "collapse: the score fell from" in said(curve)[0]
    fc = scalerl.forecast(curve)
    assert fc.verdict == NO_FORECAST
    assert fc.table  # the numbers stay visible
    assert fc.reasons[0].startswith("no verdict: collapse")


def test_a_single_bad_evaluation_in_the_middle_is_no_collapse() -> None:
    score = HEALTHY.score.copy()
    score[30] -= 0.1
    assert not find_collapse(Curve(HEALTHY.compute, score)).found


@pytest.mark.parametrize("kind", KINDS)
def test_collapses_are_found_and_seldom_imagined(kind: str) -> None:
    rng = np.random.default_rng(8)
    found, false, material = 0, 0, 0
    for _ in range(60):
        run = simulate(kind, rng, points=40, reach=4.0)
        false += find_collapse(run.curve).found
        curve = collapsed(run, rng)
        mean = run.mean_score(curve.compute) - (run.curve.score - curve.score)
        if mean.max() - mean[-1] > max(6 * run.noise_sd, 0.03):
            material += 1
            found += find_collapse(curve).found
    assert material > 20
    assert found >= material - 1
    assert false <= 2


def test_correlated_noise_alone_is_no_collapse() -> None:
    rng = np.random.default_rng(1)
    flat = [Curve(np.arange(1.0, 61), 0.5 + ar1_noise(rng, 60, 0.01, 0.5)) for _ in range(100)]
    assert sum(find_collapse(c).found for c in flat) <= 3


def test_a_tail_without_scores_is_vetoed() -> None:
    score = np.append(HEALTHY.score, [np.nan] * 4)
    compute = np.append(HEALTHY.compute, HEALTHY.compute[-1] + np.arange(1, 5))
    assert "ends in 4 evaluations without a score" in said(Curve(compute, score))[0]


def test_seven_points_are_too_few_for_a_verdict_but_not_for_numbers() -> None:
    early = Curve(HEALTHY.compute[:7], HEALTHY.score[:7])
    fc = scalerl.forecast(early)
    assert fc.verdict == NO_FORECAST
    assert "too few points: 7" in fc.vetoes[0]
    assert len(fc.table) == 3


def test_scores_outside_the_unit_interval_are_vetoed() -> None:
    assert "mixed scales" in said(Curve(HEALTHY.compute, HEALTHY.score / HEALTHY.score.max() * 1.3))[0]


def test_a_stuck_metric_is_vetoed_and_a_score_at_its_ceiling_is_not() -> None:
    stuck = HEALTHY.score.copy()
    stuck[20:] = 0.41
    assert "looks stuck" in said(Curve(HEALTHY.compute, stuck))[0]
    perfect = np.minimum(np.linspace(0.2, 1.6, 40), 1.0)
    assert "stuck" not in said(Curve(np.arange(1.0, 41), perfect))[0]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (None, "unknown (not zero)"),
        (np.full(60, np.nan), "unknown (not zero)"),
        (np.full(60, 0.14), "14 % of generations are truncated"),
        (np.linspace(0.0, 0.08, 60), "is rising"),
        (np.full(60, 0.03), ""),
    ],
)
def test_truncation_is_unknown_high_rising_or_fine(rate: np.ndarray | None, expected: str) -> None:
    warned = said(HEALTHY, rate)[1]
    assert expected in warned
    assert bool(warned) == bool(expected)


def test_how_far_the_run_got_is_said_below_three_C_mid() -> None:
    early = simulate("iid", np.random.default_rng(3), points=60, reach=1.0).curve
    assert "the ceiling A is not identified: the run has reached" in said(early)[1]
    later = simulate("iid", np.random.default_rng(3), points=60, reach=2.2).curve
    assert "the ceiling A is provisional: the run has reached" in said(later)[1]


def test_a_short_run_that_falls_to_zero_is_a_collapse() -> None:
    compute = np.arange(10.0, 101, 10)
    for zeros in (1, 2, 4):
        score = 0.2 + 0.45 / (1 + (40 / compute) ** 1.4)
        score[-zeros:] = 0
        assert find_collapse(Curve(compute, score)).found


def test_a_slow_decline_is_said() -> None:
    compute = np.arange(1.0, 61) * 10
    score = np.minimum(0.5, 0.2 + compute / 800) - 0.03 * np.maximum(np.log2(compute / 240), 0)
    score = score + ar1_noise(np.random.default_rng(0), 60, 0.003, 0.0)
    assert "has been falling" in said(Curve(compute, score))[1]
    assert "has been falling" not in said(HEALTHY)[1]


def test_one_high_evaluation_among_zeros_is_no_peak_to_have_fallen_from() -> None:
    score = np.zeros(100)
    score[[30, 55, 70, 85, 98]] = [0.25, 0.5, 0.125, 0.625, 1.0]
    assert not find_collapse(Curve(np.arange(1.0, 101), score)).found
