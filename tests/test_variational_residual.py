"""What inducing points leave out of bag means: exactly, and in two unbiased estimates."""

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from deconditional.inference.basis import InducingBasis
from deconditional.inference.variational import Residual, SampledPairs, penalty
from deconditional.kernels.layout import BagSampler
from deconditional.kernels.linalg import NoiseRoot
from helpers import assert_close, gram, ragged_bags, weight_matrix

KERNEL = gk.RBF(lengthscale=jnp.array([0.5, 0.7]), variance=1.4)
BAGS = ragged_bags([3, 1, 6, 5], d=2, weighted=True)
SAMPLER = BagSampler.of(BAGS.points, BAGS.bag, BAGS.weights, BAGS.n_bags)
PLACES = np.random.default_rng(4).normal(size=(15, 2))
PLACES[:5] = BAGS.points[::3]
P = weight_matrix(BAGS)
K_BAR = P.T @ gram(KERNEL, BAGS.points) @ P
ESTIMATES = {
    "sampled": lambda diagonal: SampledPairs(SAMPLER, 4, diagonal),
}
every_estimate = pytest.mark.parametrize("name", ESTIMATES)
whole_or_not = pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "whole"])


@eqx.filter_jit
def basis_at(places, jitter=None):
    basis = InducingBasis.at(KERNEL, places, jnp.float64)
    if jitter is not None:
        noisy = KERNEL.cross_covariance(places, places) + jitter * 1.4 * jnp.eye(len(places))
        basis = InducingBasis(KERNEL, places, jnp.linalg.cholesky(noisy), jitter, jnp.float64)
    return basis, basis.bag_means(BAGS.layout)


@eqx.filter_jit
def residuals(pairs, basis, means, keys):
    """Covariances and mean variances, one for every key."""

    def one(key):
        residual = pairs(KERNEL, basis, BAGS.layout, means, key)
        return residual.covariance, residual.mean_variance

    return lax.map(one, keys)


def keys_of(n):
    return jax.random.split(jax.random.key(0), n)


def left_out(places, jitter=0.0):
    """K̄ - k̄(w)ᵀ (K_ww + jitter)⁻¹ k̄(w)."""
    cross = gram(KERNEL, places, BAGS.points) @ P
    inner = gram(KERNEL, places) + jitter * 1.4 * np.eye(len(places))
    return K_BAR - cross.T @ np.linalg.solve(inner, cross)


FIFTEEN = jnp.asarray(PLACES)
"""Inducing points of which some are points of the bags."""


def assert_unbiased(draws, expected):
    draws = np.asarray(draws)
    error = draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - expected) <= 5 * error + 1e-10).all()
    return error


@whole_or_not
@every_estimate
def test_estimates_are_unbiased(name, diagonal):
    pairs = ESTIMATES[name](diagonal)
    covariances, variances = residuals(pairs, *basis_at(FIFTEEN), keys_of(100))
    expected = left_out(PLACES)
    error = assert_unbiased(covariances, np.diag(expected) if diagonal else expected)
    # The error falls with the residual: it is far below that of an estimate of K̄ itself.
    assert 0 < error.max() < 0.1 * np.abs(expected).max()
    assert_unbiased(variances, np.mean(np.diag(K_BAR)))
    if not diagonal:
        assert_close(covariances, np.swapaxes(covariances, 1, 2))


@whole_or_not
@every_estimate
def test_with_all_points_nothing_is_left_out_whatever_the_key(name, diagonal):
    places = jnp.asarray(BAGS.points)
    pairs = ESTIMATES[name](diagonal)
    covariances, _ = residuals(pairs, *basis_at(places), keys_of(100))
    assert np.abs(covariances).max() < 1e-9


@whole_or_not
@every_estimate
def test_noisy_inducing_variables_leave_out_their_noise(name, diagonal):
    # A jitter of three tenths of the variance: without its correction, the estimate from features
    # would be short by the noise of what the inducing variables say.
    pairs = ESTIMATES[name](diagonal)
    basis, means = basis_at(FIFTEEN, jnp.asarray(0.3))
    covariances, _ = residuals(pairs, basis, means, keys_of(100))
    expected = left_out(PLACES, 0.3)
    assert (np.diag(expected) > 1.2 * np.diag(left_out(PLACES))).all()
    assert_unbiased(covariances, np.diag(expected) if diagonal else expected)


# --------------------------------------------------------------------------- the penalty


def test_the_penalty_of_each_observation():
    rng = np.random.default_rng(2)
    r, w, s = (rng.normal(size=shape) for shape in ((4, 4), (4, 3), (3, 3)))
    r, s = r @ r.T, s @ s.T + np.eye(3)
    residual = Residual(jnp.asarray(r), jnp.asarray(1.0))
    each = penalty(residual, jnp.asarray(w), NoiseRoot.of(jnp.asarray(s)))
    white = np.linalg.solve(np.linalg.cholesky(s), w.T)
    assert_close(each, np.diag(white @ r @ white.T))
    assert_close(each.sum(), np.trace(np.linalg.solve(s, w.T @ r @ w)))
    noise = rng.uniform(0.5, 2.0, 4)
    for covariance in (r, np.diag(r)):
        residual = Residual(jnp.asarray(covariance), jnp.asarray(1.0))
        each = penalty(residual, None, NoiseRoot.of(jnp.asarray(noise)))
        assert_close(each, np.diag(r) / noise)


def test_rounding_of_an_exact_residual_is_no_reward_but_an_estimate_may_be_negative():
    noise = NoiseRoot.of(jnp.full(2, 1e-8))
    below = jnp.array([-1e-15, 1e-3])
    exact = penalty(Residual(below, jnp.asarray(1.0), estimated=False), None, noise)
    assert_close(exact, [0.0, 1e5])
    estimated = penalty(Residual(below, jnp.asarray(1.0)), None, noise)
    assert_close(estimated, [-1e-7, 1e5])
    assert estimated[0] < 0
