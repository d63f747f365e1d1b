"""Families of observations: densities against SciPy, simulation against densities, errors."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import deconditional as dc
from deconditional.fitting.parameters import positive
from deconditional.observations.families import check_observed, link_of
from tests.helpers import assert_close

N = 40_000


class Gamma(dc.Family):
    """Positive amounts whose spread is in proportion to their mean: a family of one's own."""

    support = "positive"
    parameters = (positive("shape", 2.0),)

    def log_density(self, y, mean, exposure, shape):
        rate = shape / mean
        log_norm = shape * jnp.log(rate) - jax.lax.lgamma(shape)
        return log_norm + (shape - 1) * jnp.log(y) - rate * y

    def variance(self, mean, exposure, shape):
        return mean**2 / shape

    def simulate(self, key, mean, exposure, shape):
        return jr.gamma(key, shape, jnp.shape(mean)) * mean / shape


FAMILIES = {
    "normal": (dc.Normal(), {"variance": 0.7}, 1.0),
    "poisson": (dc.Poisson(), {}, 1.0),
    "negative binomial": (dc.NegativeBinomial(), {"dispersion": 0.4}, 1.0),
    "binomial": (dc.Binomial(), {}, 10.0),
    "beta-binomial": (dc.BetaBinomial(), {"correlation": 0.2}, 10.0),
    "tweedie": (dc.Tweedie(), {"dispersion": 0.8, "power": 1.4}, 2.0),
    "gamma": (Gamma(), {"shape": 2.5}, 1.0),
}
MEAN = 3.0


def test_densities_are_those_of_scipy():
    y = np.arange(11.0)
    oracles = {
        "normal": stats.norm(MEAN, np.sqrt(0.7)).logpdf,
        "poisson": stats.poisson(MEAN).logpmf,
        "negative binomial": stats.nbinom(1 / 0.4, 1 / (1 + 0.4 * MEAN)).logpmf,
        "binomial": stats.binom(10, 0.3).logpmf,
        "beta-binomial": stats.betabinom(10, 0.3 * 4, 0.7 * 4).logpmf,
        "gamma": stats.gamma(2.5, scale=MEAN / 2.5).logpdf,
    }
    for name, oracle in oracles.items():
        family, values, exposure = FAMILIES[name]
        at = y[1:] if name == "gamma" else y
        assert_close(family.log_density(at, MEAN, exposure, **values), oracle(at))


@pytest.mark.parametrize("centre", [0.5, 300.0])
def test_the_density_of_tweedie_is_that_of_its_sums(centre):
    """Oracle: a Poisson mixture of gamma densities, summed over all counts."""
    phi, p = 0.6, 1.3
    y = centre * np.array([0.2, 1.0, 1.7])
    rate = centre ** (2 - p) / (phi * (2 - p))
    j = np.arange(1, 4000)[:, None]
    of_count = stats.gamma((2 - p) / (p - 1) * j, scale=phi * (p - 1) * centre ** (p - 1))
    terms = stats.poisson(rate).logpmf(j) + of_count.logpdf(y)
    oracle = np.logaddexp.reduce(terms, axis=0)
    found = dc.Tweedie().log_density(y, centre, 1.0, dispersion=phi, power=p)
    np.testing.assert_allclose(found, oracle, rtol=0, atol=1e-7)
    # A sum over an exposure of 3 is that of three independent amounts.
    none = dc.Tweedie().log_density(0.0, 3 * centre, 3.0, dispersion=phi, power=p)
    np.testing.assert_allclose(none, -3 * rate, rtol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_simulations_have_the_mean_the_variance_and_the_density(name):
    family, values, exposure = FAMILIES[name]
    assert family == type(family)() and hash(family) == hash(type(family)())
    y = np.asarray(family.simulate(jr.key(0), jnp.full(N, MEAN), exposure, **values))
    variance = float(family.variance(MEAN, exposure, **values))
    assert abs(y.mean() - MEAN) < 4 * np.sqrt(variance / N)
    assert abs(y.var() - variance) < 4 * y.std() ** 2 * np.sqrt(stats.kurtosis(y) + 2) / np.sqrt(N)
    if family.counts or name == "tweedie":
        share = float(np.exp(family.log_density(0.0, MEAN, exposure, **values)))
        assert abs((y == 0).mean() - share) < 4 * np.sqrt(share * (1 - share) / N) + 1e-12
    information = float(family.information(MEAN, exposure, **values))
    assert information == pytest.approx(1 / variance)
    assert np.isfinite(family.crude_rate(y[:50], np.full(50, exposure))).all()


@pytest.mark.parametrize("name", ["identity", "log", "logit"])
def test_links_and_their_means_under_a_normal_distribution(name):
    link, eta = link_of(name), jnp.linspace(-3.0, 2.0, 7)
    assert_close(link.eta(link.rate(eta)), eta)
    step = 1e-5
    assert_close(
        link.slope(eta), (link.rate(eta + step) - link.rate(eta - step)) / (2 * step), None, 1e-8
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    each = np.asarray(link.rate(eta[:, None] + 0.8 * nodes))
    weights = weights / weights.sum()
    assert_close(link.expected(eta, 0.64), each @ weights, None, 1e-7)
    assert_close(link.expected_square(eta, 0.64), each**2 @ weights, None, 1e-7)
    slope = (link.expected(eta + step, 0.64) - link.expected(eta - step, 0.64)) / (2 * step)
    assert_close(link.expected_slope(eta, 0.64), slope, None, 1e-8)


def test_overdispersion_and_priors_are_parameters_that_can_be_read():
    assert list(dc.Poisson(overdispersion=True).priors) == ["overdispersion_std"]
    assert list(dc.Tweedie().priors) == ["dispersion", "power"]
    assert dc.Poisson(exposure="population").exposure == "population"
    assert dc.Binomial(trials="tested").trials == "tested"


BAD = {
    "exposure is finite": (dc.Poisson(), [1.0, 2.0], [1.0, -1.0]),
    "'b' has exposure 0 and yet an observation of 2": (dc.Poisson(), [1.0, 2.0], [1.0, 0.0]),
    "'b' has exposure 0, so its observation": (dc.Poisson(), [1.0, 0.0], [1.0, 0.0]),
    "'b' has an observation of -2": (dc.Poisson(), [1.0, -2.0], [1.0, 1.0]),
    "'b' has an observation of -0.5": (dc.Tweedie(), [1.0, -0.5], [1.0, 1.0]),
    "'a' has an observation of 0; .*Tweedie": (Gamma(), [0.0, 1.0], [1.0, 1.0]),
    r"'b' has a count of 2.5; .*numpy.round": (dc.NegativeBinomial(), [1.0, 2.5], [1.0, 1.0]),
    "'b' has 2.5 trials": (dc.Binomial(), [1.0, 2.0], [1.0, 2.5]),
    "'b' has 3 successes in 2 trials": (dc.BetaBinomial(), [1.0, 3.0], [1.0, 2.0]),
}


@pytest.mark.parametrize("message", BAD)
def test_observations_that_cannot_be_are_told_of_by_their_bag(message):
    family, y, amount = BAD[message]
    with pytest.raises(ValueError, match=message):
        check_observed(family, np.array(y), np.array(amount), ("a", "b"))


def test_options_of_families_that_cannot_be():
    with pytest.raises(ValueError, match="link must be one of identity, log, logit"):
        dc.Poisson(link="probit")
    with pytest.raises(ValueError, match="Normal has no overdispersion"):
        dc.Normal(overdispersion=True)
    with pytest.raises(ValueError, match="has trials='tested', no exposure"):
        dc.Binomial(exposure="tested")


def test_amounts_of_points_are_weights_and_totals():
    x = np.arange(5.0)
    bags = dc.Bags.from_points(x, list("aabbb"), exposure=[1, 3, 0, 2, 2])
    assert_close(bags.weights, [0.25, 0.75, 0.0, 0.5, 0.5])
    assert_close(bags.exposure, [4.0, 4.0])
    assert_close(bags.exposure * bags.means(x), [3.0, 14.0])
    assert_close(bags.select([1]).exposure, [4.0])
    shared = dc.Bags.from_points(x, list("aabbb"), weights=[1, 0.5, 1, 1, 1], exposure=[2] * 5)
    assert_close(shared.exposure, [3.0, 6.0])
    for exposure, message in (
        ([1, 1, 0, 0, 0], "bag 'b' has no exposure at all"),
        ([1, 1, -1, 0, 0], "bag 'b' has a point with exposure -1"),
        ([1, np.nan, 1, 0, 0], "bag 'a' has a point with exposure nan"),
        ([1, 1], "5 points came with exposures of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            dc.Bags.from_points(x, list("aabbb"), exposure=exposure)
