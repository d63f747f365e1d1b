"""The mixture of readings of one regression: made of its parts, and right where it should be."""

import warnings

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

import deconditional as dc
from deconditional.datasets import noisy_mediator, swiss_roll
from deconditional.fitting.map import loss
from deconditional.inference.exact import SPREAD_SLACK
from deconditional.models import mediated
from deconditional.models.readings import JointGP, MeasuredGP, TiltedGP, UnlinkedGP
from deconditional.models.regression import (
    Unmatched,
    bag_gap,
    enough,
    explained_share,
    leaves_much_open,
)
from deconditional.scores import coverage, crps, rmse

QUICK = {"n_restarts": 1, "max_iter": 60}


def fitted(data, checkpoint=None, **options):
    """Without what it says of mediators: of few bags it cannot tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = dc.MediatedGP(**QUICK, **options)
        return model.fit(data.bags, data.z, mediator=data.mediator, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def telling():
    data = noisy_mediator(0.95, n_cells=80, points_per_cell=10, seed=0)
    return data, fitted(data)


@pytest.fixture(scope="module")
def open_link():
    """Fifteen observations for a mean that is rough in its mediator."""
    data = swiss_roll(n_points=500, n_bags=30, matching="indirect", seed=1)
    return data, fitted(data, mediator_kernel=gk.Matern12())


@pytest.fixture(scope="module")
def useless():
    data = noisy_mediator(0.0, n_cells=80, points_per_cell=10, seed=2)
    return data, fitted(data)


def test_the_posterior_is_a_mixture_of_the_members(telling):
    data, model = telling
    assert list(model.members_) == ["measured", "tilted", "conditional"]
    assert model.explained_share_ >= enough(*data.mediator.shape)
    post = model.predict(data.x[:40])
    parts = [member.predict(data.x[:40]) for member in model.members_.values()]
    assert [len(part.component_means) for part in parts] == [8, 4, 1]
    assert len(post.component_means) == 13
    weights = np.array([8, 4, 1])[:, None] / 13
    means, variances = (np.stack([getattr(p, n) for p in parts]) for n in ("mean", "variance"))
    mean = (weights * means).sum(0)
    np.testing.assert_allclose(post.mean, mean, rtol=1e-10)
    spread = (weights * (variances + (means - mean) ** 2)).sum(0)
    np.testing.assert_allclose(post.variance, spread, rtol=1e-9)
    cdf = sum(w * p.cdf(0.3) for w, p in zip(weights[:, 0], parts, strict=True))
    np.testing.assert_allclose(post.cdf(0.3), cdf, rtol=1e-10)
    bags, inner = (
        model.predict_bags(data.bags),
        [m.predict_bags(data.bags) for m in model.members_.values()],
    )
    np.testing.assert_allclose(
        bags.mean, sum(w * p.mean for w, p in zip(weights[:, 0], inner, strict=True)), rtol=1e-9
    )
    draws = post.sample(4000, seed=1)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * np.sqrt(spread.max() / 4000))
    np.testing.assert_allclose(draws.var(0), spread, rtol=0.25)


@pytest.fixture(scope="module")
def weak_link():
    data = noisy_mediator(0.3, n_cells=160, points_per_cell=5, seed=3)
    return data, fitted(data)


def test_a_weak_link_has_more_draws_and_may_be_none(weak_link):
    data, model = weak_link
    assert enough(*data.mediator.shape) < model.explained_share_ < 0.5
    assert model.parts_ == {"measured": 32, "tilted": 8, "conditional": 8, "unlinked": 6}
    post = model.predict(data.x[:30])
    assert len(post.component_means) == 54
    parts = [member.predict(data.x[:30]) for member in model.members_.values()]
    weights = np.array([32, 8, 8, 6])[:, None] / 54
    np.testing.assert_allclose(post.mean, (weights * [p.mean for p in parts]).sum(0), rtol=1e-9)
    assert any("32 measured" in text for text in model.fit_report_.details.values())
    unmatched = Unmatched.of(data.bags, data.z, data.mediator, None)
    alone = UnlinkedGP(n_draws=6, **QUICK).fit(unmatched, model.regressor_).predict(data.x[:30])
    np.testing.assert_array_equal(parts[-1].mean, alone.mean)
    np.testing.assert_array_equal(parts[-1].std, alone.std)


def test_of_a_weak_link_it_is_not_said_that_there_is_none(weak_link):
    data, _ = weak_link
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dc.MediatedGP(**QUICK).fit(data.bags, data.z, mediator=data.mediator)
    told = [str(each.message) for each in caught]
    assert not any("prior of the field" in text or "explains 0%" in text for text in told)


# ---------------------------------------------------------------------- an open link


def test_most_of_an_open_link_is_learnt_with_the_field(open_link):
    data, model = open_link
    assert model.parts_ == {"conditional": 24, "joint": 4, "u-cmp": 32}
    assert list(model.members_) == list(model.parts_)
    post, parts = model.predict(data.x), [m.predict(data.x) for m in model.members_.values()]
    assert [len(part.component_means) for part in parts] == [24, 4, 1]
    weights = np.array([24, 4, 32])[:, None] / 60
    means, variances = (np.stack([getattr(p, n) for p in parts]) for n in ("mean", "variance"))
    mean = (weights * means).sum(0)
    np.testing.assert_allclose(post.mean, mean, rtol=1e-10)
    spread = (weights * (variances + (means - mean) ** 2)).sum(0)
    np.testing.assert_allclose(post.variance, spread, rtol=1e-9)
    assert model.predict(data.x[:5], features=500).mean.shape == (5,)
    assert model.fit_report_.details["mixture"].endswith("24 conditional, 4 joint, 32 u-cmp")


def test_what_the_field_helps_to_learn_is_a_conditional_mean_process(open_link):
    """U-CMP, and U-CMP at other parameters: they are drawn with the spread of bag means."""
    data, model = open_link
    options = {"mediator_kernel": gk.Matern12(), "centred": True, "uncertainty": True}
    same = dc.CMP(**options, **QUICK).fit(data.bags, data.z, data.mediator).predict(data.x)
    found = model.members_["u-cmp"].predict(data.x)
    np.testing.assert_allclose(found.mean, same.mean, atol=1e-8)
    np.testing.assert_allclose(found.std, same.std, atol=1e-8)

    joint = model.members_["joint"]
    found = joint.predict(data.x)
    for draw in (0, 3):
        values = joint.fitted_.problem.parameters.unpack(jnp.asarray(joint.fitted_.vectors[draw]))
        fixed = {name: np.asarray(value) for name, value in values.items()}
        same = dc.CMP(fixed=fixed, **options).fit(data.bags, data.z, data.mediator)
        same = same.predict(data.x)
        np.testing.assert_allclose(found.component_means[draw], same.mean, atol=1e-8)
        np.testing.assert_allclose(found.component_variances[draw], same.variance, atol=1e-8)

    free = dc.CMP(priors=joint.priors_, n_restarts=1, max_iter=1, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        free.fit(data.bags, data.z, data.mediator)
    gram = np.asarray(joint.fitted_.pieces[0].gram)
    n = len(gram)
    variance = (np.trace(gram) - gram.sum() / n) / (n - 1)
    tolerance = np.sqrt(2 / len(data.z) + 2 / n + SPREAD_SLACK)
    more = 0.5 * (np.log(variance / data.z.var(ddof=1)) / tolerance) ** 2
    vector = jnp.asarray(joint.fitted_.vectors[0])
    found = float(loss(joint.fitted_.problem, vector) - loss(free.fitted_.problem, vector))
    assert found == pytest.approx(more, abs=1e-6)


def test_without_a_member_that_contradicts_the_regression_all_is_as_usual(open_link, monkeypatch):
    data, model = open_link
    at, noise = model.regressor_.predict(data.bags.mediator), model.regressor_.parameters_
    gaps = {}
    for name in ("joint", "u-cmp"):
        means = model.members_[name].predict_bags(data.bags).mean
        square = (means - at.mean) ** 2 / (at.variance + noise["noise_std"] ** 2)
        gaps[name] = np.sqrt(np.mean(square))
        found = bag_gap(model.regressor_, data.bags.mediator, means)
        assert found == pytest.approx(gaps[name])
    assert 0.1 < min(gaps.values()) < max(gaps.values()) < 2.0
    monkeypatch.setattr(mediated, "MOST_GAP", np.mean([*gaps.values()]))
    usual = fitted(data, mediator_kernel=gk.Matern12())
    assert usual.parts_ == {"measured": 8, "tilted": 4, "conditional": 1}
    assert list(usual.members_) == list(usual.parts_)


@pytest.mark.parametrize(
    ("open_share", "own_share", "much"),
    [(0.05, 0.1, True), (0.04, 0.1, False), (0.3, 0.59, True), (0.3, 0.6, False)],
)
def test_what_is_open_for_want_of_observations(open_link, open_share, own_share, much):
    data, model = open_link
    said = Unmatched.of(data.bags, data.z, data.mediator, None).measurements(model.regressor_)
    assert leaves_much_open(said)
    assert leaves_much_open(said._replace(open_share=open_share, own_share=own_share)) is much


def test_what_the_field_helps_to_learn_knows_of_own_observations(open_link):
    data, _ = open_link
    own, z = np.full(len(data.z), -1), data.z.copy()
    own[:4] = np.arange(4)
    z[:4] = data.bags.means(data.f[: data.bags.n_points])[:4]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = dc.MediatedGP(mediator_kernel=gk.Matern12(), **QUICK)
        model.fit(data.bags, z, data.mediator, own_bag=own)
    for name in ("joint", "u-cmp"):
        found = model.members_[name].predict_bags(data.bags)
        assert found.std[:4].max() < 0.5 * found.std[4:].mean()


# ---------------------------------------------------------------------- what all share


def test_members_are_readings_of_one_regression(telling):
    data, model = telling
    unmatched = Unmatched.of(data.bags, data.z, data.mediator, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        alone = [
            m(n_draws=n, **QUICK).fit(unmatched, model.regressor_)
            for m, n in ((MeasuredGP, 8), (TiltedGP, 4))
        ]
    for one, name in zip([*alone, alone[1].conditional(1)], model.members_, strict=True):
        found, expected = model.members_[name].predict(data.x), one.predict(data.x)
        np.testing.assert_array_equal(found.mean, expected.mean)
        np.testing.assert_array_equal(found.std, expected.std)


def test_what_widens_a_posterior_is_not_taken_for_noise(telling):
    """The warning of a field that explains nothing goes by what the field was learnt from."""
    data, model = telling
    unmatched = Unmatched.of(data.bags, data.z, data.mediator, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dc.DegenerateFitWarning)
        MeasuredGP(**QUICK, n_draws=3).fit(unmatched, model.regressor_)


def test_the_share_that_is_explained_is_that_of_values_left_out(telling):
    data, model = telling
    regressor, z = model.regressor_, data.z
    k = regressor.fitted_.problem.observed_covariance(regressor.fitted_.pieces[0])
    precision = np.linalg.inv(np.asarray(k))
    error = precision @ z / np.diag(precision)
    share = 1.0 - np.sum(error**2) / np.sum((z - z.mean()) ** 2)
    assert explained_share(regressor) == pytest.approx(share, abs=1e-6)


def test_a_trend_is_a_link():
    """Observations that are a line in their mediators, and nothing more."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((40, 2))
    points, z = dc.Bags.from_points(y, np.arange(40)), y @ [1.0, -2.0] + 5.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        noisy = dc.BaggGP(trend="linear", **QUICK).fit(points, z + rng.standard_normal(40))
    assert explained_share(noisy) == pytest.approx(5 / 6, abs=0.08)


def test_a_useless_mediator_leaves_the_prior_and_a_warning(useless):
    data, model = useless
    assert list(model.members_) == ["unlinked"]
    assert model.explained_share_ < enough(*data.mediator.shape)
    post = model.predict(data.x)
    assert rmse(post.mean, data.f) < 1.03 * rmse(np.full(len(data.f), data.z.mean()), data.f)
    assert len(post.component_means) == 32
    assert post.variance.mean() > np.var(data.z)  # points vary more than cells
    assert coverage(*post.interval(0.95), data.f) > 0.85
    # Bag means vary by the model as the observations do, on average over draws.
    grams = [np.asarray(pieces.gram) for pieces in model.model_.fitted_.pieces]
    n = len(grams[0])
    found = [(np.trace(gram) - gram.sum() / n) / (n - 1) for gram in grams]
    assert np.exp(np.mean(np.log(found))) == pytest.approx(np.var(data.z, ddof=1), rel=0.25)
    with pytest.warns(dc.UselessMediatorWarning, match="no information"):
        dc.MediatedGP(**QUICK).fit(data.bags, data.z, mediator=data.mediator)


def test_of_a_useless_mediator_nothing_else_is_said():
    """Neither that a field explains nothing, which is the regression's, nor of narrow intervals."""
    data = noisy_mediator(0.0, n_cells=80, points_per_cell=10, seed=3)
    points = dc.Bags.from_points(data.mediator, np.arange(len(data.z)))
    with pytest.warns(dc.DegenerateFitWarning, match="explains 0%"):
        dc.BaggGP(gk.Matern32(), learn_noise=True, **QUICK).fit(points, data.z)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = dc.MediatedGP(**QUICK).fit(data.bags, data.z, mediator=data.mediator)
    assert list(model.members_) == ["unlinked"]
    told = [str(each.message) for each in caught]
    assert {each.category for each in caught} == {dc.UselessMediatorWarning}
    assert all("the posterior is the prior of the field" in text for text in told)
    assert model.fit_report_.notes == tuple(told)


def test_a_link_that_noise_could_be_is_none_and_said_so():
    """Ten observations that their mediators predict by chance, of bags that have a link."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (200, 1))
    y = np.sort(rng.uniform(-2, 2, 20))
    bags = dc.Bags.from_points(np.sort(x, axis=0), np.repeat(np.arange(20), 10), mediator=y)
    mediator = rng.uniform(-2, 2, (10, 1))
    with pytest.warns(dc.UselessMediatorWarning, match="noise would do as well"):
        model = dc.MediatedGP(**QUICK).fit(bags, rng.standard_normal(10), mediator)
    assert model.explained_share_ < enough(10, 1) == pytest.approx(0.35)
    assert any("noise would do as well" in note for note in model.fit_report_.notes)


@pytest.mark.parametrize(("p", "m", "least"), [(1, 20, 0.2), (3, 60, 1 / 6)])
def test_what_noise_predicts_is_no_link(p, m, least):
    """Few observations of noise seem to be predicted by more than 5 %, but hardly by enough."""
    shares = []
    for seed in range(40):
        rng = np.random.default_rng([p, seed])
        points = dc.Bags.from_points(rng.standard_normal((m, p)), np.arange(m))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dc.DeconditionalWarning)
            model = dc.BaggGP(gk.Matern32(lengthscale=jnp.ones(p)), learn_noise=True, **QUICK)
            shares.append(explained_share(model.fit(points, rng.standard_normal(m))))
    assert np.mean(np.array(shares) > 0.05) > 0.06
    assert np.mean(np.array(shares) > enough(m, p)) < 0.06
    assert enough(m, p) == pytest.approx(least)


def test_it_beats_pseudo_targets_where_the_mediator_is_noisy():
    data = noisy_mediator(0.6, n_cells=120, points_per_cell=10, seed=0)
    base = dc.PseudoTarget(dc.BaggGP(**QUICK), n_restarts=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        before = base.fit(data.bags, data.z, data.mediator).predict(data.x)
    after = fitted(data).predict(data.x)
    assert rmse(after.mean, data.f) < 0.8 * rmse(before.mean, data.f)
    assert crps(after, data.f) < 0.6 * crps(before, data.f)
    assert coverage(*before.interval(), data.f) < 0.3
    assert coverage(*after.interval(0.95), data.f) > 0.75


@pytest.mark.parametrize("explained", [0.7, 0.0])
def test_bags_with_observations_of_their_own_are_known(explained):
    data = noisy_mediator(explained, n_cells=60, points_per_cell=10, seed=1)
    own = np.full(len(data.z), -1)
    own[:10] = np.arange(10)
    z = data.z.copy()
    z[:10] = data.bags.means(data.f[: data.bags.n_points])[:10]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = dc.MediatedGP(**QUICK).fit(data.bags, z, data.mediator, own_bag=own)
    found = model.predict_bags(data.bags)
    assert np.abs(found.mean[:10] - z[:10]).max() < 0.3 * z.std()
    assert found.std[:10].mean() < 0.5 * found.std[10:].mean()


def test_bag_effects_are_learnt_beside_known_noise():
    data = noisy_mediator(0.7, n_cells=60, points_per_cell=10, seed=1)
    known = 0.05 * data.z.std()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        model = dc.MediatedGP(**QUICK).fit(data.bags, data.z, data.mediator, noise_std=known)
    effect = model.regressor_.parameters_["noise_std"]
    assert 0.3 < effect / data.z.std() < 0.8  # the mediator explains 70 %
    assert model.members_["measured"].parameters_["noise_std"] > effect


def test_a_joint_model_has_the_options_of_a_cmp_and_its_draws():
    model = JointGP(cmo="shrinkage", n_draws=3)
    assert model.get_params() == {**dc.CMP(cmo="shrinkage").get_params(), "n_draws": 3}
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ValueError, match="n_draws"):
        model.set_params(n_draws=0).check_options()


@pytest.mark.parametrize("which", ["telling", "weak_link", "open_link", "useless"])
def test_a_saved_model_predicts_the_same(which, request, tmp_path):
    data, model = request.getfixturevalue(which)
    again = dc.load(model.save(tmp_path / "model.npz"))
    assert list(again.members_) == list(model.members_)
    assert again.explained_share_ == model.explained_share_ and again.parts_ == model.parts_
    assert again.fit_report_.notes == model.fit_report_.notes
    one, two = model.predict(data.x), again.predict(data.x)
    np.testing.assert_array_equal(two.mean, one.mean)
    np.testing.assert_array_equal(two.std, one.std)
    np.testing.assert_array_equal(
        again.predict_coarse(data.mediator).mean, model.predict_coarse(data.mediator).mean
    )


def test_it_goes_on_from_a_checkpoint(telling, tmp_path):
    from deconditional.fitting.progress import listening

    data, model = telling
    path, count = tmp_path / "fit.checkpoint", iter(range(1, 10**6))

    def stop(step):
        if step.what == "fit" and next(count) == 30:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"), listening(stop):
        fitted(data, path)
    assert path.exists()
    again = fitted(data, path)
    assert "resumed" in again.fit_report_.details and not path.exists()
    np.testing.assert_array_equal(again.predict(data.x).mean, model.predict(data.x).mean)


def test_features_and_fine_noise():
    data = swiss_roll(n_points=300, n_bags=16, matching="indirect", seed=0)
    model = fitted(data, fine_noise=True)
    smooth, single = model.predict(data.x[:20]), model.predict(data.x[:20], fine_noise=True)
    assert (single.variance > smooth.variance).all()
    many = model.predict(data.x[:20], features=4000)
    np.testing.assert_allclose(many.mean, smooth.mean, atol=0.15 * data.f.std())
    with pytest.raises(ValueError, match="no high-resolution noise"):
        fitted(data).predict(data.x[:2], fine_noise=True)


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


def test_not_fitted():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError, match="MediatedGP is not fitted"):
        dc.MediatedGP().predict([[0.0]])
