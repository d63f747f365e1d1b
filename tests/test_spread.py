"""How much bag means vary, by the spread of observations: against dense algebra and sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from deconditional.inference.exact import SpreadPrior
from studies.data import noisy_mediator
from tests.test_mediated import HELD, LINK, fitted

Z = np.array([0.3, -1.2, 2.0, 0.4, 1.1, -0.7, 0.2, 0.9])


def density(mean, covariance, has_level=True):
    return float(SpreadPrior.of(Z, has_level).log_density(jnp.asarray(mean), covariance))


def chi_square(degrees, variance, has_level=True):
    """Up to what no hyper-parameter changes: the logarithm of the sample variance."""
    found = Z.var(ddof=1) if has_level else np.mean(Z**2)
    return chi2.logpdf(degrees * found / variance, degrees) + np.log(degrees / variance * found)


@pytest.mark.parametrize("has_level", [True, False])
@pytest.mark.parametrize("variance", [0.5, 2.0])
def test_unknown_and_unlike_bags_leave_the_law_of_a_sample_variance(has_level, variance):
    mean, covariance = np.full(200, 0.7 * has_level), variance * np.eye(200)
    expected = chi_square(len(Z) - has_level, variance, has_level)
    # A level in common makes deviations from it alike, by one in as many as there are bags.
    assert density(mean, covariance, has_level) == pytest.approx(expected, rel=1e-2 * has_level)


def test_bags_that_are_known_are_another_sample():
    """Of two sample variances one is as open as the other."""
    mean = np.random.default_rng(0).normal(size=11)
    found = density(mean, np.zeros((11, 11)))
    assert found == pytest.approx(chi_square(1 / (1 / 7 + 1 / 10), mean.var(ddof=1)), rel=1e-9)


def test_expected_spread_and_degrees_are_those_of_draws():
    """Of many bags the sample variance has the mean and variance of what draws of them have."""
    rng = np.random.default_rng(1)
    n, own = 400, np.linspace(0.0, 6.0, 400)
    covariance = 0.8 * np.exp(-0.5 * np.subtract.outer(own, own) ** 2) + 0.2 * np.eye(n)
    mean = 1.5 * np.sin(own)
    draws = mean + rng.normal(size=(20_000, n)) @ np.linalg.cholesky(covariance).T
    spread = draws.var(1, ddof=1)
    degrees = 2.0 * spread.mean() ** 2 / spread.var()
    prior = SpreadPrior(jnp.asarray(2.0), jnp.asarray(1e9), has_level=True)
    between = mean.var(ddof=1) ** 2 / (n - 1) / spread.mean() ** 2
    half = 0.5 / (1.0 / degrees + between)
    ratio = 2.0 / spread.mean()
    expected = half * (np.log(half * ratio) - ratio) - jax.scipy.special.gammaln(half)
    found = float(prior.log_density(jnp.asarray(mean), jnp.asarray(covariance)))
    assert found == pytest.approx(float(expected), abs=0.05)


@pytest.mark.parametrize("trend", ["none", "constant", "linear"])
def test_bag_means_are_conditioned_on_their_measurements(trend):
    data = noisy_mediator(0.6, n_cells=24, points_per_cell=6, seed=0)
    model = fitted(data, method="map", method_options=None, fixed={**HELD, **LINK}, trend=trend)
    problem, pieces = model.fitted_.problem, model.fitted_.pieces[0]
    mean, covariance = problem.bag_means(pieces)
    known = model.predict_bags(data.bags)
    np.testing.assert_allclose(mean, known.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(covariance, known.covariance(), rtol=1e-8, atol=1e-9)
