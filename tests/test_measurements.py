"""Mediators as measurements of bag means: against dense algebra, Bayes' rule and differences."""

import numpy as np
import pytest

from deconditional.observations.measurements import (
    Population,
    measured,
    measured_apart,
    with_level,
)

SIZE = 7
POPULATION = Population(mean=0.4, variance=2.0, size=40)


def regression(seed=0, effect=0.3, informed=1.0):
    """Mean, prior and posterior of g at bags, as seen by a few noisy values of it."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.uniform(0, 3, SIZE))
    prior = 2.0 * np.exp(-0.5 * (y[:, None] - y) ** 2) + 1e-9 * np.eye(SIZE)
    precision = np.linalg.inv(prior) + informed * np.diag(rng.uniform(0, 4, SIZE))
    posterior = np.linalg.inv(precision)
    return 0.4 + posterior @ rng.normal(size=SIZE), prior, posterior, effect


def test_values_and_noise_are_those_of_the_formulas():
    mean, prior, posterior, effect = regression()
    t = prior + effect * np.eye(SIZE)
    b = 1 - effect / POPULATION.variance
    u = np.linalg.inv(np.linalg.inv(posterior) - np.linalg.inv(t))
    g = 0.4 + np.linalg.solve(np.eye(SIZE) - posterior @ np.linalg.inv(t), mean - 0.4)
    along = (g - g.mean()) / np.linalg.norm(g - g.mean())
    level, amplitude = np.full((SIZE, SIZE), 1 / SIZE), np.outer(along, along)
    j = level + (2 * b - 1) / b * amplitude + (np.eye(SIZE) - level - amplitude) / b
    found = measured(mean, prior, posterior, effect, POPULATION)
    np.testing.assert_allclose(found.values, 0.4 + (g - 0.4) / b, rtol=1e-6)
    expected = effect / b * np.eye(SIZE) + j @ u @ j.T
    np.testing.assert_allclose(found.noise, expected, rtol=1e-6, atol=1e-8)


def test_given_g_a_measurement_is_what_bayes_rule_leaves():
    """p(f | y) / p(f), a normal density over another, is the density of the measurement."""
    g, effect, (m, v, _) = np.array([0.1, 1.3]), 0.5, POPULATION
    known = 1e-10 * np.eye(2)
    found = measured(g, np.eye(2), known, effect, POPULATION)
    f = np.linspace(-2, 3, 9)[:, None]
    ratio = -0.5 * (f - g) ** 2 / effect + 0.5 * (f - m) ** 2 / v
    measurement = -0.5 * (f - found.values) ** 2 / np.diag(found.noise)
    np.testing.assert_allclose(np.diff(ratio, axis=0), np.diff(measurement, axis=0), rtol=1e-6)


def test_errors_of_g_move_measurements_as_differences_do():
    """J is the derivative of t where the level and b follow g."""
    rng = np.random.default_rng(3)
    g, effect = rng.normal(size=SIZE), 0.4

    def values(g):
        share = np.var(g) / (np.var(g) + effect)
        return g.mean() + (g - g.mean()) / share

    step = 1e-6
    j = np.stack([(values(g + e) - values(g - e)) / (2 * step) for e in step * np.eye(SIZE)], 1)
    population = Population(float(g.mean()), float(np.var(g)) + effect, 40)
    posterior = 1e-9 * np.diag(rng.uniform(1, 2, SIZE))
    found = measured(g, np.eye(SIZE), posterior, effect, population)
    share = 1 - effect / population.variance
    np.testing.assert_allclose(
        (found.noise - effect / share * np.eye(SIZE)) * 1e9, j @ posterior @ j.T * 1e9, atol=2e-6
    )
    np.testing.assert_allclose(found.values, values(g), rtol=1e-6)


def test_where_z_says_nothing_of_g_nothing_is_measured():
    _, prior, _, effect = regression()
    found = measured(np.full(SIZE, 0.4), prior, prior, 1e-4 * effect, POPULATION)
    np.testing.assert_allclose(found.values, 0.4)
    assert np.linalg.eigvalsh(found.noise)[-1] > 1e3 * POPULATION.variance


@pytest.mark.parametrize("effect", [2.0, 5.0])
def test_a_mediator_that_says_nothing_measures_with_noise_beyond_all_bags(effect):
    mean, prior, posterior, _ = regression()
    found = measured(mean, prior, posterior, effect, POPULATION)
    assert np.isfinite(found.noise).all() and np.isfinite(found.values).all()
    # A bag tells less than a tenth of what is known of it before.
    assert np.diag(found.noise).min() > 10 * POPULATION.variance


def test_bag_by_bag_values_are_the_same_where_bags_have_nothing_in_common():
    mean, prior, posterior, effect = regression()
    prior, posterior = np.diag(prior), np.diag(posterior)
    apart = measured_apart(mean, prior, posterior, effect, POPULATION)
    together = measured(mean, np.diag(prior), np.diag(posterior), effect, POPULATION)
    np.testing.assert_allclose(apart.values, together.values, rtol=1e-6)
    share = 1 - effect / POPULATION.variance
    unknown = 1 / (1 / posterior - 1 / (prior + effect))
    np.testing.assert_allclose(apart.noise, effect / share + unknown / share**2, rtol=1e-9)


def test_the_level_is_one_more_observation_of_the_bags():
    """Two Gaussian updates of any prior of bag means, or one by measurements that took it in."""
    mean, prior, posterior, effect = regression()
    found = measured(mean, prior, posterior, effect, POPULATION)
    taken_in = with_level(found, POPULATION)
    of_bags = 1.3 * np.exp(-np.abs(np.subtract.outer(np.arange(SIZE), np.arange(SIZE))))
    seen = np.vstack([np.eye(SIZE), np.full((1, SIZE), 1 / SIZE)])
    noise = np.zeros((SIZE + 1, SIZE + 1))
    noise[:SIZE, :SIZE] = found.noise
    noise[SIZE, SIZE] = POPULATION.variance * (1 / SIZE + 1 / POPULATION.size)
    gain = of_bags @ seen.T @ np.linalg.inv(seen @ of_bags @ seen.T + noise)
    both = gain @ np.append(found.values, POPULATION.mean)
    one = of_bags @ np.linalg.inv(of_bags + taken_in.noise)
    np.testing.assert_allclose(one @ taken_in.values, both, rtol=1e-8)
    left = of_bags - one @ of_bags
    np.testing.assert_allclose(left, of_bags - gain @ seen @ of_bags, rtol=1e-7, atol=1e-9)
