"""Minibatches of observations of a family, against the posterior of all of them."""

from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deconditional as dc
from deconditional.inference.bound import Natural, elbo, full_bound, likelihood, optimal
from deconditional.inference.laplace import settled, solution_of
from deconditional.inference.minibatches import Batches
from deconditional.models.families import pose
from deconditional.models.sources import Source, given
from tests.helpers import assert_close
from tests.test_family_fits import FAMILIES, FIXED, HELD, cells, observed

KEY = jax.random.key(0)
NAMES = ["poisson", "overdispersed", "effects of points", "binomial", "tweedie"]


def posed(name):
    """A problem at hyper-parameters off the start, its posterior, and batches of it."""
    family, bags = FAMILIES[name], cells()
    y, amounts = observed(family, bags, np.random.default_rng(3))
    model = dc.VBagg(n_inducing=10, family=family)
    problem = pose(model, given([Source(bags, y, family, **amounts)])).problem
    return problem, jnp.asarray(problem.parameters.start() + 0.1)


def posterior(problem, at):
    """Evidence and q(v) of all observations at once, by the precision."""
    for _ in range(3):
        problem = settled(problem, at, solution_of)[0]
    solution, field = solution_of(problem, at)
    covariance = field.coefficients.covariance(jnp.eye(len(solution.unknowns.v)))
    precision = jnp.linalg.inv(covariance)
    return field.log_evidence, Natural(precision @ solution.unknowns.v, precision)


@pytest.mark.parametrize("name", NAMES)
def test_all_observations_have_the_evidence_and_the_posterior(name):
    problem, at = posed(name)
    evidence, q = posterior(problem, at)
    every = next(Batches(problem, 8).epoch())[0]
    coefficients = q.coefficients()
    part = likelihood(problem, problem.parameters.unpack(at), every, KEY, coefficients)
    assert abs(float(elbo(part, coefficients) - evidence)) < 0.02
    again = q.step(part, jnp.ones(()))
    assert_close(again.coefficients().mean, coefficients.mean, tolerance=0.01)
    assert_close(again.precision, q.precision, tolerance=0.01)


def test_batches_are_unbiased():
    """Every batch of three of eight, bound and gradient, by enumeration."""
    problem, at = posed("overdispersed")
    _, q = posterior(problem, at)
    coefficients = q.coefficients()

    @eqx.filter_jit
    def bound(vector, batch):
        part = likelihood(problem, problem.parameters.unpack(vector), batch, KEY, coefficients)
        return elbo(part, coefficients)

    both = jax.value_and_grad(bound)
    batches = Batches(problem, 3)
    each = [both(at, batches._batch(np.array(rows))) for rows in combinations(range(8), 3)]
    value, gradient = both(at, next(Batches(problem, 8).epoch())[0])
    assert_close(np.mean([v for v, _ in each]), value)
    assert_close(np.mean([g for _, g in each], axis=0), gradient)
    whole = full_bound(problem, at, coefficients, batches, KEY)
    assert_close(whole, value)
    step = 1e-5 * jnp.eye(len(at))[0]
    every = next(Batches(problem, 8).epoch())[0]
    slope = (bound(at + step, every) - bound(at - step, every)) / 2e-5
    np.testing.assert_allclose(gradient[0], slope, rtol=1e-4)


@pytest.mark.parametrize("name", ["poisson", "overdispersed"])
def test_passes_of_batches_find_the_posterior(name):
    problem, at = posed(name)
    _, expected = posterior(problem, at)
    found = optimal(problem, at, Batches(problem, 3), KEY).coefficients()
    deviation = jnp.sqrt(jnp.diagonal(jnp.linalg.inv(expected.precision)))
    assert jnp.abs((found.mean - expected.coefficients().mean) / deviation).max() < 0.05


def test_a_climb_learns_what_all_observations_say():
    rng, x = np.random.default_rng(4), np.linspace(0, 6, 240)
    bags = dc.Bags.from_points(x, np.arange(240) // 4)
    counts = rng.poisson(30 * bags.means(np.exp(np.sin(x)))).astype(float)
    options = {"family": dc.Poisson(), "n_inducing": 12, "n_restarts": 1}
    few = {"batch_size": 20, "max_steps": 600, "patience": 60, "learning_rate": 0.03}
    climbed = dc.VBagg(inference="stochastic", inference_options=few, **options)
    climbed.fit(bags, counts, exposure=30.0)
    whole = dc.VBagg(**options).fit(bags, counts, exposure=30.0)
    found, expected = climbed.predict(x).latent, whole.predict(x).latent
    assert np.abs((found.mean - expected.mean) / expected.std).max() < 0.6
    np.testing.assert_allclose(found.std.mean(), expected.std.mean(), rtol=0.2)
    assert climbed.fit_report_.details["minibatches"] == "of 20 observations"
    sums = climbed.predict_bags(bags, exposure=30.0)
    assert abs(sums.mean.sum() / counts.sum() - 1) < 0.03


def test_batches_are_of_one_matched_source():
    bags, counts = cells(), np.arange(8.0)
    model = dc.VBagg(inference="stochastic", fixed=FIXED, **HELD)
    with pytest.raises(ValueError, match="one source that sees its own bags"):
        model.fit([Source(bags, counts, dc.Poisson())] * 2)
