"""Scores against numerical integration, Monte Carlo and SciPy."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import kstest, lognorm, norm, spearmanr

from deconditional import scores
from deconditional.inference.posterior import Gaussians
from deconditional.scores import distributions
from deconditional.scores.marginals import Marginals

MEANS = np.array([[0.0, 1.0, -2.0], [1.5, 1.0, 4.0], [-0.5, 0.0, 0.0]])
STDS = np.array([[1.0, 0.3, 2.0], [0.2, 1.0, 0.5], [0.7, 0.1, 1.0]])
TRUTH = np.array([0.4, 2.0, -3.0])


def mixture_cdf(value, column):
    return norm.cdf(value, MEANS[:, column], STDS[:, column]).mean()


def crps_by_integration(column):
    """The definition: the integral of (F(t) - 1[t >= y])²."""
    y = TRUTH[column]
    below = quad(lambda t: mixture_cdf(t, column) ** 2, -30, y, limit=400)[0]
    above = quad(lambda t: (1 - mixture_cdf(t, column)) ** 2, y, 30, limit=400)[0]
    return below + above


def test_errors_of_the_mean():
    rng = np.random.default_rng(0)
    p, t = rng.normal(size=(2, 7, 5))
    assert scores.rmse(p, t) == pytest.approx(np.sqrt(((p - t) ** 2).mean()))
    assert scores.mae(p, t) == pytest.approx(np.abs(p - t).mean())
    assert scores.bias(p + 3.0, p) == pytest.approx(3.0)


def test_correlations_match_scipy_also_with_ties():
    rng = np.random.default_rng(1)
    p = rng.integers(5, size=40).astype(float)
    t = p + rng.normal(size=40)
    assert scores.pearson(p, t) == pytest.approx(np.corrcoef(p, t)[0, 1])
    assert scores.spearman(p, t) == pytest.approx(spearmanr(p, t).statistic)


def test_correlation_with_a_constant_is_undefined():
    assert np.isnan(scores.pearson([1.0, 1.0], [0.0, 1.0]))
    assert np.isnan(scores.spearman([1.0, 1.0], [0.0, 1.0]))


def test_crps_of_mixtures_is_the_integral_of_its_definition():
    expected = [crps_by_integration(column) for column in range(3)]
    found = scores.crps_each(Gaussians(MEANS, STDS**2), TRUTH)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert scores.crps_mixture(MEANS, STDS**2, TRUTH) == pytest.approx(np.mean(expected), abs=1e-7)


def test_distribution_of_mixtures_is_the_integral_of_the_density():
    for column in range(3):
        density = lambda t, c=column: norm.pdf(t, MEANS[:, c], STDS[:, c]).mean()  # noqa: E731
        below = quad(density, -30, TRUTH[column], limit=400, points=MEANS[:, column])[0]
        assert scores.pit(Gaussians(MEANS, STDS**2), TRUTH)[column] == pytest.approx(
            below, abs=1e-7
        )


@pytest.mark.parametrize("level", [0.001, 0.3, 0.5, 0.975])
def test_quantiles_of_mixtures_invert_the_distribution(level):
    found = scores.mixture_quantile(MEANS, STDS**2, level)
    root = [brentq(lambda t, c=c: mixture_cdf(t, c) - level, -30, 30, xtol=1e-13) for c in range(3)]
    np.testing.assert_allclose(found, root, atol=1e-10)
    one = scores.mixture_quantile(MEANS[:1], STDS[:1] ** 2, level)
    np.testing.assert_allclose(one, norm.ppf(level, MEANS[0], STDS[0]))


def test_quantiles_where_newtons_method_is_lost():
    """Far apart, in steps, or all alike: between the components as few are below as were asked."""
    far = np.array([[-1e4, 0.0, 3.0], [0.0, 1e-3, 3.0], [1e4, 5.0, 3.0]])
    spread = np.array([[1.0, 0.0, 2.0], [1e-3, 1.0, 2.0], [5.0, 0.0, 2.0]])
    for level in (1e-4, 0.2, 0.4, 0.9):
        found = scores.mixture_quantile(far, spread**2, level)
        step = 1e-6 * (1.0 + np.abs(found))
        below, above = (scores.mixture_cdf(far, spread**2, found + s) for s in (-step, step))
        assert (below <= level + 1e-9).all() and (above >= level - 1e-9).all()
    np.testing.assert_allclose(found[2], norm.ppf(0.9, 3.0, 2.0), rtol=1e-12)


def test_without_variance_the_distribution_is_a_step():
    means, none = np.zeros((1, 3)), np.zeros((1, 3))
    np.testing.assert_array_equal(scores.mixture_cdf(means, none, [-1.0, 0.0, 1.0]), [0, 0.5, 1])
    np.testing.assert_array_equal(scores.mixture_quantile(means, none, 0.9), np.zeros(3))


def test_crps_of_mixtures_against_monte_carlo():
    rng = np.random.default_rng(2)
    n = 200_000
    rows = rng.integers(3, size=(2, n, 3))
    a, b = (
        MEANS[row, np.arange(3)] + STDS[row, np.arange(3)] * rng.normal(size=(n, 3)) for row in rows
    )
    draws = np.abs(a - TRUTH) - 0.5 * np.abs(a - b)
    error = draws.mean(1).std() / np.sqrt(n)
    assert scores.crps_mixture(MEANS, STDS**2, TRUTH) == pytest.approx(draws.mean(), abs=4 * error)


def test_crps_of_one_gaussian_is_the_published_closed_form():
    m, s = MEANS[0], STDS[0]
    w = (TRUTH - m) / s
    closed = s * (w * (2 * norm.cdf(w) - 1) + 2 * norm.pdf(w) - 1 / np.sqrt(np.pi))
    assert scores.crps_gaussian(m, s, TRUTH) == pytest.approx(closed.mean(), rel=1e-12)


def test_crps_without_spread_is_the_absolute_error():
    zero = np.zeros_like(TRUTH)
    assert scores.crps_gaussian(MEANS[0], zero, TRUTH) == pytest.approx(scores.mae(MEANS[0], TRUTH))
    # A mixture of points is an empirical distribution; this one has half its mass on each side.
    assert scores.crps_mixture([[0.0], [2.0]], [[0.0], [0.0]], [1.0]) == pytest.approx(0.5)


def test_crps_does_not_depend_on_the_blocks(monkeypatch):
    whole = scores.crps_mixture(MEANS, STDS**2, TRUTH)
    monkeypatch.setattr(distributions, "BLOCK", 2)
    assert scores.crps_mixture(MEANS, STDS**2, TRUTH) == pytest.approx(whole, rel=1e-14)


def test_nll_is_the_log_of_the_mixture_density():
    density = norm.pdf(TRUTH, MEANS, STDS).mean(0)
    found = scores.nll(Gaussians(MEANS, STDS**2), TRUTH)
    assert found == pytest.approx(-np.log(density).mean(), rel=1e-12)


def test_nll_without_variance():
    certain = Gaussians(np.zeros((1, 2)), np.zeros((1, 2)))
    assert scores.nll(certain, [1.0, 0.0]) == np.inf
    assert scores.nll(certain, [0.0, 0.0]) < -300


def test_coverage_counts_the_ends():
    assert scores.coverage([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0.5, 1.5]) == 0.75


def test_score_of_a_calibrated_posterior():
    rng = np.random.default_rng(3)
    n = 40_000
    mean, std = rng.normal(size=n), rng.uniform(0.5, 2.0, size=n)
    truth = mean + std * rng.normal(size=n)
    found = scores.score(Gaussians(mean[None], std[None] ** 2), truth)
    assert list(found) == ["rmse", "mae", "bias", "crps", "coverage50", "coverage95", "nll"]
    assert found["coverage50"] == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(n))
    assert found["coverage95"] == pytest.approx(0.95, abs=4 * 0.22 / np.sqrt(n))
    assert found["rmse"] == scores.rmse(mean, truth)
    assert found["crps"] == scores.crps_gaussian(mean, std, truth)


def test_crps_prefers_the_right_spread():
    truth = np.random.default_rng(4).normal(size=20_000)
    found = [scores.crps_gaussian(0 * truth, 0 * truth + s, truth) for s in (0.5, 1.0, 2.0)]
    assert found[1] < found[0] and found[1] < found[2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scores.rmse([1.0, 2.0], [1.0]), r"prediction \(2,\), truth \(1,\)"),
        (lambda: scores.rmse(np.zeros((3, 1)), np.zeros(3)), r"\(3, 1\), truth \(3,\)"),
        (lambda: scores.mae([1.0, np.nan], [1.0, 2.0]), "prediction has 1 missing.*position 1"),
        (lambda: scores.bias([1.0, 2.0], [np.inf, 2.0]), "truth has 1 missing.*position 0"),
        (lambda: scores.rmse([], []), "empty"),
        (lambda: scores.rmse(["a"], [1.0]), "prediction must be numbers"),
        (lambda: scores.crps_gaussian([0.0], [-1.0], [0.0]), "std has a negative value"),
        (lambda: scores.crps_mixture([0.0], [1.0], [0.0]), "one row per component"),
        (lambda: scores.crps_mixture([[0.0]], [[1.0]], [0.0, 1.0]), "2 values of truth"),
        (lambda: scores.coverage([1.0], [0.0], [0.5]), "lower is above upper"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- positive and bounded cells -------------------------------------------------------------------

LAWS = {
    "normal": (Marginals("normal", np.array([1.0]), np.array([0.7])), norm(1.0, 0.7).cdf),
    "lognormal": (
        Marginals("lognormal", np.array([0.3]), np.array([0.6])),
        lognorm(0.6, scale=np.exp(0.3)).cdf,
    ),
    "rectified": (
        Marginals("rectified normal", np.array([0.5]), np.array([0.8]), 0.0, 1.2),
        lambda x: np.where(x < 0, 0.0, np.where(x >= 1.2, 1.0, norm.cdf(x, 0.5, 0.8))),
    ),
    "rectified below": (
        Marginals("rectified normal", np.array([-0.2]), np.array([1.0]), 0.0),
        lambda x: np.where(x < 0, 0.0, norm.cdf(x, -0.2, 1.0)),
    ),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("truth", [-1.0, 0.0, 0.4, 1.2, 3.0])
def test_crps_is_the_integral_that_defines_it(law, truth):
    marginals, cdf = LAWS[law]
    kinks = sorted({-9.0, 0.0, truth, 1.2, 12.0})
    wanted = sum(
        quad(lambda x: (cdf(x) - (x >= truth)) ** 2, low, high)[0] for low, high in pairwise(kinks)
    )
    assert marginals.crps(np.array([truth])) == pytest.approx(wanted, abs=1e-6)


def test_cells_without_spread_are_scored_as_points():
    at = np.array([2.0, 2.0]), np.zeros(2)
    for marginals in (
        Marginals("normal", *at),
        Marginals.lognormal(*at),
        Marginals("rectified normal", *at, 0.0),
    ):
        assert marginals.crps(np.array([2.0, 5.0])) == pytest.approx(1.5)
        np.testing.assert_allclose(marginals.pit(np.array([1.0, 5.0])), [0.0, 1.0])


def test_lognormal_has_the_moments_given():
    marginals = Marginals.lognormal(np.array([3.0]), np.array([2.0]))
    law = lognorm(marginals.scale[0], scale=np.exp(marginals.location[0]))
    assert (law.mean(), law.std()) == pytest.approx((3.0, 2.0))
    assert marginals.quantile(0.9)[0] == pytest.approx(law.ppf(0.9))


@pytest.mark.parametrize("kind", ["normal", "lognormal", "rectified normal"])
def test_pit_of_draws_is_uniform(kind):
    rng = np.random.default_rng(3)
    location, scale = rng.normal(size=4000), rng.uniform(0.3, 1.0, 4000)
    draws = location + scale * rng.standard_normal(4000)
    if kind == "lognormal":
        draws = np.exp(draws)
    low, high = (-0.5, 0.8) if kind == "rectified normal" else (-np.inf, np.inf)
    pit = Marginals(kind, location, scale, low, high).pit(np.clip(draws, low, high))
    assert kstest(pit, "uniform").pvalue > 0.01
    np.testing.assert_allclose(scores.pit_coverage(pit, [0.5, 0.9]), [0.5, 0.9], atol=0.025)


# --- structural similarity ------------------------------------------------------------------------


@pytest.mark.parametrize("data_range", [None, 1.0, 40.0])
def test_ssim_is_that_of_scikit_image(data_range):
    metrics = pytest.importorskip("skimage.metrics")
    rng = np.random.default_rng(0)
    truth = 280 + 10 * np.cumsum(rng.standard_normal((40, 60)), 0) / 6
    prediction = truth + rng.standard_normal(truth.shape)
    span = np.ptp(truth) if data_range is None else data_range
    expected = metrics.structural_similarity(
        prediction,
        truth,
        data_range=span,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert scores.ssim(prediction, truth, data_range) == pytest.approx(expected, rel=1e-9)


def test_ssim_leaves_out_windows_with_missing_values():
    rng = np.random.default_rng(1)
    truth = rng.standard_normal((30, 60))
    prediction = truth + 0.3 * rng.standard_normal(truth.shape)
    left = scores.ssim(prediction[:, :40], truth[:, :40], 4.0)
    holed = prediction.copy()
    holed[:, 40:] = np.nan
    assert scores.ssim(holed, truth, 4.0) == pytest.approx(left, rel=1e-12)


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ((np.ones((20, 20)), np.ones((20, 21))), "one shape"),
        ((np.ones((9, 20)), np.ones((9, 20))), "more than 10 cells"),
        ((np.ones((20, 20)), np.ones((20, 20))), "data_range must be positive"),
        ((np.full((20, 20), np.nan), np.eye(20)), "no cell in common"),
        ((np.where(np.eye(20) > 0, np.nan, 1.0)[:, ::-1], np.eye(20)), "no window"),
    ],
)
def test_maps_that_have_no_ssim(maps, message):
    with pytest.raises(ValueError, match=message):
        scores.ssim(*maps)
