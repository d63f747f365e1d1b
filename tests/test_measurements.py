"""Mediators as measurements of bag means: against dense algebra and Bayes' rule."""

import numpy as np
import pytest

from deconditional.observations.measurements import (
    Population,
    errors_in_common,
    measured,
    steps,
    with_level,
)

SIZE = 7


def population(effect=0.3, mean=0.4, variance=2.0):
    return Population(mean, variance - effect, effect, size=40)


def regression(seed=0, informed=1.0):
    """Mean, prior and posterior of g at bags, as seen by a few noisy values of it."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.uniform(0, 3, SIZE))
    prior = 2.0 * np.exp(-0.5 * (y[:, None] - y) ** 2) + 1e-9 * np.eye(SIZE)
    precision = np.linalg.inv(prior) + informed * np.diag(rng.uniform(0, 4, SIZE))
    posterior = np.linalg.inv(precision)
    return 0.4 + posterior @ rng.normal(size=SIZE), prior, posterior


def test_values_and_noise_are_those_of_the_formulas():
    mean, prior, errors = regression()
    t = prior + 0.3 * np.eye(SIZE)
    b = 1 - 0.3 / 2.0
    unknown = np.linalg.inv(np.linalg.inv(errors) - np.linalg.inv(t))
    g = 0.4 + np.linalg.solve(np.eye(SIZE) - errors @ np.linalg.inv(t), mean - 0.4)
    found = measured(mean, prior, errors, population())
    np.testing.assert_allclose(found.values, 0.4 + (g - 0.4) / b, rtol=1e-6)
    expected = 0.3 / b * np.eye(SIZE) + unknown / b**2
    np.testing.assert_allclose(found.noise, expected, rtol=1e-6, atol=1e-8)


def test_given_g_a_measurement_is_what_bayes_rule_leaves():
    """p(f | y) / p(f), a normal density over another, is the density of the measurement."""
    g, effect, m, v = np.array([0.1, 1.3]), 0.5, 0.4, 2.0
    found = measured(g, np.eye(2), 1e-10 * np.eye(2), population(effect))
    f = np.linspace(-2, 3, 9)[:, None]
    ratio = -0.5 * (f - g) ** 2 / effect + 0.5 * (f - m) ** 2 / v
    measurement = -0.5 * (f - found.values) ** 2 / np.diag(found.noise)
    np.testing.assert_allclose(np.diff(ratio, axis=0), np.diff(measurement, axis=0), rtol=1e-6)


def test_what_bags_have_in_common_is_what_g_at_a_few_mediators_tells_of_all():
    _, _, errors = regression()
    factor, pivots = errors_in_common(errors, 3)
    told = errors[:, pivots] @ np.linalg.solve(errors[np.ix_(pivots, pivots)], errors[pivots])
    np.testing.assert_allclose(factor @ factor.T, told, atol=1e-10)
    assert np.linalg.eigvalsh(errors - told).min() > -1e-10
    largest = np.linalg.eigvalsh(errors)[-3:].sum()
    assert np.trace(told) > 0.9 * largest
    again, _ = errors_in_common(2.0 * errors, 3, pivots)
    np.testing.assert_allclose(again, np.sqrt(2.0) * factor, rtol=1e-9, atol=1e-12)
    everything, _ = errors_in_common(errors, pivots=range(SIZE))
    np.testing.assert_allclose(everything @ everything.T, errors, atol=1e-9)


def test_errors_are_in_common_as_long_as_they_tell_more_of_others():
    """Two groups of four have one error each, and everyone one of their own."""
    group = np.repeat([0, 1], 4)
    shared = 0.5 * (group[:, None] == group)
    factor, pivots = errors_in_common(shared + np.diag(np.linspace(0.1, 0.4, 8)))
    assert sorted(group[pivots]) == [0, 1]
    left = shared + np.diag(np.linspace(0.1, 0.4, 8)) - factor @ factor.T
    assert ((left**2).sum(0) <= 2.0 * np.diag(left) ** 2 + 1e-12).all()
    assert errors_in_common(np.diag([3.0, 1.0, 2.0]))[0].shape == (3, 0)
    assert len(errors_in_common(shared + 0.1 * np.eye(8), 1)[1]) == 1


@pytest.mark.parametrize(("draws", "size"), [(8, 7), (20, 7), (4, 3)])
def test_draws_have_mean_and_covariance_of_what_they_are_drawn_from(draws, size):
    xi = steps(draws, size, seed=3)
    np.testing.assert_allclose(xi.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(xi.T @ xi / draws, np.eye(size), atol=1e-12)
    assert not np.allclose(xi, steps(draws, size, seed=4))
    assert not steps(1, size).any() and steps(0, size).shape == (0, size)


def test_where_z_says_nothing_of_g_nothing_is_measured():
    _, prior, _ = regression()
    found = measured(np.full(SIZE, 0.4), prior, prior, population(3e-5))
    np.testing.assert_allclose(found.values, 0.4)
    assert np.linalg.eigvalsh(found.noise)[-1] > 1e3 * 2.0


@pytest.mark.parametrize("effect", [2.0, 5.0])
def test_a_mediator_that_says_nothing_measures_with_noise_beyond_all_bags(effect):
    mean, prior, errors = regression()
    found = measured(mean, prior, errors, Population(0.4, 0.0, effect, 40))
    assert np.isfinite(found.noise).all() and np.isfinite(found.values).all()
    # A bag tells less than a tenth of what is known of it before.
    assert np.diag(found.noise).min() > 10 * effect


def test_bag_by_bag_values_are_the_same_where_bags_have_nothing_in_common():
    mean, prior, errors = regression()
    prior, errors = np.diag(prior), np.diag(errors)
    apart = measured(mean, prior, errors, population())
    together = measured(mean, np.diag(prior), np.diag(errors), population())
    np.testing.assert_allclose(apart.values, together.values, rtol=1e-6)
    np.testing.assert_allclose(apart.noise, np.diag(together.noise), rtol=1e-9)


def test_the_level_is_one_more_observation_of_the_bags():
    """Two Gaussian updates of any prior of bag means, or one by measurements that took it in."""
    found = measured(*regression(), population())
    taken_in = with_level(found, 0.7, population())
    of_bags = 1.3 * np.exp(-np.abs(np.subtract.outer(np.arange(SIZE), np.arange(SIZE))))
    seen = np.vstack([np.eye(SIZE), np.full((1, SIZE), 1 / SIZE)])
    noise = np.zeros((SIZE + 1, SIZE + 1))
    noise[:SIZE, :SIZE] = found.noise
    noise[SIZE, SIZE] = 2.0 * (1 / SIZE + 1 / 40)
    gain = of_bags @ seen.T @ np.linalg.inv(seen @ of_bags @ seen.T + noise)
    both = gain @ np.append(found.values, 0.7)
    one = of_bags @ np.linalg.inv(of_bags + taken_in.noise)
    np.testing.assert_allclose(one @ taken_in.values, both, rtol=1e-8)
    left = of_bags - one @ of_bags
    np.testing.assert_allclose(left, of_bags - gain @ seen @ of_bags, rtol=1e-7, atol=1e-9)
