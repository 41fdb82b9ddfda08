"""Backtest and baselines: what is compared with what, and honest counting of failures."""

import numpy as np
import pytest

from scalerl.curves.backtest import METHODS, Case, backtest
from scalerl.curves.baselines import BASELINES
from scalerl.curves.laws import POWER_LAW, SIGMOID
from scalerl.curves.observations import difference_sd, end_of, observe
from scalerl.curves.synthetic import simulate
from scalerl.errors import InputError
from scalerl.runs import Curve

COMPUTE = np.linspace(100, 20_000, 60)


def exact(law=SIGMOID, C_mid: float = 3000.0) -> Curve:
    return Curve(COMPUTE, law.value(COMPUTE, 0.3, 0.66, 1.4, C_mid), name="exact")


def test_on_exact_points_every_law_based_method_is_exact_and_last_five_lags() -> None:
    report = backtest([exact()], [0.5])
    error = {c.method: c.error for c in report.cases}
    assert abs(error["scalerl"]) < 2e-3
    assert abs(error["curve_fit"]) < 5e-3
    assert error["last five"] < -0.02
    assert set(error) == set(METHODS)


def test_the_power_law_baseline_recovers_a_power_law() -> None:
    curve = exact(POWER_LAW, C_mid=100.0)
    _, score, _ = BASELINES["power law"](curve.upto(10_000), 20_000.0, 0.9)
    assert score == pytest.approx(curve.score[-1], abs=1e-4)


def test_the_end_is_a_mean_with_its_error_not_one_evaluation() -> None:
    curve = Curve(np.arange(1, 101), np.where(np.arange(100) % 2 == 0, 0.4, 0.6))
    at, score, se = end_of(curve)
    assert (at, score) == (97.5, 0.5)  # 95..100
    assert se == pytest.approx(0.1 * np.sqrt(6 / 5) / np.sqrt(6))


def test_a_miss_counts_the_noise_of_the_observed_end() -> None:
    sure = Case("c", "m", 0.5, 2.0, 10, 0.4, 0.5, 0.6, 0.65, 0.0)
    noisy = Case("c", "m", 0.5, 2.0, 10, 0.4, 0.5, 0.6, 0.65, 0.1)
    assert sure.miss(0.9) == pytest.approx(1.5)
    assert noisy.miss(0.9) < 1 < sure.miss(0.9)
    assert not sure.inside
    assert not noisy.inside


def test_what_cannot_be_cut_is_named_and_failures_are_counted() -> None:
    short = Curve([1, 2, 3, 4, 5, 6], [0.1, 0.2, 0.25, 0.3, 0.31, 0.33], name="short")
    report = backtest([exact(), short], [0.5])
    assert report.skipped == ["short at 0.5: 3 points; a fit needs at least 5, a verdict 8"]
    with pytest.raises(InputError, match="no curve could be cut: short at"):
        backtest([short], [0.5])
    with pytest.raises(InputError, match="no method 'magic'"):
        backtest([exact()], [0.5], ["magic"])
    with pytest.raises(InputError, match="between 0 and 1"):
        backtest([exact()], [2.0])


def test_summaries_are_the_means_over_cases() -> None:
    rng = np.random.default_rng(0)
    report = backtest([simulate("iid", rng, 40).curve for _ in range(4)], [0.25, 0.5], ["scalerl", "last five"])
    assert [(s.method, s.fraction) for s in report.summaries()] == [
        (m, f) for f in (0.25, 0.5) for m in ("scalerl", "last five")
    ]
    ours = [c for c in report.cases if (c.method, c.fraction) == ("scalerl", 0.5)]
    summary = next(s for s in report.summaries() if (s.method, s.fraction) == ("scalerl", 0.5))
    assert summary.coverage == np.mean([c.inside for c in ours])
    assert summary.bias == pytest.approx(np.mean([c.error for c in ours]))
    assert report.to_dict()["summaries"][0]["cases"] == 4


def test_difference_sd_sees_the_noise_through_a_trend() -> None:
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 100, 2000))
    assert difference_sd(x, 0.3 + 0.005 * x + 0.02 * rng.standard_normal(2000)) == pytest.approx(0.02, rel=0.06)


def test_binning_keeps_the_mean_and_the_trials() -> None:
    rng = np.random.default_rng(0)
    curve = Curve(np.arange(1, 2001), rng.uniform(0.2, 0.4, 2000), trials=20)
    data = observe(curve)
    assert data.compute.size <= 96
    assert (np.diff(data.compute) > 0).all()
    weights = 1 / data.noise  # about the trials of each bin
    assert np.average(data.score, weights=weights) == pytest.approx(curve.score.mean(), abs=0.01)


@pytest.mark.slow
def test_intervals_hold_on_simulated_runs_of_every_kind() -> None:
    from scalerl.curves.forecast import forecast
    from scalerl.curves.synthetic import KINDS

    for kind in KINDS:
        rng = np.random.default_rng(21)
        inside = []
        for _ in range(60):
            run = simulate(kind, rng, points=int(rng.choice([20, 40, 75])))
            rows = forecast(run.curve, at=["2x", "6x"]).table
            truth = run.mean_score(np.array([r.compute for r in rows]))
            inside.append([r.low <= t <= r.high for r, t in zip(rows, truth, strict=True)])
        at_2x, at_6x = np.mean(inside, axis=0)
        assert at_2x >= 0.88, kind
        assert at_6x >= 0.85, kind
