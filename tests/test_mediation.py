"""W and V of a conditional mean operator against dense replicated and kriging estimators."""

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deconditional import bag_gram
from deconditional.observations.kinds import CMO, ridge_shape
from helpers import (
    FINITE_DIFFERENCE_TOLERANCE,
    assert_close,
    assert_positive_semidefinite,
    bordered_system,
    finite_difference,
    gram,
    ragged_bags,
    replicated_mediation,
    shrinkage_mediation,
    weight_matrix,
    weighted_replicated_mediation,
)

RIDGE = 0.02
KERNEL = gk.Matern32(lengthscale=jnp.array([0.9, 1.4]))
EQUAL_WEIGHTS = ragged_bags([3, 1, 7, 4, 9, 2], p=2)
WEIGHTED = ragged_bags([3, 1, 7, 4, 9, 2], p=2, weighted=True)
OBSERVED = np.random.default_rng(1).normal(size=(5, 2))
ELSEWHERE = np.random.default_rng(2).normal(size=(3, 2))


def operator(bags, kind="standard", centred=False):
    ridge = RIDGE * ridge_shape(kind, bags.effective_sizes)
    return CMO(KERNEL, jnp.asarray(bags.mediator), jnp.asarray(ridge), centred)


@eqx.filter_jit
def evaluate(kernel, mediator, ridge, centred, y):
    """W by its own, and W with V."""
    cmo = CMO(kernel, mediator, ridge, centred)
    return cmo.weights(y), *cmo.weights_and_covariance(y)


def weights_and_covariance(cmo, y):
    alone, w, v = evaluate(cmo.kernel, cmo.mediator, cmo.ridge, cmo.centred, jnp.asarray(y))
    assert_close(alone, w)
    return np.asarray(w), np.asarray(v)


def weights(bags, **options):
    return weights_and_covariance(operator(bags, **options), OBSERVED)[0]


# --------------------------------------------------------------------------- W


def test_standard_cmo_is_the_replicated_estimator():
    # P W spreads the weight of a bag over its points: A of the paper, n x M.
    a = replicated_mediation(KERNEL, EQUAL_WEIGHTS, RIDGE, OBSERVED)
    assert_close(weight_matrix(EQUAL_WEIGHTS) @ weights(EQUAL_WEIGHTS), a)


def test_weighted_cmo_is_the_weighted_replicated_estimator():
    a = weighted_replicated_mediation(KERNEL, WEIGHTED, RIDGE, OBSERVED)
    assert_close(weight_matrix(WEIGHTED) @ weights(WEIGHTED), a)


def test_the_weighted_oracle_contains_the_paper():
    assert_close(
        weighted_replicated_mediation(KERNEL, EQUAL_WEIGHTS, RIDGE, OBSERVED),
        replicated_mediation(KERNEL, EQUAL_WEIGHTS, RIDGE, OBSERVED),
    )


def test_shrinkage_cmo():
    expected = shrinkage_mediation(KERNEL, WEIGHTED, RIDGE, OBSERVED)
    assert_close(weights(WEIGHTED, kind="shrinkage"), expected)


def test_bags_of_equal_size_make_both_operators_one():
    bags = ragged_bags([4, 4, 4], p=2)
    assert_close(weights(bags), weights(bags, kind="shrinkage"))
    assert np.abs(weights(WEIGHTED) - weights(WEIGHTED, kind="shrinkage")).max() > 1e-3


def test_ridge_shapes():
    np.testing.assert_allclose(ridge_shape("standard", np.array([1.0, 3.0])), [4.0, 4.0 / 3.0])
    np.testing.assert_allclose(ridge_shape("shrinkage", np.array([1.0, 3.0])), [2.0, 2.0])
    with pytest.raises(ValueError, match="cmo must be 'standard' or 'shrinkage', not 'other'"):
        ridge_shape("other", np.ones(2))


# --------------------------------------------------------------------------- centred W


def test_centred_columns_sum_to_one():
    np.testing.assert_allclose(weights(WEIGHTED, centred=True).sum(0), 1.0, rtol=1e-10)
    assert np.abs(weights(WEIGHTED).sum(0) - 1.0).max() > 1e-2


def test_centred_cmo_is_ridge_regression_with_a_free_intercept():
    # Minimise over (c, β): Σ_j (t_j - c - g_j)² / R_j + |β|², g = root β, L = root rootᵀ.
    bags, n = WEIGHTED, WEIGHTED.n_bags
    ridge = RIDGE * ridge_shape("standard", bags.effective_sizes)
    root = np.linalg.cholesky(gram(KERNEL, bags.mediator))
    design = np.vstack(
        [
            np.hstack([np.ones((n, 1)), root]) / np.sqrt(ridge)[:, None],
            np.hstack([np.zeros((n, 1)), np.eye(n)]),
        ]
    )
    targets = np.random.default_rng(3).normal(size=n)
    response = np.concatenate([targets / np.sqrt(ridge), np.zeros(n)])
    solution, *_ = np.linalg.lstsq(design, response)
    slopes = np.linalg.solve(root.T, solution[1:])
    predicted = solution[0] + gram(KERNEL, OBSERVED, bags.mediator) @ slopes
    assert_close(weights(bags, centred=True).T @ targets, predicted)


def test_centred_cmo_is_ordinary_kriging():
    system = bordered_system(KERNEL, WEIGHTED.mediator, operator(WEIGHTED).ridge)
    right = np.vstack([gram(KERNEL, WEIGHTED.mediator, OBSERVED), np.ones((1, len(OBSERVED)))])
    assert_close(weights(WEIGHTED, centred=True), np.linalg.solve(system, right)[:-1])


# --------------------------------------------------------------------------- V


def dense_covariance(y, other, ridge):
    """ℓ(y, y') - ℓ(y, y_bags)(L + R)⁻¹ℓ(y_bags, y')."""
    bags_y = WEIGHTED.mediator
    noisy = gram(KERNEL, bags_y) + np.diag(ridge)
    solved = np.linalg.solve(noisy, gram(KERNEL, bags_y, other))
    return gram(KERNEL, y, other) - gram(KERNEL, y, bags_y) @ solved


def kriging_covariance(y, other, ridge):
    """The same with an unknown constant: its border is part of the system."""
    bags_y = WEIGHTED.mediator
    left, right = (np.vstack([gram(KERNEL, bags_y, v), np.ones((1, len(v)))]) for v in (y, other))
    return gram(KERNEL, y, other) - left.T @ np.linalg.solve(
        bordered_system(KERNEL, bags_y, ridge), right
    )


@pytest.mark.parametrize("kind", ["standard", "shrinkage"])
def test_covariance_is_that_of_gp_regression(kind):
    cmo = operator(WEIGHTED, kind)
    w, v = weights_and_covariance(cmo, OBSERVED)
    assert_close(w, weights(WEIGHTED, kind=kind))
    assert_close(v, dense_covariance(OBSERVED, OBSERVED, np.asarray(cmo.ridge)))


def test_centred_covariance_is_that_of_ordinary_kriging():
    cmo = operator(WEIGHTED, centred=True)
    w, v = weights_and_covariance(cmo, OBSERVED)
    assert_close(w, weights(WEIGHTED, centred=True))
    assert_close(v, kriging_covariance(OBSERVED, OBSERVED, np.asarray(cmo.ridge)))


def test_centred_covariance_is_the_limit_of_a_vague_constant():
    # A constant of variance b² adds b² to every entry of ℓ; the limit is reached as 1/b².
    wide = KERNEL + gk.Constant(constant=jnp.array(1e5))
    cmo = operator(WEIGHTED)
    vague = CMO(wide, cmo.mediator, cmo.ridge)
    limit = operator(WEIGHTED, centred=True)
    for actual, expected in zip(
        weights_and_covariance(limit, OBSERVED),
        weights_and_covariance(vague, OBSERVED),
        strict=True,
    ):
        assert_close(actual, expected, tolerance=1e-4)


@pytest.mark.parametrize("centred", [False, True])
def test_covariance_is_positive_semidefinite(centred):
    y = np.concatenate([OBSERVED, WEIGHTED.mediator, ELSEWHERE])
    _, v = weights_and_covariance(operator(WEIGHTED, centred=centred), y)
    np.testing.assert_allclose(v, v.T, atol=1e-14)
    assert_positive_semidefinite(v)


@pytest.mark.parametrize(
    ("centred", "dense"), [(False, dense_covariance), (True, kriging_covariance)]
)
def test_cross_covariance(centred, dense):
    cmo = operator(WEIGHTED, centred=centred)
    actual = cmo.cross_covariance(jnp.asarray(OBSERVED), jnp.asarray(ELSEWHERE))
    assert_close(actual, dense(OBSERVED, ELSEWHERE, np.asarray(cmo.ridge)))


def test_with_little_ridge_a_bag_knows_its_own_mean_and_nothing_else_is_needed():
    y = jnp.asarray(WEIGHTED.mediator)
    w, v = weights_and_covariance(CMO(KERNEL, y, jnp.full(WEIGHTED.n_bags, 1e-10)), y)
    assert_close(w, np.eye(WEIGHTED.n_bags), tolerance=1e-7)  # of the order of the ridge over L
    assert_close(v, np.zeros_like(v), tolerance=1e-7)


# --------------------------------------------------------------------------- gradients and types


@pytest.mark.parametrize("family", [gk.RBF, gk.Matern12, gk.Matern32])
def test_compiled_gradients_equal_finite_differences(family):
    # 26 mediators in two dimensions: XLA's vectorised and remainder loops round x/ℓ differently,
    # so distances of a mediator to itself need not come out as zero.
    rng = np.random.default_rng(0)
    y, observed = jnp.asarray(rng.normal(size=(26, 2))), jnp.asarray(rng.normal(size=(7, 2)))
    template = family(lengthscale=jnp.ones(2))

    @jax.jit
    def function(log_scale, y, observed):
        kernel = eqx.tree_at(lambda k: k.lengthscale, template, jnp.exp(log_scale))
        cmo = CMO(kernel, y, jnp.full(26, 0.1))
        w, v = cmo.weights_and_covariance(observed)
        return jnp.sum(jnp.sin(w)) + jnp.sum(v**2)

    at = np.array([0.3, -0.2])
    assert_close(
        jax.jit(jax.grad(function))(jnp.asarray(at), y, observed),
        finite_difference(lambda v: function(jnp.asarray(v), y, observed), at),
        tolerance=FINITE_DIFFERENCE_TOLERANCE,
    )


def test_weights_and_gram_give_the_covariance_of_the_conditional_mean_process():
    # q̂ = Aᵀ K A of the paper's section on conditional mean processes, from its N x N pieces.
    kernel = gk.RBF(lengthscale=jnp.array([0.8, 1.1, 1.6]))
    a = replicated_mediation(KERNEL, EQUAL_WEIGHTS, RIDGE, OBSERVED)
    w = weights(EQUAL_WEIGHTS)
    expected = a.T @ gram(kernel, EQUAL_WEIGHTS.points) @ a
    assert_close(w.T @ np.asarray(bag_gram(kernel, EQUAL_WEIGHTS)) @ w, expected)
