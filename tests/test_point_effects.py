"""Effects of points against importance sampling, and where they must be what the prior says."""

import numpy as np
import pytest
from scipy.stats import poisson

import deconditional as dc
from deconditional.inference.point_effects import point_effects, std_of_mean

N = 40_000


def slopes_of(y):
    return lambda log_mean: (y - np.exp(log_mean), np.exp(log_mean))


def weighted(values, weights):
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


@pytest.mark.parametrize(("tau", "y"), [(0.3, 130), (0.3, 60), (0.6, 150), (0.5, 0)])
def test_effects_are_those_of_importance_sampling(tau, y):
    amount, rate = np.array([600.0, 250.0, 150.0, 400.0]), np.array([0.1, 0.12, 0.05, 0.1])
    bag = np.array([0, 0, 0, -1])
    if y == 0:
        rate = rate / 40
    rng = np.random.default_rng(0)
    prior = np.exp(tau * rng.normal(size=(N, 4)) - tau**2 / 2)
    weights = poisson.pmf(y, (amount * rate * prior)[:, :3].sum(1))
    weights /= weights.sum()
    expected, spread = weighted(prior, weights)
    found = point_effects(np.tile(rate, (N, 1)), amount, bag, tau, slopes_of(float(y)))
    few = 1 / np.sqrt((weights**2).sum())
    # By the least change, and normal about a mode: it shows where effects are large.
    tolerance = 0.1 * spread + 4 * spread / np.sqrt(few)
    assert (np.abs(found.mean(0) - expected) < tolerance).all()
    np.testing.assert_allclose(found.std(0), spread, rtol=0.15 if tau < 0.6 else 0.35)


def test_sums_have_the_totals_that_were_observed():
    rng = np.random.default_rng(1)
    n, bags = 300, 12
    bag = rng.integers(bags, size=n)
    amount, rates = rng.gamma(1.0, 300.0, n), 0.05 * np.exp(0.2 * rng.normal(size=(2000, n)))
    y = np.bincount(bag, amount * 0.05) * rng.uniform(0.8, 1.25, bags)
    factors = point_effects(rates, amount, bag, 0.6, slopes_of(y))
    sums = np.stack([np.bincount(bag, draw) for draw in amount * rates * factors])
    np.testing.assert_allclose(sums.mean(0), y, rtol=0.05)
    assert np.abs(np.log((amount * rates).mean(0).sum() / y.sum())) < 0.2


def test_without_observations_effects_are_those_of_the_prior():
    none = np.full(3, -1)
    factors = point_effects(np.ones((N, 3)), np.ones(3), none, 0.5, slopes_of(0.0))
    np.testing.assert_allclose(factors.mean(0), 1.0, atol=4 * 0.54 / np.sqrt(N))
    np.testing.assert_allclose(np.log(factors).std(0), 0.5, rtol=0.02)
    each = point_effects(np.ones((2, 3)), np.ones(3), none, [0.0, 0.5], slopes_of(0.0))
    assert (each[0] == 1).all() and (each[1] != 1).all()


def test_the_effect_of_many_points_has_the_moments_of_their_mean():
    rng = np.random.default_rng(2)
    w = rng.dirichlet(np.ones(6))
    factors = np.exp(0.5 * rng.normal(size=(400_000, 6)) - 0.125) @ w
    s = std_of_mean(0.5, (w**2).sum())
    assert factors.std() == pytest.approx(np.sqrt(np.expm1(s**2)), rel=0.01)
    assert std_of_mean(0.5, 1.0) == pytest.approx(0.5)


X = np.linspace(0, 6, 40)
PEOPLE = np.random.default_rng(3).gamma(2.0, 100.0, size=40)
HELD = {"kernel.lengthscale": 1.0, "kernel.variance": 0.5, "overdispersion_std": 0.4}


def fitted(bag, overdispersion, z):
    model = dc.VBagg(family=dc.Poisson(overdispersion=overdispersion), fixed=HELD, n_restarts=1)
    return model.fit(dc.Bags.from_points(X, bag, exposure=PEOPLE), z)


def test_effects_of_points_and_of_observations_are_one_thing_in_bags_of_one_point():
    z = np.random.default_rng(4).poisson(PEOPLE * 0.1 * np.exp(np.sin(X))).astype(float)
    points, observations = (fitted(np.arange(40), kind, z) for kind in ("points", True))
    gap = points.predict(X).latent.mean - observations.predict(X).latent.mean
    np.testing.assert_allclose(gap, 0.4**2 / 2, atol=2e-3)  # effects with a mean of one
    found = points.predict_bags(points.bags_, effects=True, n_draws=1000)
    error = 4 * np.sqrt(z + 1) / np.sqrt(1000)
    near = np.abs(found.mean - z) < error + 0.5 * np.sqrt(z + 1)
    assert near.mean() > 0.9


def test_effects_give_bags_their_totals_and_new_places_their_scatter():
    bag = np.arange(40) // 10
    z = np.round(np.bincount(bag, PEOPLE) * 0.1 * np.array([1.0, 1.6, 0.6, 1.2]))
    model = fitted(bag, "points", z)
    totals = model.predict_bags(model.bags_, effects=True, n_draws=1000)
    np.testing.assert_allclose(totals.mean, z, atol=(0.3 * np.sqrt(z)).max())
    np.testing.assert_allclose(totals.std, np.sqrt(z), rtol=0.25)
    between = dc.Bags.from_points(X[:-1] + 0.01, np.arange(39), exposure=np.ones(39))
    plain = model.predict_bags(between, n_draws=4000, seed=1)
    free = model.predict_bags(between, effects=True, n_draws=4000, seed=1)
    added = np.log(free.draws).var(0) - np.log(plain.draws).var(0)
    np.testing.assert_allclose(added, 0.4**2, atol=0.03)
    np.testing.assert_allclose(free.mean, plain.mean, rtol=0.05)
    counts = model.predict_bags(between, exposure=50.0, noise=True)
    assert (counts.draws == np.round(counts.draws)).all()
    again = model.predict_bags(between, exposure=50.0, noise=True)
    np.testing.assert_array_equal(counts.draws, again.draws)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: dc.Poisson(overdispersion="zones"), "True, False or 'points', not 'zones'"),
        (lambda: dc.Binomial(overdispersion="points"), "needs a log link, and this is a logit"),
    ],
)
def test_options_of_effects_that_cannot_be(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
