"""Scaling of inputs and target: moments of clipped fields against quadrature and samples."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import norm

from deconditional.errors import UsageError
from deconditional.fields.frames import unit_vectors
from deconditional.fields.scaling import (
    InputScaling,
    Spread,
    TargetScaling,
    clipped_moments,
    local_frame,
)

INFINITE = (-np.inf, np.inf)


def by_quadrature(mu, sd, log, bounds, power):
    """E clip(F)^power, the integral cut where the clip begins."""

    ends = [(np.log(b) if b > 0 else -np.inf) if log else b for b in bounds]

    def value(t):
        latent = np.clip(mu + sd * t, *ends)
        return (np.exp(latent) if log else latent) ** power

    # The integrand of a lognormal has its mass around power * sd; 12 on either side hold all.
    first, last = -12.0, 12.0 + (power * sd if log else 0.0)
    cuts = [(end - mu) / sd for end in ends if np.isfinite(end)]
    breaks = np.unique([first, 0.0, *(c for c in cuts if first < c < last), last])
    return sum(
        quad(lambda t: value(t) * norm.pdf(t), a, b, epsabs=0, epsrel=1e-11, limit=200)[0]
        for a, b in pairwise(breaks)
    )


@pytest.mark.parametrize("mu", [-1.3, 0.0, 0.7])
@pytest.mark.parametrize("sd", [0.05, 0.6, 2.0])
@pytest.mark.parametrize(
    ("log", "bounds"),
    [
        (False, INFINITE),
        (False, (0.0, np.inf)),
        (False, (-np.inf, 0.4)),
        (False, (-0.5, 1.0)),
        (True, INFINITE),
        (True, (0.0, np.inf)),
        (True, (0.8, np.inf)),
        (True, (-np.inf, 1.5)),
        (True, (0.3, 1.1)),
        (True, (-2.0, 1.1)),
    ],
)
def test_moments_agree_with_quadrature(mu, sd, log, bounds):
    moments = clipped_moments(np.array([mu]), np.array([sd]), log, bounds)
    for power, moment in zip((1, 2), moments, strict=True):
        expected = by_quadrature(mu, sd, log, bounds, power)
        np.testing.assert_allclose(moment[0], expected, rtol=1e-9, atol=1e-12)


def test_moments_without_bounds_have_closed_forms():
    mu, sd = np.array([[-1.0, 2.0], [0.5, 3.0]]), np.array([[0.1, 1.0], [2.0, 0.0]])
    first, second = clipped_moments(mu, sd, False, INFINITE)
    np.testing.assert_allclose(first, mu, rtol=1e-14)
    np.testing.assert_allclose(second, mu**2 + sd**2, rtol=1e-14)
    first, second = clipped_moments(mu, sd, True, INFINITE)
    np.testing.assert_allclose(first, np.exp(mu + sd**2 / 2), rtol=1e-14)
    np.testing.assert_allclose(second, np.exp(2 * mu + 2 * sd**2), rtol=1e-14)


@pytest.mark.parametrize("sd", [0.0, 1e-300, 1e-12])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("bounds", [INFINITE, (0.5, np.inf), (-np.inf, 2.0), (0.5, 2.0)])
def test_certain_values_are_clipped(sd, log, bounds):
    latent = np.array([-1e10, -3.0, 0.5, 1.0, 2.0, 5.0, 1e10])
    mu = np.log(np.array([1e-10, 0.1, 0.5, 1.0, 2.0, 5.0, 1e10])) if log else latent
    first, second = clipped_moments(mu, np.full(7, sd), log, bounds)
    expected = np.clip(np.exp(mu) if log else mu, *bounds)
    np.testing.assert_allclose(first, expected, rtol=1e-11)
    np.testing.assert_allclose(second, expected**2, rtol=1e-11)


@pytest.mark.parametrize("distance", [3.0, 6.0, 8.0, 15.0, 30.0])
def test_rare_values_above_a_bound(distance):
    """A normal field that is almost always below its least value, as little rain is.

    E max(F, 0) and E max(F, 0)² for F of mean -d: integrals of the density's tail.
    """
    first, second = clipped_moments(np.array([-distance]), np.ones(1), False, (0.0, np.inf))
    tail = [
        quad(
            lambda t, k=k: t**k * np.exp(-distance * t - 0.5 * t**2), 0, 40, epsabs=0, epsrel=1e-12
        )[0]
        * norm.pdf(distance)
        for k in (1, 2)
    ]
    np.testing.assert_allclose([first[0], second[0]], tail, rtol=1e-7)
    mirrored, _ = clipped_moments(np.array([distance]), np.ones(1), False, (-np.inf, 0.0))
    np.testing.assert_allclose(mirrored, -first, rtol=1e-12)


@pytest.mark.parametrize("log", [False, True])
def test_bounds_far_out_in_a_tail(log):
    mu = np.array([-200.0, 0.0, 200.0])
    bounds = (np.exp(-5.0), np.exp(5.0)) if log else (-50.0, 50.0)
    first, second = clipped_moments(mu, np.ones(3), log, bounds)
    middle = (np.exp(0.5), np.exp(2.0)) if log else (0.0, 1.0)
    # exp(5) is 5 deviations away, or 3 where the square has its mass: that much is cut off.
    np.testing.assert_allclose(first, [bounds[0], middle[0], bounds[1]], rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(
        second, [bounds[0] ** 2, middle[1], bounds[1] ** 2], rtol=1e-2, atol=1e-12
    )


def test_wide_lognormals_stay_within_their_bounds():
    """Deviations of 40 in the logarithm: low and high by halves, nearly."""
    first, second = clipped_moments(np.zeros(1), np.array([40.0]), True, (0.0, 10.0))
    np.testing.assert_allclose(first, by_quadrature(0.0, 40.0, True, (0.0, 10.0), 1), rtol=1e-9)
    np.testing.assert_allclose(second, by_quadrature(0.0, 40.0, True, (0.0, 10.0), 2), rtol=1e-9)
    mean, std = TargetScaling(0.0, 1.0, True, INFINITE).moments(
        np.zeros((1, 2)), np.full((1, 2), 1600.0)
    )
    np.testing.assert_array_equal([mean, std], np.full((2, 2), np.inf))


def test_moments_are_within_what_is_possible():
    rng = np.random.default_rng(0)
    mu, sd = rng.normal(scale=20.0, size=5000), np.exp(rng.normal(scale=4.0, size=5000))
    for log, centre in ((False, mu), (True, mu / 10)):
        width = np.minimum(sd, 15.0) if log else sd
        for bounds in ((0.0, np.inf), (0.2, 1.5), (-np.inf, 3.0)):
            first, second = clipped_moments(centre, width, log, bounds)
            assert np.isfinite(first).all() and np.isfinite(second).all()
            assert first.min() >= bounds[0] and first.max() <= bounds[1]
            assert np.all(second >= first**2 * (1 - 1e-9) - 1e-9)


# --- the target ---------------------------------------------------------------------------------


Z = np.array([0.5, 1.0, 2.0, 4.0, 3.0])


@pytest.mark.parametrize(
    ("transform", "bounds", "name"),
    [
        (None, None, "normal"),
        (None, (0.0, None), "rectified normal"),
        (None, (None, 4.5), "rectified normal"),
        (None, (0.0, 5.0), "rectified normal"),
        ("log", None, "lognormal"),
        ("log", (0.0, None), "lognormal"),
    ],
)
def test_moments_and_quantiles_are_those_of_samples(transform, bounds, name):
    """200000 draws of a mixture of three normals, at two points.

    A mean is known to std/√n and a standard deviation to sqrt(E(F-m)⁴ - std⁴) / (2 std √n), both
    from the draws; four errors are allowed. A quantile of the field is that of the process,
    mapped; the share of draws below it is known to sqrt(p (1 - p) / n).
    """
    scaling = TargetScaling.of(Z, transform, bounds)
    assert scaling.distribution == name
    means = np.array([[-0.5, 1.0], [0.2, 2.0], [1.0, 1.5]])
    variances = np.array([[0.2, 0.1], [0.5, 0.3], [0.3, 0.05]])

    def mixture_quantile(point, level):
        return brentq(
            lambda f: norm.cdf(f, means[:, point], np.sqrt(variances[:, point])).mean() - level,
            -10.0,
            10.0,
        )

    rng, n = np.random.default_rng(1), 200_000
    which = rng.integers(0, 3, n)
    process = means[which] + np.sqrt(variances[which]) * rng.standard_normal((n, 2))
    draws = scaling.physical(process)
    assert draws.min() >= scaling.bounds[0] and draws.max() <= scaling.bounds[1]
    mean, std = scaling.moments(means, variances)
    deviation = draws - draws.mean(0)
    fourth = (deviation**4).mean(0)
    assert np.all(np.abs(draws.mean(0) - mean) < 4 * std / np.sqrt(n))
    error = np.sqrt(fourth - std**4) / (2 * std * np.sqrt(n))
    assert np.all(np.abs(draws.std(0) - std) < 4 * error)
    for level in (0.05, 0.5, 0.9):
        quantile = scaling.physical(np.array([mixture_quantile(k, level) for k in (0, 1)]))
        inside = ~np.isin(quantile, scaling.bounds)
        error = np.abs((draws < quantile).mean(0) - level)
        assert inside.any() and np.all(error[inside] < 4 * np.sqrt(level * (1 - level) / n))


@pytest.mark.parametrize(("transform", "bounds"), [(None, None), ("log", None), (None, (0, 5))])
def test_physical_undoes_standardising(transform, bounds):
    scaling = TargetScaling.of(Z, transform, bounds)
    f = scaling.standardised(Z)
    np.testing.assert_allclose([f.mean(), f.std()], [0.0, 1.0], atol=1e-14)
    np.testing.assert_allclose(scaling.physical(f), Z, rtol=1e-14)
    levels = np.linspace(0.01, 0.99, 9)
    assert np.all(np.diff(scaling.physical(ndtri(levels))) >= 0)


def test_small_deviations_survive_large_means():
    """Pressures in Pa: a deviation of 0.01 Pa around 1e5 is lost in the difference of squares."""
    scaling = TargetScaling.of(101_325.0 + np.array([-2.0, 0.0, 1.0, 1.0]), None, (0.0, None))
    variances = np.full((1, 3), 1e-8)
    mean, std = scaling.moments(np.array([[0.0, 1.0, -2.0]]), variances)
    np.testing.assert_allclose(std, scaling.scale * 1e-4, rtol=1e-6)
    np.testing.assert_allclose(mean, 101_325.0 + scaling.scale * np.array([0.0, 1.0, -2.0]))


def test_a_mean_is_never_beyond_a_bound():
    scaling = TargetScaling.of(np.array([0.0, 0.1, 0.3, 2.7]), None, (0.0, None))
    mean, std = scaling.moments(np.full((1, 4), [-50.0, -9.0, -7.0, -5.0]), np.ones((1, 4)))
    assert np.all(mean >= 0) and np.all(np.diff(mean) >= 0) and mean[-1] > 0
    assert mean[0] == 0.0 and std[0] == 0.0


@pytest.mark.parametrize(("transform", "bounds"), [(None, None), ("log", None), (None, (0, 5))])
def test_slope_is_the_derivative_of_the_mean(transform, bounds):
    """In closed form: the scale times the mass inside the bounds, or times the mean."""
    scaling = TargetScaling.of(Z, transform, bounds)
    means, variances = np.array([[-1.5, 0.0, 1.0]]), np.array([[0.3, 1.0, 0.1]])
    mu, sd = scaling.centre + scaling.scale * means[0], scaling.scale * np.sqrt(variances[0])
    if transform == "log":
        expected = scaling.scale * np.exp(mu + sd**2 / 2)
    else:
        expected = (
            scaling.scale
            * np.diff(norm.cdf((np.array(scaling.bounds)[:, None] - mu) / sd), axis=0)[0]
        )
    np.testing.assert_allclose(scaling.slope(means, variances), expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("z", "transform", "bounds", "message"),
    [
        (Z, "sqrt", None, "transform must be 'log' or nothing, not 'sqrt'"),
        (Z, None, (3.0, 1.0), r"the bounds \(3.0, 1.0\) leave no room between them"),
        (Z, None, (1.0, 1.0), "leave no room"),
        (Z, None, (np.nan, 1.0), "leave no room"),
        (Z, None, (0.0, 3.5), "1 observed values lie outside the bounds .*the first is 4"),
        (Z, None, (0.9, None), "1 observed values lie outside the bounds .*the first is 0.5"),
        (Z, None, 0.0, r"bounds are the least and the greatest value, .* as in \(0, None\); not 0"),
        (Z, None, (0.0, 1.0, 2.0), "bounds are the least and the greatest value"),
        (Z, None, ("low", None), "bounds are the least and the greatest value"),
        (Z - 0.5, "log", None, r"needs positive values; 1 observed values .* bounds=\(0, None\)"),
        (Z, "log", (0.1, None), "takes no other bounds"),
        (Z, "log", (None, 9.0), "takes no other bounds"),
    ],
)
def test_targets_that_cannot_be(z, transform, bounds, message):
    with pytest.raises(UsageError, match=message) as error:
        TargetScaling.of(z, transform, bounds)
    assert "\n" not in str(error.value)


def test_a_target_without_spread_keeps_its_unit():
    scaling = TargetScaling.of(np.full(3, 7.0), None, None)
    assert (scaling.centre, scaling.scale) == (7.0, 1.0)


# --- the inputs ---------------------------------------------------------------------------------


def test_positions_on_the_sphere_are_left_alone():
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.normal(size=(50, 3)), rng.normal(5.0, 3.0, 50), np.full(50, 2.0)])
    before = values.copy()
    scaling = InputScaling.of(Spread.of(values), 3, spherical=True)
    scaled = scaling(values)
    np.testing.assert_array_equal(scaled[:, :3], values[:, :3])
    np.testing.assert_allclose([scaled[:, 3].mean(), scaled[:, 3].std()], [0.0, 1.0], atol=1e-14)
    np.testing.assert_array_equal(scaled[:, 4], 0.0)
    np.testing.assert_array_equal(values, before)


def test_positions_on_a_plane_share_one_scale():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 3)) * [1e6, 1e4, 5.0] + [5e6, 4e5, 280.0]
    scaling = InputScaling.of(Spread.of(values), 2, spherical=False)
    one, other = scaling.scale[:2]
    assert one == other == pytest.approx(np.sqrt((values[:, :2].var(0)).mean()))
    scaled = scaling(values)
    np.testing.assert_allclose(scaled.mean(0), 0.0, atol=1e-12)
    # Distances keep their proportions.
    np.testing.assert_allclose(
        np.linalg.norm(scaled[1:, :2] - scaled[0, :2], axis=1),
        np.linalg.norm(values[1:, :2] - values[0, :2], axis=1) / one,
    )


def test_a_local_frame_does_not_know_where_its_meridian_is():
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(20, 60, 50), rng.uniform(-30, 40, 50)
    here, there = unit_vectors(lat, lon), unit_vectors(lat, lon + 77.0)
    scalings = [InputScaling.of(Spread.of(each), 3, spherical=True) for each in (here, there)]
    np.testing.assert_allclose(scalings[0](here), scalings[1](there), atol=1e-12)
    east, north, up = (
        scalings[0].turn @ unit_vectors(*at) for at in ((40, 90), (89.9, 5), (40, 5))
    )
    assert east[0] > 0.7 and north[1] > 0.7 and up[2] > 0.99
    low, high = scalings[0].box(here.min(0), here.max(0))
    assert (scalings[0](here) >= low - 1e-12).all() and (scalings[0](here) <= high + 1e-12).all()
    globe = unit_vectors(rng.uniform(-80, 80, 500), rng.uniform(-180, 180, 500))
    assert local_frame(globe.mean(0)) is None and local_frame(np.array([0.0, 0.0, 1.0])) is None
