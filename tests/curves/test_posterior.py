"""The closed-form posterior against slow independent formulas in float64."""

import numpy as np
import pytest
from scipy.stats import norm

from scalerl.curves.conditional import LinearPrior, condition
from scalerl.curves.laws import SIGMOID
from scalerl.curves.mixture import mixture_quantiles
from scalerl.curves.posterior import Observations, Prior, _thin, posterior

RNG = np.random.default_rng(4)
N = 9
COMPUTE = np.sort(RNG.uniform(1, 50, N))
SINCE = np.log(COMPUTE / COMPUTE[0])
NOISE = RNG.uniform(0.5, 2.0, N)
SHARE = SIGMOID.share(COMPUTE[:, None], np.array([0.8, 2.5]), np.array([9.0, 30.0]))
SCORE = 0.3 + 0.4 * SHARE[:, 0] + 0.01 * RNG.standard_normal(N)
PRIOR = LinearPrior(np.array([0.3, 0.6]), np.array([0.1, 0.3]))
SIGMA, SIGMA_WEIGHT, RHO, RATIO = 0.02, 2.0, 0.45, np.array([0.0, 0.7])


def slow(shape: int, ratio: float) -> dict[str, np.ndarray]:
    """Generalised least squares with every matrix written out; sigma^2 is scaled-inverse-chi-squared."""
    lag = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    K = np.sqrt(np.outer(NOISE, NOISE)) * RHO**lag + ratio * np.minimum.outer(SINCE, SINCE)
    X = np.stack([1 - SHARE[:, shape], SHARE[:, shape]], axis=1)
    P0 = np.diag((SIGMA / PRIOR.sd) ** 2)
    inverse = np.linalg.inv(K)
    precision = P0 + X.T @ inverse @ X
    mean = np.linalg.solve(precision, P0 @ PRIOR.mean + X.T @ inverse @ SCORE)
    # The integrated likelihood through the marginal covariance of the scores, not through the posterior.
    V = K + X @ np.linalg.inv(P0) @ X.T
    r = SCORE - X @ PRIOR.mean
    left = SIGMA_WEIGHT * SIGMA**2 + r @ np.linalg.solve(V, r)
    dof = SIGMA_WEIGHT + N
    scale = left / (dof - 2)
    k = ratio * SINCE
    return {
        "mean": mean,
        "cov": scale * np.linalg.inv(precision),
        "sigma": np.sqrt(scale),
        "log_evidence": -0.5 * np.linalg.slogdet(V)[1] - 0.5 * dof * np.log(left),
        "drift_coef": X.T @ inverse @ k,
        "drift_offset": k @ inverse @ SCORE,
        "drift_var": scale * (ratio * SINCE[-1] - k @ inverse @ k),
    }


@pytest.fixture(scope="module")
def fast():
    return condition(SCORE, SHARE, SINCE, NOISE, RHO, RATIO, SIGMA, SIGMA_WEIGHT, PRIOR)


@pytest.mark.parametrize("shape", [0, 1])
@pytest.mark.parametrize("drift", [0, 1])
def test_condition_equals_generalised_least_squares(fast, shape: int, drift: int) -> None:
    expected = slow(shape, RATIO[drift])
    for name in ("mean", "cov", "sigma", "drift_coef", "drift_offset", "drift_var"):
        assert np.allclose(getattr(fast, name)[drift, shape], expected[name], rtol=1e-8, atol=1e-12), name


def test_evidence_differs_between_models_as_the_marginal_likelihood_does(fast) -> None:
    def plausible(drift: int, shape: int) -> float:
        mean, cov = fast.mean[drift, shape], fast.cov[drift, shape]
        gain_sd = np.sqrt(cov[0, 0] + cov[1, 1] - 2 * cov[0, 1])
        return float(norm.logcdf((1 - mean[1]) / np.sqrt(cov[1, 1])) + norm.logcdf((mean[1] - mean[0]) / gain_sd))

    ours = [fast.log_evidence[d, s] - plausible(d, s) for d in (0, 1) for s in (0, 1)]
    expected = [slow(s, RATIO[d])["log_evidence"] for d in (0, 1) for s in (0, 1)]
    assert np.allclose(np.diff(ours), np.diff(expected), atol=1e-7)


def test_mixture_quantiles_are_the_normal_ones_for_one_component_and_split_two() -> None:
    one = mixture_quantiles(np.ones(1), np.array([[0.5]]), np.array([[0.1]]), (0.05, 0.5, 0.95))[:, 0]
    assert np.allclose(one, norm.ppf([0.05, 0.5, 0.95], 0.5, 0.1), atol=2e-5)
    two = mixture_quantiles(np.array([0.5, 0.5]), np.array([[0.2], [0.8]]), np.full((2, 1), 0.01), (0.25, 0.75))
    assert np.allclose(two[:, 0], [0.2, 0.8], atol=2e-5)


def test_thinning_keeps_the_moments_of_a_diffuse_mixture() -> None:
    weight = np.random.default_rng(0).dirichlet(np.full(12_000, 0.3)).reshape(3, 4, 1000)
    value = np.linspace(0, 1, 1000)[None, None, :] + np.arange(4)[None, :, None]
    kept, new = _thin(weight)
    assert new.sum() == pytest.approx(1.0)
    assert new.size <= 400
    picked = np.broadcast_to(value, weight.shape)[kept]
    assert new @ picked == pytest.approx((weight * value).sum(), abs=0.01)
    assert new @ picked**2 == pytest.approx((weight * value**2).sum(), abs=0.03)


def test_a_noise_free_sigmoid_is_found_and_its_future_known() -> None:
    compute = np.linspace(50, 5000, 60)
    score = SIGMOID.value(compute, 0.3, 0.7, 1.6, 800.0)
    post = posterior(Observations(compute, score, np.ones(60), 1e-3, 1.0, R0_known=False), Prior())
    mean, _ = post.score(np.array([20_000.0]))
    assert post.weight @ mean[:, 0] == pytest.approx(SIGMOID.value(20_000.0, 0.3, 0.7, 1.6, 800.0), abs=4e-3)


def test_the_gain_is_the_difference_of_scores_and_its_spread_grows_with_reach() -> None:
    compute = np.linspace(1, 100, 40)
    score = SIGMOID.value(compute, 0.1, 0.6, 1.5, 30.0) + 0.01 * RNG.standard_normal(40)
    post = posterior(Observations(compute, score, np.ones(40), 0.01, 1.0, True), Prior())
    at = np.array([100.0, 200.0, 400.0, 800.0])
    mean, _ = post.score(at)
    gain, sd = post.gain(at)
    assert np.allclose(gain, mean - mean[:, :1], atol=1e-12)
    assert np.allclose(sd[:, 0], 1e-6, atol=1e-6)
    assert (np.diff(post.weight @ sd**2) > 0).all()
