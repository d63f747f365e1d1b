"""Learning: the objective and its gradient, MAP with restarts, warnings, and NUTS."""

from typing import Any

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

from deconditional import CMP, BaggGP, Bags, FitWarning, LogNormal
from deconditional.fitting.evaluation import loss_and_gradient
from deconditional.fitting.map import maximise
from deconditional.fitting.parameters import ParameterSet, positive
from helpers import (
    FINITE_DIFFERENCE_TOLERANCE,
    assert_close,
    condition,
    finite_difference,
    gram,
    ragged_bags,
    weight_matrix,
)

BAGS = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2, weighted=True)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=(6, 1))
X = RNG.normal(size=(5, 2))


def unconverged(model, *arguments, **options):
    """Build the problem without learning much: one iteration from the start."""
    model.set_params(max_iter=1, n_restarts=1)
    with pytest.warns(FitWarning, match="stopped before it converged"):
        return model.fit(*arguments, **options)


def assert_gradient(problem, seed=0):
    """The compiled gradient of the loss against central differences of the loss."""
    rng = np.random.default_rng(seed)
    vector = problem.parameters.start() + 0.3 * rng.normal(size=problem.parameters.size)
    _, gradient = loss_and_gradient(problem, jnp.asarray(vector))
    differences = finite_difference(lambda v: loss_and_gradient(problem, jnp.asarray(v))[0], vector)
    assert_close(gradient, differences, tolerance=FINITE_DIFFERENCE_TOLERANCE)


# --------------------------------------------------------------------------- the objective


@pytest.fixture(scope="module")
def everything_on():
    model = CMP(
        gk.Matern32(active_dims=[0]) + gk.RBF(active_dims=[1]),
        centred=True,
        uncertainty=True,
        trend="linear",
        fine_noise=True,
        learn_noise=True,
    )
    return unconverged(model, BAGS, Z, mediator=Y_OBSERVED, noise_std=np.linspace(0.1, 0.4, 6))


def test_gradient_with_every_option_on(everything_on):
    problem = everything_on.fitted_.problem
    assert problem.parameters.names() == [
        "kernel.0.lengthscale",
        "kernel.0.variance",
        "kernel.1.lengthscale",
        "kernel.1.variance",
        "mediator_kernel.lengthscale",
        "ridge",
        "noise_std",
        "fine_noise_std",
    ]
    assert_gradient(problem)


@pytest.mark.filterwarnings("ignore::deconditional.errors.UselessMediatorWarning")
def test_gradient_of_a_rough_mediator_kernel_in_two_variables():
    # The default of uncertainty=True. 26 bags: see the gradients in test_mediation.
    bags = ragged_bags([2] * 26, d=1, p=2)
    rng = np.random.default_rng(10)
    z, y = rng.normal(size=12), rng.normal(size=(12, 2))
    assert_gradient(unconverged(CMP(uncertainty=True), bags, z, mediator=y).fitted_.problem)


def test_log_posterior_is_log_evidence_plus_log_prior():
    model = unconverged(BaggGP(gk.RBF(), trend="none"), BAGS, np.sin(np.arange(8.0)))
    problem = model.fitted_.problem
    vector = jnp.asarray(problem.parameters.start())
    values = problem.parameters.unpack(vector)
    kernel = gk.RBF(
        lengthscale=float(values["kernel.lengthscale"]), variance=float(values["kernel.variance"])
    )
    p = weight_matrix(BAGS)
    covariance = p.T @ gram(kernel, BAGS.points) @ p + float(values["noise_std"]) ** 2 * np.eye(8)
    evidence = multivariate_normal(np.zeros(8), covariance).logpdf(np.sin(np.arange(8.0)))
    expected = evidence + float(problem.parameters.log_prior(vector))
    loss, _ = loss_and_gradient(problem, vector)
    assert_close(-loss, expected)


# --------------------------------------------------------------------------- MAP


def noisy_sine(noise=0.2, n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, n))
    return Bags.from_points(x, np.arange(n)), np.sin(x) + noise * rng.normal(size=n)


@pytest.fixture(scope="module")
def sine():
    bags, z = noisy_sine()
    return BaggGP(n_restarts=2).fit(bags, z)


def test_noise_is_recovered(sine):
    # 60 observations give a standard deviation to about 1/sqrt(120) = 9 %.
    assert 0.2 / 1.4 < sine.parameters_["noise_std"] < 0.2 * 1.4


def test_the_field_is_recovered(sine):
    x = np.linspace(0.5, 9.5, 50)
    post = sine.predict(x)
    assert np.sqrt(np.mean((post.mean - np.sin(x)) ** 2)) < 0.1
    lower, upper = post.interval(0.95)
    assert ((np.sin(x) > lower) & (np.sin(x) < upper)).mean() > 0.8


def test_the_fit_ends_where_the_gradient_is_small(sine):
    problem = sine.fitted_.problem
    vector = problem.parameters.pack(sine.parameters_)
    loss, gradient = loss_and_gradient(problem, vector)
    assert np.abs(gradient).max() < 1e-2
    assert_close(-loss, sine.fit_report_.log_posterior)
    start, _ = loss_and_gradient(problem, jnp.asarray(problem.parameters.start()))
    assert loss <= start


def test_the_report_says_how_the_fit_went(sine):
    report = sine.fit_report_
    assert report.converged
    assert report.method == "map"
    assert report.at_bounds == ()
    assert report.notes == ()
    assert report.iterations > 0
    assert report.evaluations >= report.iterations
    assert report.log_evidence == sine.log_evidence_
    assert report.restarts[0] == max(report.restarts) == report.log_posterior
    assert set(report.parameters) == {"kernel.lengthscale", "kernel.variance", "noise_std"}
    text = str(report)
    assert "map fit converged" in text
    assert "noise_std = " in text


def test_the_fitted_kernel_holds_the_parameters(sine):
    scale, variance = (sine.parameters_[f"kernel.{k}"] for k in ("lengthscale", "variance"))
    x = np.linspace(0, 3, 4)[:, None]
    expected = gram(gk.RBF(lengthscale=float(scale), variance=float(variance)), x)
    assert_close(gram(sine.kernel_, x), expected)


def test_the_same_seed_gives_the_same_fit(sine):
    bags, z = noisy_sine()
    again = BaggGP(n_restarts=2).fit(bags, z)
    for name, value in sine.parameters_.items():
        np.testing.assert_array_equal(again.parameters_[name], value)


def test_another_seed_draws_other_restarts_and_finds_the_same_optimum(sine):
    bags, z = noisy_sine()
    other = BaggGP(n_restarts=4, seed=7).fit(bags, z)
    assert other.fit_report_.log_posterior == pytest.approx(
        sine.fit_report_.log_posterior, abs=1e-3
    )


def test_fixed_parameters_stay_fixed_and_the_rest_are_learnt(sine):
    bags, z = noisy_sine()
    model = BaggGP(n_restarts=1, fixed={"noise_std": 0.05}).fit(bags, z)
    assert model.parameters_["noise_std"] == 0.05
    assert model.parameters_["kernel.lengthscale"] != sine.parameters_["kernel.lengthscale"]
    assert "noise_std" not in model.priors_


def numpyro_log_normal(median, sigma):
    return dist.LogNormal(np.log(median), sigma)


@pytest.mark.parametrize(("family", "factor"), [(LogNormal, 0.1), (numpyro_log_normal, 10.0)])
def test_a_prior_pulls_its_parameter(family, factor, sine):
    bags, z = noisy_sine()
    found = float(sine.parameters_["noise_std"])
    prior = family(factor * found, 0.1)
    model = BaggGP(n_restarts=1, priors={"noise_std": prior}).fit(bags, z)
    moved = np.log(float(model.parameters_["noise_std"]) / found) / np.log(factor)
    assert 0.05 < moved <= 1.0
    assert model.priors_["noise_std"] is prior


@pytest.mark.parametrize("option", ["fixed", "priors"])
def test_unknown_parameters_are_named(option):
    bags, z = noisy_sine()
    with pytest.raises(ValueError, match=f"{option} names 'sigma'.*kernel.lengthscale"):
        BaggGP(**{option: {"sigma": 1.0}}).fit(bags, z)


@pytest.mark.parametrize("scale", [1e-7, 1e6])
def test_the_fit_follows_the_units_of_the_observations(scale, sine):
    bags, z = noisy_sine()
    other = BaggGP(n_restarts=2).fit(bags, scale * z)
    x = np.linspace(0, 10, 20)
    # Two runs of an optimiser that stops at a relative change of 1e-9.
    assert_close(other.predict(x).mean / scale, sine.predict(x).mean, tolerance=1e-3)
    assert_close(other.predict(x).std / scale, sine.predict(x).std, tolerance=1e-2)


def test_the_fit_follows_the_units_of_the_covariates(sine):
    bags, z = noisy_sine()
    other = BaggGP(n_restarts=2).fit(Bags.from_points(1e5 * bags.points, bags.bag), z)
    x = np.linspace(0, 10, 20)
    assert_close(other.predict(1e5 * x).mean, sine.predict(x).mean, tolerance=1e-3)


def test_the_users_kernel_is_one_of_the_starts():
    # A length scale so short that no other start finds its way there within one iteration.
    bags, z = noisy_sine()
    kernel = gk.RBF(lengthscale=1.7, variance=0.5)
    with pytest.warns(FitWarning):
        model = BaggGP(kernel, max_iter=1, n_restarts=2, fixed={"noise_std": 0.2}).fit(bags, z)
    start = {"kernel.lengthscale": 1.7, "kernel.variance": 0.5}
    problem = model.fitted_.problem
    at_start, _ = loss_and_gradient(problem, problem.parameters.pack(start))
    assert model.fit_report_.log_posterior >= -float(at_start)


# --------------------------------------------------------------------------- warnings


def test_an_unfinished_fit_warns_and_says_so():
    bags, z = noisy_sine()
    with pytest.warns(FitWarning, match="Raise max_iter") as caught:
        model = BaggGP(max_iter=1, n_restarts=1).fit(bags, z)
    assert not model.fit_report_.converged
    assert "did NOT converge" in str(model.fit_report_)
    assert "note:" in str(model.fit_report_)
    assert caught[0].filename == __file__


class Rounded(eqx.Module):
    """A bowl whose values come in steps, as of float32 tiles; its gradient has an error."""

    parameters: ParameterSet
    error: float
    dtype: Any = eqx.field(static=True)

    def evaluate(self, v):
        bowl = 0.5 * jnp.sum(jnp.array([1.0, 30.0]) * (v - 0.7) ** 2)
        told = bowl + self.error * jnp.sum(v)
        return -(told + jax.lax.stop_gradient(jnp.round(bowl, 2) - told)), None


@pytest.mark.parametrize(
    ("error", "dtype", "converged"),
    [(0.1, jnp.float32, True), (0.1, jnp.float64, False), (-60.0, jnp.float32, False)],
)
def test_rounding_of_tiles_ends_a_fit_where_little_is_left_to_gain(error, dtype, converged):
    """Not one whose gradient says that much is left, nor one in float64, which has no steps."""
    parameters = ParameterSet.of([positive("p0", 1.0), positive("p1", 1.0)])
    found = maximise(Rounded(parameters, error, dtype), n_restarts=1, max_iter=200)
    assert found.converged is converged
    assert found.iterations < 200  # the line search ended it
    if converged:
        np.testing.assert_allclose(found.vector, 0.7, atol=0.25)


class Cliff(eqx.Module):
    """A quadratic with its optimum at 3, and a loss beyond all measure from 4 on."""

    parameters: ParameterSet

    def evaluate(self, vector):
        x = vector[0]
        return -(80.0 * (x - 3.0) ** 2 + jnp.where(x > 4.0, 1e90, 0.0)), None


def test_a_first_step_off_a_cliff_does_not_end_a_fit():
    problem = Cliff(ParameterSet.of([positive("a", 1.0, 1.0, reach=9.0)]))
    found = maximise(problem, n_restarts=1)
    assert found.converged and found.vector[0] == pytest.approx(3.0, abs=1e-3)


def test_a_parameter_on_its_bound_warns():
    bags, z = noisy_sine()
    priors = {"kernel.variance": LogNormal(1e30, 0.01)}
    with pytest.warns(FitWarning, match="kernel.variance ended on a bound"):
        model = BaggGP(n_restarts=1, priors=priors).fit(bags, z)
    assert model.fit_report_.at_bounds == ("kernel.variance",)


def test_a_mediator_that_tells_nothing_warns():
    with pytest.warns(FitWarning, match="mediation weights are close to zero"):
        CMP(n_restarts=1, fixed={"ridge": 1e4}).fit(BAGS, Z, mediator=Y_OBSERVED)


def test_observations_that_no_parameters_can_explain_are_not_passed_over():
    # A covariance of errors that is not positive makes every evaluation fail.
    bags, z = noisy_sine()
    with pytest.raises(ValueError, match="noise_cov"):
        BaggGP(n_restarts=1).fit(bags, z, noise_cov=-1e3 * np.eye(60))


# --------------------------------------------------------------------------- NUTS

NUTS = {"num_warmup": 100, "num_samples": 200}


@pytest.fixture(scope="module")
def sampled():
    """One free parameter, the noise, of a Bagg-GP on twelve bags."""
    rng = np.random.default_rng(5)
    bags = ragged_bags([3] * 12, d=1, seed=3)
    z = bags.means(np.sin(bags.points[:, 0])) + 0.3 * rng.normal(size=12)
    fixed = {"kernel.lengthscale": 1.0, "kernel.variance": 0.7}
    model = BaggGP(gk.RBF(), trend="none", method="nuts", method_options=NUTS, fixed=fixed)
    return model.fit(bags, z), z


def test_nuts_samples_the_posterior_of_the_parameter(sampled):
    model, _ = sampled
    problem = model.fitted_.problem
    grid = np.linspace(np.log(0.02), np.log(3.0), 201)
    log_density = np.array([-float(loss_and_gradient(problem, jnp.array([u]))[0]) for u in grid])
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = density @ grid
    std = np.sqrt(density @ (grid - mean) ** 2)
    draws = np.log(model.parameter_draws_["noise_std"])
    assert draws.shape == (200,)
    # Four standard errors at the sampler's own effective size, no larger than the sample.
    effective = min(model.nuts_diagnostics_["effective_samples"], 200)
    assert effective > 20
    assert abs(draws.mean() - mean) < 4 * std / np.sqrt(effective)
    assert abs(draws.std() - std) < 4 * std / np.sqrt(2 * effective)


def test_nuts_predictions_are_averaged_over_the_draws(sampled):
    model, z = sampled
    kernel = gk.RBF(lengthscale=1.0, variance=0.7)
    x = np.array([[-1.0], [0.3], [2.0]])
    p = weight_matrix(model.bags_)
    k_bar = p.T @ gram(kernel, model.bags_.points) @ p
    cross = gram(kernel, x, model.bags_.points) @ p
    parts = [
        condition(gram(kernel, x), cross, k_bar + noise**2 * np.eye(12), z)
        for noise in model.parameter_draws_["noise_std"]
    ]
    means = np.stack([mean for mean, _ in parts])
    covariance = np.mean([part for _, part in parts], axis=0) + np.cov(means.T, bias=True)
    post = model.predict(x)
    assert len(post.fields) == 200
    assert_close(post.mean, means.mean(0))
    assert_close(post.variance, np.diag(covariance))
    assert_close(post.covariance(), covariance)


def test_nuts_reports_itself(sampled):
    model, _ = sampled
    report = model.fit_report_
    assert report.method == "nuts"
    assert report.converged == (
        model.nuts_diagnostics_["divergences"] == 0 and model.nuts_diagnostics_["r_hat"] < 1.05
    )
    middle = np.median(model.parameter_draws_["noise_std"])
    assert_close(model.parameters_["noise_std"], middle)
    assert_close(report.parameters["noise_std"], middle)


def test_nuts_with_every_parameter_fixed_has_nothing_to_sample():
    fixed = {"kernel.lengthscale": 1.0, "kernel.variance": 0.7, "noise_std": 0.3}
    bags, z = noisy_sine()
    with pytest.raises(ValueError, match="fixed"):
        BaggGP(gk.RBF(), method="nuts", method_options=NUTS, fixed=fixed).fit(bags, z)


def test_nuts_options_are_checked():
    bags, z = noisy_sine()
    for options, message in (
        ({"num_samples": 1}, "at least 4 samples"),
        ({"samples": 100}, "samples"),
    ):
        model = BaggGP(method="nuts", method_options=options, n_restarts=1)
        with pytest.raises((ValueError, TypeError), match=message):
            model.fit(bags, z)
