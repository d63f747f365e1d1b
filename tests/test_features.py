"""Random Fourier features in place of the kernel: in learning, in predictions, and their error."""

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from deconditional import Bags, VarCMP, VBagg, feature_error
from deconditional.inference.waves import feature_means
from deconditional.kernels.radial import spectral_features
from helpers import (
    TanhKernel,
    assert_close,
    condition,
    gram,
    ragged_bags,
    trend_features,
    weight_matrix,
)

KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4, "noise_std": 0.3}
MEDIATION = {"mediator_kernel.lengthscale": 0.9, "ridge": 0.02}
BAGS = ragged_bags([3, 1, 7, 4, 2], d=2, weighted=True)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=(6, 1))
Z_MATCHED = RNG.normal(size=5)
X = RNG.normal(size=(5, 2))
P = weight_matrix(BAGS)
SEED, SMALL, LARGE = 3, 40, 20_000


def features_at(x, number):
    """The features a model with this seed uses."""
    draw = jax.jit(spectral_features(KERNEL, number, jax.random.key(SEED), 2))
    return np.asarray(draw(jnp.asarray(x)))


# --------------------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def varcmp():
    model = VarCMP(
        KERNEL,
        MEDIATOR_KERNEL,
        features=SMALL,
        uncertainty=True,
        fine_noise=True,
        trend="linear",
        fixed=FIELD | MEDIATION | {"fine_noise_std": 0.4},
        seed=SEED,
    )
    return model.fit(BAGS, Z, mediator=Y_OBSERVED)


def mediated_regression():
    """Design matrices of z and of f(X), features and trend, and the noise of z.

    The uncertainty of the operator is scaled by τ², the mean prior variance of bag means: those of
    the features here.
    """
    ridge = 0.02 * BAGS.effective_sizes.sum() / BAGS.effective_sizes
    cross = gram(MEDIATOR_KERNEL, BAGS.mediator, Y_OBSERVED)
    w = np.linalg.solve(gram(MEDIATOR_KERNEL, BAGS.mediator) + np.diag(ridge), cross)
    v = gram(MEDIATOR_KERNEL, Y_OBSERVED) - cross.T @ w
    tau2 = np.mean(np.sum((P.T @ features_at(BAGS.points, SMALL)) ** 2, 1))
    a = P @ w
    b = np.array([10 * np.sqrt(np.mean(Z**2)), *[3 * np.std(Z)] * 2])
    design, query = (
        np.hstack([features_at(x, SMALL), b * trend_features("linear", BAGS.points, x)])
        for x in (BAGS.points, X)
    )
    return a.T @ design, query, 0.3**2 * np.eye(6) + 0.4**2 * a.T @ a + tau2 * v


def test_the_bound_of_features_is_the_evidence_of_a_linear_regression(varcmp):
    design, _, noise = mediated_regression()
    expected = multivariate_normal(np.zeros(6), design @ design.T + noise).logpdf(Z)
    assert_close(varcmp.log_evidence_, expected)
    assert varcmp.fit_report_.details["features"] == "40"
    assert varcmp.fit_report_.details["trace"] == "none, features are the prior"
    assert not hasattr(varcmp, "inducing_")


def test_the_posterior_of_features_is_that_of_a_linear_regression(varcmp):
    design, query, noise = mediated_regression()
    post = varcmp.predict(X)
    mean, covariance = condition(query @ query.T, query @ design.T, design @ design.T + noise, Z)
    assert_close(post.mean, mean)
    assert_close(post.variance, np.diag(covariance))
    assert_close(post.covariance(), covariance)


def test_bags_and_samples_of_features(varcmp):
    post, bags = varcmp.predict(X), varcmp.predict_bags(Bags.from_points(X, np.arange(5)))
    assert_close(bags.mean, post.mean)
    assert_close(bags.covariance(), post.covariance())
    samples = post.sample(5000, seed=0, method="pathwise")
    deviations = samples - post.mean
    error = np.sqrt(post.variance / len(samples))
    assert (np.abs(deviations.mean(0)) < 5 * error).all()
    products, c = deviations.T @ deviations / len(samples), post.covariance()
    scale = np.sqrt((np.outer(np.diag(c), np.diag(c)) + c**2) / len(samples))
    assert (np.abs(products - c) < 5 * scale).all()


def test_means_of_features_over_bags():
    draw = spectral_features(KERNEL, SMALL, jax.random.key(SEED), 2)
    means = jax.jit(lambda layout: feature_means(draw, layout))(BAGS.layout)
    assert_close(means, P.T @ features_at(BAGS.points, SMALL))


# --------------------------------------------------------------------------- predictions


@pytest.fixture(scope="module")
def vbagg():
    model = VBagg(KERNEL, inducing=BAGS.points, trend="none", fixed=FIELD, seed=SEED)
    return model.fit(BAGS, Z_MATCHED)


@pytest.mark.parametrize("number", [SMALL, LARGE])
def test_predictions_with_features_are_conditioning_with_their_kernel(number, vbagg):
    phi, at_x = P.T @ features_at(BAGS.points, number), features_at(X, number)
    observed = phi @ phi.T + 0.3**2 * np.eye(5)
    mean, covariance = condition(at_x @ at_x.T, at_x @ phi.T, observed, Z_MATCHED)
    post = vbagg.predict(X, features=number)
    assert_close(post.mean, mean)
    assert_close(post.variance, np.diag(covariance))


def test_predictions_with_features_tend_to_those_with_the_kernel(vbagg):
    # 10 000 frequencies: the kernel is off by about one per cent of its variance.
    few, many = (feature_error(vbagg, X, features=number) for number in (SMALL, LARGE))
    spread = np.sqrt(np.mean(vbagg.predict(X).variance))
    assert many.mean_max < 0.05 * spread
    assert many.std_max < 0.05 * spread
    assert few.mean_rms > 3 * many.mean_rms
    assert few.std_rms > 3 * many.std_rms


def test_the_exact_posterior_is_the_limit(vbagg):
    # With all points inducing, the exact posterior is what predict(x) gives.
    k = P.T @ gram(KERNEL, BAGS.points) @ P + 0.3**2 * np.eye(5)
    cross = gram(KERNEL, X, BAGS.points) @ P
    mean, covariance = condition(gram(KERNEL, X), cross, k, Z_MATCHED)
    assert_close(vbagg.predict(X).mean, mean, tolerance=1e-6)
    assert_close(vbagg.predict(X).variance, np.diag(covariance), tolerance=1e-6)


# --------------------------------------------------------------------------- their error


def test_the_fields_of_a_feature_error(vbagg):
    error = feature_error(vbagg, X, features=SMALL)
    exact, approximate = vbagg.predict(X), vbagg.predict(X, features=SMALL)
    mean, std = approximate.mean - exact.mean, approximate.std - exact.std
    assert (error.features, error.points) == (SMALL, 5)
    assert_close(error.mean_rms, np.sqrt(np.mean(mean**2)))
    assert_close(error.mean_max, np.max(np.abs(mean)))
    assert_close(error.std_rms, np.sqrt(np.mean(std**2)))
    assert_close(error.std_max, np.max(np.abs(std)))
    assert_close(error.relative, np.sqrt(np.mean(mean**2) / np.mean(exact.std**2)))
    assert str(error).startswith("40 features at 5 points: mean off by")


class Fake:
    """A model whose predictions are known: off by `error` where x is large."""

    class Post:
        def __init__(self, mean, std):
            self.mean, self.std, self.variance = mean, std, std**2

    def __init__(self, std=2.0):
        self.std = std

    def predict(self, x, features=None):
        error = np.where(x[:, 0] > 50, 0.5, 0.0) if features else np.zeros(len(x))
        return self.Post(error, np.full(len(x), self.std) - error)


def test_errors_are_measured_at_so_many_of_the_points():
    x = np.arange(100.0)[:, None]
    every = feature_error(Fake(), x, features=7)
    assert_close(every.mean_rms, np.sqrt(0.49 * 0.25))
    assert_close(every.std_rms, every.mean_rms)
    assert_close(every.relative, every.mean_rms / 2.0)
    some, again, other = (
        feature_error(Fake(), x, features=7, points=11, seed=s) for s in (0, 0, 1)
    )
    assert some.points == 11
    assert some == again
    assert some.mean_rms != other.mean_rms
    # A share k/11 of points is off by one half.
    k = 11 * some.mean_rms**2 / 0.25
    assert_close(k, np.round(k))


def test_an_error_beside_no_uncertainty_at_all():
    x = np.array([[0.0], [100.0]])
    assert feature_error(Fake(std=0.0), x[:1], features=7).relative == 0.0
    assert feature_error(Fake(std=0.0), x, features=7).relative == np.inf


# --------------------------------------------------------------------------- other kernels


def test_kernels_without_a_spectral_measure_are_refused_before_any_fit(monkeypatch):
    def fail(*_):
        raise AssertionError("a fit began")

    monkeypatch.setattr("deconditional.models.base.learn", fail)
    for kernel in (TanhKernel(0.8), gk.RBF() + gk.Linear(), gk.Periodic()):
        with pytest.raises(TypeError, match="no known spectral measure"):
            VBagg(kernel, features=50).fit(BAGS, Z_MATCHED)
