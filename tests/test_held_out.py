"""Observations predicted from those of the other folds, against models that never saw the fold.

Parameters are held, so a model without the fold is one conditioning: a refit where the trend has
no part, since its prior is scaled by z, and dense algebra elsewhere.
"""

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from deconditional import CMP, BaggGP, CentroidGP, PseudoTarget, VarCentroidGP, VarCMP, VBagg
from deconditional.fitting.map import Optimum
from deconditional.inference import learn
from deconditional.inference.held_out import held_out
from deconditional.kernels.radial import spectral_features
from helpers import (
    assert_close,
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

BAGS = ragged_bags([4] * 9, d=2, weighted=True)
P = weight_matrix(BAGS)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=9), RNG.normal(size=(9, 1))
FOLDS = np.array([2, 0, 1, 1, 2, 0, 0, 1, 2])
PLACES = 1.2 * RNG.normal(size=(4, 2))
OWN = np.array([-1, 2, 5, -1, 2, 0, -1, -1, 8])


def held(kind, **options):
    fixed = FIELD | (MEDIATION if issubclass(kind, CMP) else {})
    if options.get("fine_noise"):
        fixed = fixed | {"fine_noise_std": FINE}
    if issubclass(kind, CMP):
        options = {"mediator_kernel": MEDIATOR_KERNEL} | options
    options = {"kernel": KERNEL, "trend": "none", "fixed": fixed} | options
    return kind(**options)


def assert_held_out(actual, mean, variance, tolerance=None):
    assert actual.component_means.shape == (1, len(mean))
    assert_close(actual.mean, mean, tolerance=tolerance)
    assert_close(actual.variance, variance, tolerance=tolerance)


def by_conditioning(covariance, z, folds):
    """z of every fold given the others, one fold at a time."""
    mean, variance = np.empty(len(z)), np.empty(len(z))
    for fold in set(folds):
        unseen = np.array([label == fold for label in folds])
        mean[unseen], left = condition(
            covariance[np.ix_(unseen, unseen)],
            covariance[np.ix_(unseen, ~unseen)],
            covariance[np.ix_(~unseen, ~unseen)],
            z[~unseen],
        )
        variance[unseen] = np.diag(left)
    return mean, variance


def by_refitting(predict):
    """`predict` gives mean and variance of what the second mask selects, from the first."""
    mean, variance = np.empty(9), np.empty(9)
    for fold in range(3):
        unseen = fold == FOLDS
        mean[unseen], variance[unseen] = predict(~unseen, unseen)
    return mean, variance


# --------------------------------------------------------------------------- the algebra alone


@pytest.mark.parametrize(
    "folds",
    [
        np.arange(7),
        [0, 0, 0, 0, 0, 0, 3],
        [5, -1, 5, 2, 2, -1, 5],
        ["north", "south", "north", "north", "east", "south", "east"],
        np.array([0.5, 0.25, 0.5, 0.5, 0.25, 0.25, 0.5]),
        [True, False, False, True, True, True, False],
    ],
    ids=["one at a time", "one against all", "unequal", "names", "fractions", "halves"],
)
def test_blocks_of_the_precision_are_conditionals(folds):
    rng = np.random.default_rng(3)
    root = rng.normal(size=(7, 7))
    covariance, z = root @ root.T + 0.1 * np.eye(7), rng.normal(size=7)
    for actual, expected in zip(
        held_out(covariance, z, folds), by_conditioning(covariance, z, folds), strict=True
    ):
        assert_close(actual, expected)


def test_a_fold_without_a_name_is_a_fold():
    covariance, z = np.eye(4) + 0.5, np.arange(4.0)
    unnamed = held_out(covariance, z, np.array([0.0, np.nan, 0.0, np.nan]))
    for actual, expected in zip(unnamed, held_out(covariance, z, [0, 1, 0, 1]), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_held_out_predictions_are_calibrated():
    # 4000 data sets from the prior: squared standardised errors have mean 1, variance 2 and are
    # correlated within a data set; 4 standard errors of the mean over data sets.
    rng = np.random.default_rng(4)
    covariance = gram(KERNEL, PLACES) + 0.2 * np.eye(4)
    root = np.linalg.cholesky(covariance)
    errors = []
    for _ in range(4000):
        z = root @ rng.normal(size=4)
        mean, variance = held_out(covariance, z, [0, 0, 1, 1])
        errors.append(np.mean((z - mean) ** 2 / variance))
    assert abs(np.mean(errors) - 1) < 4 * np.std(errors) / np.sqrt(4000)


# --------------------------------------------------------------------------- refits


@pytest.mark.parametrize("kind", [BaggGP, VBagg])
def test_matched_models_are_those_without_the_fold(kind):
    options = {"fine_noise": True} | ({"inducing": PLACES} if kind is VBagg else {})

    def predict(seen, unseen):
        model = held(kind, **options).fit(BAGS.select(seen), Z[seen])
        post = model.predict_bags(BAGS.select(unseen))
        own = NOISE**2 + FINE**2 / BAGS.effective_sizes[unseen]
        return post.mean, post.variance + own

    model = held(kind, **options).fit(BAGS, Z)
    assert_held_out(model.predict_held_out(FOLDS), *by_refitting(predict))


@pytest.mark.parametrize("kind", [CMP, VarCMP])
def test_mediated_models_are_those_without_the_fold(kind):
    # The operator's uncertainty and high-resolution noise make the folds' errors correlated.
    options = {"fine_noise": True, "uncertainty": True, "centred": True}
    options |= {"inducing": PLACES} if kind is VarCMP else {}

    def predict(seen, unseen):
        model = held(kind, **options).fit(BAGS, Z[seen], mediator=Y_OBSERVED[seen])
        post = model.predict_coarse(Y_OBSERVED[unseen])
        return post.mean, post.variance + NOISE**2

    model = held(kind, **options).fit(BAGS, Z, mediator=Y_OBSERVED)
    assert_held_out(model.predict_held_out(FOLDS), *by_refitting(predict))


@pytest.mark.parametrize("kind", [CMP, VarCMP])
def test_partly_matched_models_are_those_without_the_fold(kind):
    options = {"uncertainty": True} | ({"inducing": PLACES} if kind is VarCMP else {})

    def predict(seen, unseen):
        model = held(kind, **options)
        model.fit(BAGS, Z[seen], mediator=Y_OBSERVED[seen], own_bag=OWN[seen])
        coarse, bags = model.predict_coarse(Y_OBSERVED[unseen]), model.predict_bags(BAGS)
        own = OWN[unseen]
        return (
            np.where(own < 0, coarse.mean, bags.mean[own]),
            np.where(own < 0, coarse.variance, bags.variance[own]) + NOISE**2,
        )

    model = held(kind, **options).fit(BAGS, Z, mediator=Y_OBSERVED, own_bag=OWN)
    assert_held_out(model.predict_held_out(FOLDS), *by_refitting(predict))


# --------------------------------------------------------------------------- dense algebra


def with_trend(points, kernel=KERNEL, kind="linear"):
    """K with the prior covariance of the trend, whose scale is that of all observations."""
    b = np.array([10 * np.sqrt(np.mean(Z**2)), *[3 * np.std(Z)] * 2])
    h = trend_features(kind, points, points)
    return gram(kernel, points) + (h * b[: h.shape[1]] ** 2) @ h.T


@pytest.fixture(scope="module")
def trending():
    return held(BaggGP, trend="linear").fit(BAGS, Z)


def test_a_linear_trend_of_bags(trending):
    covariance = P.T @ with_trend(BAGS.points) @ P + NOISE**2 * np.eye(9)
    expected = by_conditioning(covariance, Z, FOLDS)
    assert_held_out(trending.predict_held_out(FOLDS), *expected)


def test_folds_of_one_observation(trending):
    covariance = P.T @ with_trend(BAGS.points) @ P + NOISE**2 * np.eye(9)
    expected = by_conditioning(covariance, Z, range(9))
    assert_held_out(trending.predict_held_out(range(9)), *expected)


def test_a_linear_trend_through_a_mediator():
    model = held(CMP, trend="linear").fit(BAGS, Z, mediator=Y_OBSERVED)
    a = weighted_replicated_mediation(MEDIATOR_KERNEL, BAGS, RIDGE, Y_OBSERVED)
    covariance = a.T @ with_trend(BAGS.points) @ a + NOISE**2 * np.eye(9)
    assert_held_out(model.predict_held_out(FOLDS), *by_conditioning(covariance, Z, FOLDS))


def test_errors_that_are_known_and_correlated_tell_of_each_other():
    root = np.random.default_rng(7).normal(size=(9, 9))
    errors, std = 0.1 * root @ root.T, np.linspace(0.1, 0.8, 9)
    model = held(BaggGP, learn_noise=True).fit(BAGS, Z, noise_cov=errors, noise_std=std)
    covariance = P.T @ gram(KERNEL, BAGS.points) @ P + errors + np.diag(std**2 + NOISE**2)
    assert_held_out(model.predict_held_out(FOLDS), *by_conditioning(covariance, Z, FOLDS))


@pytest.mark.parametrize("kind", [CentroidGP, VarCentroidGP])
def test_centroids(kind):
    centroids = P.T @ BAGS.points
    options = {"inducing": centroids} if kind is VarCentroidGP else {}
    model = held(kind, **options).fit(BAGS, Z)
    covariance = gram(KERNEL, centroids) + NOISE**2 * np.eye(9)
    expected = by_conditioning(covariance, Z, FOLDS)
    assert_held_out(model.predict_held_out(FOLDS), *expected, tolerance=1e-7)


@pytest.mark.parametrize(
    ("exact", "approximate", "data"),
    [
        (BaggGP, VBagg, {}),
        (CMP, VarCMP, {"mediator": Y_OBSERVED, "own_bag": OWN}),
    ],
)
def test_inducing_points_everywhere_are_exact(exact, approximate, data):
    options = {"trend": "linear"} | ({"uncertainty": True} if data else {})
    expected = held(exact, **options).fit(BAGS, Z, **data).predict_held_out(FOLDS)
    model = held(approximate, inducing=BAGS.points, **options).fit(BAGS, Z, **data)
    # Jitter of 1e-12 on K_ww, over its smallest eigenvalue.
    actual = model.predict_held_out(FOLDS)
    assert_held_out(actual, expected.mean, expected.variance, tolerance=1e-7)


def test_random_features_are_their_own_prior():
    model = held(VBagg, features=30, seed=3).fit(BAGS, Z)
    features = spectral_features(KERNEL, 30, jax.random.key(3), 2)
    means = P.T @ np.asarray(jax.jit(features)(jnp.asarray(BAGS.points)))
    covariance = means @ means.T + NOISE**2 * np.eye(9)
    assert_held_out(model.predict_held_out(FOLDS), *by_conditioning(covariance, Z, FOLDS))


def test_pseudo_targets_are_judged_by_their_first_stage():
    model = PseudoTarget(held(BaggGP), MEDIATOR_KERNEL, n_restarts=1)
    model.fit(BAGS, Z, mediator=Y_OBSERVED)
    values = model.regressor_.parameters_
    kernel = gk.Matern32(
        lengthscale=jnp.asarray(values["kernel.lengthscale"]),
        variance=jnp.asarray(values["kernel.variance"]),
    )
    covariance = with_trend(Y_OBSERVED, kernel, "constant") + values["noise_std"] ** 2 * np.eye(9)
    assert_held_out(model.predict_held_out(FOLDS), *by_conditioning(covariance, Z, FOLDS))


# --------------------------------------------------------------------------- draws of parameters


def test_every_draw_of_the_parameters_is_a_component(monkeypatch):
    noises = np.array([0.2, 0.3, 0.7])
    diagnostics = {"divergences": 0, "r_hat": 1.0, "log_posterior": 0.0}

    def learnt(problem, **_):
        return Optimum(np.asarray(problem.parameters.start()), 0.0, True, 0, 0, (), 0.0)

    def sampled(problem, start, **_):
        draws = [problem.parameters.pack({"noise_std": noise}) for noise in noises]
        return np.stack(draws), diagnostics

    monkeypatch.setattr(learn, "sample_posterior", sampled)
    monkeypatch.setattr(learn, "maximise", learnt)
    fixed = {name: value for name, value in FIELD.items() if name != "noise_std"}
    model = held(BaggGP, method="nuts", fixed=fixed).fit(BAGS, Z)
    smooth = P.T @ gram(KERNEL, BAGS.points) @ P
    parts = [by_conditioning(smooth + noise**2 * np.eye(9), Z, FOLDS) for noise in noises]
    means, variances = (np.stack(part) for part in zip(*parts, strict=True))
    predicted = model.predict_held_out(FOLDS)
    assert_close(predicted.component_means, means)
    assert_close(predicted.component_variances, variances)
    assert_close(predicted.mean, means.mean(0))
    assert_close(predicted.variance, variances.mean(0) + means.var(0))


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "folds",
    [FOLDS[:8], FOLDS[:, None], np.zeros(9), 0],
    ids=["too few", "a table", "one fold", "a number"],
)
def test_folds_that_do_not_divide_the_observations(trending, folds):
    with pytest.raises(ValueError, match="divide the 9 observations into two parts or more"):
        trending.predict_held_out(folds)


@pytest.mark.parametrize("model", [BaggGP(), CMP(), VBagg(), VarCMP(), CentroidGP()])
def test_models_that_are_not_fitted(model):
    with pytest.raises(NotFittedError, match="not fitted; call fit first"):
        model.predict_held_out(FOLDS)


def test_pseudo_targets_that_are_not_fitted():
    with pytest.raises(NotFittedError, match="this PseudoTarget is not fitted"):
        PseudoTarget().predict_held_out(FOLDS)


def test_models_are_left_as_they_were(trending):
    before = trending.predict(PLACES).mean
    trending.predict_held_out(FOLDS)
    np.testing.assert_array_equal(trending.predict(PLACES).mean, before)
