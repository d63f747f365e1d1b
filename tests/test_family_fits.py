"""Fits to observations of any family: evidence, posteriors and predictions against oracles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare, multivariate_normal

import deconditional as dc
from deconditional.fitting.evaluation import evaluated
from deconditional.inference.laplace import FamilyProblem, settled
from deconditional.models.families import pose
from deconditional.models.sources import Source, given
from studies.count_calibration import CALIBRATED, places
from tests.helpers import assert_close, finite_difference
from tests.test_families import Gamma

N, ELL = 40, 1.0
X = np.linspace(0, 6, N)
F = np.sin(X) + 0.3
FIXED = {"kernel.lengthscale": ELL, "kernel.variance": 1.0}
HELD = {"trend": "none", "n_restarts": 1}


def cells(seed=0, size=5):
    rng = np.random.default_rng(seed)
    return dc.Bags.from_points(X, np.arange(N) // size, exposure=rng.uniform(1, 4, N))


def gram(a=X, b=X):
    return np.exp(-0.5 * (a[:, None] - b) ** 2 / ELL**2)


def observed(family, bags, rng):
    rates = np.asarray(family.g.rate(F))
    mean = bags.means(rates) * (20 if family.counts else 1)
    if family.support == "successes":
        return rng.binomial(20, mean / 20).astype(float), {"trials": 20.0}
    if family.support == "real":
        return mean + 0.1 * rng.standard_normal(len(mean)), {}
    y = rng.poisson(mean).astype(float) if family.counts else rng.gamma(4.0, mean / 4)
    return y, {"exposure": 20.0 if family.counts else 1.0}


FAMILIES = {
    "poisson": dc.Poisson(),
    "overdispersed": dc.Poisson(overdispersion=True),
    "effects of points": dc.Poisson(overdispersion="points"),
    "negative binomial": dc.NegativeBinomial(),
    "binomial": dc.Binomial(),
    "beta-binomial": dc.BetaBinomial(overdispersion=True),
    "tweedie": dc.Tweedie(),
    "gamma": Gamma(),
    "normal": dc.Normal(),
}


@pytest.mark.parametrize(
    ("name", "inference"),
    [(name, "collapsed") for name in FAMILIES] + [("poisson", "laplace"), ("binomial", "laplace")],
)
def test_gradients_of_the_evidence_are_finite_differences(name, inference):
    """Implicit gradients through the mode, at a value where nothing is near its optimum."""
    rng, bags, family = np.random.default_rng(1), cells(), FAMILIES[name]
    y, amounts = observed(family, bags, rng)
    model = dc.VBagg(n_inducing=12, family=family, inference=inference)
    problem = pose(model, given([Source(bags, y, family, **amounts)])).problem
    at = problem.parameters.start() + 0.2
    if inference == "collapsed":
        problem = settled(problem, at, FamilyProblem.solve)[0]
    loss, gradient, (solution, _) = evaluated(problem, jnp.asarray(at))
    assert np.isfinite(loss) and float(solution.promise) < 1e-6
    differences = finite_difference(lambda v: evaluated(problem, jnp.asarray(v))[0], at, 1e-4)
    assert_close(gradient, differences, tolerance=1e-5)


def test_normal_observations_in_a_basis_of_all_points_are_the_dense_posterior():
    bags, rng = cells(), np.random.default_rng(2)
    z = bags.means(F) + 0.1 * rng.standard_normal(len(bags))
    p = np.zeros((N, len(bags)))
    p[np.arange(N), bags.bag] = bags.weights
    total = p.T @ gram() @ p + 0.01 * np.eye(len(z))
    model = dc.BaggGP(family=dc.Normal(), fixed=FIXED, **HELD).fit(bags, z, noise_std=0.1)
    cross = gram() @ p
    post = model.predict(X)
    assert_close(post.mean, cross @ np.linalg.solve(total, z), tolerance=1e-6)
    known = np.einsum("ij,ji->i", cross, np.linalg.solve(total, cross.T))
    assert_close(post.variance, 1 - known, tolerance=1e-6)
    evidence = multivariate_normal(cov=total).logpdf(z)
    assert model.log_evidence_ == pytest.approx(evidence, abs=1e-6)


def test_large_counts_are_normal_observations_of_matched_moments():
    """Poisson counts of a million: rates with a relative error of a thousandth, on a log scale."""
    points = dc.Bags.from_points(X, np.arange(N))
    counts = np.round(1e6 * np.exp(F))
    model = dc.BaggGP(family=dc.Poisson(), fixed=FIXED, **HELD).fit(points, counts, exposure=1e6)
    noise = 1 / np.sqrt(counts)
    gauss = dc.BaggGP(fixed=FIXED, **HELD).fit(points, np.log(counts / 1e6), noise_std=noise)
    new = np.linspace(-0.5, 6.5, 9)
    found, oracle = model.predict(new), gauss.predict(new)
    np.testing.assert_allclose(found.latent.mean, oracle.mean, atol=2e-4)
    np.testing.assert_allclose(found.latent.std, oracle.std, atol=2e-4)
    np.testing.assert_allclose(found.mean, np.exp(oracle.mean + oracle.variance / 2), rtol=5e-4)
    np.testing.assert_allclose(found.quantile(0.9), np.exp(oracle.quantile(0.9)), rtol=5e-4)
    np.testing.assert_allclose(found.exceedance(found.quantile(0.8)), 0.2, atol=1e-6)


def test_single_points_are_a_gaussian_process_regression_of_that_family():
    """Laplace's method for a Bernoulli likelihood, by dense Newton steps of Rasmussen's book."""
    points = dc.Bags.from_points(X, np.arange(N))
    y = (np.random.default_rng(3).uniform(size=N) < 1 / (1 + np.exp(-2 * F))).astype(float)
    model = dc.BaggGP(family=dc.Binomial(), fixed=FIXED, **HELD)
    post = dc.VBagg(
        family=dc.Binomial(), n_inducing=N, inference="laplace", fixed=FIXED, **HELD
    ).fit(points, y)
    k, f = gram(), np.zeros(N)
    for _ in range(50):
        share = 1 / (1 + np.exp(-f))
        w = share * (1 - share)
        b = np.eye(N) + np.sqrt(w)[:, None] * k * np.sqrt(w)
        right = w * f + y - share
        f = k @ (right - np.sqrt(w) * np.linalg.solve(b, np.sqrt(w) * (k @ right)))
    found = post.predict(X).latent
    np.testing.assert_allclose(found.mean, f, atol=2e-5)
    variance = 1 - np.diag(k @ np.linalg.solve(k + np.diag(1 / w), k))
    np.testing.assert_allclose(found.variance, variance, atol=1e-5)
    likelihood = np.sum(y * np.log(share) + (1 - y) * np.log1p(-share))
    evidence = likelihood - 0.5 * f @ (y - share) - 0.5 * np.linalg.slogdet(b)[1]
    assert post.log_evidence_ == pytest.approx(evidence, abs=1e-4)
    assert np.abs(model.fit(points, y).predict(X).latent.mean - f).max() < 0.15


def test_sums_over_bags_are_kept_though_f_varies_within_them():
    """Draws of NUTS as the oracle: Laplace's sums are too high, those of the default are not."""
    bags = dc.Bags.from_points(X, np.arange(N) // 5)
    fixed = {"kernel.lengthscale": 0.25, "kernel.variance": 1.0}
    counts = np.random.default_rng(4).poisson(100 * bags.means(np.exp(F))).astype(float)
    options = {"family": dc.Poisson(), "n_inducing": N, "fixed": fixed, **HELD}
    nuts = {"num_warmup": 300, "num_samples": 800}
    sampled = dc.VBagg(method="nuts", method_options=nuts, **options)
    oracle = sampled.fit(bags, counts, exposure=100.0)
    assert oracle.nuts_diagnostics_["divergences"] == 0
    model = dc.VBagg(**options).fit(bags, counts, exposure=100.0)
    laplace = dc.VBagg(inference="laplace", **options).fit(bags, counts, exposure=100.0)
    truth, post = oracle.predict(X).latent, model.predict(X).latent
    # Means of 800 draws are themselves off by about 0.07 standard deviations.
    assert np.abs((post.mean - truth.mean) / truth.std).mean() < 0.15
    assert abs(np.median(post.std / truth.std) - 1) < 0.1
    noise = np.sqrt(counts)
    sums = 100 * bags.means(model.predict(X).mean)
    assert (np.abs(sums - counts) < noise).all()
    assert np.mean(100 * bags.means(laplace.predict(X).mean) / counts) > 1.1


@pytest.mark.parametrize(
    ("family", "own"),
    [
        (dc.NegativeBinomial(), {"dispersion": 0.1}),
        (dc.Tweedie(), {"dispersion": 0.5, "power": 1.5}),
    ],
)
def test_moments_of_f_are_those_of_draws(family, own):
    """Scattered counts and amounts with zeros, against NUTS."""
    bags, exposure = dc.Bags.from_points(X, np.arange(N) // 5), 10.0
    mean = exposure * bags.means(np.exp(F))
    y = np.asarray(family.simulate(jax.random.key(0), mean, exposure, **own))
    options = {"family": family, "n_inducing": N, "fixed": {**FIXED, **own}, **HELD}
    nuts = {"num_warmup": 300, "num_samples": 800}
    oracle = dc.VBagg(method="nuts", method_options=nuts, **options).fit(bags, y, exposure=exposure)
    truth = oracle.predict(X).latent
    post = dc.VBagg(**options).fit(bags, y, exposure=exposure).predict(X).latent
    # Means of 800 draws are themselves off by about 0.07 standard deviations.
    assert np.abs((post.mean - truth.mean) / truth.std).mean() < 0.15
    assert abs(np.median(post.std / truth.std) - 1) < 0.15


def test_predictions_over_new_bags_are_joint_and_have_the_noise_of_counts():
    bags, rng = cells(), np.random.default_rng(5)
    family = dc.NegativeBinomial(overdispersion=True)
    fixed = {**FIXED, "dispersion": 0.05, "overdispersion_std": 0.2}
    counts = rng.poisson(bags.exposure * 5 * bags.means(np.exp(F))).astype(float)
    model = dc.VBagg(family=family, n_inducing=15, fixed=fixed, **HELD).fit(bags, counts)
    whole = dc.Bags.from_points(X, np.arange(N) // 20, exposure=np.ones(N))
    sums = model.predict_bags(whole, n_draws=4000, seed=1)
    rates = model.predict(X)
    expected = np.add.reduceat(rates.mean, [0, 20])
    assert (np.abs(sums.mean - expected) < 5 * sums.std / np.sqrt(4000)).all()
    samples = rates.sample(4000, seed=2)
    covariance = np.cov(np.add.reduceat(samples, [0, 20], axis=1).T)
    np.testing.assert_allclose(
        sums.covariance(), covariance, rtol=0.25, atol=0.05 * covariance.max()
    )
    seen = model.predict_bags(whole, noise=True, n_draws=4000, seed=3)
    spread = 0.05 + np.exp(0.04) - 1
    variance = sums.variance + sums.mean + (sums.variance + sums.mean**2) * spread
    np.testing.assert_allclose(seen.variance, variance, rtol=0.2)
    assert (seen.draws == np.round(seen.draws)).all()
    means = model.predict_bags(whole, kind="mean", n_draws=4000, seed=1)
    assert_close(20 * means.draws, sums.draws)


def test_mediated_counts_without_ambiguity_are_matched_counts():
    """Mediators that tell bags apart, and next to no ridge: W picks the bag."""
    own = np.arange(8.0)
    bags = dc.Bags.from_points(X, np.arange(N) // 5, mediator=own)
    counts = np.random.default_rng(6).poisson(50 * bags.means(np.exp(F))).astype(float)
    held = {**FIXED, "mediator_kernel.lengthscale": 0.1, "ridge": 1e-9}
    model = dc.VarCMP(family=dc.Poisson(), n_inducing=15, fixed=held, **HELD)
    mediated = model.fit(bags, counts[::-1], mediator=own[::-1], exposure=50.0).predict(X)
    matched = dc.VBagg(family=dc.Poisson(), n_inducing=15, fixed=FIXED, **HELD)
    oracle = matched.fit(bags, counts, exposure=50.0).predict(X)
    np.testing.assert_allclose(mediated.mean, oracle.mean, rtol=1e-4)
    np.testing.assert_allclose(mediated.std, oracle.std, rtol=1e-3)


def test_a_model_of_a_family_is_saved_whole(tmp_path):
    bags = cells()
    counts = np.random.default_rng(7).poisson(bags.exposure).astype(float)
    model = dc.VBagg(family=dc.NegativeBinomial(), n_inducing=10, n_restarts=1, fixed=FIXED)
    model.fit(bags, counts)
    again = dc.load(model.save(tmp_path / "counts.npz"))
    assert again.family == model.family
    assert_close(again.predict(X).mean, model.predict(X).mean)
    assert_close(again.predict_bags(bags).draws, model.predict_bags(bags).draws)


@pytest.mark.parametrize("name", CALIBRATED)
def test_calibration_by_simulation(name):
    """Where f is drawn from its prior, its quantile under the posterior is uniform."""
    found = places(name, 100, seed=8)[:, :3]
    # Three points of one draw are nearly independent: they are five length scales apart.
    counted = np.histogram(found, bins=6, range=(0, 1))[0]
    assert chisquare(counted).pvalue > 1e-3
    assert abs((np.abs(found - 0.5) < 0.475).mean() - 0.95) < 0.04
