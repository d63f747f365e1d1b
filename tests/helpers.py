"""Dense oracles, written from the paper's equations, and one tolerance for each dtype.

The oracles form every n x n matrix and use NumPy alone, so that they share nothing with the code
under test but the GPJax kernel that is being averaged.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jax.flatten_util import ravel_pytree

from benchmarks.problems import posed as posed
from benchmarks.problems import problem_of as problem_of
from deconditional import Bags

TOLERANCE = {np.dtype("float64"): 1e-8, np.dtype("float32"): 2e-5}
"""Largest error allowed, relative to the largest entry of what is expected."""

FINITE_DIFFERENCE_TOLERANCE = 1e-6
"""Central differences of step 1e-5 in float64: h² of truncation and eps / h of rounding, 1e-10 to
1e-11 each, times third derivatives and cancellation in a sum."""


def assert_close(actual, desired, dtype="float64", tolerance=None):
    """Shapes equal and the error within the dtype's tolerance of the largest entry."""
    actual, desired = np.asarray(actual), np.asarray(desired)
    assert actual.shape == desired.shape
    tolerance = TOLERANCE[np.dtype(dtype)] if tolerance is None else tolerance
    scale = np.max(np.abs(desired), initial=0.0) or 1.0
    np.testing.assert_allclose(actual, desired, rtol=0, atol=tolerance * scale)


def assert_positive_semidefinite(matrix, tolerance=1e-10):
    """No eigenvalue below zero by more than rounding."""
    values = np.linalg.eigvalsh(np.asarray(matrix))
    assert values[0] >= -tolerance * max(values[-1], 1e-300)


def finite_difference(function, vector, step=1e-5):
    """Central differences of a scalar function."""
    vector = np.asarray(vector, dtype=float)
    gradient = np.empty_like(vector)
    for i in range(len(vector)):
        move = np.zeros_like(vector)
        move[i] = step
        gradient[i] = (float(function(vector + move)) - float(function(vector - move))) / (2 * step)
    return gradient


# --------------------------------------------------------------------------- data


def ragged_bags(sizes, d=3, p=1, seed=0, weighted=False, mediated=True):
    """Bags of Gaussian points whose centre moves with the mediator."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(len(sizes), p))
    points = [rng.normal(size=(size, d)) + y[j].mean() for j, size in enumerate(sizes)]
    weights = [rng.uniform(0.2, 2.0, size) for size in sizes] if weighted else None
    return Bags.from_list(points, mediator=y if mediated else None, weights=weights)


def weight_matrix(bags):
    """P, n x N, one row per membership."""
    p = np.zeros((bags.n_points, bags.n_bags))
    p[np.arange(bags.n_points), bags.bag] = bags.weights
    return p


def shared_weight_matrix(bags):
    """P with one row per distinct point: rows of one point are added."""
    p = np.zeros((int(bags.point.max()) + 1, bags.n_bags))
    np.add.at(p, (bags.point, bags.bag), bags.weights)
    return p


# --------------------------------------------------------------------------- kernels


class Delta(AbstractKernel):
    """1 where two inputs are equal: with it, every mediator is a stranger to all others."""

    def __call__(self, x, y):
        return jnp.all(x == y).astype(float)


class TanhKernel(AbstractKernel):
    """A kernel written by a user, without radial form: v (1 + tanh(x)·tanh(y))."""

    variance: jax.Array

    def __init__(self, variance):
        self.variance = jnp.asarray(variance)
        super().__init__()

    def __call__(self, x, y):
        return self.variance * (1.0 + jnp.tanh(x) @ jnp.tanh(y))


@eqx.filter_jit
def _all_pairs(kernel, x, other):
    return kernel.cross_covariance(x, other)


def gram(kernel, x, other=None):
    """K between two sets of points, all pairs at once, from GPJax's own evaluation."""
    x = jnp.asarray(x)
    return np.asarray(_all_pairs(kernel, x, x if other is None else jnp.asarray(other)))


def flat_kernel(kernel):
    """A kernel's arrays as one vector, and the way back."""
    arrays, rest = eqx.partition(kernel, eqx.is_inexact_array)
    vector, unravel = ravel_pytree(arrays)
    # A weakly typed vector would be compiled for anew as soon as something is added to it.
    return jnp.asarray(np.asarray(vector)), lambda v: eqx.combine(unravel(v), rest)


# --------------------------------------------------------------------------- the paper's operators


def replicated_mediation(kernel, bags, ridge, observed):
    """A = (L_yy + nλI)⁻¹ L_yỹ with y_j replicated to every point of bag j, n x M.

    The paper's empirical CMO (eq. empirical-cmo) on the replicated sample of its section on
    multiresolution data.
    """
    y = bags.mediator[bags.bag]
    n = bags.n_points
    return np.linalg.solve(gram(kernel, y) + n * ridge * np.eye(n), gram(kernel, y, observed))


def weighted_replicated_mediation(kernel, bags, ridge, observed):
    r"""A of the weighted regression of embeddings, n x M.

    The minimiser of :math:`\sum_j\pi_j\sum_i w_j^{(i)}\|k_{x_j^{(i)}} - C\ell_{y_j}\|^2 +
    \lambda\|C\|^2` (eq. empirical-cmo-regression-objective with a weight on every point) is
    :math:`C = \Phi(L + \lambda\Omega^{-1})^{-1}\Psi^\top`, Ω the diagonal of
    :math:`\pi_j w_j^{(i)}`, with shares :math:`\pi_j` proportional to effective sizes.
    """
    effective = np.array([1.0 / (bags.weights[bags.bag == j] ** 2).sum() for j in range(len(bags))])
    share = effective / effective.sum()
    omega = share[bags.bag] * bags.weights
    y = bags.mediator[bags.bag]
    return np.linalg.solve(
        gram(kernel, y) + ridge * np.diag(1.0 / omega), gram(kernel, y, observed)
    )


def shrinkage_mediation(kernel, bags, ridge, observed):
    """A = (L_yy + NλI)⁻¹ L_yỹ, N x M: the conditional mean shrinkage operator."""
    n_bags = bags.n_bags
    return np.linalg.solve(
        gram(kernel, bags.mediator) + n_bags * ridge * np.eye(n_bags),
        gram(kernel, bags.mediator, observed),
    )


def bordered_system(kernel, y, ridge):
    """[[L + R, 1], [1ᵀ, 0]]: ridge regression with an unpenalised intercept."""
    n = len(y)
    system = np.ones((n + 1, n + 1))
    system[:n, :n] = gram(kernel, y) + np.diag(ridge)
    system[n, n] = 0.0
    return system


def deconditional_mean(kernel, points, a, noise_variance, z, x):
    """Eq. deconditional-posterior-mean with m = 0, all of it n x n."""
    q = a.T @ gram(kernel, points) @ a
    return gram(kernel, x, points) @ a @ np.linalg.solve(q + noise_variance * np.eye(len(z)), z)


def deconditional_covariance(kernel, points, a, noise_variance, x):
    """Eq. deconditional-posterior-covariance."""
    q = a.T @ gram(kernel, points) @ a
    cross = gram(kernel, x, points) @ a
    inner = np.linalg.solve(q + noise_variance * np.eye(a.shape[1]), cross.T)
    return gram(kernel, x) - cross @ inner


def dme_estimate(kernel, points, a, epsilon, z, x):
    """f̂(x) of eq. empirical-dmo-applied."""
    m = len(z)
    inner = a.T @ gram(kernel, points) @ a + m * epsilon * np.eye(m)
    return gram(kernel, x, points) @ a @ np.linalg.solve(inner, z)


def condition(prior, cross, observed, z):
    """Mean and covariance of a zero-mean Gaussian given z: cov(t), cov(t, z), cov(z)."""
    solved = np.linalg.solve(observed, cross.T)
    return solved.T @ z, prior - cross @ solved


def trend_features(kind, points, x):
    """h(x): nothing, a constant, or it and all or some covariates as the bags' points have them."""
    if kind == "none":
        return np.zeros((len(x), 0))
    ones = np.ones((len(x), 1))
    if kind == "constant":
        return ones
    chosen = slice(None) if kind == "linear" else list(kind)
    return np.hstack([ones, ((x - points.mean(0)) / points.std(0))[:, chosen]])
