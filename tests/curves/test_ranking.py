"""Places: whoever is better in a pair never stands below, whichever recipes are compared with the two."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.curves import compare
from scalerl.curves.pair_words import CEILING, EFFICIENCY, NONE, TELLING, UNKNOWN
from scalerl.curves.ranking import tiers
from scalerl.curves.synthetic import sigmoid_run
from scalerl.runs import Curve, read_run

TINYZERO = Path(__file__).parents[3] / "shared" / "curves" / "tinyzero" / "llama_results.csv"
real = pytest.mark.skipif(not TINYZERO.exists(), reason="the public curves are not here")
NAMES = "abcdef"


def run(seed: int, A: float = 0.6, C_mid: float = 1000.0, B: float = 1.6, sd: float = 0.004) -> Curve:
    return sigmoid_run(np.random.default_rng(seed), 0.3, A, B, C_mid, 6000.0, sd)


@pytest.fixture(scope="module")
def published():
    log = read_run(str(TINYZERO))
    return {name: log.curve(run=name) for name in log.runs if name != "base_70b"}


@pytest.fixture(scope="module")
def all_published(published):
    return compare(published)


@settings(max_examples=60)
@given(st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(lambda p: p[0] != p[1])))
def test_tiers_hold_everyone_once_and_nobody_stands_above_a_better_one(beats):
    better = {name: {first for first, second in beats if second == name} for name in NAMES}
    found = tiers(better)
    assert sorted(name for tier in found for name in tier) == list(NAMES)
    place = {name: i for i, tier in enumerate(found) for name in tier}
    for first, second in beats:
        assert place[first] <= place[second]
        if (second, first) not in beats and not _circle(better, first, second):
            assert place[first] < place[second]


def _circle(better, first, second):
    """Whether `second` is, by way of others, better than `first`."""
    seen, left = set(), [first]
    while left:
        for name in better[left.pop()] - seen:
            seen.add(name)
            left.append(name)
    return second in seen


def test_a_chain_and_equals():
    assert tiers({"a": {"b"}, "b": {"c"}, "c": set()}) == [["c"], ["b"], ["a"]]
    assert tiers({"a": set(), "b": set(), "c": {"a"}}) == [["a", "b"], ["c"]]
    assert tiers({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"], ["d"]]


def test_equals_share_places_and_say_with_whom():
    ranking = compare({"low": run(0), "top": run(1, A=0.75), "same": run(2)}).ranking
    assert (ranking[0].name, ranking[0].places) == ("top", "1")
    assert {(r.name, r.places) for r in ranking[1:]} == {("low", "2-3"), ("same", "2-3")}
    assert ranking[1].tied_with == (ranking[2].name,)
    assert (ranking[1].place, ranking[1].last) == (2, 3)


def test_gaining_little_is_no_merit():
    # The second reaches 90 % of its own small gain long before the first does.
    (first, second) = compare({"little": run(0, A=0.4, C_mid=300), "much": run(1, A=0.65, C_mid=1500)}).ranking
    assert (first.name, second.name) == ("much", "little")


@real
def test_published_pair_is_ranked_by_the_score_where_the_ceilings_are_not_told_apart(published):
    for names in (["backtracking_backward", "all_strategies"], ["all_strategies", "backtracking_backward"]):
        found = compare({name: published[name] for name in names})
        (pair,) = found.pairs
        assert pair.A.low < 0 < pair.A.high
        assert pair.score.clear
        assert [(r.name, r.places) for r in found.ranking] == [("backtracking_backward", "1"), ("all_strategies", "2")]


@real
def test_published_runs_stand_as_their_pairs_say(all_published):
    order = {r.name: r for r in all_published.ranking}
    assert order["human_cot"].last < order["dots"].place
    for pair in all_published.pairs:
        if pair.better:
            worse = pair.first.name if pair.better == pair.second.name else pair.second.name
            assert order[pair.better].place < order[worse].place, pair.sentence
            assert worse not in order[pair.better].tied_with


@real
def test_a_pair_does_not_depend_on_the_others_nor_on_the_order(published, all_published):
    for first, second in [("dots", "human_cot"), ("all_strategies", "backtracking_backward")]:
        alone = compare({first: published[first], second: published[second]}).pairs[0]
        among = all_published.pair(first, second)
        among = among if among.first.name == first else among.reversed()
        turned = compare({second: published[second], first: published[first]}).pairs[0].reversed()
        for other in (among, turned):
            assert other.words == alone.words
            assert other.better == alone.better
            assert other.reasons == alone.reasons
            for name in ("A", "B", "C_mid", "C_mid_shared", "score"):
                mine, its = ((d.estimate, d.low, d.high) for d in (getattr(alone, name), getattr(other, name)))
                assert its == pytest.approx(mine, rel=1e-3)


@real
def test_no_word_on_efficiency_where_the_ceilings_may_differ(all_published):
    for pair in all_published.pairs:
        wide = pair.A.high - pair.A.low > TELLING
        if not pair.A.clear and (wide or not (pair.first.known and pair.second.known)):
            assert pair.words not in (EFFICIENCY, NONE), pair.sentence
        if not (pair.first.known and pair.second.known):
            assert pair.words != CEILING
    assert "at 250 steps human_cot scores higher" in all_published.pair("dots", "human_cot").verdict


def test_unknown_ceiling_names_who_scores_higher():
    # Noise leaves the ceilings open by far more than the margin; the scores at the end differ all the same.
    noisy = {"a": run(3, A=0.62, B=0.7, sd=0.012), "b": run(4, A=0.68, B=0.7, sd=0.012)}
    found = compare(noisy)
    (pair,) = found.pairs
    assert pair.A.high - pair.A.low > TELLING
    assert not pair.A.clear
    assert pair.words == UNKNOWN
    assert pair.verdict == "cannot say about the ceiling; at 6,000 steps b scores higher"
    assert [r.name for r in found.ranking] == ["b", "a"]


def test_others_are_shown_against_the_best_or_the_baseline():
    runs = {"low": run(0), "top": run(1, A=0.75), "same": run(2)}
    assert [p.first.name for p in compare(runs).shown()] == ["top", "top"]
    shown = compare(runs, baseline="low").shown()
    assert [(p.first.name, p.second.name) for p in shown] == [("low", "top"), ("low", "same")]
    assert shown[0].A.low > 0
    assert compare({"low": run(0), "top": run(1, A=0.75)}).baseline == "low"


def test_draws_are_made_once_a_recipe(monkeypatch):
    from scalerl.curves import recipe_fit

    calls = []
    original = recipe_fit.score_draws
    monkeypatch.setattr(recipe_fit, "score_draws", lambda r, at, rng: calls.append(r.name) or original(r, at, rng))
    compare({name: run(i) for i, name in enumerate(NAMES)})
    assert sorted(calls) == list(NAMES)


def test_reversing_a_pair_twice_gives_it_back():
    for first, second in combinations(compare({"a": run(0), "b": run(1, C_mid=500.0)}).recipes, 2):
        pair = compare({"a": run(0), "b": run(1, C_mid=500.0)}).pair(first, second)
        again = pair.reversed().reversed()
        assert again.words == pair.words
        assert again.C_mid_shared.low == pytest.approx(pair.C_mid_shared.low)
        assert pair.reversed().C_mid_shared.first == pair.C_mid_shared.second
