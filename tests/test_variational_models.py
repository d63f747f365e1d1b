"""Variational estimators: where inducing points go, the trace, errors, reports."""

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest

from deconditional import CMP, BaggGP, Bags, FitWarning, VarCentroidGP, VarCMP, VBagg
from deconditional.fitting.evaluation import loss_and_gradient
from deconditional.fitting.map import Optimum
from deconditional.inference.variational import AllPairs, SampledPairs
from deconditional.models.solvers import inducing_points
from helpers import TanhKernel, assert_close, posed, problem_of, ragged_bags

BAGS = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2, weighted=True)
UNMEDIATED = Bags.from_points(BAGS.points, BAGS.bag, weights=BAGS.weights)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=(6, 1))
Z_MATCHED = RNG.normal(size=8)
X = RNG.normal(size=(5, 2))
PLACES = 1.2 * RNG.normal(size=(12, 2))
KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4}
FIXED = FIELD | {"noise_std": 0.3}
MEDIATED = FIXED | {"mediator_kernel.lengthscale": 0.9, "ridge": 0.02}


@pytest.mark.parametrize("kind, exact", [(VBagg, BaggGP), (VarCMP, CMP), (VarCentroidGP, BaggGP)])
def test_a_variational_model_takes_all_that_its_exact_model_takes(kind, exact):
    own, of_exact = kind().get_params(deep=False), exact().get_params(deep=False)
    assert of_exact.items() <= own.items()
    extra = {"n_inducing", "inducing", "learn_inducing", "features", "inference", "trace"}
    assert set(own) - set(of_exact) >= extra


# --------------------------------------------------------------------------- inducing points


def vbagg(**options):
    return VBagg(KERNEL, **({"trend": "none", "fixed": FIXED, "n_inducing": 12} | options))


@pytest.fixture(scope="module")
def fitted():
    return vbagg().fit(BAGS, Z_MATCHED)


def rows_of(points, among):
    """Which rows of `among` these points are; each must be one."""
    found = (points[:, None] == among).all(-1)
    assert (found.sum(1) == 1).all()
    return found.argmax(1)


def test_fit_returns_the_model_and_sets_what_it_learnt(fitted):
    assert fitted.inducing_.shape == (12, 2)
    assert fitted.n_features_in_ == 2
    assert fitted.bags_ is BAGS
    for name, value in FIXED.items():
        assert_close(fitted.parameters_[name], value)
    assert "inducing" not in fitted.parameters_
    details = fitted.fit_report_.details
    assert details["inference"] == "collapsed"
    assert details["tiles"] == "float64"
    assert details["trace"] == "exact, all 221 pairs within bags"
    assert details["inducing points"] == "12"
    assert details["jitter"] == "1e-12 of the variance"
    assert "inducing points: 12" in str(fitted.fit_report_)


@pytest.mark.parametrize("how", ["kmeans", "uniform"])
def test_inducing_points_are_chosen_among_the_fine_points(how):
    points, notes = inducing_points(BAGS, how, 12, seed=0)
    assert notes == ()
    assert len(np.unique(rows_of(points, BAGS.points))) == 12
    again, _ = inducing_points(BAGS, how, 12, seed=0)
    other, _ = inducing_points(BAGS, how, 12, seed=1)
    np.testing.assert_array_equal(points, again)
    assert not np.array_equal(points, other)


def test_kmeans_spreads_points_out_in_units_of_each_covariate():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)) * [1.0, 1e6]
    bags = Bags.from_points(x, np.arange(60) // 6)

    def nearest(points):
        scaled = points / [1.0, 1e6]
        distances = np.linalg.norm(scaled[:, None] - scaled, axis=-1)
        return (distances + 1e9 * np.eye(len(points))).min(1).mean()

    spread, random = (
        np.mean([nearest(inducing_points(bags, how, 8, seed)[0]) for seed in range(20)])
        for how in ("kmeans", "uniform")
    )
    assert spread > 1.2 * random


def test_the_model_uses_the_points_it_was_told_to(fitted):
    assert_close(fitted.inducing_, inducing_points(BAGS, "kmeans", 12, seed=0)[0])
    uniform = vbagg(inducing="uniform", seed=3).fit(BAGS, Z_MATCHED)
    assert_close(uniform.inducing_, inducing_points(BAGS, "uniform", 12, seed=3)[0])
    given = vbagg(inducing=PLACES.tolist(), n_inducing=None).fit(BAGS, Z_MATCHED)
    assert_close(given.inducing_, PLACES)
    assert len({m.log_evidence_ for m in (fitted, uniform, given)}) == 3


def test_inducing_points_of_one_covariate_may_be_a_list():
    points, _ = inducing_points(ragged_bags([2, 3], d=1), [0.0, 1.0, 2.0], None, seed=0)
    np.testing.assert_array_equal(points, [[0.0], [1.0], [2.0]])


def test_without_a_number_all_points_serve_where_they_are_few():
    points, notes = inducing_points(BAGS, "kmeans", None, seed=0)
    np.testing.assert_array_equal(points, np.unique(BAGS.points, axis=0))
    assert notes == ()


def test_more_inducing_points_than_points_are_all_points_and_a_warning():
    # Every fine point moved to one of twelve places.
    points = PLACES[np.arange(BAGS.n_points) % 12]
    bags = Bags.from_points(points, BAGS.bag, weights=BAGS.weights, mediator=BAGS.mediator)
    model = vbagg(n_inducing=30)
    with pytest.warns(FitWarning, match="30 inducing points were asked for.*only 12 distinct"):
        model.fit(bags, Z_MATCHED)
    assert_close(np.unique(model.inducing_, axis=0), np.unique(PLACES, axis=0))
    assert "Ask for fewer, or use the exact model" in model.fit_report_.notes[0]


def test_inducing_points_that_coincide_do_no_harm():
    twice = np.concatenate([PLACES[:6], PLACES[:6]])
    model = vbagg(inducing=twice, n_inducing=None).fit(BAGS, Z_MATCHED)
    details = model.fit_report_.details
    assert details["inducing points"] == "12 (6 coincide)"
    assert "of the variance" in details["jitter"]
    # Places out of reach of the data stand in for the six that add nothing.
    far = 30.0 + 12.0 * np.arange(6)[:, None] * np.ones(2)
    once = vbagg(inducing=np.concatenate([PLACES[:6], far]), n_inducing=None).fit(BAGS, Z_MATCHED)
    assert_close(model.log_evidence_, once.log_evidence_, tolerance=1e-6)
    assert_close(model.predict(X).mean, once.predict(X).mean, tolerance=1e-5)
    assert_close(model.predict(X).std, once.predict(X).std, tolerance=1e-5)


def test_learnt_inducing_points_move_and_raise_the_bound():
    places = PLACES[:3]
    model = vbagg(inducing=places, n_inducing=None, learn_inducing=True, n_restarts=1)
    model.fit(BAGS, Z_MATCHED)
    problem = model.fitted_.problem
    before = -float(loss_and_gradient(problem, jnp.asarray(problem.parameters.start()))[0])
    assert model.log_evidence_ > before + 0.1
    assert np.abs(model.inducing_ - places).max() > 0.05
    assert model.fit_report_.details["inducing points"] == "3, learnt"
    assert "inducing" not in model.parameters_
    assert "inducing" not in model.priors_
    # A flat prior: the log posterior, with nothing else learnt, is the bound.
    assert_close(model.fit_report_.log_posterior, model.log_evidence_)
    np.testing.assert_array_equal(model.inducing, places)


# --------------------------------------------------------------------------- the trace


def residual_of(model, bags=BAGS, z=Z_MATCHED, mediator=None, noise_cov=None):
    return problem_of(model, bags, z, mediator, noise_cov=noise_cov).residual


def trace_of(model, bags=BAGS, z=Z_MATCHED, mediator=None):
    return posed(model, bags, z, mediator).details["trace"]


def test_the_way_to_the_trace_is_the_one_asked_for():
    exact = residual_of(vbagg(trace="exact"))
    assert isinstance(exact, AllPairs)
    assert exact.pairs is not None
    model = vbagg(trace="subsample", inference_options={"trace_points": 8})
    sampled = residual_of(model)
    assert isinstance(sampled, SampledPairs)
    assert (sampled.points_per_bag, sampled.diagonal) == (8, True)
    assert trace_of(model) == "estimated from 2 x 8 points per bag"


def test_correlated_noise_and_mediators_need_the_whole_residual():
    whole = residual_of(vbagg(learn_noise=True), noise_cov=np.eye(8) + 0.1)
    assert isinstance(whole, AllPairs)
    assert whole.pairs is None
    model = VarCMP(KERNEL, fixed=MEDIATED, n_inducing=12)
    whole = residual_of(model, z=Z, mediator=Y_OBSERVED)
    assert whole.pairs is None
    assert trace_of(model, z=Z, mediator=Y_OBSERVED) == "exact, all 1.37e+03 pairs"
    model.set_params(trace="subsample")
    assert not residual_of(model, z=Z, mediator=Y_OBSERVED).diagonal


def test_the_trace_is_estimated_where_all_pairs_are_too_many(monkeypatch):
    # 37 points, 221 pairs within bags: up to 37 times eight basis functions they are cheap.
    monkeypatch.setattr("deconditional.models.solvers.EXACT_TRACE_POINTS", 1)
    assert isinstance(residual_of(vbagg()), AllPairs)
    long = Bags.from_points(np.arange(37.0), np.zeros(37, int))
    model = VBagg(gk.RBF(), n_inducing=4)
    assert isinstance(residual_of(model, bags=long, z=np.ones(1)), SampledPairs)


# --------------------------------------------------------------------------- precision


def test_float32_tiles_that_agree_are_kept(fitted):
    model = vbagg(precision="float32").fit(BAGS, Z_MATCHED)
    assert model.fit_report_.details["tiles"] == "float32"
    assert model.fit_report_.details["jitter"] == "1e-06 of the variance"
    assert abs(model.log_evidence_ - fitted.log_evidence_) < 1e-3
    assert model.log_evidence_ != fitted.log_evidence_


def test_float32_tiles_that_disagree_are_made_again_in_float64(fitted, monkeypatch):
    monkeypatch.setattr("deconditional.inference.learn.DISAGREEMENT", 0.0)
    model = vbagg(precision="float32")
    with pytest.warns(FitWarning, match="nats off, so the fit was repeated in float64"):
        model.fit(BAGS, Z_MATCHED)
    assert model.fit_report_.details["tiles"] == "float64 (retried)"
    assert any("precision='float64'" in note for note in model.fit_report_.notes)
    assert model.log_evidence_ == fitted.log_evidence_
    np.testing.assert_array_equal(model.predict(X).mean, fitted.predict(X).mean)


# --------------------------------------------------------------------------- many parameters


def test_parameters_with_a_posterior_are_averaged_over(monkeypatch):
    # Two draws given by hand, in place of NUTS and of the fit that starts it.
    draws = np.log([[0.2], [0.9]])
    diagnostics = {"divergences": 0, "r_hat": 1.0, "effective_samples": 2.0, "log_posterior": -1.0}
    best = Optimum(draws[0], -1.0, True, 1, 1, (-1.0,), 0.0)
    monkeypatch.setattr("deconditional.inference.learn.maximise", lambda *_, **__: best)
    monkeypatch.setattr(
        "deconditional.inference.learn.sample_posterior", lambda *_, **__: (draws, diagnostics)
    )
    model = vbagg(fixed=FIELD, method="nuts").fit(BAGS, Z_MATCHED)
    assert_close(model.parameter_draws_["noise_std"], [0.2, 0.9])
    assert_close(model.parameters_["noise_std"], 0.55)
    assert model.inducing_.shape == (12, 2)
    fields = model.predict(X).fields
    moments = [[np.asarray(part) for part in field.moments(jnp.asarray(X))] for field in fields]
    means, variances = map(np.array, zip(*moments, strict=True))
    assert_close(model.predict(X).mean, means.mean(0))
    assert_close(model.predict(X).variance, variances.mean(0) + means.var(0))
    assert_close(model.log_evidence_, np.mean([float(f.log_evidence) for f in fields]))


# --------------------------------------------------------------------------- bad input


def fit_vbagg(**options):
    return VBagg(**({"kernel": KERNEL, "fixed": FIXED} | options)).fit(BAGS, Z_MATCHED)


def test_noise_of_zero_is_an_error_and_not_a_posterior_of_nan():
    # The penalty divides by the noise, so the bound does not exist without any.
    with pytest.raises(ValueError, match="noise"):
        fit_vbagg(fixed=FIELD | {"noise_std": 0.0}, trend="none", n_inducing=12)


BAD_OPTIONS = {
    "inducing points of other covariates": (
        {"inducing": np.zeros((4, 3))},
        r"need the 2 covariates of the bags.*\(4, 3\)",
    ),
    "one inducing point as a row": ({"inducing": np.zeros(2)}, r"need the 2 covariates.*\(2,\)"),
    "no inducing points": ({"inducing": np.zeros((0, 2))}, "need the 2 covariates"),
    "missing inducing point": (
        {"inducing": np.array([[0.0, 0.0], [np.nan, 1.0]])},
        "inducing point 1 has a missing or infinite value",
    ),
    "infinite inducing point": ({"inducing": [[np.inf, 0.0]]}, "inducing point 0 has a missing"),
    "inducing points in words": ({"inducing": [["a", "b"]]}, "inducing points must be numbers"),
    "unknown way to choose": (
        {"inducing": "grid"},
        "inducing must be 'kmeans', 'uniform' or an array, not 'grid'",
    ),
    "two numbers": (
        {"inducing": PLACES, "n_inducing": 3},
        "n_inducing is 3, but 12 inducing points were given",
    ),
    "no inducing point": ({"n_inducing": 0}, "n_inducing must be a positive whole number"),
    "half an inducing point": ({"n_inducing": 2.5}, "n_inducing must be a positive whole number"),
    "inference": (
        {"inference": "exact"},
        "inference must be 'collapsed', 'laplace' or 'stochastic'",
    ),
    "trace": ({"trace": "none"}, "trace must be one of auto, exact, subsample,"),
    "unknown option": (
        {"inference_options": {"steps": 3}},
        "inference_options names 'steps'; the options are trace_points, batch_size",
    ),
    "options of the climb": (
        {"inference_options": {"batch_size": 3, "max_steps": 5}},
        "inference_options batch_size, max_steps belong to inference='stochastic'",
    ),
    "three points": ({"inference_options": {"trace_points": 3}}, "power of two up to 128, not 3"),
    "many points": ({"inference_options": {"trace_points": 256}}, "power of two up to 128"),
    "no trace points": ({"inference_options": {"trace_points": 0}}, "trace_points must be a pos"),
    "nuts by minibatches": (
        {"method": "nuts", "inference": "stochastic"},
        "method='nuts' needs inference='collapsed'",
    ),
    "nuts and inducing points": (
        {"method": "nuts", "learn_inducing": True},
        "NUTS cannot sample them; use learn_inducing=False",
    ),
    "nuts and nothing to sample": ({"method": "nuts"}, "every parameter is fixed"),
    "features and inducing points": (
        {"features": 50, "n_inducing": 4},
        "features take the place of inducing points; leave n_inducing out",
    ),
    "features and given points": ({"features": 50, "inducing": PLACES}, "leave inducing out"),
    "features and learnt points": (
        {"features": 50, "learn_inducing": True},
        "leave learn_inducing out",
    ),
    "features and a trace": ({"features": 50, "trace": "exact"}, "leave trace out"),
    "half a feature": ({"features": 0.5}, "features must be a positive whole number"),
    "features of a kernel that has none": (
        {"features": 50, "kernel": TanhKernel(0.8), "fixed": None},
        "TanhKernel has no known spectral measure",
    ),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(name):
    options, message = BAD_OPTIONS[name]
    with pytest.raises((ValueError, TypeError), match=message):
        fit_vbagg(**options)


def test_bad_predictions(fitted):
    with pytest.raises(ValueError, match="fit with fine_noise=True"):
        fitted.predict(X, fine_noise=True)
    with pytest.raises(ValueError, match="features must be a positive whole number"):
        fitted.predict(X, features=0)
