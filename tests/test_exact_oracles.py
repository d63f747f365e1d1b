"""Exact models with all parameters held, against the paper's n x n formulas and each other."""

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from deconditional import CMP, BaggGP, Bags, CentroidGP
from deconditional.inference.moments import condition as condition_exactly
from helpers import (
    Delta,
    assert_close,
    bordered_system,
    condition,
    deconditional_covariance,
    deconditional_mean,
    dme_estimate,
    gram,
    ragged_bags,
    replicated_mediation,
    shared_weight_matrix,
    shrinkage_mediation,
    trend_features,
    weight_matrix,
    weighted_replicated_mediation,
)

KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
MEDIATOR_KERNEL = gk.Matern32(lengthscale=0.9)
RIDGE, NOISE, FINE = 0.02, 0.3, 0.4
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4}
FIXED = FIELD | {"noise_std": NOISE}
MEDIATED = FIXED | {"mediator_kernel.lengthscale": 0.9, "ridge": RIDGE}

RAGGED = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2)
WEIGHTED = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2, weighted=True)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=(6, 1))
Z_MATCHED = RNG.normal(size=8)
X = RNG.normal(size=(5, 2))


def cmp_model(**options):
    fixed = MEDIATED | options.pop("fixed", {})
    options = {"kernel": KERNEL, "mediator_kernel": MEDIATOR_KERNEL, "trend": "none"} | options
    return CMP(**options, fixed=fixed)


def bagg_model(**options):
    fixed = FIXED | options.pop("fixed", {})
    return BaggGP(**({"kernel": KERNEL, "trend": "none"} | options), fixed=fixed)


def assert_posterior(model, mean, covariance, joint=False):
    """Mean and variance, and the whole covariance where it is compiled for other reasons."""
    post = model.predict(X)
    assert_close(post.mean, mean)
    assert_close(post.variance, np.diag(covariance))
    if joint:
        assert_close(post.covariance(), covariance)


def assert_evidence(model, covariance, z):
    expected = multivariate_normal(np.zeros(len(z)), covariance).logpdf(z)
    assert_close(model.log_evidence_, expected)
    assert_close(model.fit_report_.log_evidence, expected)


# --------------------------------------------------------------------------- the paper's CMP


@pytest.fixture(scope="module")
def standard():
    return cmp_model().fit(RAGGED, Z, mediator=Y_OBSERVED)


def test_cmp_is_the_replicated_estimator_of_the_paper(standard):
    a = replicated_mediation(MEDIATOR_KERNEL, RAGGED, RIDGE, Y_OBSERVED)
    assert_posterior(
        standard,
        deconditional_mean(KERNEL, RAGGED.points, a, NOISE**2, Z, X),
        deconditional_covariance(KERNEL, RAGGED.points, a, NOISE**2, X),
        joint=True,
    )
    q = a.T @ gram(KERNEL, RAGGED.points) @ a
    assert_evidence(standard, q + NOISE**2 * np.eye(6), Z)


def test_posterior_mean_is_the_dme_estimate(standard):
    a = replicated_mediation(MEDIATOR_KERNEL, RAGGED, RIDGE, Y_OBSERVED)
    epsilon = NOISE**2 / len(Z)
    expected = dme_estimate(KERNEL, RAGGED.points, a, epsilon, Z, X)
    assert_close(standard.predict(X).mean, expected)


def test_weighted_cmp_is_the_weighted_replicated_estimator():
    model = cmp_model().fit(WEIGHTED, Z, mediator=Y_OBSERVED)
    a = weighted_replicated_mediation(MEDIATOR_KERNEL, WEIGHTED, RIDGE, Y_OBSERVED)
    assert_posterior(
        model,
        deconditional_mean(KERNEL, WEIGHTED.points, a, NOISE**2, Z, X),
        deconditional_covariance(KERNEL, WEIGHTED.points, a, NOISE**2, X),
    )


def test_shrinkage_cmp_is_the_one_of_the_appendix():
    # M̂ A of the appendix on the shrinkage operator: bag means, then the N x N weights.
    model = cmp_model(cmo="shrinkage").fit(RAGGED, Z, mediator=Y_OBSERVED)
    w = shrinkage_mediation(MEDIATOR_KERNEL, RAGGED, RIDGE, Y_OBSERVED)
    a = weight_matrix(RAGGED) @ w
    assert_posterior(
        model,
        deconditional_mean(KERNEL, RAGGED.points, a, NOISE**2, Z, X),
        deconditional_covariance(KERNEL, RAGGED.points, a, NOISE**2, X),
    )


def test_bags_of_equal_size_make_both_cmps_one():
    bags = ragged_bags([4] * 8, d=2)
    one, other = (
        cmp_model(cmo=cmo).fit(bags, Z, mediator=Y_OBSERVED) for cmo in ("standard", "shrinkage")
    )
    assert_close(one.predict(X).mean, other.predict(X).mean)
    assert_close(one.predict(X).std, other.predict(X).std)
    assert_close(one.log_evidence_, other.log_evidence_)


def test_a_matched_cmp_takes_the_mediators_of_its_bags():
    one = cmp_model().fit(RAGGED, Z_MATCHED)
    other = cmp_model().fit(RAGGED, Z_MATCHED, mediator=RAGGED.mediator)
    np.testing.assert_array_equal(one.predict(X).mean, other.predict(X).mean)


def test_fields_of_the_mediator_do_not_depend_on_the_order_of_observations():
    order = np.array([3, 0, 5, 1, 4, 2])
    one = cmp_model().fit(RAGGED, Z, mediator=Y_OBSERVED)
    other = cmp_model().fit(RAGGED, Z[order], mediator=Y_OBSERVED[order])
    assert_close(one.predict(X).mean, other.predict(X).mean)


def test_float32_tiles_leave_the_posterior_unharmed(standard):
    # Conditioning magnifies the error of float32 tiles by |K̄| / noise², 16 here.
    model = cmp_model(precision="float32").fit(RAGGED, Z, mediator=Y_OBSERVED)
    assert_close(model.predict(X).mean, standard.predict(X).mean, tolerance=1e-4)
    assert_close(model.predict(X).std, standard.predict(X).std, tolerance=1e-4)


# --------------------------------------------------------------------------- Bagg-GP and its limits


@pytest.fixture(scope="module")
def bagg():
    return bagg_model().fit(WEIGHTED, Z_MATCHED)


def bagg_oracle(p, points, noise):
    k = gram(KERNEL, points)
    return condition(gram(KERNEL, X), gram(KERNEL, X, points) @ p, p.T @ k @ p + noise, Z_MATCHED)


def test_bagg_gp_is_conditioning_on_bag_means(bagg):
    p = weight_matrix(WEIGHTED)
    noise = NOISE**2 * np.eye(8)
    assert_posterior(bagg, *bagg_oracle(p, WEIGHTED.points, noise), joint=True)
    assert_evidence(bagg, p.T @ gram(KERNEL, WEIGHTED.points) @ p + noise, Z_MATCHED)


def test_bagg_gp_is_a_cmp_whose_mediator_tells_nothing_between_bags(bagg):
    bags = Bags.from_points(
        WEIGHTED.points, WEIGHTED.bag, mediator=np.arange(8.0), weights=WEIGHTED.weights
    )
    fixed = FIXED | {"ridge": 1e-12}
    model = CMP(KERNEL, Delta(), trend="none", fixed=fixed).fit(bags, Z_MATCHED)
    assert_close(model.predict(X).mean, bagg.predict(X).mean)
    assert_close(model.predict(X).std, bagg.predict(X).std)
    assert_close(model.log_evidence_, bagg.log_evidence_)


def test_single_points_are_gp_regression():
    kernel = gk.Matern52(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
    x = RAGGED.points[:12]
    z = np.random.default_rng(4).normal(size=12)
    model = BaggGP(kernel, trend="none", fixed=FIXED).fit(Bags.from_points(x, np.arange(12)), z)
    reference = GaussianProcessRegressor(
        ConstantKernel(1.4) * Matern([0.8, 1.3], nu=2.5), alpha=NOISE**2, optimizer=None
    ).fit(x, z)
    mean, std = reference.predict(X, return_std=True)
    post = model.predict(X)
    assert_close(post.mean, mean)
    assert_close(post.std, std)
    assert_close(model.log_evidence_, reference.log_marginal_likelihood())


def test_centroid_gp_is_gp_regression_on_centroids():
    model = CentroidGP(KERNEL, trend="none", fixed=FIXED).fit(WEIGHTED, Z_MATCHED)
    centroids = weight_matrix(WEIGHTED).T @ WEIGHTED.points
    mean, covariance = condition(
        gram(KERNEL, X),
        gram(KERNEL, X, centroids),
        gram(KERNEL, centroids) + NOISE**2 * np.eye(8),
        Z_MATCHED,
    )
    assert_posterior(model, mean, covariance)


# --------------------------------------------------------------------------- noises


def test_high_resolution_noise_is_that_of_the_appendix():
    # Q̂ = Aᵀ(K + ς²I)A with A replicated, n x M; the cross-covariance has no ς².
    model = cmp_model(fine_noise=True, fixed={"fine_noise_std": FINE})
    model.fit(RAGGED, Z, mediator=Y_OBSERVED)
    a = replicated_mediation(MEDIATOR_KERNEL, RAGGED, RIDGE, Y_OBSERVED)
    n = RAGGED.n_points
    q = a.T @ (gram(KERNEL, RAGGED.points) + FINE**2 * np.eye(n)) @ a
    observed = q + NOISE**2 * np.eye(6)
    cross = gram(KERNEL, X, RAGGED.points) @ a
    assert_posterior(model, *condition(gram(KERNEL, X), cross, observed, Z))
    assert_evidence(model, observed, Z)


@pytest.fixture(scope="module")
def shared_bags():
    rng = np.random.default_rng(6)
    membership = rng.uniform(size=(12, 8)) * (rng.uniform(size=(12, 8)) < 0.5)
    membership[np.arange(8), np.arange(8)] = 1.0
    return Bags.from_membership(rng.normal(size=(12, 2)), membership, mediator=rng.normal(size=8))


def test_bags_that_share_points_share_their_high_resolution_noise(shared_bags):
    model = bagg_model(fine_noise=True, fixed={"fine_noise_std": FINE})
    model.fit(shared_bags, Z_MATCHED)
    p = shared_weight_matrix(shared_bags)
    points = np.empty((len(p), 2))
    points[shared_bags.point] = shared_bags.points
    noise = FINE**2 * p.T @ p + NOISE**2 * np.eye(8)
    assert np.abs(noise - np.diag(np.diag(noise))).max() > 0.01
    assert_posterior(model, *bagg_oracle(p, points, noise))


def test_shared_points_through_a_mediator(shared_bags):
    model = cmp_model(cmo="shrinkage", fine_noise=True, fixed={"fine_noise_std": FINE})
    model.fit(shared_bags, Z, mediator=Y_OBSERVED)
    p = shared_weight_matrix(shared_bags)
    points = np.empty((len(p), 2))
    points[shared_bags.point] = shared_bags.points
    a = p @ shrinkage_mediation(MEDIATOR_KERNEL, shared_bags, RIDGE, Y_OBSERVED)
    q = a.T @ (gram(KERNEL, points) + FINE**2 * np.eye(len(p))) @ a
    cross = gram(KERNEL, X, points) @ a
    expected = condition(gram(KERNEL, X), cross, q + NOISE**2 * np.eye(6), Z)
    assert_posterior(model, *expected)


def known_noise(**options):
    """A Bagg-GP whose noise is given, not learnt."""
    return BaggGP(KERNEL, trend="none", fixed=FIELD, **options)


def test_a_noise_of_its_own_for_every_observation():
    std = np.linspace(0.1, 0.8, 8)
    model = known_noise().fit(WEIGHTED, Z_MATCHED, noise_std=std)
    p = weight_matrix(WEIGHTED)
    assert_posterior(model, *bagg_oracle(p, WEIGHTED.points, np.diag(std**2)))
    assert_evidence(model, p.T @ gram(KERNEL, WEIGHTED.points) @ p + np.diag(std**2), Z_MATCHED)


def test_one_known_noise_for_all():
    model = known_noise().fit(WEIGHTED, Z_MATCHED, noise_std=NOISE)
    expected = bagg_oracle(weight_matrix(WEIGHTED), WEIGHTED.points, NOISE**2 * np.eye(8))
    assert_posterior(model, *expected)


def test_a_known_covariance_of_errors():
    root = np.random.default_rng(7).normal(size=(8, 8))
    cov = 0.1 * root @ root.T
    model = known_noise(learn_noise=False).fit(WEIGHTED, Z_MATCHED, noise_cov=cov)
    assert_posterior(model, *bagg_oracle(weight_matrix(WEIGHTED), WEIGHTED.points, cov))


def test_all_noises_add_up():
    root = np.random.default_rng(7).normal(size=(8, 8))
    cov, std = 0.1 * root @ root.T, np.linspace(0.1, 0.8, 8)
    model = bagg_model(learn_noise=True).fit(WEIGHTED, Z_MATCHED, noise_cov=cov, noise_std=std)
    total = cov + np.diag(std**2) + NOISE**2 * np.eye(8)
    assert_posterior(model, *bagg_oracle(weight_matrix(WEIGHTED), WEIGHTED.points, total))


# --------------------------------------------------------------------------- trend


def kernels_with_trend(kind, points, model):
    """K, k(X, ·) and k(X, X) with the prior covariance of the trend added."""
    b = np.asarray(model.fitted_.problem.trend.prior_std)
    b = b if isinstance(kind, str) else b[[0, *(1 + column for column in kind)]]
    h, at_x = (b * trend_features(kind, points, v) for v in (points, X))
    return (
        gram(KERNEL, points) + h @ h.T,
        gram(KERNEL, X, points) + at_x @ h.T,
        gram(KERNEL, X) + at_x @ at_x.T,
    )


@pytest.mark.parametrize("kind", ["constant", "linear", (1,), ()])
def test_a_trend_is_a_prior_covariance(kind):
    # h(x)ᵀβ with β ~ N(0, diag(b)²) adds h(x)ᵀ diag(b)² h(x') to the kernel.
    model = bagg_model(trend=kind).fit(WEIGHTED, Z_MATCHED)
    p = weight_matrix(WEIGHTED)
    k, k_x, k_xx = kernels_with_trend(kind, WEIGHTED.points, model)
    observed = p.T @ k @ p + NOISE**2 * np.eye(8)
    assert_posterior(model, *condition(k_xx, k_x @ p, observed, Z_MATCHED), joint=True)
    assert_evidence(model, observed, Z_MATCHED)


@pytest.mark.parametrize("centred", [False, True])
def test_a_trend_goes_through_the_mediator(centred):
    model = cmp_model(trend="linear", centred=centred).fit(WEIGHTED, Z, mediator=Y_OBSERVED)
    if centred:
        ridge = RIDGE * WEIGHTED.effective_sizes.sum() / WEIGHTED.effective_sizes
        system = bordered_system(MEDIATOR_KERNEL, WEIGHTED.mediator, ridge)
        right = np.vstack(
            [gram(MEDIATOR_KERNEL, WEIGHTED.mediator, Y_OBSERVED), np.ones((1, len(Z)))]
        )
        a = weight_matrix(WEIGHTED) @ np.linalg.solve(system, right)[:-1]
    else:
        a = weighted_replicated_mediation(MEDIATOR_KERNEL, WEIGHTED, RIDGE, Y_OBSERVED)
    k, k_x, k_xx = kernels_with_trend("linear", WEIGHTED.points, model)
    observed = a.T @ k @ a + NOISE**2 * np.eye(6)
    assert_posterior(model, *condition(k_xx, k_x @ a, observed, Z))
    assert_evidence(model, observed, Z)


def test_a_constant_is_preserved_where_the_operator_is_centred_or_matched():
    # Far above everything else, the observations' common offset is the trend's.
    offset = 1e3
    for model, z in (
        (bagg_model(trend="constant"), Z_MATCHED),
        (cmp_model(trend="constant", centred=True), Z),
    ):
        options = {} if z is Z_MATCHED else {"mediator": Y_OBSERVED}
        low = model.fit(WEIGHTED, z, **options).predict(X).mean
        high = model.fit(WEIGHTED, z + offset, **options).predict(X).mean
        # b is 10 times the size of z, so the constant is shrunk by about (K̄ / b²) of itself.
        np.testing.assert_allclose(high - low, offset, rtol=2e-2)


# --------------------------------------------------------------------------- U-CMP


@pytest.mark.parametrize("centred", [False, True])
def test_u_cmp_adds_the_uncertainty_of_the_operator(centred):
    model = cmp_model(uncertainty=True, centred=centred).fit(WEIGHTED, Z, mediator=Y_OBSERVED)
    y, n = WEIGHTED.mediator, WEIGHTED.n_bags
    ridge = RIDGE * WEIGHTED.effective_sizes.sum() / WEIGHTED.effective_sizes
    system, right = gram(MEDIATOR_KERNEL, y) + np.diag(ridge), gram(MEDIATOR_KERNEL, y, Y_OBSERVED)
    if centred:
        system = bordered_system(MEDIATOR_KERNEL, y, ridge)
        right = np.vstack([right, np.ones((1, len(Z)))])
    solved = np.linalg.solve(system, right)
    w, v = solved[:n], gram(MEDIATOR_KERNEL, Y_OBSERVED) - right.T @ solved
    p = weight_matrix(WEIGHTED)
    k_bar = p.T @ gram(KERNEL, WEIGHTED.points) @ p
    tau2 = np.mean(np.diag(k_bar))
    observed = w.T @ k_bar @ w + NOISE**2 * np.eye(6) + tau2 * v
    cross = gram(KERNEL, X, WEIGHTED.points) @ p @ w
    assert_posterior(model, *condition(gram(KERNEL, X), cross, observed, Z))
    assert_evidence(model, observed, Z)


@pytest.fixture(scope="module")
def tied():
    """A U-CMP for which K̄ = τ²(L + R).

    Single-point bags at x_j = y_j have R = NλI. With r = Nλ, k = τ²((1 - r)ρ + r δ) and
    ℓ = (1 - r)ρ of one correlation ρ, K̄ = τ²(L + rI), and its mean diagonal is τ².
    """
    y = np.linspace(-2, 2, 8)[:, None]
    tau2, share = 1.7, 0.3
    model = CMP(
        gk.Matern32(lengthscale=0.9, variance=tau2 * (1 - share)) + gk.White(variance=tau2 * share),
        gk.Matern32(lengthscale=0.9, variance=1 - share),
        uncertainty=True,
        trend="none",
        fixed={
            "kernel.0.lengthscale": 0.9,
            "kernel.0.variance": tau2 * (1 - share),
            "kernel.1.variance": tau2 * share,
            "mediator_kernel.lengthscale": 0.9,
            "ridge": share / 8,
            "noise_std": NOISE,
        },
    )
    bags = Bags.from_points(y, np.arange(8), mediator=y)
    return model.fit(bags, Z, mediator=Y_OBSERVED), y, tau2, share


def regression_on_the_mediator(tau2, share, at):
    """GP regression of z on ỹ with kernel τ²ℓ: mean and covariance of g at new mediators."""
    kernel = gk.Matern32(lengthscale=0.9, variance=tau2 * (1 - share))
    observed = gram(kernel, Y_OBSERVED) + NOISE**2 * np.eye(len(Z))
    return condition(gram(kernel, at), gram(kernel, at, Y_OBSERVED), observed, Z)


def test_u_cmp_is_gp_regression_on_the_mediator_where_the_kernels_agree(tied):
    # Cov(f̄, z) = τ²L_yỹ and Cov(z) = τ²L_ỹỹ + σ²I; f̄ = g(y) + b with b ~ N(0, τ²R).
    model, y, tau2, share = tied
    mean, covariance = regression_on_the_mediator(tau2, share, y)
    post = model.predict(y)
    assert_close(post.mean, mean)
    assert_close(post.covariance(), covariance + tau2 * share * np.eye(8))


def test_its_bag_means_are_that_regression_and_a_random_effect(tied):
    model, y, tau2, share = tied
    mean, covariance = regression_on_the_mediator(tau2, share, y)
    bags = model.predict_bags(model.bags_)
    assert_close(bags.mean, mean)
    assert_close(bags.covariance(), covariance + tau2 * share * np.eye(8))


def test_its_conditional_mean_process_is_that_regression_everywhere(tied):
    model, _, tau2, share = tied
    new = np.array([[-1.3], [0.2], [3.0]])
    mean, covariance = regression_on_the_mediator(tau2, share, new)
    coarse = model.predict_coarse(new)
    assert_close(coarse.mean, mean)
    assert_close(coarse.covariance(), covariance)


def test_its_evidence_is_that_of_the_regression(tied):
    model, _, tau2, share = tied
    kernel = gk.Matern32(lengthscale=0.9, variance=tau2 * (1 - share))
    assert_evidence(model, gram(kernel, Y_OBSERVED) + NOISE**2 * np.eye(6), Z)


# --------------------------------------------------------------------------- the algebra alone


def test_conditioning_alone():
    rng = np.random.default_rng(8)
    root = rng.normal(size=(5, 5))
    k_bar, w, h = root @ root.T, rng.normal(size=(5, 4)), rng.normal(size=(5, 2))
    noise_root = rng.normal(size=(4, 4))
    s, z, b = noise_root @ noise_root.T + np.eye(4), rng.normal(size=4), np.array([3.0, 1.5])
    c = condition_exactly(*(jnp.asarray(v) for v in (k_bar, w, s, z, h, b)))
    a = w.T @ k_bar @ w + s
    trend = w.T @ h
    total = a + trend @ np.diag(b**2) @ trend.T
    assert_close(c.log_evidence, multivariate_normal(np.zeros(4), total).logpdf(z))
    assert_close(c.root @ c.root.T, a)
    assert_close(c.projection @ c.projection.T, w @ np.linalg.solve(a, w.T))
    beta = np.diag(b**2) @ trend.T @ np.linalg.solve(total, z)
    assert_close(c.trend, beta)
    precision = np.diag(b**-2.0) + trend.T @ np.linalg.solve(a, trend)
    assert_close(c.trend_root @ c.trend_root.T, precision)
    assert_close(c.projection @ c.misfit, w @ np.linalg.solve(a, z - trend @ beta))


def test_gradients_of_evidence_and_trend_are_differences():
    """By the covariance of observations, their trend and themselves."""
    rng = np.random.default_rng(0)
    root, trend = rng.normal(size=(6, 6)), rng.normal(size=(6, 2))
    given = [root @ root.T, trend, rng.normal(size=6)]

    def mixed(gram, trend, z):
        found = condition_exactly(gram, None, 0.3 * jnp.eye(6), z, trend, jnp.array([1.3, 0.7]))
        return 0.7 * found.log_evidence + jnp.sin(found.trend @ jnp.array([0.4, -1.1]))

    gradients = jax.grad(mixed, (0, 1, 2))(*map(jnp.asarray, given))
    for k, gradient in enumerate(gradients):
        step = 1e-6 * rng.normal(size=given[k].shape)
        step = step + step.T if k == 0 else step
        up, down = (
            mixed(*(each + sign * step if i == k else each for i, each in enumerate(given)))
            for sign in (1, -1)
        )
        np.testing.assert_allclose(0.5 * (up - down), np.sum(gradient * step), rtol=1e-5)
