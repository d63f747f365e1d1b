"""Several sources of one field, several targets, and inputs that cannot be."""

import gpjax.kernels as gk
import numpy as np
import pytest

import deconditional as dc
from deconditional.fitting.kernel_parameters import kernel_template
from deconditional.kernels.tasks import TaskKernel
from tests.helpers import assert_close
from tests.test_family_fits import FIXED, HELD, F, N, X, gram

RNG = np.random.default_rng(0)
CELLS = dc.Bags.from_points(X, np.arange(N) // 5)
Z = CELLS.means(F) + 0.1 * RNG.standard_normal(8)
STATIONS = np.array([0.3, 2.2, 5.1])
Y = np.sin(STATIONS) + 0.3 + 0.02 * RNG.standard_normal(3)


def functionals():
    """Rows of means over cells and values at stations, over all points."""
    x = np.concatenate([X, STATIONS])
    rows = np.zeros((11, len(x)))
    rows[np.arange(N) // 5, np.arange(N)] = 0.2
    rows[8:, N:] = np.eye(3)
    return x, rows


def conditioned(noise, z):
    """Dense posterior mean and variance at all points."""
    x, rows = functionals()
    k = gram(x, x)
    gain = k @ rows.T @ np.linalg.inv(rows @ k @ rows.T + noise)
    return x, gain @ z, np.diag(k - gain @ rows @ k)


@pytest.mark.parametrize("fine", [0.0, 0.3])
def test_cells_and_stations_are_one_gaussian_conditioning(fine):
    """With a noise of single points too, of which a fifth is left in the mean of five."""
    noise = np.diag([0.01 + fine**2 / 5] * 8 + [0.0004 + fine**2] * 3)
    x, mean, variance = conditioned(noise, np.concatenate([Z, Y]))
    sources = [dc.Source(CELLS, Z, noise_std=0.1), dc.Source(STATIONS, Y, noise_std=0.02)]
    own = {"fine_noise": True, "fixed": {**FIXED, "fine_noise_std": fine}} if fine else {}
    model = dc.BaggGP(**{"fixed": FIXED, **own, **HELD}).fit(sources)
    post = model.predict(x, fine_noise=bool(fine))
    assert_close(post.mean, mean, tolerance=1e-5)
    assert_close(post.variance, variance + fine**2, tolerance=1e-5)


def test_an_offset_is_an_error_that_a_source_has_in_common():
    z = Z + 2.0
    std = 3.0 * np.std(z)
    noise = np.diag([0.01] * 8 + [0.0004] * 3)
    noise[:8, :8] += std**2
    x, mean, variance = conditioned(noise, np.concatenate([z, Y]))
    sources = [
        dc.Source(CELLS, z, noise_std=0.1, bias="offset"),
        dc.Source(STATIONS, Y, noise_std=0.02),
    ]
    post = dc.BaggGP(fixed=FIXED, **HELD).fit(sources).predict(x)
    assert_close(post.mean, mean, tolerance=1e-5)
    assert_close(post.variance, variance, tolerance=1e-5)


def test_counts_a_survey_and_a_biased_source_of_one_risk():
    """Each source alone knows less than both; an affine bias is found."""
    rng = np.random.default_rng(1)
    points = dc.Bags.from_points(X, np.arange(N))
    f = 0.8 * np.sin(X) - 0.5
    counts = rng.poisson(200 * CELLS.means(np.exp(f))).astype(float)
    tested = rng.binomial(150, 1 / (1 + np.exp(-(0.5 + 1.5 * f)))).astype(float)
    survey = dc.Source(points, tested, dc.Binomial(), trials=150, bias="affine")
    sources = [dc.Source(CELLS, counts, dc.Poisson(), exposure=200.0), survey]
    options = {"n_inducing": N, "n_restarts": 1, "fixed": FIXED}
    model = dc.VBagg(**options).fit(sources)
    alone = dc.VBagg(family=dc.Poisson(), **options).fit(CELLS, counts, exposure=200.0)
    both, one = model.predict(X).latent, alone.predict(X).latent
    assert both.std.mean() < 0.8 * one.std.mean()
    assert abs(model.parameters_["source1.scale"] - 1.5) < 0.35
    lower, upper = both.interval(0.95)
    assert ((f > lower) & (f < upper)).mean() > 0.8
    assert (model.predict(X, source=1).mean < 1).all()


def test_targets_that_have_nothing_in_common_are_fitted_apart():
    held = {"kernel.base.lengthscale": 1.0, "kernel.base.variance": 1.0}
    apart = {**held, "kernel.loadings": 0.0, "kernel.own": 1.0}
    other = CELLS.means(np.cos(X))
    sources = [
        dc.Source(CELLS, Z, noise_std=0.1, task=0),
        dc.Source(CELLS, other, noise_std=0.2, task=1),
    ]
    model = dc.BaggGP(fixed=apart, **HELD).fit(sources)
    for task, z, noise in ((0, Z, 0.1), (1, other, 0.2)):
        found = model.predict(X, task=task)
        x, rows = functionals()
        rows, k = rows[:8], gram(x, x) + 1.0
        gain = k @ rows.T @ np.linalg.inv(rows @ k @ rows.T + noise**2 * np.eye(8))
        np.testing.assert_allclose(found.mean, (gain @ z)[:N], atol=1e-4)
    together = dc.BaggGP(fixed={**held, "kernel.own": 0.1}, rank=2, **HELD).fit(sources)
    assert together.predict(X, task=1).mean.shape == (N,)
    assert np.linalg.eigvalsh(together.kernel_.covariance_of_tasks()).min() > 0.0999


def test_every_term_of_a_kernel_has_its_own_matrix_between_targets():
    kernel = TaskKernel(gk.RBF() + gk.Matern32(lengthscale=0.3), n_tasks=2, rank=1, level=0.5)
    smooth, rough = kernel.terms
    loadings = np.array([[[1.0], [0.5]], [[0.2], [-0.7]]])
    own = np.array([[0.1, 0.2], [0.3, 0.4]])
    template = kernel_template(kernel, "kernel", np.zeros((3, 2)), 1.0)
    values = {**template.own_values(), "kernel.loadings": loadings, "kernel.own": own}
    x = np.column_stack([X[:6], np.arange(6) % 2])
    found = template.with_values(values).cross_covariance(x, x)
    t = np.arange(6) % 2
    expected = 0.25 * (t[:, None] == t)
    for term, a, k in zip((smooth, rough), loadings, own, strict=True):
        between = a @ a.T + np.diag(k)
        expected = expected + between[t][:, t] * term.cross_covariance(X[:6, None], X[:6, None])
    assert_close(found, expected)


def test_normal_sources_have_what_rates_have():
    post = dc.BaggGP(fixed=FIXED, **HELD).fit([dc.Source(CELLS, Z, noise_std=0.1)]).predict(X)
    assert post.latent is post
    assert_close(post.exceedance(post.quantile(0.8)), np.full(N, 0.2))


P, B = dc.Poisson(), dc.Binomial()
COUNTS = np.arange(8.0)
MEDIATED = dc.Bags.from_points(X, np.arange(N) // 5, mediator=COUNTS)
BAD = {
    "a fraction": ("has a count of 2.5", P, [2.5] + [1.0] * 7, {}),
    "a negative": ("has an observation of -1", P, [-1.0] + [1.0] * 7, {}),
    "a missing": ("observation 0 of z is missing", P, [np.nan] + [1.0] * 7, {}),
    "too few": ("8 bags came with 7 observations", P, [1.0] * 7, {}),
    "no z": ("needs the observations z", P, None, {}),
    "zero exposure": ("exposure 0 and yet", P, [1.0] * 8, {"exposure": [0.0] + [1.0] * 7}),
    "empty exposure": ("says nothing; drop it", P, [0.0] * 8, {"exposure": [0.0] + [1.0] * 7}),
    "negative exposure": ("exposure -1", P, [1.0] * 8, {"exposure": -1.0}),
    "exposure nan": ("exposure nan", P, [1.0] * 8, {"exposure": np.nan}),
    "exposure shape": ("one number, or one for each of the 8", P, [1.0] * 8, {"exposure": [1, 2]}),
    "exposure words": ("exposure must be numbers", P, [1.0] * 8, {"exposure": ["many"] * 8}),
    "trials of counts": ("Poisson takes exposure=, not trials", P, [1.0] * 8, {"trials": 3}),
    "exposure of trials": ("Binomial takes trials=, not exp", B, [1.0] * 8, {"exposure": 3}),
    "no trials": ("2 successes in 1 trial;", B, [2.0] * 8, {}),
    "few trials": ("4 successes in 3 trials", B, [4.0] * 8, {"trials": 3}),
    "half trials": ("3.5 trials", B, [1.0] * 8, {"trials": 3.5}),
    "noise of counts": ("noise_std belongs to", P, [1.0] * 8, {"noise_std": 1.0}),
    "covariance": ("noise_cov is for normal", P, [1.0] * 8, {"noise_cov": np.eye(8)}),
    "negative rain": ("Tweedie are not negative", dc.Tweedie(), [-1.0] * 8, {}),
    "class": ("write dc.Poisson\\(\\)", dc.Poisson, [1.0] * 8, {}),
    "word": ("family must be a family", "poisson", [1.0] * 8, {}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_observations_of_a_family(name):
    message, family, z, options = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        dc.VBagg(family=family).fit(CELLS, z, **options)


S = dc.Source
BAD_SOURCES = {
    "empty": ("an empty list", [], {}),
    "dims": ("sources have 1 and 2 covariates", [S(CELLS, Z), S(np.ones((3, 2)), Y)], {}),
    "bias": ("bias must be none, offset or affine", [S(CELLS, Z, bias="some")], {}),
    "alone": ("nothing to be biased against", [S(CELLS, Z, bias="offset")], {}),
    "all biased": ("every source has a bias", [S(CELLS, Z, bias="offset")] * 2, {}),
    "task gap": ("from 0 without gaps", [S(CELLS, Z, task=0), S(CELLS, Z, task=2)], {}),
    "task half": ("some have none", [S(CELLS, Z, task=0), S(CELLS, Z)], {}),
    "task sign": ("task must be a whole number", [S(CELLS, Z, task=-1)], {}),
    "task word": ("task must be a whole number", [S(CELLS, Z, task="rain")], {}),
    "z too": ("z belongs to dc.Source", [S(CELLS, Z)], {"z": Z}),
    "noise too": ("noise_std belongs to dc.Source", [S(CELLS, Z)], {"noise_std": 1.0}),
    "mediator": ("the bags have no mediator", [S(CELLS, Z, mediator=COUNTS)], {}),
    "model": ("VarCMP is the model", [S(MEDIATED, Z, mediator=COUNTS)], {}),
    "mediators": ("8 observations came with 7 medi", [S(MEDIATED, Z, mediator=COUNTS[1:])], {}),
    "stations": ("3 bags came with 2 observations", [S(STATIONS, Y[:2])], {}),
    "place": ("missing or infinite covariate", [S([np.nan, 1.0, 2.0], Y)], {}),
}


@pytest.mark.parametrize("name", BAD_SOURCES)
def test_bad_sources(name):
    message, sources, options = BAD_SOURCES[name]
    with pytest.raises((ValueError, TypeError), match=message):
        dc.VBagg().fit(sources, **options)


BAD_OPTIONS = {
    "fine noise": ("fine_noise is for normal", {"fine_noise": True}),
    "learn noise": ("learn_noise is for normal", {"learn_noise": True}),
    "move": ("learn_inducing is for normal", {"learn_inducing": True}),
    "inference": ("inference must be", {"inference": "exact"}),
    "trace": ("trace is for normal", {"trace": "exact"}),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_without_meaning_for_a_family(name):
    message, options = BAD_OPTIONS[name]
    with pytest.raises(ValueError, match=message):
        dc.VBagg(family=P, **options).fit(CELLS, COUNTS)


def test_bad_questions_to_a_fitted_model():
    model = dc.VBagg(family=B, n_inducing=5, fixed=FIXED, **HELD).fit(CELLS, COUNTS, trials=9)
    for call, message in (
        (lambda: model.predict(X, task=0), "one target"),
        (lambda: model.predict(X, source=1), "one of the 1 of the fit"),
        (lambda: model.predict_bags(CELLS, kind="sum"), "have no trials"),
        (lambda: model.predict_bags(CELLS, kind="total"), "kind must be 'mean' or 'sum'"),
        (lambda: model.predict_bags(CELLS, noise=True), "have no trials"),
        (lambda: model.predict_bags(CELLS, exposure=2.0), "takes trials="),
        (lambda: model.predict_bags(CELLS, trials=-2.0), "must be positive"),
        (lambda: model.predict_bags(CELLS, n_draws=1), "at least 2"),
        (lambda: model.predict_held_out(np.zeros(8)), "into two parts or more"),
        (lambda: model.predict(X, features=9), "in a basis already"),
        (
            lambda: dc.BaggGP(n_restarts=1).fit(CELLS, Z).predict_bags(CELLS, kind="sum"),
            "option of",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()
