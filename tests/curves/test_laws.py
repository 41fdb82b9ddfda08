"""The laws: closed forms, gradients against finite differences, inverses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.curves.laws import GOMPERTZ, LAWS, POWER_LAW, SIGMOID, WEIBULL

HALF_AT_C_MID = (SIGMOID, WEIBULL, GOMPERTZ)


def test_sigmoid_is_equation_1() -> None:
    compute, R0, A, B, C_mid = np.array([10.0, 2542.0, 1e5]), 0.4, 0.61, 1.92, 2542.0
    expected = R0 + (A - R0) / (1 + (C_mid / compute) ** B)
    assert np.allclose(SIGMOID.value(compute, R0, A, B, C_mid), expected, rtol=1e-14)


def test_far_beyond_C_mid_the_sigmoid_is_a_power_law_with_D_of_the_paper() -> None:
    R0, A, B, C_mid, compute = 0.4, 0.61, 1.92, 2542.0, 1e8
    D = (A - R0) * C_mid**B
    assert A - SIGMOID.value(compute, R0, A, B, C_mid) == pytest.approx(D / compute**B, rel=1e-6)


@pytest.mark.parametrize("law", HALF_AT_C_MID, ids=lambda law: law.name)
def test_half_of_the_gain_is_reached_at_C_mid(law) -> None:
    assert law.value(37.0, 0.2, 0.8, 1.7, 37.0) == pytest.approx(0.5, abs=1e-12)


def test_the_power_law_is_A_minus_D_over_C_to_the_B() -> None:
    compute = np.array([100.0, 300.0, 4000.0])
    assert np.allclose(POWER_LAW.value(compute, 0.3, 0.7, 0.8, 100.0), 0.7 - 0.4 * (100.0 / compute) ** 0.8)


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_gradient_equals_central_differences(law) -> None:
    compute = np.array([60.0, 100.0, 250.0, 4000.0])
    at = np.array([0.3, 0.7, np.log(1.4), np.log(55.0)])  # R0, A, log B, log C_mid
    step = 1e-6

    def value(p: np.ndarray) -> np.ndarray:
        return law.value(compute, p[0], p[1], np.exp(p[2]), np.exp(p[3]))

    numeric = np.stack([(value(at + d) - value(at - d)) / (2 * step) for d in np.eye(4) * step], axis=1)
    assert np.allclose(law.gradient(compute, 0.3, 0.7, 1.4, 55.0), numeric, atol=1e-8)


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
@given(share=st.floats(0.01, 0.99), B=st.floats(0.2, 8), log_C_mid=st.floats(-5, 12), R0=st.floats(0, 0.5))
def test_inverse_undoes_value(law, share: float, B: float, log_C_mid: float, R0: float) -> None:
    C_mid, A = float(np.exp(log_C_mid)), R0 + 0.4
    score = R0 + share * 0.4
    compute = law.inverse(score, R0, A, B, C_mid)
    assert law.value(compute, R0, A, B, C_mid) == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_edges_are_limits_and_never_nan(law) -> None:
    assert law.value(0.0, 0.2, 0.8, 1.5, 10.0) == pytest.approx(0.2)
    assert law.value(1e300, 0.2, 0.8, 1.5, 10.0) == pytest.approx(0.8)
    assert np.isfinite(law.gradient(np.array([0.0, 1e-300, 1e300]), 0.2, 0.8, 1.5, 10.0)).all()
    assert law.inverse(0.2, 0.2, 0.8, 1.5, 10.0) == 0.0
    assert law.inverse(0.9, 0.2, 0.8, 1.5, 10.0) == np.inf
