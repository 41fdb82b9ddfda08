"""The pictures: what is drawn, what is said, and that nothing written overlaps or leaves the page."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from scalerl.curves import fit, forecast
from scalerl.curves.backtest import backtest
from scalerl.curves.compare import compare
from scalerl.curves.laws import SIGMOID
from scalerl.curves.synthetic import collapsed, simulate
from scalerl.errors import InputError
from scalerl.report.axis import compute_axis, log_ticks
from scalerl.report.marks import binned, law_band, wilson
from scalerl.report.plots import plot_backtest, plot_compare, plot_fit, plot_forecast, plot_straightened
from scalerl.report.straightened import straighten
from scalerl.report.style import amount, name_of, score_text, series, width_of, wrapped
from scalerl.runs import Curve


def sigmoid_curve(last=1000.0, n=40, C_mid=150.0, A=0.6, seed=0, first=None, **kwargs) -> Curve:
    rng = np.random.default_rng(seed)
    x = np.linspace(last / n if first is None else first, last, n)
    return Curve(x, SIGMOID.value(x, 0.2, A, 1.6, C_mid) + rng.normal(0, 0.008, n), **kwargs)


def texts(fig: Figure) -> list[Text]:
    """All texts but the labels of ticks outside the limits, which matplotlib keeps and does not draw."""
    hidden = set()
    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                hidden |= {tick.label2} if low <= tick.get_loc() <= high else {tick.label1, tick.label2}
    return [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]


def said(fig: Figure) -> str:
    return "\n".join(t.get_text() for t in texts(fig))


def assert_legible(fig: Figure) -> None:
    """No text under 8 pt, off the page, or over another text."""
    fig.canvas.draw()
    page = fig.bbox
    boxes = []
    for text in texts(fig):
        assert text.get_fontsize() >= 8
        box = text.get_window_extent()
        assert box.x0 >= page.x0 - 1, text
        assert box.x1 <= page.x1 + 1, text
        assert box.y0 >= page.y0 - 1, text
        assert box.y1 <= page.y1 + 1, text
        boxes.append((text.get_text(), box))
    for (a, one), (b, other) in combinations(boxes, 2):
        width = min(one.x1, other.x1) - max(one.x0, other.x0)
        height = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert width <= 1 or height <= 2.5, f"{a!r} lies over {b!r}"


CASES = {
    "plain": lambda: sigmoid_curve(),
    "from zero": lambda: sigmoid_curve(first=0.0, unit="gpu-hour"),
    "trials": lambda: sigmoid_curve(trials=400),
    "many": lambda: sigmoid_curve(n=500, trials=20),
    "few": lambda: sigmoid_curve(n=6),
    "short of C_mid": lambda: sigmoid_curve(last=120.0),
    "collapse": lambda: collapsed(simulate("iid", np.random.default_rng(3), reach=4.0), np.random.default_rng(4)),
    "flops": lambda: sigmoid_curve(last=3e22, C_mid=4e21, unit="flop"),
    "long name": lambda: sigmoid_curve(name="sweep/" + "very-long_run$name^" * 9, score_name="eval/" + "m" * 70),
    "narrow": lambda: Curve(np.linspace(1000, 1100, 12), np.linspace(0.3, 0.4, 12) + 0.01 * np.sin(np.arange(12))),
}


@pytest.mark.parametrize("case", CASES)
def test_forecast_and_fit_are_legible(case):
    curve = CASES[case]()
    assert_legible(plot_forecast(forecast(curve)))
    assert_legible(plot_fit(fit(curve), run=curve))


def test_forecast_says_its_verdict_and_the_score_at_the_budget():
    fc = forecast(sigmoid_curve(), budget="3x")
    words = said(plot_forecast(fc))
    at_budget = fc.predict([3000.0])
    assert fc.verdict in words
    assert f"At 3k steps the score should be {at_budget.score[0]:.3f}" in words
    assert "budget 3k steps" in words
    assert "C_mid" in words


def test_forecast_draws_fit_solid_and_band_of_the_calibrated_interval():
    fc = forecast(sigmoid_curve())
    ax = plot_forecast(fc).axes[0]
    dashed = [ln for ln in ax.lines if len(ln.get_xdata()) > 100 and ln.get_linestyle() != "-"]
    assert len(dashed) == 1
    assert np.allclose(dashed[0].get_ydata(), fc.predict(dashed[0].get_xdata()).score)
    edges = ax.collections[0].get_paths()[0].vertices
    top = edges[:, 1].max()
    assert top == pytest.approx(fc.predict(dashed[0].get_xdata()).high.max())


def test_vetoes_are_written_on_the_picture_in_full():
    fc = forecast(CASES["collapse"]())
    assert fc.vetoes
    words = re.sub(r"\s+", " ", said(plot_forecast(fc)).replace("•", ""))
    for veto in fc.vetoes:
        assert veto.split(": ", 1)[1] in words
    assert "vetoed forecast" in words
    assert "the fit, which is vetoed, comes to" in words
    assert "the score should be" not in words


def test_many_long_vetoes_make_the_page_grow_and_leave_the_frame_as_it_is():
    fc = forecast(sigmoid_curve())
    long = replace(fc, vetoes=[f"reason {i}: " + "the score fell and fell again " * 9 for i in range(6)])
    one, other = plot_forecast(fc), plot_forecast(long)
    assert_legible(other)

    def inches(fig):
        return fig.axes[0].get_position().height * fig.get_figheight()

    assert inches(one) == pytest.approx(inches(other))
    assert other.get_figheight() > one.get_figheight() + 1


@pytest.mark.parametrize(
    ("reach", "drawn", "tag"), [(1.2, False, "no ceiling A"), (2.2, True, "provisional"), (5.0, True, "run at")]
)
def test_ceiling_is_drawn_only_from_one_and_a_half_C_mid(reach, drawn, tag):
    found = fit(sigmoid_curve())
    moved = replace(found, C_mid=found.curve.compute[-1] / reach)
    fig = plot_fit(moved)
    level = [ln for ln in fig.axes[0].lines if list(ln.get_ydata()) == [moved.A, moved.A]]
    assert bool(level) is drawn
    assert tag in said(fig)
    assert ("provisional" in said(fig)) is (reach == 2.2)


def test_warmup_points_are_hollow_and_counted():
    curve = sigmoid_curve()
    fig = plot_forecast(forecast(curve, since=200.0))
    hollow = [ln for ln in fig.axes[0].lines if ln.get_markerfacecolor() == "white" and ln.get_marker() == "o"]
    count = int((curve.compute < 200).sum())
    assert len(hollow[0].get_xdata()) == count
    assert f"left out of the fit ({count})" in said(fig)
    assert f"{count} warm-up points before" in said(plot_fit(fit(curve, since=200.0)))


def test_compute_zero_is_drawn_left_of_a_break_and_said():
    fig = plot_fit(fit(sigmoid_curve(first=0.0)))
    ax = fig.axes[0]
    first = min(float(x) for ln in ax.lines for x in np.ravel(ln.get_xdata()) if ln.get_marker() == "o")
    assert ax.get_xlim()[0] < first < 1000 / 39
    assert "0 drawn left of the break" in said(fig)
    assert "break" not in said(plot_fit(fit(sigmoid_curve())))


def test_replay_draws_what_came_later_as_crosses_and_judges_itself():
    whole = sigmoid_curve(n=60)
    fc = forecast(whole, upto=500.0)
    fig = plot_forecast(fc, actual=whole)
    crosses = [ln for ln in fig.axes[0].lines if ln.get_marker() == "x"]
    assert list(crosses[0].get_xdata()) == list(whole.compute[whole.compute > 500])
    assert "inside the interval" in said(fig)
    lower = Curve(whole.compute, np.where(whole.compute > 500, 0.01, whole.score))
    assert "outside the interval" in said(plot_forecast(fc, actual=lower))
    assert "cut" in said(fig)
    assert "now" in said(plot_forecast(fc, actual=whole.upto(400.0)))


def test_error_bars_only_with_trials_and_binned_means_for_many():
    assert "by their trials" not in said(plot_fit(fit(sigmoid_curve())))
    assert "by their trials" in said(plot_fit(fit(sigmoid_curve(trials=50))))
    assert "means of bins" in said(plot_fit(fit(sigmoid_curve(n=300))))


def test_target_is_drawn():
    assert "target 0.58, reached at" in said(plot_forecast(forecast(sigmoid_curve(), target=0.58)))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PNG"])
def test_writes_by_suffix_and_equal_pictures_are_equal_files(tmp_path, suffix):
    found = fit(sigmoid_curve())
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    plot_fit(found, first)
    plot_fit(found, str(second))
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix.lower()]
    assert first.read_bytes().startswith(head)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", ["out.jpg", "out", "out.png.gz", "missing/out.png", "."])
def test_unusable_paths_are_one_line(tmp_path, name):
    with pytest.raises(InputError) as error:
        plot_fit(fit(sigmoid_curve()), tmp_path / name)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_leaves_the_users_settings_and_pyplot_alone():
    import sys

    import matplotlib

    before = dict(matplotlib.rcParams)
    plot_fit(fit(sigmoid_curve()))
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_comparison_draws_each_recipe_once_and_tabulates_it():
    runs = {"one": sigmoid_curve(name="one"), "two": sigmoid_curve(A=0.75, seed=1, name="two")}
    found = compare(runs)
    fig = plot_compare(found)
    assert_legible(fig)
    words = said(fig)
    assert found.pairs[0].words in words
    for recipe in found.recipes.values():
        assert recipe.name in words
        assert f"{recipe.estimate('A'):.3f}" in words
    assert len(fig.axes) == 2


def test_comparison_of_many_recipes_with_long_names_and_a_short_run_stays_legible():
    runs = {f"recipe-{i}-" + "long-name-" * i: sigmoid_curve(A=0.5 + 0.03 * i, seed=i) for i in range(6)}
    runs["short"] = sigmoid_curve(last=100.0, C_mid=300.0)
    fig = plot_compare(compare(runs))
    assert_legible(fig)
    assert "not known yet" in said(fig)
    assert len(fig.axes) == 1


def test_one_B_stands_in_the_legend_and_in_the_table():
    close = {
        "one": sigmoid_curve(n=80, last=1500.0, name="one"),
        "two": sigmoid_curve(n=80, last=1500.0, C_mid=90.0, seed=1, name="two"),
    }
    apart = {"one": sigmoid_curve(name="one"), "two": sigmoid_curve(A=0.75, seed=1, name="two")}
    for runs, shared in ((close, True), (apart, False)):
        found = compare(runs)
        assert found.pairs[0].shares_A is shared
        words = said(plot_compare(found))
        assert ("B, shared A (90 %)" in words) is shared
        for slope in re.findall(r"slope B = (\d\.\d\d)", words):
            assert f"{slope} (" in words
        assert len(re.findall(r"slope B = ", words)) == 2


def test_a_run_of_unknown_ceiling_is_not_straightened_and_named():
    runs = {"long": sigmoid_curve(), "short": sigmoid_curve(last=100.0, C_mid=300.0)}
    found = compare(runs)
    fig = plot_compare(found)
    assert_legible(fig)
    words = said(fig)
    assert "left out, as the ceiling is unknown: short" in words
    assert "short: slope" not in words
    assert "long alone can be ranked, of 2 recipes" in words
    assert "Ranking" not in words
    assert "odds of the gain" in words
    assert "short: slope" not in said(plot_straightened(list(found.recipes.values())))
    unknown = compare({name: sigmoid_curve(last=100.0, C_mid=300.0, seed=i) for i, name in enumerate("ab")})
    assert "Not straightened" in said(plot_compare(unknown))
    with pytest.raises(InputError, match="as the ceiling is unknown: a, b"):
        plot_straightened(unknown.pairs[0])


def test_straightened_law_is_a_line_of_slope_B():
    found = fit(sigmoid_curve())
    exact = replace(found, curve=Curve(found.curve.compute, found.predict(found.curve.compute)))
    line = straighten(exact)
    assert np.allclose(line.log_F, found.B * line.log_C)
    assert line.left_out == 0


def test_straightened_leaves_out_and_counts_what_has_no_F():
    found = fit(sigmoid_curve())
    score = found.curve.score.copy()
    score[:3] = found.R0 - 0.1
    score[-2:] = found.A + 0.1
    odd = replace(found, curve=Curve(found.curve.compute, score))
    expected = int(((odd.curve.score <= odd.R0) | (odd.curve.score >= odd.A)).sum())
    assert straighten(odd).left_out == expected >= 5
    fig = plot_straightened(odd)
    assert f"{expected} of 40 points outside (R0, A) left out" in said(fig)
    nothing = replace(found, curve=Curve(found.curve.compute, np.full(40, found.A + 0.1)))
    with pytest.raises(InputError, match="no score lies between"):
        plot_straightened(nothing)


def test_backtest_is_drawn():
    curves = [sigmoid_curve(seed=i, name=f"run {i}") for i in range(4)]
    report = backtest(curves, methods=("scalerl", "last five"))
    fig = plot_backtest(report)
    assert_legible(fig)
    assert "Backtest of 4 curves" in said(fig)
    with pytest.raises(InputError, match="nothing to draw"):
        plot_backtest(replace(report, cases=[]))


def test_law_band_holds_the_fit_and_narrows_with_its_level():
    found = fit(sigmoid_curve())
    x = found.curve.compute
    low, high = law_band(found, x, 0.9)
    inner_low, inner_high = law_band(found, x, 0.5)
    assert (low <= inner_low).all()
    assert (high >= inner_high).all()
    assert (low <= found.predict(x)).mean() > 0.9
    assert (high >= found.predict(x)).mean() > 0.9


def test_binned_means_average_all_positive_points():
    curve = sigmoid_curve(n=300, first=0.0)
    x, mean, error = binned(curve, 0.2)
    assert x.size < 40
    assert (np.diff(x) > 0).all()
    assert (error > 0).all()
    assert mean.min() >= curve.score.min()
    assert mean.max() <= curve.score.max()


def test_wilson_has_width_at_zero_and_one():
    low, high = wilson(np.array([0.0, 0.5, 1.0]), np.array([20.0, 20.0, 20.0]))
    assert (high - low > 0.01).all()
    assert low[0] == pytest.approx(0, abs=1e-12)
    assert high[2] == pytest.approx(1)


@given(low=st.floats(1e-6, 1e22), ratio=st.floats(1.02, 1e12))
def test_ticks_are_few_round_and_inside(low, ratio):
    ticks = log_ticks(low, low * ratio)
    assert 1 <= len(ticks) <= 9
    assert all(low * (1 - 1e-6) <= t <= low * ratio * (1 + 1e-6) for t in ticks)
    assert ticks == sorted(set(ticks))


def test_ticks_of_the_papers_axis():
    assert [amount(t) for t in log_ticks(1_000, 100_000)] == ["1k", "2k", "5k", "10k", "20k", "50k", "100k"]


def test_zero_alone_has_its_own_place():
    axis = compute_axis([[0.0, 10.0, 1000.0]])
    assert axis.zero is not None
    assert axis.zero < 10
    assert list(axis.place([0.0, 10.0])) == [axis.zero, 10.0]
    assert compute_axis([[10.0, 1000.0]]).zero is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (999.9, "1k"), (25_369, "25.4k"), (1.2e6, "1.2M"), (5e21, "5e21"), (float("inf"), "more")],
)
def test_amounts(value, text):
    assert amount(value).startswith(text)


def test_scores_have_no_minus_zero():
    assert score_text(-0.0001, signed=True) == "0.000"
    assert score_text(-0.01) == "−0.010"


def test_looks_of_runs_differ_in_line_and_marker():
    looks = [series(i) for i in range(7)]
    assert len({s.marker for s in looks}) == len({str(s.line) for s in looks}) == len({s.color for s in looks}) == 7
    assert series(7) != series(0)


@settings(max_examples=60)
@given(text=st.text(st.characters(codec="ascii"), min_size=1, max_size=120), width=st.floats(0.5, 6))
def test_wrapped_lines_fit_and_lose_nothing(text, width):
    safe = name_of(text, 200)
    lines = wrapped(safe, width)
    assert all(width_of(line) <= width + 1e-9 for line in lines)
    assert "".join("".join(lines).split()) == "".join(safe.split())


@settings(max_examples=8)
@given(name=st.text(st.characters(codec="latin-1"), max_size=60))
def test_any_name_can_be_drawn(name):
    curve = sigmoid_curve(name=name, score_name=name, unit=name or "step")
    plot_fit(fit(curve, since=0.0)).canvas.draw()


def test_results_draw_themselves(tmp_path):
    curve = sigmoid_curve()
    results = fit(curve), forecast(curve), compare({"one": curve, "two": sigmoid_curve(seed=1)})
    for i, result in enumerate(results):
        assert isinstance(result.plot(str(tmp_path / f"{i}.svg")), Figure)
        assert (tmp_path / f"{i}.svg").stat().st_size > 1000
