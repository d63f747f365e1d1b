"""Kernels in radial form: profiles, their slopes, expansions and spectral measures."""

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpjax.parameters import PositiveReal
from scipy.special import gamma, kv

from deconditional import DeepKernel
from deconditional.kernels.radial import (
    PROFILES,
    GenericTerm,
    RadialTerm,
    prior_variance,
    spectral_features,
    sum_of_products,
)
from helpers import TanhKernel, assert_close, gram

X = np.random.default_rng(0).normal(size=(5, 3))
NETWORK = eqx.nn.MLP(3, 2, width_size=4, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))
SQUARES = jnp.array([1e-3, 0.1, 0.7, 2.0, 9.0])
SHAPE = jnp.asarray(0.7)


# --------------------------------------------------------------------------- profiles


def matern(nu, s):
    """The textbook Matérn through a Bessel function of the second kind."""
    r = np.sqrt(2 * nu * np.asarray(s))
    return 2 ** (1 - nu) / gamma(nu) * r**nu * kv(nu, r)


@pytest.mark.parametrize(
    ("family", "nu"), [(gk.Matern12, 0.5), (gk.Matern32, 1.5), (gk.Matern52, 2.5)]
)
def test_matern_profiles_are_the_textbook_ones(family, nu):
    assert_close(PROFILES[family].value(SQUARES, SHAPE), matern(nu, SQUARES))


def test_gaussian_and_rational_quadratic_profiles():
    s = np.asarray(SQUARES)
    assert_close(PROFILES[gk.RBF].value(SQUARES, SHAPE), np.exp(-s / 2))
    rational = PROFILES[gk.RationalQuadratic].value(SQUARES, SHAPE)
    assert_close(rational, (1 + s / (2 * 0.7)) ** -0.7)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_slopes_are_the_derivatives(profile):
    slope = jax.vmap(jax.grad(profile.value), in_axes=(0, None))(SQUARES, SHAPE)
    assert_close(profile.slope(SQUARES, SHAPE), slope)
    if profile.shape_slope is not None:
        by_shape = jax.vmap(jax.grad(profile.value, argnums=1), in_axes=(0, None))(SQUARES, SHAPE)
        assert_close(profile.shape_slope(SQUARES, SHAPE), by_shape)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_profiles_at_zero_distance_are_one_with_a_finite_slope(profile):
    zero = jnp.zeros(1)
    assert_close(profile.value(zero, SHAPE), [1.0])
    assert np.isfinite(profile.slope(zero, SHAPE)).all()


# --------------------------------------------------------------------------- expansion

RADIAL = {
    "gaussian": gk.RBF(lengthscale=jnp.array([0.7, 1.3, 2.1]), variance=1.7),
    "matern12": gk.Matern12(lengthscale=1.4, variance=0.8),
    "matern32": gk.Matern32(lengthscale=jnp.array([0.7, 1.3, 2.1])),
    "matern52": gk.Matern52(active_dims=[0, 2], lengthscale=0.9, variance=2.0),
    "rational quadratic": gk.RationalQuadratic(alpha=PositiveReal(1.3), lengthscale=0.8),
    "sum": gk.Matern32(active_dims=[0, 1], variance=0.5) + gk.RBF(active_dims=[2]),
    "product": gk.Matern32(active_dims=[0], lengthscale=0.8) * gk.RBF(variance=1.5),
    "product of sums": (gk.Matern32(active_dims=[0]) + gk.RBF(active_dims=[1]))
    * (gk.RBF(active_dims=[2], variance=0.8) + gk.Constant(constant=jnp.array(0.3))),
    "deep": DeepKernel(gk.Matern52() + gk.RBF(active_dims=[1]), NETWORK),
}
GENERIC = {
    "periodic": gk.Periodic(period=2.5),
    "linear": gk.Linear(variance=0.3),
    "custom": TanhKernel(0.8),
    "sum with linear": gk.RBF(variance=1.2) + gk.Linear(variance=0.2),
    "product with linear": gk.RBF() * gk.Linear(),
    "deep linear": DeepKernel(gk.Linear(), NETWORK),
}


@pytest.mark.parametrize("name", RADIAL)
def test_expansion_evaluates_to_the_kernel(name):
    terms = sum_of_products(RADIAL[name])
    x = jnp.asarray(X)
    total = np.zeros((len(X), len(X)))
    for term in terms:
        assert isinstance(term, RadialTerm)
        value = np.full_like(total, term.variance)
        for factor in term.factors:
            u = np.asarray(factor.scaled(x))
            squares = ((u[:, None] - u[None]) ** 2).sum(-1)
            value = value * np.asarray(factor.profile.value(jnp.asarray(squares), factor.shape))
        total += value
    assert_close(total, gram(RADIAL[name], X))


def test_products_distribute_over_sums():
    names = [
        [factor.profile.name for factor in term.factors]
        for term in sum_of_products(RADIAL["product of sums"])
    ]
    assert names == [["matern-3/2", "gaussian"], ["matern-3/2"], ["gaussian"] * 2, ["gaussian"]]


def test_only_the_term_without_radial_form_is_generic():
    kinds = [type(term) for term in sum_of_products(GENERIC["sum with linear"])]
    assert kinds == [RadialTerm, GenericTerm]
    assert [type(term) for term in sum_of_products(GENERIC["product with linear"])] == [GenericTerm]


def test_a_subclass_of_a_known_kernel_is_not_taken_for_it():
    class Shifted(gk.RBF):
        def __call__(self, x, y):
            return super().__call__(x, y) + 1.0

    assert [type(term) for term in sum_of_products(Shifted())] == [GenericTerm]


def test_a_deep_kernel_is_its_base_on_features():
    kernel = RADIAL["deep"]
    features = np.stack([NETWORK(jnp.asarray(x)) for x in X])
    assert_close(kernel.features(jnp.asarray(X)), features)
    assert_close(gram(kernel, X), gram(kernel.base, features))


def test_a_deep_kernel_can_use_some_of_the_covariates():
    narrow = eqx.nn.MLP(2, 2, width_size=4, depth=1, key=jax.random.key(1))
    kernel = DeepKernel(gk.RBF(), narrow, active_dims=[2, 0])
    features = np.stack([narrow(jnp.asarray(x[[2, 0]])) for x in X])
    assert_close(gram(kernel, X), gram(gk.RBF(), features))


@pytest.mark.parametrize("name", RADIAL | GENERIC)
def test_prior_variance_is_the_diagonal(name):
    kernel = (RADIAL | GENERIC)[name]
    assert_close(eqx.filter_jit(prior_variance)(kernel, jnp.asarray(X)), np.diag(gram(kernel, X)))


# --------------------------------------------------------------------------- spectral features

N_DRAWS = 30


@pytest.mark.parametrize("name", RADIAL)
def test_spectral_features_have_the_kernel_as_expectation(name):
    # Independent sets of features: the error of their mean is estimated from their spread, and
    # five of it are allowed (a t distribution with 29 degrees of freedom).
    kernel, x = RADIAL[name], jnp.asarray(X)
    expected = gram(kernel, X)
    estimates = []
    for key in jax.random.split(jax.random.key(0), N_DRAWS):
        phi = np.asarray(spectral_features(kernel, 400, key, 3)(x))
        estimates.append(phi @ phi.T)
    error = np.std(estimates, axis=0, ddof=1) / np.sqrt(N_DRAWS)
    assert (np.abs(np.mean(estimates, axis=0) - expected) <= 5 * error + 1e-12).all()
    assert error.max() < 0.05 * expected.max()


def test_spectral_features_have_the_right_variance_at_every_draw():
    kernel, x = RADIAL["sum"], jnp.asarray(X)
    phi = np.asarray(jax.jit(spectral_features(kernel, 40, jax.random.key(3), 3))(x))
    assert phi.shape == (5, 40)
    assert_close((phi**2).sum(1), np.diag(gram(kernel, X)))


def test_spectral_features_are_a_function_of_their_key():
    kernel, x = RADIAL["matern32"], jnp.asarray(X)
    draw = jax.jit(lambda key: spectral_features(kernel, 10, key, 3)(x))
    one, again, other = (np.asarray(draw(jax.random.key(k))) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("name", GENERIC)
def test_spectral_features_of_other_kernels_are_refused(name):
    with pytest.raises(TypeError, match="no known spectral measure"):
        spectral_features(GENERIC[name], 40, jax.random.key(0), 3)
