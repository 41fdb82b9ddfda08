import json
from collections import Counter

import numpy as np
import pytest

from scalerl.curves import transfer
from scalerl.curves.association import associate, effective_n
from scalerl.curves.laws import SIGMOID
from scalerl.curves.synthetic import ar1_noise, sigmoid_run
from scalerl.curves.transfer import CANNOT, FOLLOWS, LAGS, NOT
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve

LAW = (0.3, 0.6, 1.7, 1000.0)
LAST = 5000.0


def held_out(seed=0, sd=0.005):
    return sigmoid_run(np.random.default_rng([seed, 1]), *LAW, LAST, sd)


def downstream(score, seed=0, n=30, sd=0.012, rho=0.0):
    compute = np.linspace(LAST / n, LAST, n)
    noise = ar1_noise(np.random.default_rng([seed, 2]), n, sd, rho)
    return Curve(compute, np.clip(score(compute) + noise, 0, 1), name="run", score_name="aime24")


def following(compute):
    return 0.1 + 0.8 * (SIGMOID.value(compute, *LAW) - 0.3)


def trailing(compute):
    return following(np.maximum(compute - 1000.0, 0.0))


def rising_and_falling(compute):
    return following(compute) - 0.25 * np.clip(compute / LAST - 0.4, 0, 1)


def words_of(score, count=10, **options):
    return Counter(transfer(held_out(seed), downstream(score, seed, **options)).words for seed in range(count))


def test_a_score_that_follows_is_said_to_and_never_by_a_lag_that_is_not_there():
    said = words_of(following, n=40, sd=0.008)
    assert said[FOLLOWS] >= 8
    assert said[NOT] <= 1


def test_a_trailing_score_follows_with_a_lag_and_the_interval_holds_it():
    assert words_of(trailing)[LAGS] >= 8
    found = [transfer(held_out(seed), downstream(trailing, seed)).lag for seed in range(10)]
    assert sum(lag.low <= 1000.0 <= lag.high for lag in found) >= 7
    assert all(abs(lag.compute - 1000.0) < 400 for lag in found)


@pytest.mark.parametrize("score", [rising_and_falling, lambda c: 0.5 - 0.2 * c / LAST, lambda c: 0.1 + 0.3 * c / LAST])
def test_other_trends_do_not_follow(score):
    said = words_of(score)
    assert said[NOT] >= 7
    assert said[FOLLOWS] + said[LAGS] <= 1


def test_a_flat_score_is_never_said_to_follow():
    said = words_of(lambda c: 0.3 + 0 * c, rho=0.5)
    assert said[FOLLOWS] + said[LAGS] <= 1


def test_noise_that_hides_everything_ends_in_cannot_say():
    said = words_of(following, n=8, sd=0.08)
    assert said[CANNOT] >= 7


def test_levels_of_unrelated_rising_scores_correlate_and_the_summary_says_so():
    result = transfer(held_out(), downstream(lambda c: 0.1 + 0.06 * np.log(c)))
    assert result.levels.pearson > 0.8
    assert any("two rising scores always do" in reason for reason in result.reasons)
    assert result.levels.effective_n < 0.5 * result.levels.n
    assert abs(result.detrended.pearson) < 0.6


def test_slope_is_gain_downstream_per_gain_held_out():
    slopes = [transfer(held_out(seed), downstream(following, seed, n=60, sd=0.005)).regression for seed in range(10)]
    assert np.mean([s.slope for s in slopes]) == pytest.approx(0.8, abs=0.03)
    assert sum(s.slope_low <= 0.8 <= s.slope_high for s in slopes) >= 7


def test_downstream_at_other_computes_is_matched_and_what_lies_outside_is_left_out():
    compute = np.concatenate([np.arange(130.0, 5000.0, 333.0), [9000.0]])
    run = Curve(compute, following(compute), name="run", score_name="aime24")
    result = transfer(held_out(sd=0.002), run)
    assert result.compute.size == compute.size - 1
    assert result.heldout_at == pytest.approx(SIGMOID.value(result.compute, *LAW), abs=0.008)
    assert any("1 points of aime24 outside" in note for note in result.notes)


def test_its_own_fit_is_given_or_the_refusal():
    result = transfer(held_out(), downstream(following))
    assert result.fit is not None
    assert result.fit.curve.score_name == "aime24"
    constant = transfer(held_out(), downstream(lambda c: 0.3 + 0 * c, sd=0.0))
    assert constant.fit is None
    assert "constant" in constant.fit_refused
    assert constant.words == NOT
    assert "no fit of its own" in constant.summary()


def test_a_held_out_score_that_does_not_move_has_nothing_to_follow():
    still = Curve(held_out().compute, np.full(60, 0.4))
    assert transfer(still, downstream(following)).words == CANNOT


def test_the_answer_is_the_same_every_time_serialises_and_reads_well():
    result, again = (transfer(held_out(), downstream(following)) for _ in range(2))
    assert result.to_dict() == again.to_dict()
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found["schema"] == 1
    assert [a["kind"] for a in found["association"]] == ["levels", "increments", "detrended"]
    text = result.summary()
    for piece in ("aime24 against score: ", "levels", "increments", "detrended", "slope", "lag", "sigmoid fit of run"):
        assert piece in text


def test_long_curves_are_averaged_not_multiplied_out():
    rng = np.random.default_rng(0)
    compute = np.linspace(1.0, LAST, 5000)
    long = Curve(compute, np.clip(SIGMOID.value(compute, *LAW) + rng.normal(0, 0.02, 5000), 0, 1))
    noisy = Curve(compute, np.clip(following(compute) + rng.normal(0, 0.05, 5000), 0, 1), score_name="aime24")
    result = transfer(long, noisy)
    assert result.compute.size <= 96
    assert result.words == FOLLOWS


@pytest.mark.parametrize(
    ("curve", "options", "error", "message"),
    [
        (Curve(np.arange(6000, 6010), [0.1] * 10), {}, ForecastRefused, "0 points of score lie within"),
        (Curve(np.linspace(500, 5000, 5), np.linspace(0, 0.5, 5)), {}, ForecastRefused, "takes at least 6"),
        (Curve([1, 2], [0.1, 0.2], unit="token"), {}, InputError, "same x"),
        (Curve([1, 2], [0.1, 0.2]), {"level": 0.0}, InputError, "level"),
    ],
)
def test_bad_input_names_the_mend(curve, options, error, message):
    with pytest.raises(error, match=message):
        transfer(held_out(), curve, **options)


def test_fisher_intervals_hold_their_level_on_autocorrelated_noise():
    rng, held, plain = np.random.default_rng(0), 0, 0
    for _ in range(200):
        x, y = (ar1_noise(rng, 40, 1.0, 0.7) for _ in range(2))
        found = associate("levels", x, y, 0.9)
        held += found.pearson_low <= 0 <= found.pearson_high
        plain += abs(np.arctanh(found.pearson)) < 1.645 / np.sqrt(37)
    assert held >= 168
    assert held > plain + 15


def test_effective_n_of_independent_points_is_their_number():
    rng = np.random.default_rng(1)
    values = [effective_n(rng.normal(size=50), rng.normal(size=50)) for _ in range(50)]
    assert np.mean(values) == pytest.approx(50, rel=0.1)
    assert effective_n(np.arange(50.0), np.arange(50.0)) < 12


def test_associations_of_a_constant_are_nil():
    found = associate("levels", np.ones(10), np.arange(10.0), 0.9)
    assert (found.pearson, found.spearman) == (0.0, 0.0)
