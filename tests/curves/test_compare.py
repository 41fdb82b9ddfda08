import json
from collections import Counter

import numpy as np
import pytest

from scalerl.curves import compare
from scalerl.curves.pair_words import CANNOT, CEILING, EFFICIENCY, NONE, TOO_SHORT
from scalerl.curves.pooling import A_SPREAD, SHAPE_SPREAD, Mixture, pool
from scalerl.curves.synthetic import sigmoid_run
from scalerl.errors import InputError
from scalerl.runs import Curve

SPREAD = np.array([A_SPREAD, SHAPE_SPREAD, SHAPE_SPREAD])


def run(seed, A=0.6, B=1.6, C_mid=1000.0, reach=6.0, sd=0.004):
    return sigmoid_run(np.random.default_rng(seed), 0.3, A, B, C_mid, reach * 1000.0, sd)


def words_of(count, **second):
    said = Counter()
    for seed in range(count):
        said[compare({"a": run([seed, 0]), "b": run([seed, 1], **second)}).pairs[0].words] += 1
    return said


@pytest.mark.parametrize(
    ("second", "expected", "least"),
    [({}, NONE, 11), ({"A": 0.66}, CEILING, 11), ({"B": 3.2}, EFFICIENCY, 11), ({"C_mid": 500.0}, EFFICIENCY, 11)],
)
def test_words_are_right_on_simulated_pairs(second, expected, least):
    assert words_of(12, **second)[expected] >= least


def test_the_direction_is_second_against_first():
    result = compare({"low": run(0), "high": run(1, A=0.68)})
    (pair,) = result.pairs
    assert pair.words == CEILING
    assert pair.A.low > 0
    assert "ceiling of high is higher" in pair.reasons[0]
    assert [r.name for r in result.ranking] == ["high", "low"]
    back = compare({"high": run(1, A=0.68), "low": run(0)}).pairs[0]
    assert back.A.high < 0
    assert "lower" in back.reasons[0]


def test_with_the_same_ceiling_the_faster_recipe_is_named_and_the_refit_shares_A():
    result = compare({"slow": run(0, C_mid=2000.0, reach=12), "fast": run(1, C_mid=800.0, reach=12)})
    (pair,) = result.pairs
    assert pair.words == EFFICIENCY
    assert "fast is more efficient: half-way sooner" in pair.reasons
    assert [r.places for r in result.ranking] == ["1-2", "1-2"]
    assert pair.shares_A
    assert pair.C_mid_shared.high < 0.6
    assert pair.within_margin
    assert pair.refit_C_mid == pytest.approx((2000, 800), rel=0.1)
    assert pair.refit_B == pytest.approx((1.6, 1.6), rel=0.15)
    for name, (log_C, log_F) in pair.straightened().items():
        middle = (log_C > np.log(300)) & (log_C < np.log(6000))
        slope = np.polyfit(log_C[middle], log_F[middle], 1)[0]
        assert slope == pytest.approx(1.6, rel=0.15), name


def test_a_difference_within_the_spread_of_seeds_is_none_for_single_seeds_but_shows_with_several():
    single = compare({"a": run(0, reach=12), "b": run(1, A=0.618, reach=12)})
    assert single.pairs[0].words == NONE
    assert any("one seed of a, b" in note for note in single.notes)
    many = compare({"a": [run(i, reach=12) for i in range(5)], "b": [run(9 + i, A=0.63, reach=12) for i in range(5)]})
    one = compare({"a": run(0, reach=12), "b": run(9, A=0.63, reach=12)}).pairs[0]
    width = many.pairs[0].A.high - many.pairs[0].A.low
    assert width < 0.7 * (one.A.high - one.A.low)
    assert many.pairs[0].words == CEILING
    assert many.recipes["a"].seeds == 5


def test_seeds_that_scatter_widen_the_interval():
    close = [run(i, reach=12) for i in range(3)]
    apart = [run(i, A=A, reach=12) for i, A in enumerate((0.56, 0.60, 0.64))]
    other = run(7, A=0.6, reach=12)
    result = compare({"close": close, "apart": apart, "other": other})
    widths = {name: np.ptp(result.recipes[name].interval("A")) for name in ("close", "apart")}
    assert widths["apart"] > 1.7 * widths["close"]
    assert result.recipes["apart"].seed_sd > 2 * result.recipes["close"].seed_sd


def test_pooling_agrees_with_the_closed_form():
    # All parameters sharp: the recipe's mean given S seeds is Student with SEED_DOF + S - 1 degrees of freedom.
    rng = np.random.default_rng(0)
    at = np.array([0.60, 0.61, 0.62])
    seeds = [Mixture(np.ones(1), np.array([[a]]), np.array([[1e-10]])) for a in at]
    drawn = pool(seeds, np.array([A_SPREAD]), rng, 20_000).values[:, 0]
    assert drawn.mean() == pytest.approx(0.61, abs=3e-4)
    dof = 4 + 2
    scale2 = (4 * A_SPREAD**2 + 2 * at.var(ddof=1)) / dof / 3
    assert drawn.std() == pytest.approx(np.sqrt(scale2 * dof / (dof - 2)), rel=0.06)


def test_pooling_weighs_a_vague_seed_less_than_a_sharp_one():
    rng = np.random.default_rng(0)
    seeds = [Mixture(np.ones(1), np.array([[m]]), np.array([[s**2]])) for m, s in ((0.6, 0.003), (0.8, 0.15))]
    drawn = pool(seeds, np.array([A_SPREAD]), rng).values[:, 0]
    assert drawn.mean() == pytest.approx(0.6, abs=0.01)


def test_a_short_run_is_too_short_to_say_and_has_no_place():
    result = compare({"long": run(0), "short": run(1, C_mid=6000.0, A=0.75)})
    assert result.pairs[0].words == TOO_SHORT
    assert "short has reached" in result.pairs[0].reasons[0]
    assert result.ranking[-1].name == "short"
    assert result.ranking[-1].place is None


def test_a_collapsed_run_is_not_judged_and_a_collapsed_seed_is_left_out():
    good, bad = run(0), run(1)
    fallen = Curve(bad.compute, bad.score - 0.2 * (bad.compute > 4500), name="fallen")
    result = compare({"good": good, "bad": fallen})
    assert result.pairs[0].words == CANNOT
    assert "collapse" in result.pairs[0].reasons[0]
    mixed = compare({"good": good, "mixed": [run(2), fallen]})
    assert mixed.pairs[0].words == NONE
    assert mixed.recipes["mixed"].seeds == 1
    assert "fallen left out" in mixed.recipes["mixed"].left_out[0]
    assert "fallen left out" in mixed.summary()


def test_score_is_compared_inside_both_runs_by_default_and_elsewhere_on_demand():
    a, b = run(0, reach=6), run(1, reach=9, A=0.65)
    (pair,) = compare({"a": a, "b": b}).pairs
    assert pair.at == 6000.0
    truth = 0.05 * (6**1.6) / (1 + 6**1.6)
    assert pair.score.low < truth < pair.score.high
    assert pair.score.high - pair.score.low < 0.08
    beyond = compare({"a": a, "b": b}, at=24_000).pairs[0]
    assert beyond.at == 24_000
    assert beyond.score.low < 0.05 * 24**1.6 / (1 + 24**1.6) < beyond.score.high
    early = compare({"a": a, "b": b}, at=200.0).pairs[0]
    assert early.score is None
    assert early.to_dict()["score"] is None


def test_the_answer_is_the_same_every_time_and_serialises():
    runs = {"a": run(0), "b": [run(1), run(2)]}
    first, again = compare(runs), compare(runs)
    assert first.to_dict() == again.to_dict()
    found = json.loads(json.dumps(first.to_dict(), allow_nan=False))
    assert found["schema"] == 1
    assert found["pairs"][0]["words"] == NONE
    text = first.summary()
    for piece in ("ranking", "b against a: no difference detectable", "shared A", "one seed of a", "2 seeds of b"):
        assert piece in text
    assert first.pair("b", "a") is first.pairs[0]


def test_a_wider_level_gives_wider_intervals():
    runs = {"a": run(0), "b": run(1)}
    half, most = (compare(runs, level=level).pairs[0] for level in (0.5, 0.95))
    for name in ("A", "B_shared", "C_mid", "score"):
        narrow, wide = getattr(half, name), getattr(most, name)
        assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        (lambda: {"a": run(0)}, {}, "at least two recipes"),
        (lambda: {"a": run(0), "b": []}, {}, "b: no curve"),
        (lambda: {"a": run(0), "b": Curve(run(1).compute, run(1).score, unit="gpu-hour")}, {}, "b \\(gpu-hours\\)"),
        (lambda: {"a": run(0), "b": run(1)}, {"level": 1.0}, "level"),
        (lambda: {"a": run(0), "b": run(1)}, {"at": float("nan")}, "positive compute"),
    ],
)
def test_bad_input_names_the_mend(runs, options, message):
    with pytest.raises(InputError, match=message):
        compare(runs(), **options)


def test_an_axis_without_a_unit_is_compared_with_a_warning():
    bare = run(1)
    found = compare({"a": run(0), "b": Curve(bare.compute, bare.score, unit="unit")})
    assert found.unit == "step"
    assert len(found.warnings) == 1
    assert "axis of b names no unit" in found.warnings[0]
    assert "warning: " + found.warnings[0] in found.summary()


def test_an_unknown_ceiling_is_printed_nowhere():
    found = compare({"long": run(0), "short": run(1, C_mid=6000.0, A=0.75)})
    short = found.recipes["short"]
    assert not short.known
    assert found.ranking[-1].A is None
    line = next(line for line in found.summary().splitlines() if line.startswith("short "))
    assert f"{short.estimate('A'):.3f}" not in line
    assert list(found.pairs[0].straightened()) == ["long"]


def test_several_seeds_are_known_as_well_as_the_best_of_them():
    long, short = run(0, reach=12), run(1, C_mid=1000.0, reach=1.2)
    found = compare({"a": [short, long], "b": run(2)}).recipes["a"]
    assert [f.ceiling for f in found.fits] == ["not identified", "identified"]
    assert found.known


def test_an_unknown_parameter_or_pair_is_refused():
    result = compare({"a": run(0), "b": run(1)})
    with pytest.raises(InputError, match="no parameter 'D'"):
        result.recipes["a"].interval("D")
    with pytest.raises(InputError, match="no pair"):
        result.pair("a", "c")
