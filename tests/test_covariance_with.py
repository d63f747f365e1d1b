"""Posterior covariance of f(x) with means over new bags: weighted columns of the covariance."""

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deconditional import CMP, BaggGP, Bags, VarCMP, VBagg
from deconditional.inference.basis_field import Coefficients
from deconditional.kernels.radial import spectral_features
from helpers import (
    assert_close,
    assert_positive_semidefinite,
    condition,
    gram,
    ragged_bags,
    trend_features,
    weight_matrix,
    weighted_replicated_mediation,
)

KERNEL = gk.Matern32(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
RIDGE, NOISE, FINE = 0.02, 0.3, 0.4
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4, "noise_std": NOISE}
MEDIATION = {"mediator_kernel.lengthscale": 0.9, "ridge": RIDGE}

BAGS = ragged_bags([3, 1, 6, 4, 5, 2], d=2, weighted=True)
NEW = ragged_bags([2, 7, 1, 4], d=2, weighted=True, seed=9)
P = weight_matrix(BAGS)
RNG = np.random.default_rng(1)
Z, Z_FEW, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=4), RNG.normal(size=(4, 1))
X = RNG.normal(size=(5, 2))
PLACES = 1.2 * RNG.normal(size=(8, 2))
TREND_STD = np.array([10 * np.sqrt(np.mean(Z**2)), *[3 * np.std(Z)] * 2])


def held(kind, **options):
    fixed = FIELD | (MEDIATION if issubclass(kind, CMP) else {})
    if options.get("fine_noise"):
        fixed = fixed | {"fine_noise_std": FINE}
    if issubclass(kind, CMP):
        options = {"mediator_kernel": MEDIATOR_KERNEL} | options
    options = {"kernel": KERNEL, "trend": "none", "fixed": fixed} | options
    return kind(**options)


def field_of(model):
    return model.fitted_.fields[0]


def covariance_with(field, new=NEW, x=X):
    return np.asarray(field.covariance_with(new)(jnp.asarray(x)))


@pytest.fixture(scope="module")
def exact():
    return held(BaggGP, trend="linear").fit(BAGS, Z)


def with_trend(kernel, x, other, kind):
    h, g = (trend_features(kind, BAGS.points, v) for v in (x, other))
    return gram(kernel, x, other) + (h * TREND_STD[: h.shape[1]] ** 2) @ g.T


# --------------------------------------------------------------------------- dense algebra


def test_exact_posterior_of_bags(exact):
    every = np.concatenate([X, NEW.points])
    _, covariance = condition(
        with_trend(KERNEL, every, every, "linear"),
        with_trend(KERNEL, every, BAGS.points, "linear") @ P,
        P.T @ with_trend(KERNEL, BAGS.points, BAGS.points, "linear") @ P + NOISE**2 * np.eye(6),
        Z,
    )
    assert_close(covariance_with(field_of(exact)), covariance[:5, 5:] @ weight_matrix(NEW))


def test_exact_posterior_through_a_mediator():
    model = held(CMP, fine_noise=True).fit(BAGS, Z_FEW, mediator=Y_OBSERVED)
    a = weighted_replicated_mediation(MEDIATOR_KERNEL, BAGS, RIDGE, Y_OBSERVED)
    noise = NOISE**2 * np.eye(4) + FINE**2 * a.T @ a
    every = np.concatenate([X, NEW.points])
    _, covariance = condition(
        gram(KERNEL, every),
        gram(KERNEL, every, BAGS.points) @ a,
        a.T @ gram(KERNEL, BAGS.points) @ a + noise,
        Z_FEW,
    )
    assert_close(covariance_with(field_of(model)), covariance[:5, 5:] @ weight_matrix(NEW))


def test_random_features_in_place_of_the_kernel(exact):
    (field,) = exact.predict(X, features=30).fields
    features = jax.jit(spectral_features(KERNEL, 30, jax.random.key(0), 2))

    def phi(x):
        h = TREND_STD * trend_features("linear", BAGS.points, x)
        return np.hstack([np.asarray(features(jnp.asarray(x))), h])

    at_x, at_new, observed = phi(X), weight_matrix(NEW).T @ phi(NEW.points), P.T @ phi(BAGS.points)
    precision = np.eye(33) + observed.T @ observed / NOISE**2
    assert_close(covariance_with(field), at_x @ np.linalg.solve(precision, at_new.T))


# --------------------------------------------------------------------------- every posterior

MEDIATED = {"bags": BAGS, "z": Z_FEW, "mediator": Y_OBSERVED, "own_bag": [-1, 2, -1, 5]}
MATCHED = {"bags": BAGS, "z": Z}
EVERYTHING = {"uncertainty": True, "fine_noise": True, "trend": "linear"}
MODELS = {
    "exact, mediated": (held(CMP, **EVERYTHING), MEDIATED),
    # More basis functions than observations, and fewer: the two forms of the coefficients.
    "inducing points, mediated": (held(VarCMP, inducing=PLACES, **EVERYTHING), MEDIATED),
    "few inducing points": (held(VBagg, inducing=PLACES[:3]), MATCHED),
    "features": (held(VBagg, features=10, trend="constant"), MATCHED),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    model, data = MODELS[request.param]
    model.fit(**data)
    if request.param != "exact, mediated":
        few = field_of(model).coefficients.explained is None
        assert few == request.param.startswith("few")
    return model


def test_it_is_weighted_columns_of_the_covariance(model):
    every = np.concatenate([X, NEW.points])
    covariance = model.predict(every).covariance()
    expected = covariance[:5, 5:] @ weight_matrix(NEW)
    assert_close(covariance_with(field_of(model)), expected)


def test_its_weighted_rows_are_the_covariance_of_bags(model):
    field = field_of(model)
    rows = weight_matrix(NEW).T @ covariance_with(field, x=NEW.points)
    covariance = model.predict_bags(NEW).covariance()
    assert_close(rows, covariance)
    joint = np.block(
        [
            [model.predict(X).covariance(), covariance_with(field)],
            [covariance_with(field).T, covariance],
        ]
    )
    assert_positive_semidefinite(joint)


# --------------------------------------------------------------------------- special bags


def test_bags_of_single_points_are_points(exact):
    points = Bags.from_points(NEW.points, np.arange(14))
    covariance = exact.predict(np.concatenate([X, NEW.points])).covariance()
    assert_close(covariance_with(field_of(exact), points), covariance[:5, 5:])


def test_observed_bags_are_all_but_known(exact):
    # The mean of an observed bag has at most the noise's variance, and |Cov|² ≤ Var Var.
    covariance = covariance_with(field_of(exact), BAGS)
    bound = NOISE * exact.predict(X).std
    assert (np.abs(covariance) <= bound[:, None] * (1 + 1e-9)).all()
    assert np.abs(covariance).max() > 1e-3


def test_bags_that_share_points(exact):
    x = NEW.points
    membership = np.random.default_rng(5).uniform(size=(14, 3))
    shared = Bags.from_membership(x, membership)
    covariance = exact.predict(np.concatenate([X, x])).covariance()
    expected = covariance[:5, 5:] @ (membership / membership.sum(0))
    assert_close(covariance_with(field_of(exact), shared), expected)


def test_tiles_in_float32(exact):
    model = held(BaggGP, trend="linear", precision="float32").fit(BAGS, Z)
    actual, expected = covariance_with(field_of(model)), covariance_with(field_of(exact))
    assert_close(actual, expected, tolerance=1e-4)


# --------------------------------------------------------------------------- the coefficients


def test_covariance_of_coefficients():
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(3, 6)), rng.normal(size=(5, 6))
    explained = 0.3 * rng.normal(size=(6, 4))
    root = np.linalg.cholesky(np.eye(6) + np.cov(rng.normal(size=(6, 20))))
    mean = jnp.zeros(6)
    for coefficients, covariance in (
        (Coefficients(mean, jnp.asarray(explained), None), np.eye(6) - explained @ explained.T),
        (Coefficients(mean, None, jnp.asarray(root)), np.linalg.inv(root @ root.T)),
    ):
        both = np.concatenate([first, second])
        assert_close(coefficients.covariance(jnp.asarray(both)), both @ covariance @ both.T)
        assert_close(coefficients.variance(jnp.asarray(both)), np.diag(both @ covariance @ both.T))
