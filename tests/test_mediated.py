"""The model of unmatched data: a Bagg-GP of measurements, averaged over hyper-parameters."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import deconditional as dc
from deconditional.datasets import swiss_roll
from deconditional.fitting.priors import LogNormal
from deconditional.fitting.progress import listening
from deconditional.scores import coverage, crps, rmse
from studies.data import noisy_mediator

QUICK = {"n_restarts": 1, "max_iter": 60, "method_options": {"num_draws": 4}}
HELD = {"kernel.lengthscale": [0.9, 0.7], "kernel.variance": 1.1, "noise_std": 0.2}
HALF = LogNormal(0.5, 0.1)
LINK = {"mediator_kernel.lengthscale": 1.3, "mediator_kernel.variance": 0.8}


def fitted(data, checkpoint=None, own_bag=None, **options):
    """Without what it says of mediators: of few bags it cannot tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = dc.MediatedGP(**{**QUICK, **options})
        given = {"mediator": data.mediator, "own_bag": own_bag, "checkpoint": checkpoint}
        return model.fit(data.bags, data.z, **given)


@pytest.fixture(scope="module")
def noisy():
    data = noisy_mediator(0.6, n_cells=120, points_per_cell=10, seed=0)
    return data, fitted(data)


def test_it_is_a_bagg_gp_of_its_measurements():
    data = noisy_mediator(0.6, n_cells=40, points_per_cell=6, seed=0)
    model = fitted(data, method="map", method_options=None, fixed={**HELD, **LINK})
    values, noise = model.measurements_
    other = dc.BaggGP(fixed=HELD, learn_noise=True).fit(data.bags, values, noise_cov=noise)
    found, expected = model.predict(data.x[:20]), other.predict(data.x[:20])
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-9)
    regression = dc.BaggGP(
        model.regressor_.kernel,
        fixed={"kernel.lengthscale": 1.3, "kernel.variance": 0.8},
        learn_noise=True,
        **{**QUICK, "method_options": None},
    ).fit(dc.Bags.from_points(data.mediator, np.arange(len(data.z))), data.z)
    at = regression.predict(data.bags.mediator)
    np.testing.assert_allclose(model.predict_coarse(data.bags.mediator).mean, at.mean, rtol=1e-6)


def test_where_every_bag_was_observed_it_is_bagg_gp():
    data = noisy_mediator(0.6, n_cells=40, points_per_cell=6, seed=0)
    given = {"method": "map", "method_options": None}
    z = data.bags.means(data.f[: data.bags.n_points])
    data = replace(data, z=z, mediator=data.bags.mediator)
    model = fitted(data, own_bag=np.arange(len(z)), fixed=HELD, **given)
    other = dc.BaggGP(fixed=HELD).fit(data.bags, z)
    found, expected = model.predict(data.x[:20]), other.predict(data.x[:20])
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-8)


def test_predictions_are_a_mixture_over_draws_of_the_parameters(noisy):
    data, model = noisy
    post = model.predict(data.x[:10])
    assert post.component_means.shape == (4, 10)
    draws = model.parameter_draws_["kernel.variance"]
    assert len(draws) == 4 and len(np.unique(draws)) > 1
    assert "noise_std" not in model.parameter_draws_  # the regression has found it
    one = {name: values[2] for name, values in model.parameter_draws_.items()}
    seen = model.fitted_.problems[2]  # through measurements by a regression of its own
    assert not np.allclose(seen.z, model.measurements_.values)
    alone = dc.BaggGP(fixed=one, learn_noise=False)
    alone.fit(data.bags, np.asarray(seen.z), noise_cov=np.asarray(seen.known_noise))
    # Its vague prior of the level goes by the values it is given, hence not to rounding.
    np.testing.assert_allclose(post.component_means[2], alone.predict(data.x[:10]).mean, atol=1e-4)
    assert model.fit_report_.method == "draws"


def test_the_variance_of_the_field_has_no_prior_by_z_beside_the_law_of_its_spread(noisy):
    data, model = noisy
    problem = model.fitted_.problem
    prior = problem.parameters.priors["kernel.variance"]
    assert prior == LogNormal(pytest.approx(np.var(data.z)), 3.0)
    given = fitted(data, method="map", method_options=None, priors={"kernel.variance": HALF})
    assert given.fitted_.problem.parameters.priors["kernel.variance"].median == 0.5
    assert problem.spread is not None


def test_it_beats_pseudo_targets_where_the_mediator_is_noisy(noisy):
    data, model = noisy
    base = dc.PseudoTarget(dc.BaggGP(n_restarts=1, max_iter=60), n_restarts=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        before = base.fit(data.bags, data.z, data.mediator).predict(data.x)
    after = model.predict(data.x)
    assert rmse(after.mean, data.f) < 0.8 * rmse(before.mean, data.f)
    assert crps(after, data.f) < 0.6 * crps(before, data.f)
    assert coverage(*before.interval(), data.f) < 0.3
    assert coverage(*after.interval(0.95), data.f) > 0.75


def test_a_useless_mediator_leaves_the_prior_and_a_warning():
    data = noisy_mediator(0.0, n_cells=120, points_per_cell=10, seed=2)
    with pytest.warns(dc.UselessMediatorWarning, match="the posterior is the prior") as caught:
        model = dc.MediatedGP(**QUICK).fit(data.bags, data.z, mediator=data.mediator)
    assert {each.category for each in caught} == {dc.UselessMediatorWarning}
    assert model.fit_report_.notes == tuple(str(each.message) for each in caught)
    post = model.predict(data.x)
    assert rmse(post.mean, data.f) < 1.1 * np.std(data.f)
    assert coverage(*post.interval(0.95), data.f) > 0.85


def test_a_linear_trend_on_few_cells_does_not_blow_up():
    """Thirty cells of a globe whose temperature is linear in altitude, as a mediator says."""
    for seed in (100, 102):
        rng = np.random.default_rng(seed)
        position = rng.normal(size=(60, 3))
        position /= np.linalg.norm(position, axis=1)[:, None]
        centre = rng.normal(size=60)
        x = np.concatenate(
            [np.repeat(position, 12, 0), (np.repeat(centre, 12) + rng.normal(0, 1, 720))[:, None]],
            1,
        )
        f, bag = -1.2 * x[:, 3], np.repeat(np.arange(60), 12)
        means = np.bincount(bag, f) / 12
        y = np.column_stack([position, means + 0.05 * rng.normal(size=60)])
        bags = dc.Bags.from_points(x[: 30 * 12], bag[: 30 * 12], mediator=y[:30])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dc.DeconditionalWarning)
            model = dc.MediatedGP(trend="linear", **QUICK).fit(bags, means[30:], y[30:])
        assert rmse(model.predict(x).mean, f) < 0.15 * f.std()


def test_bags_with_observations_of_their_own_are_known(noisy):
    data = noisy_mediator(0.7, n_cells=60, points_per_cell=10, seed=1)
    own = np.full(len(data.z), -1)
    own[:10] = np.arange(10)
    z = data.z.copy()
    z[:10] = data.bags.means(data.f[: data.bags.n_points])[:10]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = dc.MediatedGP(**QUICK).fit(data.bags, z, data.mediator, own_bag=own)
    values, noise = model.measurements_
    np.testing.assert_allclose(values[:10], z[:10])
    assert not noise[:10].any() and (np.diag(noise)[10:] > 0).all()
    found = model.predict_bags(data.bags)
    assert found.std[:10].mean() < found.std[10:].mean()


def test_bag_effects_are_learnt_beside_known_noise():
    data = noisy_mediator(0.7, n_cells=60, points_per_cell=10, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = dc.MediatedGP(**QUICK).fit(
            data.bags, data.z, data.mediator, noise_std=0.05 * data.z.std()
        )
    effect = model.regressor_.parameters_["noise_std"]
    assert 0.3 < effect / data.z.std() < 0.8  # the mediator explains 70 %


def test_with_inducing_points_it_is_a_vbagg_of_measurements():
    data = noisy_mediator(0.6, n_cells=40, points_per_cell=6, seed=0)
    given = {"method": "map", "method_options": None, "n_inducing": 30}
    model = fitted(data, fixed={**HELD, **LINK}, **given)
    values, noise = model.measurements_
    assert noise.shape == values.shape
    fixed = {**HELD, "noise_std": 0.2}
    other = dc.VBagg(fixed=fixed, n_inducing=30, learn_noise=True)
    other.fit(data.bags, values, noise_std=np.sqrt(noise))
    found, expected = model.predict(data.x[:20]), other.predict(data.x[:20])
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-8)
    exact = fitted(data, fixed={**HELD, **LINK}, method="map", method_options=None)
    assert rmse(found.mean, exact.predict(data.x[:20]).mean) < 0.1 * data.f.std()


def test_a_saved_model_predicts_the_same(noisy, tmp_path):
    data, model = noisy
    again = dc.load(model.save(tmp_path / "model.npz"))
    assert again.explained_share_ == model.explained_share_
    assert again.fit_report_.notes == model.fit_report_.notes
    one, two = model.predict(data.x), again.predict(data.x)
    np.testing.assert_array_equal(two.mean, one.mean)
    np.testing.assert_array_equal(two.std, one.std)
    np.testing.assert_array_equal(
        again.predict_coarse(data.mediator).mean, model.predict_coarse(data.mediator).mean
    )


def test_it_goes_on_from_a_checkpoint(noisy, tmp_path):
    data, model = noisy
    path, count = tmp_path / "fit.checkpoint", iter(range(1, 10**6))

    def stop(step):
        if step.what == "fit" and next(count) == 30:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"), listening(stop):
        fitted(data, path)
    assert path.exists()
    again = fitted(data, path)
    assert "resumed" in again.fit_report_.details and not path.exists()
    np.testing.assert_allclose(again.predict(data.x).mean, model.predict(data.x).mean, atol=0.02)


def test_features_and_fine_noise():
    data = swiss_roll(n_points=300, n_bags=16, matching="indirect", seed=0)
    model = fitted(data, fine_noise=True)
    smooth, single = model.predict(data.x[:20]), model.predict(data.x[:20], fine_noise=True)
    assert (single.variance > smooth.variance).all()
    many = model.predict(data.x[:20], features=4000)
    np.testing.assert_allclose(many.mean, smooth.mean, atol=0.15 * data.f.std())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mediator": np.zeros((3, 1))}, "observations came with 3 mediators"),
        ({"mediator": None, "z": np.zeros(7)}, "7 observations came for 8 bags"),
        ({"own_bag": [99] * 8}, "own_bag"),
    ],
)
def test_bad_input_is_refused_before_anything_is_fitted(change, message):
    data = swiss_roll(n_points=200, n_bags=16, matching="indirect", seed=0)
    given = {"bags": data.bags, "z": data.z, "mediator": data.mediator} | change
    with pytest.raises(ValueError, match=message):
        dc.MediatedGP().fit(**given)
    with pytest.raises(ValueError, match="no mediator"):
        dc.MediatedGP().fit(dc.Bags.from_points(data.x[:16], np.arange(16) // 2), np.zeros(8))


def test_options_that_method_does_not_take_are_refused():
    with pytest.raises(ValueError, match="num_draws, not draws"):
        dc.MediatedGP(method_options={"draws": 3}).check_options()
    with pytest.raises(ValueError, match="num_draws"):
        dc.MediatedGP(method_options={"num_draws": 0}).check_options()
