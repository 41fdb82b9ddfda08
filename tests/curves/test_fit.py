"""`fit` and the paper's method: recovery, intervals, refusals, and equality with the literal protocol."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import curve_fit

import scalerl
from scalerl.curves.laws import LAWS, SIGMOID
from scalerl.curves.paper import grids_for, paper_fit
from scalerl.curves.synthetic import simulate
from scalerl.curves.warmup import propose_warmup
from scalerl.errors import ForecastRefused, InputError
from scalerl.runs import Curve

SHARED = Path(__file__).parents[2].parent / "shared" / "curves"
needs_curves = pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not beside the project")
COMPUTE = np.linspace(100, 20_000, 60)


def exact(law: str = "sigmoid") -> Curve:
    C_mid = 100.0 if law == "power law" else 3000.0
    return Curve(COMPUTE, LAWS[law].value(COMPUTE, 0.31, 0.66, 1.4, C_mid), unit="gpu-hour")


@pytest.mark.parametrize("law", [name for name in LAWS if name != "power law"])
def test_noise_free_points_give_the_parameters_back(law: str) -> None:
    found = scalerl.fit(exact(law), law=law, since=0)
    assert pytest.approx([0.31, 0.66, 1.4], abs=1e-4) == [found.R0, found.A, found.B]
    assert found.C_mid == pytest.approx(3000, rel=1e-3)


def test_the_power_law_gives_its_ceiling_and_exponent_back() -> None:
    found = scalerl.fit(exact("power law"), law="power law", since=0)
    assert pytest.approx([0.66, 1.4], abs=1e-3) == [found.A, found.B]


def test_intervals_of_A_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(2)
    held = []
    for _ in range(40):
        noise = 0.008 * rng.standard_normal(COMPUTE.size)
        low, high = scalerl.fit(Curve(COMPUTE, exact().score + noise), since=0).interval("A")
        held.append(low <= 0.66 <= high)
    assert np.mean(held) >= 0.85


def test_trials_set_the_noise_floor() -> None:
    few = scalerl.fit(Curve(COMPUTE, exact().score, trials=100), since=0).interval("A")
    many = scalerl.fit(Curve(COMPUTE, exact().score, trials=100_000), since=0).interval("A")
    assert few[1] - few[0] > 3 * (many[1] - many[0])


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        (Curve([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]), "at least 5"),
        (Curve(range(1, 20), [0.5] * 19), "constant at 0.5"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(curve: Curve, message: str) -> None:
    with pytest.raises(ForecastRefused, match=message):
        scalerl.fit(curve)


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="sigmoid, weibull"):
        scalerl.fit(exact(), law="logistic")
    with pytest.raises(InputError, match="R0, A, B, C_mid"):
        scalerl.fit(exact()).interval("C")


def test_the_summary_never_states_a_ceiling_the_run_has_not_reached() -> None:
    early = exact().upto(3500)
    text = scalerl.fit(early, since=0).summary()
    assert "not identified" in text
    assert "would approach" not in text
    assert "would approach 0.66" in scalerl.fit(exact(), since=0).summary()


def literal(curve: Curve, R0: float, A_grid: np.ndarray, C_mid_grid: np.ndarray) -> tuple[float, ...]:
    best = (np.inf,)
    for A in A_grid:
        for C_mid in C_mid_grid:

            def law(c: np.ndarray, B: float, A: float = A, C_mid: float = C_mid) -> np.ndarray:
                return R0 + (A - R0) / (1 + (C_mid / c) ** B)

            (B,), _ = curve_fit(law, curve.compute, curve.score, p0=[1.0])
            best = min(best, (float(((law(curve.compute, B) - curve.score) ** 2).sum()), A, B, C_mid))
    return best


def test_the_paper_grid_equals_a_loop_of_curve_fit() -> None:
    rng = np.random.default_rng(3)
    curve = Curve(COMPUTE, exact().score + 0.004 * rng.standard_normal(60))
    A_grid, C_mid_grid = np.arange(0.5, 0.8, 0.03), np.linspace(500, 9000, 12)
    found = paper_fit(curve, 0.31, A_grid, C_mid_grid)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        squared, A, B, C_mid = literal(curve, 0.31, A_grid, C_mid_grid)
    assert (found.A, found.C_mid) == (A, C_mid)
    assert pytest.approx(B, rel=1e-5) == found.B
    assert found.squared_residuals == pytest.approx(squared, rel=1e-9)


def test_the_published_grid_is_kept_for_gpu_hours_and_scaled_for_steps() -> None:
    A_grid, C_mid_grid = grids_for(exact())
    assert (A_grid[0], A_grid[-1], A_grid.size) == pytest.approx((0.45, 0.8, 71))
    assert (C_mid_grid[0], C_mid_grid[-1], C_mid_grid.size) == (100, 40_000, 100)
    _, in_steps = grids_for(Curve([1, 100, 250], [0.1, 0.2, 0.3]))
    assert (in_steps[0], in_steps[-1]) == (0.625, 250)


@needs_curves
def test_the_papers_8B_run_has_the_ceiling_of_the_paper() -> None:
    curve = scalerl.read_curve(SHARED / "scalerl-paper" / "fig1_8b_dense.csv").upto(50_000)
    for method in ("scalerl", "paper"):
        assert pytest.approx(0.645, abs=0.015) == scalerl.fit(curve, since=1500, method=method).A


def test_a_fast_first_phase_is_proposed_as_warm_up_and_a_plain_sigmoid_is_not() -> None:
    score = exact().score.copy()
    score[:6] -= np.linspace(0.28, 0.03, 6)
    rng = np.random.default_rng(0)
    noise = 0.003 * rng.standard_normal(60)
    cut = propose_warmup(Curve(COMPUTE, score + noise))
    assert COMPUTE[3] <= cut <= COMPUTE[10]
    plain = [propose_warmup(simulate("iid", np.random.default_rng(i)).curve) for i in range(20)]
    assert np.count_nonzero(plain) <= 1


def test_the_law_of_the_fit_passes_through_its_points() -> None:
    found = scalerl.fit(exact(), since=0)
    assert np.allclose(found.predict(COMPUTE), SIGMOID.value(COMPUTE, 0.31, 0.66, 1.4, 3000.0), atol=1e-4)
