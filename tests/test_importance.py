"""Draws of hyper-parameters, against densities whose moments are known."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, qmc

from deconditional.fitting.draws import PROPOSALS, WeightedDraws, weighted_draws
from deconditional.fitting.interrupts import stoppable
from deconditional.fitting.parameters import ParameterSet, positive
from deconditional.fitting.sobol import sobol
from deconditional.inference.learn import Fitted


class Density(eqx.Module):
    """A log density of two or three unconstrained numbers."""

    parameters: ParameterSet
    numbers: jnp.ndarray
    kind: str = eqx.field(static=True)

    def gram_at(self, v):
        return v @ v

    def evaluate(self, v, gram=None):
        if self.kind == "normal":
            return -0.5 * v @ self.numbers @ v, None
        return jnp.sum(self.numbers * v - jnp.exp(v)), None  # logarithms of gamma variables


def effective_size(draws):
    """How many equally weighted draws are worth as much."""
    return 1 / np.sum(draws.weights**2)


def parameters(n, reach=9.0):
    return ParameterSet.of([positive(f"p{k}", 1.0, reach=reach) for k in range(n)])


@pytest.mark.parametrize("dimensions", [1, 2, 9, 40])
def test_points_that_fill_a_cube_are_those_of_scipy(dimensions):
    expected = qmc.Sobol(dimensions, rng=np.random.default_rng(5)).random(64)
    np.testing.assert_array_equal(sobol(dimensions, 64, seed=5), expected)
    assert sobol(43, 64, seed=5).shape == (64, 43)  # more than the table has


def test_a_normal_posterior_has_its_moments_back():
    root = np.array([[1.0, 0.0, 0.0], [0.8, 0.4, 0.0], [-0.3, 0.2, 0.1]])
    covariance = root @ root.T
    problem = Density(parameters(3), jnp.asarray(np.linalg.inv(covariance)), "normal")
    found = weighted_draws(problem, np.zeros(3))[0]
    assert effective_size(found) > 0.6 * PROPOSALS
    sd = np.sqrt(np.diag(covariance))
    mean = found.weights @ found.vectors
    np.testing.assert_allclose(mean / sd, 0.0, atol=0.15)
    centred = (found.vectors - mean) / sd
    spread = (found.weights * centred.T) @ centred
    np.testing.assert_allclose(spread, covariance / np.outer(sd, sd), atol=0.25)


def test_weights_make_up_for_a_skewed_posterior():
    """E exp(v) of the logarithm v of a gamma variable is its shape."""
    shapes = jnp.asarray([1.5, 6.0])
    problem = Density(parameters(2), shapes, "gamma")
    found = weighted_draws(problem, np.log(np.asarray(shapes)))[0]
    expected = found.weights @ np.exp(found.vectors)
    np.testing.assert_allclose(expected, shapes, rtol=0.1)
    # The curvature alone would say exp(σ² / 2) times as much, with σ² = 1 / shape.
    assert abs(expected[0] / 1.5 - 1) < 0.5 * (np.exp(0.5 / 1.5) - 1)


def test_large_problems_are_weighed_without_gradients_and_alike():
    class Large(Density):
        is_large = True

    shapes = jnp.asarray([1.5, 6.0])
    mode = np.log(np.asarray(shapes))
    found, expected = (
        weighted_draws(kind(parameters(2), shapes, "gamma"), mode)[0] for kind in (Density, Large)
    )
    np.testing.assert_allclose(found.vectors, expected.vectors, rtol=1e-12)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-10)


def test_picks_spread_over_what_is_known_least():
    problem = Density(parameters(2), jnp.asarray(np.diag([1.0, 400.0])), "normal")
    found = weighted_draws(problem, np.zeros(2))[0]
    assert (np.diff(found.vectors[:, 0]) >= 0).all()  # standard deviations are 1 and 0.05
    picked = found.pick(8)
    assert picked.shape == (8, 2)
    assert abs(picked[0, 0]) < 0.3  # the middle comes first
    expected = norm.ppf((np.arange(8) + 0.5) / 8)
    np.testing.assert_allclose(np.sort(picked[:, 0]), expected, atol=0.3)


def test_weights_are_those_of_equal_picks():
    draws = WeightedDraws(np.arange(4.0)[:, None], np.array([0.5, 0.25, 0.125, 0.125]))
    assert sorted(draws.pick(8)[:, 0]) == [0, 0, 0, 0, 1, 1, 2, 3]
    assert effective_size(draws) == pytest.approx(1 / (0.25 + 0.0625 + 2 / 64))


def test_nothing_lies_beyond_the_bounds():
    problem = Density(parameters(2, reach=0.5), jnp.eye(2), "normal")
    found = weighted_draws(problem, np.zeros(2))[0]
    assert (np.abs(found.vectors[found.weights > 0]) <= 0.5).all()
    assert (found.weights == 0).sum() > 10


def test_the_same_seed_draws_the_same():
    problem = Density(parameters(2), jnp.asarray([1.5, 6.0]), "gamma")
    mode = np.log([1.5, 6.0])
    one, same, other = (weighted_draws(problem, mode, seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.vectors, same.vectors)
    np.testing.assert_array_equal(one.weights, same.weights)
    assert not np.array_equal(one.vectors, other.vectors)


def test_problems_that_differ_in_their_data_have_weights_of_their_own():
    """One proposal serves gamma variables of other shapes than those it was made about."""
    first = Density(parameters(2), jnp.asarray([1.5, 6.0]), "gamma")
    shapes = np.array([[1.2, 6.5], [1.9, 5.0], [2.2, 7.5]])
    others = [replace(first, numbers=jnp.asarray(each)) for each in shapes]
    drawn = weighted_draws(first, np.log([1.5, 6.0]), 0, others)
    assert all(one.vectors is drawn[0].vectors or len(one.vectors) == PROPOSALS for one in drawn)
    means = [one.weights @ np.exp(one.vectors) for one in drawn]
    np.testing.assert_allclose(means, shapes, rtol=0.12)
    alone = weighted_draws(first, np.log([1.5, 6.0]), 0, [first, first])
    np.testing.assert_allclose(alone[0].weights, alone[1].weights)


def test_the_mode_is_all_there_is_without_parameters_or_time():
    nothing = Density(parameters(0), jnp.zeros((0, 0)), "normal")
    nothing = weighted_draws(nothing, np.zeros(0))[0]
    assert nothing.pick(8).shape == (1, 0)
    problem = Density(parameters(2), jnp.eye(2), "normal")
    with stoppable() as stop:
        stop.ask()
        found = weighted_draws(problem, np.full(2, 0.25))[0]
    np.testing.assert_array_equal(found.pick(8), [[0.25, 0.25]])
    assert stop.used


def test_draws_that_came_up_twice_are_asked_once():
    one, other, asked = object(), object(), []
    draws = Fitted((None,) * 3, np.zeros((3, 1)), (None,) * 3, (one, other, one), optimum=None)
    assert draws.by_draw(lambda *draw: asked.append(draw[3]) or draw[3]) == [one, other, one]
    assert asked == [one, other]
