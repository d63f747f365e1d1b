"""Scores of counts and draws against sums by definition, closed forms, SciPy and Monte Carlo."""

import numpy as np
import pytest
from scipy.special import ive
from scipy.stats import gamma, nbinom, poisson

from deconditional import scores
from deconditional.scores import Counts, Draws, Ends

MEANS = np.array([[0.3, 4.0, 60.0], [1.2, 9.0, 20.0]])
DISPERSIONS = [0.0, 0.5, np.array([[0.2], [3.0]]), np.array([[0.0], [1.5]])]
TRUTH = np.array([0.0, 7.0, 150.0])
EVERY = np.arange(6000.0)[:, None]


def scipy_parts(dispersion):
    """Each component by SciPy: functions of counts (K, 1) to (K, S, m)."""
    a = np.broadcast_to(dispersion, MEANS.shape)
    size = 1 / np.where(a > 0, a, 1.0)

    def either(name, k):
        varied = getattr(nbinom, name)(k[..., None], size, 1 / (1 + a * MEANS))
        return np.where(a > 0, varied, getattr(poisson, name)(k[..., None], MEANS))

    return either


@pytest.mark.parametrize("dispersion", DISPERSIONS, ids=["Poisson", "one", "each", "some"])
def test_mixtures_of_counts_are_those_of_scipy(dispersion):
    counts, parts = Counts(MEANS, dispersion), scipy_parts(dispersion)
    pmf = parts("pmf", EVERY).mean(1)
    below = np.cumsum(pmf, axis=0)
    mean = (EVERY * pmf).sum(0)
    np.testing.assert_allclose(counts.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(counts.variance, ((EVERY - mean) ** 2 * pmf).sum(0), rtol=1e-9)
    found = np.exp([counts.log_probability(np.full(3, k)) for k in (0, 1, 37)])
    np.testing.assert_allclose(found, pmf[[0, 1, 37]], rtol=1e-9)
    np.testing.assert_allclose(counts.cdf(7.0), below[7], rtol=1e-9)
    np.testing.assert_allclose(counts.cdf(7.5), below[7], rtol=1e-9)
    np.testing.assert_allclose(counts.below(7.0), below[6], rtol=1e-9)
    for level in (0.025, 0.5, 0.975):
        np.testing.assert_array_equal(counts.quantile(level), (below < level).sum(0))
    expected = ((below - (EVERY >= TRUTH)) ** 2).sum(0)
    np.testing.assert_allclose(counts.crps_each(TRUTH), expected, rtol=1e-5)
    at = pmf[TRUTH.astype(int), range(3)]
    assert counts.log_score(TRUTH) == pytest.approx(-np.log(at).mean(), rel=1e-9)


@pytest.mark.parametrize("mean", [0.7, 30.0, 2e3, 3e6])
def test_crps_of_poisson_counts_is_its_closed_form(mean):
    # Wei and Held (2014); the Bessel functions are scaled by exp(-2 mean).
    y = np.floor(mean + np.array([0.0, 1.0, -2.0, 5.0]) * np.sqrt(mean)).clip(0)
    tails = (y - mean) * (2 * poisson.cdf(y, mean) - 1) + 2 * mean * poisson.pmf(y, mean)
    expected = tails - mean * (ive(0, 2 * mean) + ive(1, 2 * mean))
    found = Counts(np.full(4, mean)).crps_each(y)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if mean < 100 else 1e-3)


def test_many_negative_binomial_counts_tend_to_their_gamma_rates():
    mean, shape = 1e6, 4.0
    truth = np.array([5e5, 1e6, 2.5e6])
    x = np.linspace(0, 2e7, 400_001)
    gaps = gamma.cdf(x, shape, scale=mean / shape) - (x >= truth[:, None])
    expected = (gaps**2).sum(1) * x[1]
    found = Counts(np.full(3, mean), 1 / shape).crps_each(truth)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_tiny_dispersion_is_poisson():
    nearly = Counts(MEANS, 1e-12)
    np.testing.assert_allclose(
        nearly.log_probability(TRUTH), Counts(MEANS).log_probability(TRUTH), rtol=1e-8
    )
    np.testing.assert_allclose(nearly.cdf(TRUTH), Counts(MEANS).cdf(TRUTH), atol=1e-8)


def test_draws_of_counts_have_their_scores():
    counts = Counts(MEANS, DISPERSIONS[2])
    draws = Draws(counts.sample(40_000, seed=1))
    error = counts.std / 200
    np.testing.assert_array_less(np.abs(draws.mean - counts.mean), 4 * error)
    np.testing.assert_array_less(np.abs(draws.cdf(TRUTH) - counts.cdf(TRUTH)), 4 * 0.5 / 200)
    gap = np.abs(draws.crps_each(TRUTH) - counts.crps_each(TRUTH))
    np.testing.assert_array_less(gap, 4 * error)
    assert np.abs(draws.variance / counts.variance - 1).max() < 0.1


def test_crps_of_draws_is_that_of_pairs_and_unbiased():
    rng = np.random.default_rng(2)
    few = rng.poisson(3.0, size=(4, 20_000)).astype(float)
    found = Draws(few).crps_each(np.full(20_000, 2.0))
    pairs = [abs(few[i] - few[j]) for i in range(4) for j in range(4) if i != j]
    np.testing.assert_allclose(found, abs(few - 2.0).mean(0) - 0.5 * np.mean(pairs, axis=0))
    exact = Counts([3.0]).crps([2])
    assert found.mean() == pytest.approx(exact, abs=4 * found.std() / np.sqrt(20_000))
    assert Draws([[1.0]]).crps([4.0]) == 3.0


def test_quantiles_of_draws_are_draws():
    draws = Draws(np.arange(10.0)[::-1, None])
    assert draws.interval(0.8) == (0.0, 8.0)
    assert (draws.below([3.0]), draws.cdf([3.0])) == (0.3, 0.4)


def test_the_true_model_scores_best():
    rng = np.random.default_rng(3)
    mean = rng.gamma(1.0, 5.0, size=800)
    truth = Counts(mean, 0.4).sample(1, seed=4)[0]
    models = [Counts(mean, 0.4), Counts(mean), Counts(mean, 1.5), Counts(1.4 * mean, 0.4)]
    for name in ("log_score", "crps", "dawid_sebastiani"):
        found = [model.score(truth)[name] for model in models]
        assert found[0] == min(found), name
    true = models[0].score(truth)
    pit95 = true["pit95"]
    assert pit95 == pytest.approx(0.95, abs=4 * 0.22 / np.sqrt(800))
    assert true["coverage95"] > pit95  # both ends of an interval of counts belong to it


def test_pit_of_counts_is_uniform_where_they_are_calibrated():
    rng = np.random.default_rng(5)
    mean = rng.gamma(1.0, 2.0, size=20_000)
    truth = rng.poisson(mean)
    ends = Counts(mean).pit(truth)
    flat = 4 * np.sqrt(10 / 20_000)
    np.testing.assert_allclose(scores.pit_histogram(ends), 1.0, atol=flat)
    np.testing.assert_allclose(scores.pit_histogram(ends.draw()), 1.0, atol=flat)
    for row in scores.calibration(ends):
        assert abs(row["covered"] - row["level"]) < 4 * row["error"]
    sure = scores.pit_histogram(Counts(mean).pit(Counts(mean, 1.0).sample(1)[0]))
    assert sure[0] > 1.2 and sure[-1] > 1.2 and sure[5] < 0.9


def test_pit_without_draws_is_the_mean_over_draws():
    rng = np.random.default_rng(6)
    ends = Counts(rng.gamma(1.0, 2.0, 50)).pit(rng.poisson(2.0, 50))
    drawn = [scores.pit_histogram(ends.draw(seed), 5) for seed in range(2000)]
    error = 4 * np.std(drawn, axis=0) / np.sqrt(2000)
    np.testing.assert_array_less(
        np.abs(np.mean(drawn, axis=0) - scores.pit_histogram(ends, 5)), error
    )
    drawn = [scores.pit_coverage(ends.draw(seed), 0.8)[0] for seed in range(2000)]
    assert scores.pit_coverage(ends, 0.8)[0] == pytest.approx(np.mean(drawn), abs=0.01)


def test_without_jumps_ends_are_pit_values():
    values = np.array([0.03, 0.41, 0.62, 0.99])
    ends = Ends(values, values)
    np.testing.assert_allclose(scores.pit_histogram(ends), scores.pit_histogram(values))
    np.testing.assert_allclose(
        scores.pit_coverage(ends, [0.5, 0.95]), scores.pit_coverage(values, [0.5, 0.95])
    )


def test_dawid_sebastiani_without_variance():
    assert scores.dawid_sebastiani([1.0], [0.0], [2.0]) == np.inf
    assert scores.dawid_sebastiani([1.0], [0.0], [1.0]) == -np.inf


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Counts([[1.0]]).log_score([0.5]), "whole and not negative; there is 0.5"),
        (lambda: Counts([1.0, 2.0]).crps([1.0]), "2 predictions and 1 true values"),
        (lambda: Counts([-1.0]), "means has a negative value"),
        (lambda: Counts([1.0], [0.1, 0.2]), "does not fit means"),
        (lambda: Counts([1.0]).quantile(1.0), r"must be in \[0, 1\)"),
        (lambda: Draws([1.0]), "a row per draw"),
        (lambda: Draws([[np.nan]]), "missing or infinite"),
    ],
)
def test_what_cannot_be_scored(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
