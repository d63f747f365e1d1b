"""Collapsed bounds and the posteriors that attain them, against dense matrices and exact models."""

from functools import cache

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from deconditional import CMP, BaggGP, Bags, CentroidGP, Posterior, VarCentroidGP, VarCMP, VBagg
from deconditional.fitting.evaluation import loss_and_gradient
from deconditional.inference.basis_field import regress
from deconditional.kernels.linalg import NoiseRoot, add_covariances, as_matrix, escalating_cholesky
from helpers import (
    FINITE_DIFFERENCE_TOLERANCE,
    assert_close,
    assert_positive_semidefinite,
    bordered_system,
    condition,
    finite_difference,
    gram,
    problem_of,
    ragged_bags,
    shared_weight_matrix,
    trend_features,
    weight_matrix,
)

KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4}
MEDIATION = {"mediator_kernel.lengthscale": 0.9, "ridge": 0.02}
NOISE, FINE = {"noise_std": 0.3}, {"fine_noise_std": 0.4}

BAGS = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2, weighted=True)
SMALL = ragged_bags([1, 2, 2, 1, 3, 1, 1, 1], d=2, weighted=True, seed=2)
NEW_BAGS = ragged_bags([2, 5, 1], d=2, weighted=True, seed=9)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=(6, 1))
Z_MATCHED = RNG.normal(size=8)
Y_NEW = RNG.normal(size=(4, 1))
X = RNG.normal(size=(5, 2))
PLACES = 1.2 * RNG.normal(size=(12, 2))


def overlapping():
    rng = np.random.default_rng(6)
    membership = rng.uniform(size=(12, 8)) * (rng.uniform(size=(12, 8)) < 0.5)
    membership[np.arange(8), np.arange(8)] = 1.0
    return Bags.from_membership(rng.normal(size=(12, 2)), membership)


class Dense:
    """The model with k(·, w) k(w, w)⁻¹ k(w, ·) beside k, all of it n x n.

    Observations are linear in the field at distinct points: z = Aᵀf + e.
    """

    def __init__(self, model, bags, z, mediator=None, noise_std=0.0):
        values = model.fixed
        self.z, self.kind, self.bags = z, model.trend, bags
        self.kernel = gk.RBF(
            lengthscale=jnp.asarray(values["kernel.lengthscale"]),
            variance=values["kernel.variance"],
        )
        self.inducing = np.asarray(model.inducing)
        self.p = shared_weight_matrix(bags)
        self.points = np.empty((len(self.p), bags.points.shape[1]))
        self.points[bags.point] = bags.points
        slopes = [3.0 * np.std(z)] * bags.points.shape[1]
        every = np.array([10.0 * np.sqrt(np.mean(z**2)), *slopes])
        self.trend_std = every[: {"none": 0, "constant": 1, "linear": 3}[self.kind]]
        self.fine = values.get("fine_noise_std", 0.0)
        m = len(z)
        self.s = values["noise_std"] ** 2 * np.eye(m) + np.diag(np.full(m, noise_std) ** 2)
        self.a, self.tau2 = self.p, 0.0
        if mediator is not None:
            self.mediate(model, mediator)
        self.s = self.s + self.fine**2 * self.a.T @ self.a

    def mediate(self, model, mediator):
        """A = P W, and the uncertainty of W in the noise."""
        values = model.fixed
        self.observed_at, self.centred = mediator, model.centred
        self.mediator_kernel = gk.Matern32(lengthscale=values["mediator_kernel.lengthscale"])
        sizes = self.bags.effective_sizes
        ridge = sizes.sum() / sizes if model.cmo == "standard" else np.full(len(sizes), len(sizes))
        self.ridge = values["ridge"] * ridge
        self.a = self.p @ self.weights(mediator)
        if model.uncertainty:
            self.tau2 = np.mean(np.diag(self.p.T @ self.k(self.points, self.points) @ self.p))
            self.s = self.s + self.tau2 * self.uncertainty(mediator, mediator)

    def _right(self, y):
        right = gram(self.mediator_kernel, self.bags.mediator, y)
        return np.vstack([right, np.ones((1, len(y)))]) if self.centred else right

    def _solved(self, y):
        system = bordered_system(self.mediator_kernel, self.bags.mediator, self.ridge)
        n = len(system) - (not self.centred)
        return np.linalg.solve(system[:n, :n], self._right(y))

    def weights(self, y):
        return self._solved(y)[: self.bags.n_bags]

    def uncertainty(self, y, other):
        return gram(self.mediator_kernel, y, other) - self._right(y).T @ self._solved(other)

    def k(self, x, other):
        return gram(self.kernel, x, other)

    def trend(self, x, other):
        h, g = (self.trend_std * trend_features(self.kind, self.bags.points, v) for v in (x, other))
        return h @ g.T

    def projected(self, x, other):
        """Prior covariance of the projection on the inducing variables."""
        inner = np.linalg.solve(self.k(self.inducing, self.inducing), self.k(self.inducing, other))
        return self.k(x, self.inducing) @ inner

    def covariance(self, prior):
        """Prior covariance of z under a prior of the field."""
        return self.a.T @ (prior + self.trend(self.points, self.points)) @ self.a + self.s

    def evidence(self):
        total = self.covariance(self.k(self.points, self.points))
        return multivariate_normal(np.zeros(len(self.z)), total).logpdf(self.z)

    def bound(self):
        projected = self.projected(self.points, self.points)
        rest = self.a.T @ (self.k(self.points, self.points) - projected) @ self.a
        fit = multivariate_normal(np.zeros(len(self.z)), self.covariance(projected)).logpdf(self.z)
        return fit - 0.5 * np.trace(np.linalg.solve(self.s, rest))

    def posterior(self, x):
        """The posterior of the projection; what it leaves out keeps its prior."""
        prior = self.projected(x, x) + self.trend(x, x)
        cross = (self.projected(x, self.points) + self.trend(x, self.points)) @ self.a
        observed = self.covariance(self.projected(self.points, self.points))
        mean, covariance = condition(prior, cross, observed, self.z)
        return mean, covariance + self.k(x, x) - self.projected(x, x)

    def coarse(self, y):
        """E over q(f) of p(g(y) | f, z): noise of g is correlated with that of z, given f."""
        a_new = self.p @ self.weights(y)
        shared = self.fine**2 * a_new.T @ self.a
        shared = shared + self.tau2 * self.uncertainty(y, self.observed_at)
        own = self.fine**2 * a_new.T @ a_new + self.tau2 * self.uncertainty(y, y)
        gain = np.linalg.solve(self.s, shared.T).T
        of_f = a_new.T - gain @ self.a.T
        mean, covariance = self.posterior(self.points)
        own_given_z = own - gain @ shared.T
        return of_f @ mean + gain @ self.z, of_f @ covariance @ of_f.T + own_given_z


def held(kind, **options):
    return kind(**options)


def vbagg(size, kind=VBagg, **options):
    fixed = FIELD | NOISE | (FINE if options.get("fine_noise") else {})
    options = {"kernel": KERNEL, "inducing": PLACES[:size], "fixed": fixed} | options
    return held(kind, **options)


def varcmp(size, kind=VarCMP, **options):
    fixed = FIELD | NOISE | MEDIATION | (FINE if options.get("fine_noise") else {})
    shared = {"kernel": KERNEL, "mediator_kernel": MEDIATOR_KERNEL, "fixed": fixed}
    return held(kind, **(shared | {"inducing": PLACES[:size]} | options))


MEDIATED = {"bags": BAGS, "z": Z, "mediator": Y_OBSERVED}
FEW = MEDIATED | {"bags": SMALL}
OVERLAPPING = overlapping()
MATCHED = {"bags": BAGS, "z": Z_MATCHED}
EVERYTHING = {"uncertainty": True, "fine_noise": True, "trend": "linear"}
CASES = {
    # Matched, eight observations: fewer of them than basis functions, or more.
    "plain": (vbagg(12, trend="none"), MATCHED),
    "a noise of its own for each": (
        vbagg(12, trend="none", learn_noise=True),
        MATCHED | {"noise_std": np.linspace(0.1, 0.8, 8)},
    ),
    "fine noise": (vbagg(4, trend="linear", fine_noise=True), MATCHED),
    "shared points": (
        vbagg(12, trend="none", fine_noise=True),
        {"bags": OVERLAPPING, "z": Z_MATCHED},
    ),
    # Mediated, six observations.
    "standard": (varcmp(4, trend="none"), MEDIATED),
    "shrinkage": (varcmp(4, trend="none", cmo="shrinkage"), MEDIATED),
    "centred and uncertain": (varcmp(4, trend="none", uncertainty=True, centred=True), MEDIATED),
    "everything": (varcmp(12, **EVERYTHING), FEW),
}


@cache
def solved(name):
    """A problem, its posterior, and the dense oracle of both."""
    model, data = CASES[name]
    arguments = {"mediator": None, "noise_std": None, "noise_cov": None} | data
    problem = problem_of(model, **arguments)
    return problem.solve(jnp.zeros(0))[1], Dense(model, **data)


# --------------------------------------------------------------------------- the bound


@pytest.mark.parametrize("name", CASES)
def test_the_bound_is_the_dense_one(name):
    field, dense = solved(name)
    assert_close(field.log_evidence, dense.bound())


@pytest.mark.parametrize("name", CASES)
def test_the_penalty_matters_and_the_bound_is_below_the_evidence(name):
    field, dense = solved(name)
    assert float(field.log_evidence) < dense.evidence() - 1e-3


def test_noise_shared_through_points_is_correlated():
    _, dense = solved("shared points")
    assert np.abs(dense.s - np.diag(np.diag(dense.s))).max() > 0.01


@pytest.mark.parametrize("name", ["fine noise", "everything"])
def test_the_bound_holds_for_any_parameters_and_any_inducing_points(name):
    template, data = CASES[name]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        fixed = {
            key: np.asarray(value) * np.exp(0.7 * rng.normal(size=np.shape(value)))
            for key, value in template.fixed.items()
        }
        places = rng.normal(size=template.inducing.shape) * rng.uniform(0.3, 2.0)
        model = type(template)(**template.get_params(deep=False))
        model.set_params(fixed=fixed, inducing=places)
        arguments = {"mediator": None, "noise_std": None, "noise_cov": None} | data
        field = problem_of(model, **arguments).solve(jnp.zeros(0))[1]
        dense = Dense(model, **data)
        assert_close(field.log_evidence, dense.bound(), tolerance=1e-7)
        assert float(field.log_evidence) <= dense.evidence() + 1e-8


@pytest.mark.parametrize("name", ["fine noise", "everything"])
def test_more_inducing_points_never_lower_the_bound(name):
    # Places far from all points stand in for those not yet there, so that one shape serves all.
    template, data = CASES[name]
    size = len(template.inducing)
    counts = np.linspace(0, size, 5).astype(int)
    far = 30.0 + 12.0 * np.arange(size)[:, None] * np.ones(2)
    bounds = []
    for count in counts:
        places = np.concatenate([template.inducing[:count], far[count:]])
        model = type(template)(**template.get_params(deep=False)).set_params(inducing=places)
        arguments = {"mediator": None, "noise_std": None, "noise_cov": None} | data
        bounds.append(float(problem_of(model, **arguments).solve(jnp.zeros(0))[1].log_evidence))
    assert (np.diff(bounds) > -1e-9).all()
    assert bounds[-1] > bounds[0] + 0.1
    assert_close(bounds[-1], solved(name)[1].bound())


def test_gradients_equal_finite_differences():
    options = EVERYTHING | {"learn_inducing": True, "fixed": None}
    problem = problem_of(varcmp(3, **options), **FEW)
    start = np.asarray(problem.parameters.start())
    assert problem.parameters.names()[-6:] == [f"inducing[{i}]" for i in range(6)]
    vector = start + 0.1 * np.random.default_rng(2).normal(size=len(start))
    value, gradient = loss_and_gradient(problem, jnp.asarray(vector))
    assert np.isfinite(float(value))
    assert (np.abs(np.asarray(gradient)) > 1e-6).all()
    expected = finite_difference(lambda v: loss_and_gradient(problem, jnp.asarray(v))[0], vector)
    assert_close(gradient, expected, tolerance=FINITE_DIFFERENCE_TOLERANCE)


# --------------------------------------------------------------------------- the posterior


@pytest.mark.parametrize("name", ["fine noise", "everything"])
def test_the_posterior_is_the_dense_one(name):
    field, dense = solved(name)
    post = Posterior([field], X)
    mean, covariance = dense.posterior(X)
    assert_close(post.mean, mean)
    assert_close(post.variance, np.diag(covariance))
    assert_close(post.covariance(), covariance)


def test_the_posterior_of_bags_is_the_dense_one():
    field, dense = solved("everything")
    mean, covariance = field.bag_moments(NEW_BAGS)
    p = weight_matrix(NEW_BAGS)
    of_points, between = dense.posterior(NEW_BAGS.points)
    assert_close(mean, p.T @ of_points)
    assert_close(covariance, p.T @ between @ p)
    assert_positive_semidefinite(covariance)


@pytest.fixture(scope="module")
def everything():
    return varcmp(12, **EVERYTHING).fit(**FEW)


def test_bags_of_single_points_are_points(everything):
    bags, points = everything.predict_bags(Bags.from_points(X, np.arange(5))), everything.predict(X)
    assert_close(bags.mean, points.mean)
    assert_close(bags.covariance(), points.covariance())


def test_coarse_predictions_are_those_of_the_field_under_q(everything):
    coarse = everything.predict_coarse(Y_NEW)
    mean, covariance = solved("everything")[1].coarse(Y_NEW)
    assert_close(coarse.mean, mean)
    assert_close(coarse.covariance(), covariance)


def test_fine_noise_widens_what_is_predicted(everything):
    smooth, single = (everything.predict(X, fine_noise=noisy) for noisy in (False, True))
    assert_close(single.mean, smooth.mean)
    assert_close(single.variance, smooth.variance + FINE["fine_noise_std"] ** 2)


def assert_moments(samples, mean, covariance, slack=0.0):
    """Within five standard errors, and covariances within `slack` more."""
    n, variance = len(samples), np.diag(covariance)
    deviations = samples - mean
    assert (np.abs(deviations.mean(0)) < 5 * np.sqrt((variance + slack) / n)).all()
    products = deviations.T @ deviations / n
    error = 5 * np.sqrt((np.outer(variance, variance) + covariance**2) / n) + slack
    assert (np.abs(products - covariance) < error).all()


def test_joint_samples_have_the_moments_of_the_posterior():
    field, dense = solved("everything")
    samples = Posterior([field], X).sample(20_000, seed=0, method="joint")
    assert_moments(samples, *dense.posterior(X))


def test_paths_take_the_values_of_their_coefficients_at_the_inducing_points():
    basis = solved("fine noise")[0].basis
    coefficients = np.random.default_rng(3).normal(size=(4, 3))
    key, places = jax.random.key(2), jnp.asarray(PLACES[:4])
    waves, loadings, own, _ = basis.completed(key, jnp.asarray(coefficients), 50)
    at = waves.draws(loadings, places) + basis.features(places) @ own
    assert_close(at, np.linalg.cholesky(gram(KERNEL, PLACES[:4])) @ coefficients)


def test_pathwise_samples_have_the_moments_of_the_posterior():
    # The basis leaves a part to random features. Its covariances are off by a share of the prior's
    # variance of about one over the root of the number of frequencies; five of those are allowed.
    field, dense = solved("fine noise")
    mean, covariance = dense.posterior(X)
    samples = field.path(jax.random.key(1), 1000, 2000)(jnp.asarray(X)).T
    assert_moments(np.asarray(samples), mean, covariance, slack=5 * 1.4 / np.sqrt(1000))


# --------------------------------------------------------------------------- exact models


def assert_same_predictions(one, other, tolerance=1e-5):
    assert_close(one.predict(X).mean, other.predict(X).mean, tolerance=tolerance)
    assert_close(one.predict(X).std, other.predict(X).std, tolerance=tolerance)


def test_with_all_points_varcmp_is_cmp():
    model = varcmp(0, inducing=SMALL.points, **EVERYTHING).fit(**FEW)
    options = {"kernel": KERNEL, "mediator_kernel": MEDIATOR_KERNEL, "fixed": model.fixed}
    exact = held(CMP, **options, **EVERYTHING).fit(**FEW)
    assert_close(model.log_evidence_, exact.log_evidence_, tolerance=1e-6)
    assert_same_predictions(model, exact)
    # What test_posterior.py asks of a CMP: here inducing points are all points, so the oracle of
    # this file is the exact one.
    dense, p = Dense(model, **FEW), weight_matrix(NEW_BAGS)
    of_points, between = dense.posterior(NEW_BAGS.points)
    for found, expected in (
        (model.predict(X), dense.posterior(X)),
        (model.predict_bags(NEW_BAGS), (p.T @ of_points, p.T @ between @ p)),
        (model.predict_coarse(Y_NEW), dense.coarse(Y_NEW)),
    ):
        assert_close(found.mean, expected[0], tolerance=1e-5)
        assert_close(found.covariance(), expected[1], tolerance=1e-5)


def test_with_all_points_vbagg_is_bagg_gp():
    options = {"trend": "none", "fine_noise": True}
    model = vbagg(0, inducing="kmeans", **options).fit(OVERLAPPING, Z_MATCHED)
    assert model.inducing_.shape == (12, 2)
    exact = held(BaggGP, kernel=KERNEL, fixed=model.fixed, **options).fit(OVERLAPPING, Z_MATCHED)
    assert_close(model.log_evidence_, exact.log_evidence_, tolerance=1e-6)
    assert_same_predictions(model, exact)


def test_with_all_centroids_the_variational_centroid_gp_is_the_exact_one():
    model = vbagg(0, kind=VarCentroidGP, inducing="kmeans").fit(**MATCHED)
    centroids = weight_matrix(BAGS).T @ BAGS.points
    assert_close(model.inducing_, np.unique(centroids, axis=0))
    exact = held(CentroidGP, kernel=KERNEL, fixed=model.fixed).fit(**MATCHED)
    assert_close(model.log_evidence_, exact.log_evidence_, tolerance=1e-6)
    assert_same_predictions(model, exact)


# --------------------------------------------------------------------------- the algebra alone


@jax.jit
def regressed(gamma, noise, z, rows):
    evidence, q = regress(gamma, NoiseRoot.of(noise), z)
    assert (q.precision_root is None) == (gamma.shape[1] <= gamma.shape[0])
    draws = q.sample(jax.random.key(0), 20_000).T
    return evidence, q.mean, q.variance(rows), q.covariance(rows), draws


@pytest.mark.parametrize("shape, noise", [((7, 3), 1.0), ((3, 7), 1.0), ((7, 3), 1e-7)], ids=str)
def test_regression_on_a_basis_alone(shape, noise):
    rng = np.random.default_rng(8)
    size, m = shape
    gamma, z, rows = rng.normal(size=shape), rng.normal(size=m), rng.normal(size=(5, size))
    root = rng.normal(size=(m, m))
    s = noise * (root @ root.T + np.eye(m))
    evidence, mean, variance, covariance, draws = regressed(gamma, s, z, rows)
    total = gamma.T @ gamma + s
    assert_close(evidence, multivariate_normal(np.zeros(m), total).logpdf(z))
    expected_mean, expected = condition(np.eye(size), gamma, total, z)
    assert_close(mean, expected_mean)
    assert_close(variance, np.diag(rows @ expected @ rows.T))
    assert_close(covariance, rows @ expected @ rows.T)
    assert_moments(np.asarray(draws), expected_mean, expected)


def test_the_root_of_a_noise():
    rng = np.random.default_rng(4)
    root = rng.normal(size=(4, 4))
    full, diagonal = root @ root.T + np.eye(4), rng.uniform(0.5, 2.0, 4)
    for noise, dense in ((full, full), (diagonal, np.diag(diagonal))):
        r = NoiseRoot.of(jnp.asarray(noise))
        for b in (rng.normal(size=4), rng.normal(size=(4, 2))):
            white = r.whiten(jnp.asarray(b))
            assert_close(white.T @ white, b.T @ np.linalg.solve(dense, b))
        assert_close(r.log_determinant(), np.linalg.slogdet(dense)[1])
        assert_close(as_matrix(jnp.asarray(noise)), dense)
    both = add_covariances(jnp.asarray(full), jnp.asarray(diagonal))
    assert_close(both, full + np.diag(diagonal))
    assert_close(add_covariances(jnp.asarray(diagonal), jnp.asarray(full)), both)
    assert_close(add_covariances(jnp.asarray(diagonal), jnp.asarray(diagonal)), 2 * diagonal)


@eqx.filter_jit
def escalated(a, jitter):
    return escalating_cholesky(a, jitter)


def test_a_matrix_that_needs_no_jitter_gets_the_least():
    a = np.diag([1.0, 2.0, 3.0])
    root, level = escalated(jnp.asarray(a), jnp.asarray(1e-10))
    assert_close(level, 1e-10)
    assert_close(root @ root.T, a)


@pytest.mark.parametrize("below, expected", [(3e-9, 1e-8), (3e-5, 1e-4)])
def test_a_slightly_indefinite_matrix_gets_more_jitter(below, expected):
    vectors = np.linalg.qr(np.random.default_rng(5).normal(size=(6, 6)))[0]
    a = vectors @ np.diag([1.0, 1.0, 1.0, 1.0, 2.0 + below, -below]) @ vectors.T
    root, level = escalated(jnp.asarray(a), jnp.asarray(1e-10))
    assert_close(level, expected)
    assert_close(root @ root.T, a + expected * np.trace(a) / 6 * np.eye(6), tolerance=1e-12)


def test_gradients_see_the_jitter_as_a_constant():
    # log det (a + ε tr(a)/n I) of a matrix on the edge, against differences at the same ε.
    a = np.ones((3, 3)) + np.diag([0.0, 1e-13, 0.5])

    def log_det(shift, level):
        shifted = a + shift * np.diag([1.0, 0.0, 0.0])
        return np.linalg.slogdet(shifted + level * np.trace(shifted) / 3 * np.eye(3))[1]

    def traced(shift):
        root, level = escalating_cholesky(jnp.asarray(a) + shift * jnp.diag(jnp.eye(3)[0]), 1e-6)
        return 2 * jnp.sum(jnp.log(jnp.diagonal(root))), level

    (_, level), gradient = jax.jit(jax.value_and_grad(traced, has_aux=True))(0.0)
    expected = (log_det(1e-8, float(level)) - log_det(-1e-8, float(level))) / 2e-8
    np.testing.assert_allclose(gradient, expected, rtol=1e-3)
