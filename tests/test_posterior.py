"""What one asks of a posterior: moments, quantiles, samples and coarse values."""

from dataclasses import replace

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.base import clone

from deconditional import CMP, BaggGP, Bags, Posterior
from deconditional.inference import exact, posterior
from deconditional.inference.posterior import CoarsePosterior, Gaussians
from helpers import (
    assert_close,
    assert_positive_semidefinite,
    condition,
    gram,
    ragged_bags,
    trend_features,
    weight_matrix,
)

KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
RIDGE, NOISE, FINE = 0.02, 0.3, 0.4
FIXED = {
    "kernel.lengthscale": [0.8, 1.3],
    "kernel.variance": 1.4,
    "mediator_kernel.lengthscale": 0.9,
    "ridge": RIDGE,
    "noise_std": NOISE,
}
BAGS = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2, weighted=True)
NEW_BAGS = ragged_bags([2, 5, 1], d=2, weighted=True, seed=9)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=(6, 1))
Y_NEW = RNG.normal(size=(4, 1))
X = RNG.normal(size=(5, 2))

OPTIONS = {
    "plain": {"trend": "none"},
    "noise": {"trend": "constant", "fine_noise": True},
    "full": {"trend": "linear", "fine_noise": True, "uncertainty": True},
}


@pytest.fixture(scope="module")
def fitted():
    models = {}
    for name, options in OPTIONS.items():
        fixed = FIXED | ({"fine_noise_std": FINE} if options.get("fine_noise") else {})
        model = CMP(KERNEL, MEDIATOR_KERNEL, fixed=fixed, **options)
        models[name] = model.fit(BAGS, Z, mediator=Y_OBSERVED)
    return models


def test_many_points_are_rounded_where_that_changes_little(fitted, monkeypatch):
    precise = fitted["noise"].predict(X)
    assert precise.mean.shape == (5,)  # computed here
    monkeypatch.setattr(exact, "MANY", 0)
    quick = fitted["noise"].predict(X)
    off = np.maximum(abs(quick.mean - precise.mean), abs(quick.std - precise.std)) / precise.std
    assert 0 < off.max() < exact.AS_GOOD
    # Draws share what is compiled, so their points count together.
    field = precise.fields[0]
    monkeypatch.setattr(exact, "MANY", len(X) * len(field.layout.points) + 1)
    assert np.array_equal(Posterior([field], X, may_round=True).mean, precise.component_means[0])
    two = Posterior([field, replace(field)], X, may_round=True)
    assert np.array_equal(two.mean, quick.mean)
    # A user who names a precision gets it.
    asked = clone(fitted["noise"]).set_params(precision="float64").fit(BAGS, Z, mediator=Y_OBSERVED)
    assert_close(asked.predict(X).mean, precise.mean)


def test_points_are_not_rounded_where_observations_magnify_that(monkeypatch):
    x = np.linspace(0.0, 3.0, 40)
    fixed = {"kernel.lengthscale": 1.0, "kernel.variance": 1.0}
    model = BaggGP(gk.RBF(), trend="none", fixed=fixed)
    model.fit(Bags.from_points(x, np.arange(40)), np.sin(x), noise_std=1e-5)
    precise = model.predict(x + 0.01).mean
    monkeypatch.setattr(exact, "MANY", 0)
    assert np.array_equal(model.predict(x + 0.01).mean, precise)


class Joint:
    """The joint Gaussian of everything in a model, dense."""

    def __init__(self, model, **options):
        self.kind = options["trend"]
        self.fine = FINE if options.get("fine_noise") else 0.0
        self.p = weight_matrix(BAGS)
        self.b = np.asarray(model.fitted_.problem.trend.prior_std)
        k_bar = self.p.T @ gram(KERNEL, BAGS.points) @ self.p
        self.tau2 = np.mean(np.diag(k_bar)) if options.get("uncertainty") else 0.0
        self.noisy = gram(MEDIATOR_KERNEL, BAGS.mediator) + np.diag(
            RIDGE * BAGS.effective_sizes.sum() / BAGS.effective_sizes
        )
        of_bags = self.p.T @ self.field(BAGS.points, BAGS.points) @ self.p
        self.of_bags = of_bags + self.fine**2 * self.p.T @ self.p
        self.observed = self.process(Y_OBSERVED, Y_OBSERVED) + NOISE**2 * np.eye(len(Z))

    def field(self, x, other):
        """Prior covariance of f with its trend."""
        h, h_other = (self.b * trend_features(self.kind, BAGS.points, v) for v in (x, other))
        return gram(KERNEL, x, other) + h @ h_other.T

    def weights(self, y):
        return np.linalg.solve(self.noisy, gram(MEDIATOR_KERNEL, BAGS.mediator, y))

    def process(self, y, other):
        """Prior covariance of the conditional mean process."""
        left = gram(MEDIATOR_KERNEL, y, BAGS.mediator)
        uncertainty = gram(MEDIATOR_KERNEL, y, other) - left @ self.weights(other)
        return self.weights(y).T @ self.of_bags @ self.weights(other) + self.tau2 * uncertainty

    def coarse(self, y):
        cross = self.process(y, Y_OBSERVED)
        return condition(self.process(y, y), cross, self.observed, Z)

    def linear(self, points, p):
        """Posterior of pᵀ f(points)."""
        cross = p.T @ self.field(points, BAGS.points) @ self.p @ self.weights(Y_OBSERVED)
        return condition(p.T @ self.field(points, points) @ p, cross, self.observed, Z)


@pytest.fixture(scope="module", params=OPTIONS)
def case(request, fitted):
    model = fitted[request.param]
    return model, Joint(model, **OPTIONS[request.param])


# --------------------------------------------------------------------------- joint Gaussian


def test_predictions_are_the_conditional_of_the_joint(case):
    model, joint = case
    mean, covariance = joint.linear(X, np.eye(len(X)))
    post = model.predict(X)
    assert_close(post.mean, mean)
    assert_close(post.covariance(), covariance)
    assert_close(post.variance, np.diag(covariance))
    assert_close(post.std, np.sqrt(np.diag(covariance)))


def test_coarse_predictions_are_the_conditional_of_the_joint(case):
    model, joint = case
    mean, covariance = joint.coarse(Y_NEW)
    coarse = model.predict_coarse(Y_NEW)
    assert_close(coarse.mean, mean)
    assert_close(coarse.covariance(), covariance)
    assert_close(coarse.variance, np.diag(covariance))
    assert_positive_semidefinite(coarse.covariance())


def test_bag_predictions_are_the_conditional_of_the_joint(case):
    model, joint = case
    mean, covariance = joint.linear(NEW_BAGS.points, weight_matrix(NEW_BAGS))
    bags = model.predict_bags(NEW_BAGS)
    assert_close(bags.mean, mean)
    assert_close(bags.covariance(), covariance)


def test_variance_never_exceeds_the_prior_without_a_trend(fitted):
    x = np.random.default_rng(3).normal(size=(200, 2)) * 3
    variance = fitted["plain"].predict(x).variance
    assert (variance <= 1.4 * (1 + 1e-12)).all()
    assert (variance > 0).all()
    far = fitted["plain"].predict([[50.0, 50.0]])
    assert_close(far.variance, [1.4])
    assert_close(far.mean, [0.0])


# --------------------------------------------------------------------------- high-resolution noise


def test_fine_noise_widens_what_is_predicted(fitted):
    smooth, single = (fitted["full"].predict(X, fine_noise=noisy) for noisy in (False, True))
    assert_close(single.mean, smooth.mean)
    assert_close(single.variance, smooth.variance + FINE**2)
    assert_close(single.covariance(), smooth.covariance() + FINE**2 * np.eye(len(X)))


def test_fine_noise_is_independent_between_sampled_points(fitted):
    post = fitted["full"].predict(X, fine_noise=True)
    samples = post.sample(20_000, seed=5, method="joint")
    assert_moments(samples, post.mean, post.covariance())


def test_fine_noise_that_was_never_fitted_is_an_error(fitted):
    with pytest.raises(ValueError, match="fit with fine_noise=True"):
        fitted["plain"].predict(X, fine_noise=True)


# --------------------------------------------------------------------------- blocks


def test_predictions_in_blocks_equal_those_at_once(fitted, monkeypatch):
    x = np.random.default_rng(3).normal(size=(40, 2))
    model = fitted["full"]
    whole = model.predict(x)
    mean, variance = whole.mean, whole.variance
    sample = whole.sample(3, seed=1, method="pathwise", n_features=50)
    monkeypatch.setattr(posterior, "BLOCK", 16)
    blocks = model.predict(x)
    assert_close(blocks.mean, mean)
    assert_close(blocks.variance, variance)
    assert_close(blocks.sample(3, seed=1, method="pathwise", n_features=50), sample)


def test_nothing_is_computed_until_it_is_asked_for(fitted, monkeypatch):
    def fail(*_):
        raise AssertionError("computed too early")

    monkeypatch.setattr(posterior, "blocks", fail)
    assert repr(fitted["plain"].predict(X)) == "Posterior(5 points)"


# --------------------------------------------------------------------------- marginals


def test_quantiles_and_intervals_of_one_gaussian(fitted):
    post = fitted["plain"].predict(X)
    reference = norm(post.mean, post.std)
    assert_close(post.quantile(0.1), reference.ppf(0.1))
    assert_close(post.quantile([0.1, 0.5, 0.99]), reference.ppf([[0.1], [0.5], [0.99]]))
    lower, upper = post.interval(0.9)
    assert_close(lower, reference.ppf(0.05))
    assert_close(upper, reference.ppf(0.95))
    default, _ = post.interval()
    assert_close(default, reference.ppf(0.025))
    values = np.linspace(-1, 1, 5)
    assert_close(post.cdf(values), reference.cdf(values))
    assert_close(post.cdf(0.3), reference.cdf(0.3))


MEANS = np.array([[0.0, 1.0, -5.0], [0.5, 1.0, 5.0], [-1.0, 1.2, 5.0]])
VARIANCES = np.array([[1.0, 0.01, 0.1], [0.2, 0.04, 0.1], [4.0, 1.0, 0.1]])


def mixture_cdf(value, point):
    return norm(MEANS[:, point], np.sqrt(VARIANCES[:, point])).cdf(value).mean()


@pytest.mark.parametrize("level", [0.001, 0.025, 0.3, 0.5, 0.9, 0.999])
def test_mixture_quantiles_invert_the_mixture_cdf(level):
    mixture = Gaussians(MEANS, VARIANCES)
    expected = [brentq(lambda v, j=j: mixture_cdf(v, j) - level, -30, 30) for j in range(3)]
    assert_close(mixture.quantile(level), expected)
    assert_close(mixture.cdf(expected), np.full(3, level))


def test_mixture_intervals_hold_their_share_of_samples():
    # Coverage of 100 000 draws has standard error sqrt(0.9 · 0.1 / n) = 0.00095.
    rng = np.random.default_rng(0)
    which = rng.integers(3, size=100_000)
    draws = MEANS[which] + np.sqrt(VARIANCES[which]) * rng.standard_normal((len(which), 3))
    mixture = Gaussians(MEANS, VARIANCES)
    lower, upper = mixture.interval(0.9)
    assert (np.abs(((draws > lower) & (draws < upper)).mean(0) - 0.9) < 4 * 0.00095).all()
    assert_moments(draws, mixture.mean, np.cov(MEANS.T, bias=True) + np.diag(VARIANCES.mean(0)))
    assert_close(mixture.variance, VARIANCES.mean(0) + MEANS.var(0))


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 2.0, np.nan])
def test_levels_lie_between_zero_and_one(bad):
    mixture = Gaussians(MEANS, VARIANCES)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixture.quantile(bad)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixture.interval(bad)


# --------------------------------------------------------------------------- mixtures of fields


@pytest.fixture(scope="module")
def averaged(fitted):
    fields = fitted["plain"].predict(X).fields + fitted["noise"].predict(X).fields
    return Posterior(fields, X)


def test_a_mixture_of_fields_follows_the_law_of_total_covariance(averaged, fitted):
    parts = [fitted[name].predict(X) for name in ("plain", "noise")]
    means = np.stack([part.mean for part in parts])
    within = np.mean([part.covariance() for part in parts], axis=0)
    assert_close(averaged.mean, means.mean(0))
    assert_close(averaged.covariance(), within + np.cov(means.T, bias=True))
    assert_close(averaged.variance, np.diag(averaged.covariance()))
    assert repr(averaged) == "Posterior(5 points, averaged over 2 draws)"


def test_samples_of_a_mixture_have_its_moments(averaged):
    samples = averaged.sample(20_000, seed=2)
    assert_moments(samples, averaged.mean, averaged.covariance(), gaussian=False)


def test_coarse_mixtures_follow_the_law_of_total_covariance():
    root = np.random.default_rng(4).normal(size=(2, 3, 3))
    covariances = root @ np.swapaxes(root, 1, 2)
    mixture = CoarsePosterior(MEANS[:2], covariances)
    total = covariances.mean(0) + np.cov(MEANS[:2].T, bias=True)
    assert_close(mixture.covariance(), total)
    assert_close(mixture.variance, np.diag(total))
    assert_moments(mixture.sample(20_000, seed=3), MEANS[:2].mean(0), total, gaussian=False)


def test_a_coarse_posterior_of_one_value():
    one = CoarsePosterior(np.array([[0.3]]), np.array([[[2.0]]]))
    assert_close(one.covariance(), [[2.0]])
    two = CoarsePosterior(np.array([[0.0], [1.0]]), np.array([[[2.0]], [[3.0]]]))
    assert_close(two.covariance(), [[2.75]])


# --------------------------------------------------------------------------- samples


def assert_moments(samples, mean, covariance, gaussian=True):
    """Sample mean and covariance within 4.5 standard errors, which the samples themselves give
    unless they are known to be Gaussian."""
    n = len(samples)
    deviations = samples - mean
    variance = np.diag(covariance)
    assert (np.abs(deviations.mean(0)) < 4.5 * np.sqrt(variance / n)).all()
    products = deviations[:, :, None] * deviations[:, None, :]
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / n)
    if not gaussian:
        error = products.std(0) / np.sqrt(n)
    assert (np.abs(products.mean(0) - covariance) < 4.5 * error).all()


@pytest.mark.parametrize("name", ["plain", "full"])
def test_joint_samples_have_the_posterior_moments(name, fitted):
    post = fitted[name].predict(X)
    assert_moments(post.sample(20_000, seed=0, method="joint"), post.mean, post.covariance())


def test_coarse_samples_have_the_posterior_moments(fitted):
    coarse = fitted["full"].predict_coarse(Y_NEW)
    assert_moments(coarse.sample(20_000, seed=0), coarse.mean, coarse.covariance())


SETS, PATHS = 5, 800


def test_pathwise_samples_have_the_posterior_moments(fitted):
    # Paths of one seed share their random features, so the sets are the independent units: means
    # and covariances of each, unbiased since they are linear in the prior's, are averaged and
    # compared within 7 standard errors (a t distribution with 4 degrees of freedom).
    post = fitted["full"].predict(X)
    mean, covariance = post.mean, post.covariance()
    deviations = np.stack(
        [post.sample(PATHS, seed=s, method="pathwise", n_features=1000) for s in range(SETS)]
    )
    deviations = deviations - mean
    products = np.einsum("sna,snb->sab", deviations, deviations) / PATHS
    for actual, expected in ((deviations.mean(1), 0.0), (products, covariance)):
        error = actual.std(0, ddof=1) / np.sqrt(SETS)
        assert (np.abs(actual.mean(0) - expected) < 7 * error).all()
        assert error.max() < 0.1 * np.max(np.abs(covariance))


@pytest.mark.parametrize("method", ["joint", "pathwise"])
def test_samples_are_seeded(method, fitted):
    post = fitted["plain"].predict(X)
    one, again, other = (post.sample(2, seed=s, method=method, n_features=20) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


def test_many_points_are_sampled_pathwise_by_default(fitted, monkeypatch):
    post = fitted["plain"].predict(X)
    monkeypatch.setattr(posterior, "JOINT_LIMIT", 4)
    pathwise = post.sample(2, seed=1, method="pathwise", n_features=20)
    np.testing.assert_array_equal(post.sample(2, seed=1, n_features=20), pathwise)


def test_samples_of_noiseless_observations_are_finite():
    model = CMP(KERNEL, MEDIATOR_KERNEL, trend="none", fixed=FIXED | {"noise_std": 0.0})
    post = model.fit(BAGS, Z, mediator=Y_OBSERVED).predict(X)
    for method in ("joint", "pathwise"):
        assert np.isfinite(post.sample(2, method=method, n_features=20)).all()


def test_bad_requests_for_samples(fitted):
    post = fitted["plain"].predict(X)
    with pytest.raises(ValueError, match="at least one"):
        post.sample(0)
    with pytest.raises(ValueError, match="method must be"):
        post.sample(1, method="gibbs")


def test_kernels_without_a_spectral_measure_can_only_be_sampled_jointly():
    fixed = {"kernel.variance": 0.5, "noise_std": NOISE}
    model = BaggGP(gk.Linear(), trend="none", fixed=fixed).fit(BAGS, np.arange(8.0))
    post = model.predict(X)
    with pytest.raises(TypeError, match="method='joint'"):
        post.sample(1, method="pathwise")
    samples = post.sample(20_000, seed=1)
    assert_moments(samples, post.mean, post.covariance())
