"""Bag means by the field and by a regression, and what lies between: all against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deconditional as dc
from deconditional.inference.problem import SpreadPrior
from deconditional.inference.tilted import MOST_TILT, Regression
from deconditional.models.tilted import TiltedGP

pytestmark = pytest.mark.usefixtures("quick_compilation")

FIXED = {"kernel.lengthscale": [0.9, 1.3], "kernel.variance": 1.4, "bag_noise_std": 0.2}


def drawn(seed=0, n_bags=12, n_observations=9):
    """Bags, mediators and observations of one smooth field."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-2, 2, (n_bags + n_observations, 1, 2))
    x = centres + 0.3 * rng.standard_normal((n_bags + n_observations, 6, 2))
    means = (np.sin(1.3 * x[..., 0]) + np.cos(x[..., 1])).mean(1)
    y = means + 0.3 * rng.standard_normal(len(means))
    points = x[:n_bags].reshape(-1, 2)
    bags = dc.Bags.from_points(points, np.repeat(np.arange(n_bags), 6), mediator=y[:n_bags])
    return bags, y[n_bags:, None], means[n_bags:]


@pytest.fixture(scope="module")
def regressed():
    bags, y, z = drawn()
    points = dc.Bags.from_points(y, np.arange(len(y)))
    return bags, dc.BaggGP(trend="constant", n_restarts=1).fit(points, z)


@pytest.fixture(scope="module")
def fitted(regressed):
    bags, regressor = regressed
    model = TiltedGP(fixed=FIXED, trend="constant", precision="float64")
    return model.fit(bags, regressor, None)


def joint(regressor, y, own):
    """Covariance of (bag means, observations) by the regression, entry by entry."""
    p = regressor.parameters_
    seen = np.where(own[:, None] >= 0, y[own], regressor.bags_.points)
    every = np.concatenate([y, seen])
    n, m = len(y), len(seen)
    distance = np.abs(every - every.T) / p["kernel.lengthscale"]
    found = p["kernel.variance"] * np.exp(-0.5 * distance**2)
    found += float(regressor._problem_.trend.prior_std[0]) ** 2
    owner = np.concatenate([np.arange(n), np.where(own >= 0, own, n + np.arange(m))])
    return found + p["noise_std"] ** 2 * (owner[:, None] == owner)


@pytest.mark.parametrize("n_own", [0, 3])
def test_the_regression_is_a_joint_normal_distribution(regressed, n_own):
    bags, regressor = regressed
    m, n = len(regressor._problem_.z), bags.n_bags
    own = np.full(m, -1)
    own[:n_own] = [4, 0, 7][:n_own]
    found = Regression.of(regressor, bags.mediator, own if n_own else None)
    dense = joint(regressor, bags.mediator, own)
    t, cross, observed = dense[:n, :n], dense[:n, n:], dense[n:, n:]
    z = np.asarray(regressor._problem_.z)
    np.testing.assert_allclose(found.covariance, t, rtol=1e-9)
    np.testing.assert_allclose(found.weights, np.linalg.solve(t, cross), atol=1e-6)
    np.testing.assert_allclose(
        found.noise, observed - cross.T @ np.linalg.solve(t, cross), atol=1e-6
    )
    gain = np.linalg.solve(observed, cross.T).T
    np.testing.assert_allclose(found.mean, gain @ z, atol=1e-6)
    np.testing.assert_allclose(found.uncertainty, t - gain @ cross.T, atol=1e-6)
    if n_own:  # their bag is known, and they say nothing of others beyond it
        np.testing.assert_allclose(found.mean[own[:n_own]], z[:n_own], atol=1e-6)
        np.testing.assert_allclose(found.noise[:n_own], 0.0, atol=1e-6)
        np.testing.assert_allclose(found.weights[:, :n_own], np.eye(n)[:, own[:n_own]], atol=1e-6)


def parts_of(model):
    learning = model._learning_
    vector = jnp.zeros(0)
    values, covariance = learning._at(vector)
    return learning, vector, values, np.asarray(covariance)


def posterior_of_bag_means(learning, covariance, tilt):
    """Dense: prior, tilt and observations as precisions."""
    r, contrasts = learning.regression, np.asarray(learning.contrasts)
    weights, noise = np.asarray(r.weights), np.asarray(r.noise)
    precision = np.linalg.inv(covariance) + tilt * contrasts.T @ contrasts
    precision += weights @ np.linalg.solve(noise, weights.T)
    cov = np.linalg.inv(precision)
    return cov @ weights @ np.linalg.solve(noise, np.asarray(learning.z)), cov


def test_bag_effects_have_the_size_that_the_regression_expects(fitted):
    learning, _, _, covariance = parts_of(fitted)
    tilt = float(learning.tilt(jnp.asarray(covariance)))
    assert 0 < tilt < MOST_TILT
    mean, cov = posterior_of_bag_means(learning, covariance, tilt)
    r = np.asarray(learning.contrasts)
    size = np.sum((r @ mean) ** 2) + np.trace(r @ cov @ r.T)
    assert size == pytest.approx(float(learning.size), rel=1e-4)
    # The same is said by the slope of Φ, which is convex.
    slopes = [float(jax.grad(learning.dual)(a, jnp.asarray(covariance))) for a in (0.0, tilt, 2.0)]
    assert slopes[0] < 0 < slopes[2] and abs(slopes[1]) < 1e-3


def test_the_dual_is_the_log_normaliser(fitted):
    learning, _, _, covariance = parts_of(fitted)
    r, contrasts = learning.regression, np.asarray(learning.contrasts)
    z, weights = np.asarray(learning.z), np.asarray(r.weights)
    for tilt in (0.0, 0.3, 1.7):
        inner = np.eye(len(contrasts)) + tilt * contrasts @ covariance @ contrasts.T
        tilted = np.linalg.inv(np.linalg.inv(covariance) + tilt * contrasts.T @ contrasts)
        seen = weights.T @ tilted @ weights + np.asarray(r.noise)
        density = -0.5 * (
            z @ np.linalg.solve(seen, z)
            + np.linalg.slogdet(seen)[1]
            + len(z) * np.log(2 * np.pi)
            + np.linalg.slogdet(inner)[1]
            - tilt * float(learning.size)
        )
        found = float(learning.dual(jnp.asarray(tilt), jnp.asarray(covariance)))
        assert found == pytest.approx(density, rel=1e-8)


def bag_means(problem, vector, model):
    """Posterior of bag means of the smooth field and its trend."""
    field = problem.solve(vector)[1]
    return field.bag_moments(model.bags_, model.bags_)


def smooth_part(model, values, covariance, mean, cov):
    """Bag means without noise of their own, given those with it."""
    noise = float(values["bag_noise_std"]) ** 2 * np.eye(len(covariance))
    gain = np.linalg.solve(covariance, covariance - noise).T
    return gain @ mean, (covariance - noise) - gain @ (covariance - noise) + gain @ cov @ gain.T


def test_the_tilted_posterior_is_the_dense_one(fitted):
    learning, vector, values, covariance = parts_of(fitted)
    tilt = float(learning.tilt(jnp.asarray(covariance)))
    for problem, a in ((learning.tilted(vector), tilt), (learning.conditional(vector), 0.0)):
        dense = posterior_of_bag_means(learning, covariance, a)
        mean, cov = smooth_part(fitted, values, covariance, *dense)
        found_mean, found_cov = bag_means(problem, vector, fitted)
        np.testing.assert_allclose(found_mean, mean, atol=1e-5)
        np.testing.assert_allclose(found_cov, cov, atol=1e-5)


def test_a_full_tilt_is_pseudo_targets_with_bag_effects_as_noise(regressed):
    """With no trend, α = 1 multiplies two priors: the regression's posterior is a likelihood."""
    bags, _ = regressed
    _, y, z = drawn()
    points = dc.Bags.from_points(y, np.arange(len(y)))
    regressor = dc.BaggGP(trend="none", n_restarts=1).fit(points, z)
    model = TiltedGP(fixed=FIXED, trend="none", precision="float64").fit(bags, regressor, None)
    learning, _, _, covariance = parts_of(model)
    mean, cov = posterior_of_bag_means(learning, covariance, 1.0)
    r = learning.regression
    noise = np.asarray(r.uncertainty)
    gain = np.linalg.solve(covariance + noise, covariance).T
    np.testing.assert_allclose(mean, gain @ np.asarray(r.mean), atol=1e-6)
    np.testing.assert_allclose(cov, covariance - gain @ covariance, atol=1e-6)


def test_the_gradient_needs_none_of_the_tilt(regressed):
    bags, regressor = regressed
    model = TiltedGP(trend="constant", precision="float64", n_restarts=1, max_iter=3)
    with pytest.warns(dc.FitWarning):
        model.fit(bags, regressor, None)
    learning = model._learning_
    at = np.asarray(model._vectors_[0]) + 0.2
    gradient = np.asarray(jax.grad(learning.log_posterior)(jnp.asarray(at)))
    for k, direction in enumerate(1e-4 * np.eye(len(at))):
        above, below = (
            float(learning.log_posterior(jnp.asarray(at + s * direction))) for s in (1, -1)
        )
        assert gradient[k] == pytest.approx((above - below) / 2e-4, rel=1e-3, abs=1e-3)


def test_bag_means_vary_as_much_as_observations():
    rng = np.random.default_rng(0)
    gram = np.diag([1.0, 2.0, 3.0, 6.0])
    z = rng.standard_normal(50) + 5.0
    prior = SpreadPrior.of(np.ones((4, 1)), z, np.ones((50, 1)))
    # About their common mean, independent values keep 3/4 of their variances.
    expected = np.log(0.75 * gram.trace() / 3 / z.var(ddof=1))
    found = float(prior.log_density(jnp.asarray(gram)))
    assert found == pytest.approx(-0.5 * expected**2 / (2 / 50 + 2 / 4 + 0.02))
    free = SpreadPrior.of(np.zeros((4, 0)), z, np.zeros((50, 0)))
    assert float(free.variance) == pytest.approx(np.mean(z**2))
