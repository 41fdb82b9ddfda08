"""`forecast`: what it says, refuses, prices and replays; its JSON; the paper's 8B run."""

import json
from pathlib import Path

import numpy as np
import pytest

import scalerl
from scalerl.curves.calibration import NO_CALIBRATION
from scalerl.curves.laws import SIGMOID
from scalerl.curves.synthetic import ar1_noise
from scalerl.curves.verdict import CONTINUE, NO_FORECAST, STOP, UNSURE, judge
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve

SHARED = Path(__file__).parents[2].parent / "shared" / "curves"
R0, A, B, C_MID = 0.3, 0.65, 1.6, 3000.0


def run(last: float, points: int = 50, sd: float = 0.004, seed: int = 0, **more) -> Curve:
    compute = np.linspace(last / points, last, points)
    noise = ar1_noise(np.random.default_rng(seed), points, sd, 0.0)
    return Curve(compute, SIGMOID.value(compute, R0, A, B, C_MID) + noise, unit="gpu-hour", **more)


def test_the_interval_of_the_mean_holds_the_law_at_every_reach() -> None:
    fc = scalerl.forecast(run(9000), at=["1.5x", "2x", "4x", 100_000])
    truth = SIGMOID.value(np.array([r.compute for r in fc.table]), R0, A, B, C_MID)
    for row, score in zip(fc.table, truth, strict=True):
        assert row.low <= score <= row.high
        assert row.low <= row.score <= row.high
        assert row.gain_low <= row.gain <= row.gain_high
    widths = [r.high - r.low for r in fc.table]
    assert widths == sorted(widths)


def test_verdicts_follow_the_gain_at_the_budget() -> None:
    assert scalerl.forecast(run(2500)).verdict == CONTINUE
    assert scalerl.forecast(run(200_000, sd=0.001)).verdict == STOP
    unsure = scalerl.forecast(run(20_000), threshold=0.018)
    assert unsure.verdict == UNSURE
    assert "even odds of deciding" in unsure.reasons[-1] or "unlikely to decide" in unsure.reasons[-1]
    assert 0.05 < unsure.chance < 0.95
    assert f"{100 * unsure.chance:.0f} %" in unsure.reasons[0]


@pytest.mark.parametrize(
    ("chance", "vetoes", "expected"),
    [
        (0.90, [], CONTINUE),
        (0.89, [], UNSURE),
        (0.11, [], UNSURE),
        (0.0999, [], STOP),
        (0.99, ["collapse: ..."], NO_FORECAST),
    ],
)
def test_a_verdict_needs_the_certainty_of_the_level(chance: float, vetoes: list[str], expected: str) -> None:
    assert judge(0.02, -0.01, 0.05, 0.01, vetoes, 0.9, "going on", chance).verdict == expected


def test_the_chance_agrees_with_the_interval_of_the_gain() -> None:
    fc = scalerl.forecast(run(9000), at=["2x"], budget="2x", threshold=0.03, calibration=NO_CALIBRATION)
    row = fc.table[0]
    at_low = scalerl.forecast(run(9000), at=["2x"], threshold=row.gain_low, calibration=NO_CALIBRATION)
    at_high = scalerl.forecast(run(9000), at=["2x"], threshold=row.gain_high, calibration=NO_CALIBRATION)
    assert at_low.chance == pytest.approx(0.95, abs=0.005)
    assert at_high.chance == pytest.approx(0.05, abs=0.005)


def test_upto_is_the_same_as_never_having_seen_the_rest() -> None:
    whole = run(20_000)
    replay = scalerl.forecast(whole, upto=8000, at=[20_000]).to_dict()
    early = scalerl.forecast(whole.upto(8000), at=[20_000]).to_dict()
    assert replay == early
    assert replay["data"]["compute_last"] <= 8000


def test_the_json_has_the_keys_of_schema_1_and_no_nan() -> None:
    said = scalerl.forecast(run(9000), target=0.9, price_per_hour=2.0).to_dict()
    text = json.dumps(said, allow_nan=False)
    assert json.loads(text)["schema"] == 1
    assert {"points_used", "points_dropped", "compute_unit", "compute_last", "score_last"} <= set(said["data"])
    assert {"R0", "A", "B", "C_mid", "A_interval", "C_over_C_mid", "residual_sd", "autocorrelation"} <= set(said["fit"])
    assert {"compute", "score", "low", "high", "gain", "gain_low", "gain_high"} <= set(said["forecast"][0])
    assert {"families", "backtest", "calibration", "verdict", "reasons", "vetoes", "warnings"} <= set(said)
    assert sum(law["weight"] for law in said["families"]) == pytest.approx(1.0)


def test_cost_is_the_price_of_what_is_still_to_be_spent() -> None:
    fc = scalerl.forecast(run(9000), at=["2x", 10_000], price_per_hour=2.5)
    assert [r.cost for r in fc.table] == pytest.approx([9000 * 2.5, 1000 * 2.5])
    steps = Curve(run(9000).compute, run(9000).score, unit="step")
    with pytest.raises(InputError, match="device-hours, but this curve is in steps"):
        scalerl.forecast(steps, price_per_hour=2.5)


def test_the_marginal_gain_is_the_slope_of_the_law() -> None:
    fc = scalerl.forecast(run(30_000, points=90, sd=0.001), at=["2x"])
    step = 10.0
    for compute, marginal in ((30_000.0, fc.marginal_now), (60_000.0, fc.table[0].marginal)):
        ahead, here = SIGMOID.value(np.array([compute + step, compute]), R0, A, B, C_MID)
        assert marginal == pytest.approx((ahead - here) / step, rel=0.15)


def test_compute_to_reach_a_target_brackets_the_law_and_says_never_above_the_ceiling() -> None:
    fc = scalerl.forecast(run(9000, sd=0.002), target=0.62, level=0.99)
    truth = float(SIGMOID.inverse(0.62, R0, A, B, C_MID))
    assert fc.target.low <= truth <= fc.target.high
    assert fc.target.low <= fc.target.compute <= fc.target.high
    assert scalerl.forecast(run(30_000, sd=0.001), target=0.9).target.compute == np.inf
    already = scalerl.forecast(run(9000), target=0.4).target
    assert already.compute == already.high == 9000


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"at": ["soon"]}, "cannot read 'soon'"),
        ({"at": ["0.5x"]}, "before the last point"),
        ({"at": ["infx"]}, "cannot|before"),
        ({"level": 1.0}, "between 0 and 1"),
        ({"target": 1.5}, "between 0 and 1"),
        ({"upto": 10.0}, "nothing is left"),
    ],
)
def test_arguments_that_make_no_sense_are_named(argument: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scalerl.forecast(run(9000), **argument)


def test_a_wider_level_has_a_wider_interval() -> None:
    widths = []
    for level in (0.5, 0.8, 0.9, 0.95):
        row = scalerl.forecast(run(9000), at=["2x"], level=level).table[0]
        widths.append(row.high - row.low)
    assert widths == sorted(widths)


def test_reaching_beyond_what_the_run_has_tested_is_said() -> None:
    warned = scalerl.forecast(run(9000), budget="50x").warnings
    assert any("reaches 50.0x" in w and "past tests it only" in w for w in warned)


def test_a_run_of_a_thousand_points_is_binned_and_forecast_alike() -> None:
    long = scalerl.forecast(run(9000, points=1000, sd=0.02), at=["2x"], calibration=NO_CALIBRATION).table[0]
    truth = float(SIGMOID.value(18_000.0, R0, A, B, C_MID))
    assert long.low <= truth <= long.high
    assert long.high - long.low < 0.1


def test_too_few_points_and_constants_are_refused_as_forecasts() -> None:
    with pytest.raises(ForecastRefused, match="at least 5"):
        scalerl.forecast(run(9000, points=4))
    with pytest.raises(ForecastRefused, match="constant at 0"):
        scalerl.forecast(Curve(range(1, 30), np.zeros(29)))


def test_the_unit_of_compute_does_not_matter() -> None:
    one = run(9000)
    other = Curve(one.compute * 3.6e6, one.score)
    a, b = (scalerl.forecast(c, at=["2x"], calibration=NO_CALIBRATION).table[0] for c in (one, other))
    assert [a.score, a.low, a.high] == pytest.approx([b.score, b.low, b.high], abs=2e-3)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not beside the project")
def test_the_papers_8B_run_stopped_at_25k_hours_does_not_exclude_where_it_went() -> None:
    curve = scalerl.read_curve(SHARED / "scalerl-paper" / "fig1_8b_dense.csv")
    row = scalerl.forecast(curve, upto=25_000, at=[78_000]).table[0]
    assert row.low <= 0.643 <= row.high
    assert row.high - row.low < 0.15


def test_smooth_curves_do_not_get_intervals_of_a_thousandth() -> None:
    compute = np.linspace(10, 300, 40)
    row = scalerl.forecast(Curve(compute, 0.2 + 0.5 * (1 - 2 ** (-compute / 100))), at=["2x"]).table[0]
    assert row.low <= 0.2 + 0.5 * (1 - 2**-6) <= row.high
    assert 0.005 < row.high - row.low < 0.06


def test_a_score_at_its_ceiling_cannot_gain() -> None:
    fc = scalerl.forecast(Curve(np.arange(1, 101), np.clip(0.5 + 0.02 * np.arange(1, 101), 0, 1)))
    assert fc.verdict == STOP
    assert fc.chance == 0.0
    assert all(r.gain_high <= 1e-6 for r in fc.table)


def test_forecasts_travel_between_processes() -> None:
    import pickle

    fc = scalerl.forecast(run(9000))
    assert pickle.loads(pickle.dumps(fc)).to_dict() == fc.to_dict()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"threshold": float("nan")}, "threshold must be a number"),
        ({"price_per_hour": -3}, "from 0 on"),
        ({"since": "later"}, 'a compute or "auto"'),
        ({"at": 100.0}, "before the last point"),
    ],
)
def test_nonsense_from_python_is_answered_in_one_line(argument: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scalerl.forecast(run(9000), **argument)
    with pytest.raises(InputError, match="make one with"):
        scalerl.forecast("metrics.jsonl")


def test_predictions_are_only_given_for_the_future() -> None:
    fc = scalerl.forecast(run(9000), at="2x")
    assert len(fc.table) == 1
    for compute in (100.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="from the last point on"):
            fc.predict(compute)
