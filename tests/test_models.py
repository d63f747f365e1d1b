"""Estimators: scikit-learn's habits, errors in the user's words, pseudo-targets, odd data."""

import equinox as eqx
import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from deconditional import (
    CMP,
    BaggGP,
    Bags,
    CentroidGP,
    DeepKernel,
    LogNormal,
    PseudoTarget,
    VarCentroidGP,
    VarCMP,
    VBagg,
)
from deconditional.fitting.evaluation import loss_and_gradient
from helpers import assert_close, condition, gram, ragged_bags, weight_matrix

BAGS = ragged_bags([3, 1, 7, 4, 9, 2, 5, 6], d=2, weighted=True)
UNMEDIATED = Bags.from_points(BAGS.points, BAGS.bag, weights=BAGS.weights)
RNG = np.random.default_rng(1)
Z, Y_OBSERVED = RNG.normal(size=6), RNG.normal(size=(6, 1))
Z_MATCHED = RNG.normal(size=8)
X = RNG.normal(size=(5, 2))
NOISE = 0.3
FIELD = {"kernel.lengthscale": [0.8, 1.3], "kernel.variance": 1.4}
FIXED = FIELD | {"noise_std": NOISE}
MEDIATED = FIXED | {"mediator_kernel.lengthscale": 0.9, "ridge": 0.02}
KERNEL = gk.RBF(lengthscale=jnp.array([0.8, 1.3]), variance=1.4)

MODELS = {
    "CMP": CMP(gk.RBF(), gk.Matern32(), cmo="shrinkage", centred=True, seed=3),
    "BaggGP": BaggGP(gk.RBF(), trend="linear", fixed={"noise_std": 0.1}, n_restarts=2),
    "CentroidGP": CentroidGP(priors={"noise_std": LogNormal(0.1)}, precision="float64"),
    "PseudoTarget": PseudoTarget(CentroidGP(trend="none"), gk.RBF(), propagate=False, seed=5),
    "VBagg": VBagg(
        gk.RBF(),
        inducing=np.ones((3, 2)),
        learn_inducing=True,
        inference="stochastic",
        inference_options={"batch_size": 8},
        seed=4,
    ),
    "VarCMP": VarCMP(gk.RBF(), gk.Matern32(), features=50, centred=True, trace="auto"),
    "VarCentroidGP": VarCentroidGP(priors={"noise_std": LogNormal(0.1)}, inducing="uniform"),
}
any_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


# --------------------------------------------------------------------------- scikit-learn's habits


@any_model
def test_clone_copies_parameters_and_nothing_else(model):
    copy = clone(model)
    assert copy is not model
    one, other = model.get_params(deep=False), copy.get_params(deep=False)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert type(other[name]) is type(value)
        if isinstance(value, str | int | float | bool | type(None)):
            assert other[name] == value
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, other[name])


@any_model
def test_parameters_round_trip(model):
    params = model.get_params(deep=False)
    again = type(model)().set_params(**params)
    for name, value in again.get_params(deep=False).items():
        assert value is params[name]
    assert clone(model).set_params(seed=99).get_params()["seed"] == 99
    with pytest.raises(ValueError, match="lengthscale"):
        clone(model).set_params(lengthscale=1.0)


def test_parameters_of_a_base_model_are_reached_by_name():
    model = clone(MODELS["PseudoTarget"]).set_params(base__trend="linear")
    assert model.base.trend == "linear"
    assert MODELS["PseudoTarget"].base.trend == "none"


@any_model
def test_the_constructor_only_stores(model):
    for fresh in (clone(model), type(model)()):
        assert not [name for name in vars(fresh) if name.endswith("_")]
        assert isinstance(repr(fresh), str)


@any_model
def test_an_unfitted_model_says_so(model):
    with pytest.raises(NotFittedError, match="call fit first"):
        model.predict(X)
    with pytest.raises(NotFittedError, match="call fit first"):
        model.predict_bags(BAGS)


@pytest.mark.parametrize("model", [CMP(), PseudoTarget(), VarCMP()], ids=str)
def test_an_unfitted_model_has_no_coarse_predictions(model):
    with pytest.raises(NotFittedError, match="call fit first"):
        model.predict_coarse(Y_OBSERVED)


@pytest.fixture(scope="module")
def cmp():
    return CMP(KERNEL, fixed=MEDIATED).fit(BAGS, Z, mediator=Y_OBSERVED)


@pytest.fixture(scope="module")
def bagg():
    return BaggGP(KERNEL, fixed=FIXED).fit(BAGS, Z_MATCHED)


def test_fit_returns_the_model_and_sets_what_it_learnt(bagg):
    model = BaggGP(KERNEL, fixed=FIXED)
    assert model.fit(BAGS, Z_MATCHED) is model
    assert model.n_features_in_ == 2
    assert model.bags_ is BAGS
    for name, value in FIXED.items():
        assert_close(model.parameters_[name], value)
    np.testing.assert_array_equal(model.predict(X).mean, bagg.predict(X).mean)


def test_fitting_again_forgets(bagg):
    model = BaggGP(KERNEL, fixed=FIXED).fit(BAGS, Z_MATCHED + 1.0)
    first = model.predict(X).mean
    second = model.fit(BAGS, Z_MATCHED).predict(X).mean
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(second, bagg.predict(X).mean)


def test_fit_leaves_its_arguments_alone():
    z, fixed = Z_MATCHED.copy(), dict(FIXED)
    BaggGP(KERNEL, fixed=fixed).fit(BAGS, z)
    np.testing.assert_array_equal(z, Z_MATCHED)
    assert fixed == FIXED


# --------------------------------------------------------------------------- bad data


def fit_bagg(**changes):
    arguments = {"bags": BAGS, "z": Z_MATCHED} | changes
    return BaggGP(KERNEL, fixed=FIXED).fit(**arguments)


def fit_cmp(**changes):
    arguments = {"bags": BAGS, "z": Z, "mediator": Y_OBSERVED} | changes
    return CMP(KERNEL, fixed=MEDIATED).fit(**arguments)


def fit_pseudo(**changes):
    arguments = {"bags": BAGS, "z": Z, "mediator": Y_OBSERVED} | changes
    return PseudoTarget(BaggGP(KERNEL, fixed=FIXED), n_restarts=1).fit(**arguments)


def fit_vbagg(**changes):
    arguments = {"bags": BAGS, "z": Z_MATCHED} | changes
    return VBagg(KERNEL, fixed=FIXED).fit(**arguments)


def fit_varcmp(**changes):
    arguments = {"bags": BAGS, "z": Z, "mediator": Y_OBSERVED} | changes
    return VarCMP(KERNEL, fixed=MEDIATED).fit(**arguments)


every_fit = pytest.mark.parametrize("fit", [fit_bagg, fit_cmp, fit_pseudo, fit_vbagg, fit_varcmp])
mediated_fits = pytest.mark.parametrize("fit", [fit_cmp, fit_pseudo, fit_varcmp])

BAD_Z = {
    "text": (["a"] * 8, "observations z must be numbers"),
    "missing": (np.r_[Z_MATCHED[:7], np.nan], "observation 7 of z is missing or infinite"),
    "infinite": (np.r_[np.inf, Z_MATCHED[1:]], "observation 0 of z is missing or infinite"),
    "table": (np.zeros((8, 2)), r"z must be a list of observations; its shape is \(8, 2\)"),
    "empty": ([], "z must be a list of observations"),
    "scalar": (1.0, "z must be a list of observations"),
    "short": (Z_MATCHED[:5], "8 bags came with 5 observations"),
}


@pytest.mark.parametrize("name", BAD_Z)
def test_bad_observations(name):
    z, message = BAD_Z[name]
    with pytest.raises(ValueError, match=message):
        fit_bagg(z=z)


@every_fit
def test_every_model_checks_its_observations(fit):
    with pytest.raises(ValueError, match="observation 0 of z is missing"):
        fit(z=np.r_[np.nan, Z_MATCHED[1:]])


@every_fit
def test_bags_of_the_wrong_type(fit):
    with pytest.raises(TypeError, match=r"bags must be a deconditional\.Bags, not list"):
        fit(bags=[BAGS.points])


BAD_NOISE = {
    "negative": ({"noise_std": -0.1}, "noise_std must hold"),
    "missing": ({"noise_std": np.r_[np.nan, np.ones(7)]}, "noise_std must hold"),
    "short": ({"noise_std": np.ones(3)}, r"noise_std must hold.*its shape is \(3,\)"),
    "text": ({"noise_std": "large"}, "noise_std"),
    "covariance of another size": ({"noise_cov": np.eye(3)}, r"noise_cov must be a finite 8 x 8"),
    "covariance with holes": ({"noise_cov": np.full((8, 8), np.nan)}, "noise_cov must be a finite"),
    "covariance that is not one": ({"noise_cov": -np.eye(8)}, "noise_cov"),
    "covariance that is not symmetric": ({"noise_cov": np.triu(np.ones((8, 8)))}, "noise_cov"),
}


@pytest.mark.parametrize("name", BAD_NOISE)
def test_bad_noise(name):
    options, message = BAD_NOISE[name]
    with pytest.raises(ValueError, match=message):
        BaggGP(KERNEL, fixed=FIELD, learn_noise=False).fit(BAGS, Z_MATCHED, **options)


@pytest.mark.parametrize("kind", [BaggGP, VBagg])
def test_no_noise_at_all_is_an_error(kind):
    with pytest.raises(ValueError, match="learn_noise=False leaves the observations without noise"):
        kind(KERNEL, learn_noise=False).fit(BAGS, Z_MATCHED)


BAD_MEDIATOR = {
    "other variables": (np.zeros((6, 2)), r"mediator has 1 variable"),
    "missing": (np.r_[np.nan, Y_OBSERVED[1:, 0]], "mediator 0 has a missing or infinite"),
    "short": (Y_OBSERVED[:4], "6 observations came with 4 mediators"),
    "text": (["a"] * 6, "mediator"),
}


@pytest.mark.parametrize("name", BAD_MEDIATOR)
def test_bad_mediators(name):
    mediator, message = BAD_MEDIATOR[name]
    with pytest.raises(ValueError, match=message):
        fit_cmp(mediator=mediator)


@mediated_fits
def test_every_mediated_model_checks_its_mediators(fit):
    with pytest.raises(ValueError, match="mediator has 1 variable"):
        fit(mediator=np.zeros((6, 2)))


def test_too_few_observations_for_pseudo_targets():
    with pytest.raises(ValueError, match="5 observations came with 6 mediators"):
        fit_pseudo(z=Z[:5])


@pytest.mark.parametrize("fit", [fit_cmp, fit_varcmp])
def test_observations_without_mediators_must_match_the_bags(fit):
    with pytest.raises(ValueError, match=r"6 observations came for 8 bags.*mediator=y_tilde"):
        fit(mediator=None)


@mediated_fits
def test_bags_without_a_mediator(fit):
    with pytest.raises(ValueError, match="bags have no mediator"):
        fit(bags=UNMEDIATED)


BAD_OPTIONS = {
    "trend": ({"trend": "cubic"}, "trend must be one of none, constant, linear, not 'cubic'"),
    "method": ({"method": "vb"}, "method must be one of map, draws, nuts, not 'vb'"),
    "precision": ({"precision": "half"}, "precision must be one of"),
    "no restarts": ({"n_restarts": 0}, "n_restarts must be a positive whole number"),
    "half an iteration": ({"max_iter": 0.5}, "max_iter must be a positive whole number"),
    "options of nuts": (
        {"method_options": {"num_samples": 9}},
        "belong to 'draws' and 'nuts'",
    ),
    "no points": ({"points_per_bag": 0}, "points_per_bag must be at least 1"),
    "name of a kernel": ({"kernel": "rbf"}, "kernel"),
    "kernel of other covariates": ({"kernel": gk.RBF(lengthscale=jnp.ones(5))}, "kernel"),
    "kernel of a covariate that is not there": ({"kernel": gk.RBF(active_dims=[4])}, "kernel"),
    "negative noise": ({"fixed": {"noise_std": -1.0}}, r"fixed\['noise_std'\]"),
    "unknown parameter": ({"fixed": {"lambda": 1.0}}, "fixed names 'lambda'"),
    "unknown prior": ({"priors": {"lambda": LogNormal(1.0)}}, "priors names 'lambda'"),
    "prior that is a number": ({"priors": {"noise_std": 1.0}}, "noise_std"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(name):
    options, message = BAD_OPTIONS[name]
    with pytest.raises((ValueError, TypeError), match=message):
        BaggGP(**({"n_restarts": 1} | options)).fit(BAGS, Z_MATCHED)


def test_an_unknown_operator():
    with pytest.raises(ValueError, match="cmo must be 'standard' or 'shrinkage', not 'other'"):
        CMP(cmo="other").fit(BAGS, Z, mediator=Y_OBSERVED)


def test_a_mediator_kernel_that_is_not_one():
    with pytest.raises((ValueError, TypeError), match="mediator_kernel"):
        CMP(mediator_kernel="rbf", n_restarts=1).fit(BAGS, Z, mediator=Y_OBSERVED)


BAD_X = {
    "other covariates": (np.zeros((3, 4)), r"fitted on 2 covariates.*\(3, 4\)"),
    "one point": (np.zeros(2), "fitted on 2 covariates"),
    "none": (np.zeros((0, 2)), "fitted on 2 covariates"),
    "missing": (np.array([[0.0, 0.0], [0.0, np.nan]]), "query point 1 has a missing or infinite"),
    "text": ([["a", "b"]], "query|points|covariates"),
}


@pytest.mark.parametrize("name", BAD_X)
def test_bad_query_points(name, bagg):
    x, message = BAD_X[name]
    with pytest.raises(ValueError, match=message):
        bagg.predict(x)


def test_new_bags_of_other_covariates(bagg):
    with pytest.raises(ValueError, match="fitted on 2 covariates; the new bags have 3"):
        bagg.predict_bags(ragged_bags([2, 3], d=3))


def test_new_bags_of_the_wrong_type(bagg):
    with pytest.raises(TypeError, match="Bags"):
        bagg.predict_bags([X])


def test_bad_new_mediators(cmp):
    with pytest.raises(ValueError, match=r"mediator has 1 variable\(s\).*\(2, 3\)"):
        cmp.predict_coarse(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="mediator 1 has a missing or infinite"):
        cmp.predict_coarse([0.0, np.nan])


# --------------------------------------------------------------------------- pseudo-targets


@pytest.fixture(scope="module")
def regression():
    """Stage one by hand: a Matérn-3/2 regression of z on the mediator."""
    points = Bags.from_points(Y_OBSERVED, np.arange(6))
    return BaggGP(gk.Matern32(), n_restarts=1).fit(points, Z)


def test_plug_in_pseudo_targets_are_a_bagg_gp_on_regressed_means(regression, bagg):
    model = PseudoTarget(BaggGP(KERNEL, fixed=FIXED), propagate=False, n_restarts=1)
    model.fit(BAGS, Z, mediator=Y_OBSERVED)
    targets = regression.predict(BAGS.mediator).mean
    assert_close(model.pseudo_targets_, targets)
    expected = BaggGP(KERNEL, fixed=FIXED).fit(BAGS, targets)
    assert_close(model.predict(X).mean, expected.predict(X).mean)
    assert_close(model.predict(X).std, expected.predict(X).std)


@pytest.fixture(scope="module")
def propagated():
    return fit_pseudo()


def test_propagated_pseudo_targets_are_a_bagg_gp_with_their_covariance(propagated, regression):
    at_bags = regression.predict(BAGS.mediator)
    assert_close(propagated.pseudo_target_covariance_, at_bags.covariance())
    expected = BaggGP(KERNEL, fixed=FIXED).fit(BAGS, at_bags.mean, noise_cov=at_bags.covariance())
    assert_close(propagated.predict(X).mean, expected.predict(X).mean)
    assert_close(propagated.predict(X).std, expected.predict(X).std)
    assert_close(propagated.fit_report_.log_evidence, expected.log_evidence_)
    new = ragged_bags([2, 5], d=2, seed=4)
    assert_close(propagated.predict_bags(new).mean, expected.predict_bags(new).mean)


def test_propagation_densely(propagated):
    # The base model alone, its constant trend included, with noise E + σ²I.
    p, points = weight_matrix(BAGS), BAGS.points
    b2 = np.asarray(propagated.model_.fitted_.problem.trend.prior_std)[0] ** 2
    k = p.T @ (gram(KERNEL, points) + b2) @ p
    noise = propagated.pseudo_target_covariance_ + NOISE**2 * np.eye(8)
    mean, covariance = condition(
        gram(KERNEL, X) + b2,
        (gram(KERNEL, X, points) + b2) @ p,
        k + noise,
        propagated.pseudo_targets_,
    )
    assert_close(propagated.predict(X).mean, mean)
    assert_close(propagated.predict(X).covariance(), covariance)


def test_coarse_predictions_of_pseudo_targets_are_the_regression(propagated, regression):
    new = np.array([[-0.5], [1.0]])
    coarse = propagated.predict_coarse(new)
    assert_close(coarse.mean, regression.predict(new).mean)
    assert_close(coarse.std, regression.predict(new).std)


def test_pseudo_targets_leave_their_base_model_unfitted():
    base = BaggGP(KERNEL, fixed=FIXED)
    PseudoTarget(base, n_restarts=1).fit(BAGS, Z, mediator=Y_OBSERVED)
    assert not hasattr(base, "parameters_")


# --------------------------------------------------------------------------- odd but good data


def test_a_subsample_of_points_is_what_is_fitted():
    model = BaggGP(KERNEL, fixed=FIXED, points_per_bag=2, seed=4).fit(BAGS, Z_MATCHED)
    few = BAGS.subsample(2, seed=4)
    assert model.bags_.sizes.max() == 2
    expected = BaggGP(KERNEL, fixed=FIXED).fit(few, Z_MATCHED).predict(X).mean
    assert_close(model.predict(X).mean, expected)


@pytest.mark.parametrize("shape", [(8,), (8, 1), "list"], ids=str)
def test_observations_may_be_a_column_or_a_list(shape, bagg):
    z = Z_MATCHED.tolist() if shape == "list" else Z_MATCHED.reshape(shape)
    np.testing.assert_array_equal(fit_bagg(z=z).predict(X).mean, bagg.predict(X).mean)


def test_points_of_one_covariate_may_be_a_list():
    bags = ragged_bags([2, 3, 1], d=1)
    fixed = {"kernel.lengthscale": 1.0, "kernel.variance": 1.0, "noise_std": 0.1}
    model = BaggGP(fixed=fixed).fit(bags, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(
        model.predict([0.3, 1.0]).mean, model.predict([[0.3], [1.0]]).mean
    )


def test_one_bag_and_one_observation():
    bags = ragged_bags([4], d=2)
    post = BaggGP(n_restarts=1).fit(bags, [2.0]).predict(X)
    assert np.isfinite(post.mean).all()
    assert (post.std > 0).all()


def test_constant_observations():
    post = BaggGP(n_restarts=1).fit(BAGS, np.full(8, 3.0)).predict(X)
    np.testing.assert_allclose(post.mean, 3.0, rtol=0.05)
    zero = BaggGP(n_restarts=1).fit(BAGS, np.zeros(8)).predict(X)
    np.testing.assert_allclose(zero.mean, 0.0, atol=1e-6)


def test_bags_that_repeat_one_another():
    twice = Bags.from_list([BAGS.points[:3], BAGS.points[:3], BAGS.points[5:9]])
    post = BaggGP(KERNEL, fixed=FIXED, trend="none").fit(twice, [1.0, 1.2, -0.5]).predict(X)
    assert np.isfinite(post.mean).all()
    assert (post.variance >= 0).all()


def test_a_constant_covariate_is_harmless():
    points = np.column_stack([BAGS.points, np.full(BAGS.n_points, 7.0)])
    bags = Bags.from_points(points, BAGS.bag, weights=BAGS.weights)
    model = BaggGP(trend="linear", n_restarts=1).fit(bags, Z_MATCHED)
    post = model.predict(np.column_stack([X, np.full(5, 7.0)]))
    assert np.isfinite(post.mean).all()
    assert (post.std > 0).all()


@pytest.mark.parametrize(
    "kernel",
    [
        DeepKernel(gk.RBF(), eqx.nn.MLP(2, 1, 2, 1, activation=jax.nn.tanh, key=jax.random.key(0))),
        gk.Linear(),
    ],
    ids=["deep", "linear"],
)
def test_any_kernel_can_be_learnt(kernel):
    model = BaggGP(kernel, n_restarts=1, fixed={"noise_std": NOISE}).fit(BAGS, Z_MATCHED)
    problem = model.fitted_.problem
    loss, _ = loss_and_gradient(problem, jnp.asarray(problem.parameters.start()))
    assert model.fit_report_.log_posterior > -float(loss)
    post = model.predict(X)
    # The fitted kernel, taken out, gives the same posterior when it is put back by hand.
    p, points, b2 = weight_matrix(BAGS), BAGS.points, np.asarray(problem.trend.prior_std)[0] ** 2
    k = p.T @ (gram(model.kernel_, points) + b2) @ p + NOISE**2 * np.eye(8)
    cross = (gram(model.kernel_, X, points) + b2) @ p
    mean, covariance = condition(gram(model.kernel_, X) + b2, cross, k, Z_MATCHED)
    # A softplus stores the fitted parameters and gives them back to about 1e-12.
    assert_close(post.mean, mean, tolerance=1e-6)
    assert_close(post.covariance(), covariance, tolerance=1e-6)
