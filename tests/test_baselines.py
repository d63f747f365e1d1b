"""What users have already: totals are kept, known rates are found, and words for bad input."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from deconditional.models.baselines import (
    Baseline,
    _dispersion,
    areal_weighting,
    dasymetric,
    poisson_regression,
)
from deconditional.scores import Counts

RNG = np.random.default_rng(0)
ZONE = np.repeat(np.arange(30), 8)
PEOPLE = np.zeros((30, 250))
PEOPLE[ZONE, np.arange(240)] = RNG.integers(100, 2000, 240)
X = RNG.normal(size=(250, 2)) + np.linspace(-1, 1, 250)[:, None]
RATE = 0.01 * np.exp(X @ [0.6, -0.3])
Z = Counts(PEOPLE @ RATE).sample(1)[0]


def test_totals_are_kept_and_points_outside_have_the_common_rate():
    for found in (areal_weighting(PEOPLE, Z), dasymetric(PEOPLE, Z, RATE)):
        np.testing.assert_allclose(PEOPLE @ found.rate, Z)
        np.testing.assert_allclose(found.predict(csr_array(PEOPLE)).mean, Z)
    np.testing.assert_allclose(areal_weighting(PEOPLE, Z).rate[240:], Z.sum() / PEOPLE.sum())
    within = dasymetric(PEOPLE, Z, RATE).rate / RATE
    np.testing.assert_allclose(within[:8], within[0])
    np.testing.assert_allclose(within[240:], Z.sum() / (PEOPLE @ RATE).sum())


def test_points_of_two_zones_share_their_rates():
    both = areal_weighting([[10.0, 30.0], [0.0, 10.0]], [4.0, 3.0])
    np.testing.assert_allclose(both.rate, [0.1, (30 * 0.1 + 10 * 0.3) / 40])


def test_regression_finds_the_rates():
    found = poisson_regression(PEOPLE, Z, X)
    slopes = np.polyfit(X[:, 0], np.log(found.rate), 1)
    assert np.corrcoef(np.log(found.rate), np.log(RATE))[0, 1] > 0.98
    assert np.isfinite(slopes).all() and found.dispersion < 0.02
    again = poisson_regression(csr_array(1000 * PEOPLE), Z, 3 * X + 5)
    np.testing.assert_allclose(again.rate * 1000, found.rate, rtol=1e-6)
    apart = dasymetric(PEOPLE, Z, found)
    np.testing.assert_allclose(PEOPLE @ apart.rate, Z)
    assert apart.dispersion == found.dispersion


def test_a_useless_covariate_leaves_the_common_rate():
    z = Counts(PEOPLE.sum(1) * 0.01, 0.3).sample(1, seed=1)[0]
    found = poisson_regression(PEOPLE, z, RNG.normal(size=(250, 5)))
    assert np.ptp(np.log(found.rate)) < 0.3


def test_dispersion_is_that_of_the_counts():
    mean = RNG.gamma(2.0, 20.0, size=2000)
    z = Counts(mean, 0.4).sample(1, seed=2)[0]
    assert _dispersion(z, mean) == pytest.approx(0.4, rel=0.1)
    assert _dispersion(Counts(mean).sample(1)[0], mean) < 0.01


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: areal_weighting(PEOPLE, Z[:-1]), "for each of the 30 zones"),
        (lambda: areal_weighting(-PEOPLE, Z), "amounts must be finite, not negative"),
        (lambda: dasymetric(PEOPLE, Z, X[:, 0]), "not negative for each of the 250 fine points"),
        (lambda: dasymetric([[1.0]], [2.0], [0.0]), "zone 0 has a count of 2 and density zero"),
        (lambda: poisson_regression(PEOPLE, Z, X[:-1]), "a row for each of the 250 fine points"),
        (lambda: poisson_regression([[1.0], [0.0]], [1.0, 0.0], [[1.0]]), "zone 1 has no amount"),
    ],
)
def test_what_cannot_be_compared_with(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


def test_a_baseline_predicts_negative_binomial_counts():
    counts = Baseline(np.array([0.1, 0.2]), 0.5).predict([[10.0, 20.0]])
    assert (counts.mean[0], counts.variance[0]) == (5.0, 5.0 + 0.5 * 25)
