"""Named parameters: transforms, priors, the vector between, and what is read off a kernel."""

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from gpjax.parameters import PositiveReal, SigmoidBounded
from paramax import non_trainable
from scipy.integrate import quad
from scipy.stats import kstest, lognorm, norm

from deconditional import DeepKernel, LogNormal
from deconditional.fitting.kernel_parameters import kernel_template, typical_distance
from deconditional.fitting.parameters import (
    IDENTITY,
    LOG,
    Interval,
    Parameter,
    ParameterSet,
    positive,
)
from deconditional.fitting.priors import Alike, Normal, SplitLogNormal
from helpers import TanhKernel, assert_close, gram

X = np.random.default_rng(0).normal(size=(30, 3)) * np.array([1.0, 10.0, 0.1])
NETWORK = eqx.nn.MLP(3, 2, width_size=4, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))


# --------------------------------------------------------------------------- priors


def test_log_normal_density():
    value = np.array([0.1, 1.0, 4.0])
    expected = lognorm(s=0.7, scale=2.0).logpdf(value)
    assert_close(LogNormal(2.0, 0.7).log_prob(value), expected)


def test_normal_density():
    value = np.array([-1.0, 0.0, 4.0])
    assert_close(Normal(0.5, 2.0).log_prob(value), norm(0.5, 2.0).logpdf(value))


def test_split_log_normal_is_a_density_with_its_mode_in_log_coordinates():
    prior = SplitLogNormal(mode=2.0, below=0.3, above=1.5)

    def of_log(u):
        return float(jnp.exp(prior.log_prob(jnp.exp(u)) + u))

    mode = np.log(2.0)
    low, _ = quad(of_log, mode - 4, mode)
    high, _ = quad(of_log, mode, mode + 15)
    assert_close(low + high, 1.0, tolerance=1e-6)  # of the quadrature
    assert_close(low, 0.3 / 1.8, tolerance=1e-6)
    assert of_log(mode) > max(of_log(mode - 0.01), of_log(mode + 0.01))
    assert_close(of_log(mode - 0.3) / of_log(mode), np.exp(-0.5))
    assert_close(of_log(mode + 1.5) / of_log(mode), np.exp(-0.5))


def split_cdf(value, mode=2.0, below=0.3, above=1.5):
    u = np.log(value / mode)
    share = below / (below + above)
    low = 2 * share * norm.cdf(np.minimum(u, 0) / below)
    return low + (1 - share) * (2 * norm.cdf(np.maximum(u, 0) / above) - 1)


@pytest.mark.parametrize(
    ("prior", "cdf"),
    [
        (LogNormal(2.0, 0.7), lognorm(s=0.7, scale=2.0).cdf),
        (Normal(0.5, 2.0), norm(0.5, 2.0).cdf),
        (SplitLogNormal(2.0, 0.3, 1.5), split_cdf),
    ],
    ids=lambda v: type(v).__name__,
)
def test_draws_follow_the_density(prior, cdf):
    draws = np.asarray(prior.sample(jax.random.key(0), (2000,)))
    assert kstest(draws, cdf).pvalue > 0.01


def test_scales_that_are_alike_are_a_mean_and_ratios():
    """In logarithms: the mean is that of its own prior, what is left a normal without a mean."""
    prior = Alike(SplitLogNormal(2.0, 0.3, 1.5), size=3, ratio=0.4)
    draws = np.asarray(prior.sample(jax.random.key(0), (2000,)))
    logs = np.log(draws)
    assert kstest(np.exp(logs.mean(1)), split_cdf).pvalue > 0.01
    assert kstest(logs[:, 0] - logs.mean(1), norm(0, 0.4 * np.sqrt(2 / 3)).cdf).pvalue > 0.01
    left = logs - logs.mean(1, keepdims=True)
    turned = left @ np.linalg.svd(np.ones((1, 3)))[2][1:].T
    expected = norm(0, 0.4).logpdf(turned).sum(1) - logs.sum(1) - 0.5 * np.log(3)
    expected += np.asarray(prior.common.log_prob(jnp.exp(logs.mean(1)))) + logs.mean(1)
    assert_close(prior.log_prob(jnp.asarray(draws)).sum(1), expected)


def test_priors_of_arrays_are_drawn_entry_by_entry():
    draws = LogNormal(jnp.array([1.0, 100.0]), 0.1).sample(jax.random.key(0), (500,))
    assert draws.shape == (500, 2)
    assert_close(np.median(draws, axis=0), [1.0, 100.0], tolerance=0.02)


# --------------------------------------------------------------------------- transforms


@pytest.mark.parametrize(
    "transform", [LOG, IDENTITY, Interval(-1.0, 3.0)], ids=["log", "id", "int"]
)
def test_transforms_invert_and_know_their_slope(transform):
    u = jnp.array([-2.0, 0.1, 1.5])
    assert_close(transform.inverse(transform.forward(u)), u)
    slope = jax.vmap(jax.grad(transform.forward))(u)
    assert_close(jnp.broadcast_to(transform.log_slope(u), u.shape), jnp.log(jnp.abs(slope)))


# --------------------------------------------------------------------------- the vector


def some_parameters():
    return [
        positive("noise", 0.3, 1.0),
        positive("scales", [1.0, 2.0], 0.5),
        Parameter("bounded", np.asarray(0.5), Normal(0.0, 1.0), Interval(0.0, 2.0)),
        Parameter("offset", np.asarray(0.2), Normal(0.0, 2.0), IDENTITY),
    ]


def test_pack_and_unpack_are_inverse():
    parameters = ParameterSet.of(some_parameters())
    values = {"noise": 0.7, "scales": np.array([3.0, 0.1]), "bounded": 1.4, "offset": -3.0}
    vector = parameters.pack(values)
    assert vector.shape == (parameters.size,) == (5,)
    for name, value in parameters.unpack(vector).items():
        assert_close(value, values[name])
    assert parameters.names() == ["noise", "scales[0]", "scales[1]", "bounded", "offset"]


def test_log_prior_is_the_density_of_the_unconstrained_vector():
    parameters = ParameterSet.of(some_parameters())
    vector = np.array([-0.4, 0.3, 1.1, 0.2, -0.7])
    share = 1 / (1 + np.exp(-0.2))
    expected = (
        norm(np.log(0.3), 1.0).logpdf(-0.4)
        + norm(np.log([1.0, 2.0]), 0.5).logpdf([0.3, 1.1]).sum()
        + norm(0, 1).logpdf(2 * share)
        + np.log(2 * share * (1 - share))
        + norm(0, 2).logpdf(-0.7)
    )
    assert_close(parameters.log_prior(jnp.asarray(vector)), expected)


def test_start_is_the_mode_of_log_normal_priors():
    parameters = ParameterSet.of(some_parameters()[:2])
    gradient = jax.grad(parameters.log_prior)(jnp.asarray(parameters.start()))
    assert_close(gradient, np.zeros(3))


def test_fixed_parameters_leave_the_vector():
    parameters = ParameterSet.of(some_parameters(), fixed={"scales": 4.0, "offset": 1.0})
    assert parameters.names() == ["noise", "bounded"]
    values = parameters.unpack(jnp.zeros(2))
    np.testing.assert_array_equal(values["scales"], [4.0, 4.0])
    assert_close(values["offset"], 1.0)


def test_everything_fixed_is_an_empty_vector():
    fixed = {"noise": 1.0, "scales": 1.0, "bounded": 1.0, "offset": 1.0}
    parameters = ParameterSet.of(some_parameters(), fixed=fixed)
    assert parameters.size == 0
    assert parameters.start().shape == (0,)
    assert float(parameters.log_prior(jnp.zeros(0))) == 0.0


def test_priors_replace_those_of_the_data():
    mine = LogNormal(5.0, 0.1)
    parameters = ParameterSet.of(some_parameters(), priors={"noise": mine})
    assert parameters.priors["noise"] == mine
    vector = jnp.asarray(parameters.start())
    other = ParameterSet.of(some_parameters())
    difference = parameters.log_prior(vector) - other.log_prior(vector)
    expected = norm(np.log(5.0), 0.1).logpdf(np.log(0.3)) - norm(0, 1).logpdf(0)
    assert_close(difference, expected)


def test_a_numpyro_prior_of_one_number_serves_every_entry():
    priors = {"scales": dist.LogNormal(np.log(2.0), 0.5)}
    parameters = ParameterSet.of(some_parameters(), priors=priors)
    same = ParameterSet.of(some_parameters(), priors={"scales": LogNormal(2.0, 0.5)})
    vector = jnp.array([-0.4, 0.3, 1.1, 0.2, -0.7])
    assert_close(parameters.log_prior(vector), same.log_prior(vector))
    assert parameters.draws(0, 1).shape == (1, 5)


def test_draws_stay_within_bounds():
    parameters = ParameterSet.of([positive("a", 1.0, sigma=5.0, reach=2.0)])
    low, high = parameters.bounds()
    assert_close([low[0], high[0]], [-2.0, 2.0])
    drawn = parameters.draws(0, 50)
    assert drawn.min() >= -2.0
    assert drawn.max() <= 2.0
    assert drawn.std() > 0.5


@pytest.mark.parametrize("option", ["fixed", "priors"])
def test_unknown_names_are_listed_with_the_known_ones(option):
    with pytest.raises(ValueError, match=f"{option} names 'nois'.*noise, scales, bounded, offset"):
        ParameterSet.of(some_parameters(), **{option: {"nois": 1.0}})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_bad_fixed_values_are_named(bad):
    with pytest.raises(ValueError, match=r"fixed\['noise'\]"):
        ParameterSet.of(some_parameters(), fixed={"noise": bad})


def test_fixed_values_of_the_wrong_shape_are_named():
    with pytest.raises(ValueError, match=r"fixed\['scales'\] has shape \(3,\)"):
        ParameterSet.of(some_parameters(), fixed={"scales": [1.0, 2.0, 3.0]})


def test_fixed_values_outside_an_interval_are_named():
    with pytest.raises(ValueError, match=r"fixed\['bounded'\]"):
        ParameterSet.of(some_parameters(), fixed={"bounded": 5.0})


def test_priors_that_are_not_distributions_are_named():
    with pytest.raises((TypeError, ValueError), match="noise"):
        ParameterSet.of(some_parameters(), priors={"noise": 0.3})


# --------------------------------------------------------------------------- kernels


def names(kernel, **options):
    return [p.name for p in kernel_template(kernel, "kernel", X, 2.0, **options).parameters]


def test_names_are_paths_into_the_kernel():
    assert names(gk.RBF()) == ["kernel.lengthscale", "kernel.variance"]
    total = gk.RBF() + gk.Matern32() * gk.Linear(variance=2.0)
    assert names(total) == [
        "kernel.0.lengthscale",
        "kernel.0.variance",
        "kernel.1.0.lengthscale",
        "kernel.1.0.variance",
        "kernel.1.1.variance",
    ]
    assert names(TanhKernel(0.3)) == ["kernel.variance"]
    assert names(DeepKernel(gk.RBF(), NETWORK)) == [
        "kernel.base.lengthscale",
        "kernel.base.variance",
        "kernel.network.layers.0.weight",
        "kernel.network.layers.0.bias",
        "kernel.network.layers.1.weight",
        "kernel.network.layers.1.bias",
    ]


def test_a_mediator_kernel_of_one_part_has_no_variance_to_learn():
    assert names(gk.RBF(), unit_variance=True) == ["kernel.lengthscale"]
    both = gk.RBF() + gk.Matern32()
    assert "kernel.0.variance" in names(both, unit_variance=True)


def test_parameters_made_non_trainable_are_left_alone():
    kernel = gk.RBF(lengthscale=non_trainable(PositiveReal(0.7)))
    template = kernel_template(kernel, "kernel", X, 2.0)
    assert [p.name for p in template.parameters] == ["kernel.variance"]
    expected = gram(gk.RBF(lengthscale=0.7, variance=3.0), X)
    assert_close(gram(template.with_values({"kernel.variance": jnp.asarray(3.0)}), X), expected)


@pytest.mark.parametrize(
    "kernel",
    [
        gk.RBF(lengthscale=jnp.array([0.5, 1.0, 2.0]), variance=3.0) + gk.Linear(variance=0.2),
        DeepKernel(gk.Matern32(lengthscale=0.4), NETWORK),
        gk.RationalQuadratic(alpha=PositiveReal(0.7)),
        gk.RBF(lengthscale=SigmoidBounded(0.7, low=0.1, high=2.0)),
        TanhKernel(0.3),
    ],
    ids=["sum", "deep", "rational quadratic", "bounded", "custom"],
)
def test_a_kernel_at_its_own_values_is_itself(kernel):
    template = kernel_template(kernel, "kernel", X, 2.0)
    own = template.own_values()
    assert_close(gram(template.with_values(own), X), gram(kernel, X))
    assert_close(gram(template.wrapped(own), X), gram(kernel, X))
    assert type(template.wrapped(own)) is type(kernel)


def test_values_reach_their_places():
    template = kernel_template(gk.RBF() + gk.Matern32(), "kernel", X, 2.0)
    values = {
        "kernel.0.lengthscale": 0.3,
        "kernel.0.variance": 0.5,
        "kernel.1.lengthscale": 4.0,
        "kernel.1.variance": 1.5,
    }
    at = {name: jnp.asarray(value) for name, value in values.items()}
    expected = gk.RBF(lengthscale=0.3, variance=0.5) + gk.Matern32(lengthscale=4.0, variance=1.5)
    assert_close(gram(template.with_values(at), X), gram(expected, X))


def test_starts_follow_the_scale_of_inputs_and_observations():
    x = X[:, :1] * np.array([1.0, 10.0, 0.1])
    small = kernel_template(gk.RBF(lengthscale=jnp.ones(3)), "kernel", x, 2.0)
    large = kernel_template(gk.RBF(lengthscale=jnp.ones(3)), "kernel", 1e3 * x, 2e6)
    starts = {p.name: np.asarray(p.start) for p in small.parameters}
    assert_close(starts["kernel.variance"], 2.0)
    ratio = starts["kernel.lengthscale"] / starts["kernel.lengthscale"][0]
    assert_close(ratio, [1.0, 10.0, 0.1])
    for one, other in zip(small.parameters, large.parameters, strict=True):
        factor = 1e6 if one.name == "kernel.variance" else 1e3
        assert_close(other.start, factor * one.start)


def test_only_active_covariates_set_a_length_scale():
    template = kernel_template(gk.RBF(active_dims=[1]), "kernel", X, 2.0)
    all_of_them = kernel_template(gk.RBF(), "kernel", X[:, [1]], 2.0)
    assert_close(template.parameters[0].start, all_of_them.parameters[0].start)


def test_priors_keep_tiny_scales():
    # Precipitation in kg m⁻² s⁻¹ varies by 1e-7: its variance is 1e-14.
    for parameter in kernel_template(gk.RBF(), "kernel", X, 1e-14).parameters:
        value = parameter.prior.log_prob(jnp.asarray(parameter.start))
        assert np.isfinite(value).all(), parameter.name


def test_typical_distance():
    assert typical_distance(np.array([[0.0], [1.0], [3.0]])) == 2.0
    assert typical_distance(np.zeros((5, 2))) == 1.0
    assert typical_distance(np.zeros((1, 2))) == 1.0
    mostly_equal = np.array([[0.0]] * 9 + [[1.0]])
    assert typical_distance(mostly_equal) == pytest.approx(9 / 45)
