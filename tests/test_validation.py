"""Blocked cross-validation: the folds, the scores, and the choice that follows from them."""

from dataclasses import replace

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import ndtr, ndtri

import deconditional as dc
from deconditional.datasets import split_cells, synthetic_fields
from deconditional.errors import UsageError
from deconditional.inference.posterior import Gaussians
from made_up_grids import projected_fields

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields.learn import Learner  # noqa: E402
from deconditional.fields.question import Question  # noqa: E402
from deconditional.fields.sides import two_sides  # noqa: E402
from deconditional.fields.validation import (  # noqa: E402
    PLAUSIBLE_GAP,
    Predicted,
    Tried,
    _chosen,
    _regions,
    compared,
    folds_of,
)
from pairs import pair  # noqa: E402

ROLES = ("tas", ["cloud"], ["water_vapour"])
SLOPES = tuple(range(3, 3 + len(ROLES[1])))  # the covariates follow position
KERNEL, LINK = gk.RBF(lengthscale=jnp.ones(4)), gk.RBF(lengthscale=jnp.ones(4))
FIXED = {"kernel.lengthscale": [0.7, 0.7, 0.7, 1.5], "kernel.variance": 1.3, "noise_std": 0.1}


def example(matched, **options):
    return split_cells(synthetic_fields(16, 32, **options), *ROLES, block=4, matched=matched)


def paired(data):
    return pair(data.fine, data.coarse, Question("tas", ("cloud",), ("water_vapour",)))


def settings(fixed=None, **changes):
    options = {"kernel": KERNEL, "mediator_kernel": LINK, "n_restarts": 1}
    return options | {"model_options": {"fixed": fixed}} | changes


@pytest.fixture(scope="module")
def matched():
    return example(1.0)


@pytest.fixture(scope="module")
def partly():
    return example(0.5)


# --- folds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [2, 5, 12])
def test_folds_divide_the_observations_evenly(folds):
    fields = projected_fields(48, 64, extent=(30, 60, 0, 60))
    data = split_cells(fields, *ROLES, block=4, matched=0.6)
    pairing = paired(data)
    parts = folds_of(pairing, "space", folds, seed=0)
    assert parts.fold.shape == pairing.z.shape
    assert set(parts.fold) == set(range(folds))
    sizes = np.bincount(parts.fold)
    assert sizes.sum() == len(pairing.z)
    assert sizes.max() - sizes.min() <= len(pairing.z) / folds / 2
    assert parts.how == f"{folds} folds of {4 * folds} regions"
    again = folds_of(pairing, "space", folds, seed=0)
    np.testing.assert_array_equal(again.fold, parts.fold)


def test_regions_are_contiguous():
    """All 12 x 16 cells of a plane are observed, so neighbours can be followed on the grid."""
    fields = projected_fields(48, 64, extent=(30, 60, 0, 60))
    data = split_cells(fields, *ROLES, block=4, matched=1.0)
    region = _regions(paired(data), 20, seed=3).reshape(12, 16)
    index = np.arange(region.size).reshape(region.shape)
    pairs = [(index[1:], index[:-1]), (index[:, 1:], index[:, :-1])]
    pairs += [(index[1:, 1:], index[:-1, :-1]), (index[1:, :-1], index[:-1, 1:])]
    one, other = (np.concatenate([p[k].ravel() for p in pairs]) for k in (0, 1))
    same = region.ravel()[one] == region.ravel()[other]
    links = csr_array((np.ones(same.sum()), (one[same], other[same])), shape=(192, 192))
    assert connected_components(links, directed=False)[0] == len(np.unique(region)) == 20


def test_a_cell_is_in_one_region_at_all_times():
    data = example(1.0, times=["2000-01-01", "2000-01-11", "2000-01-21"])
    parts = folds_of(paired(data), "space", 4, seed=0)
    by_day = parts.fold.reshape(3, 32)
    np.testing.assert_array_equal(by_day, by_day[[0, 0, 0]])


def test_stretches_of_time_follow_the_calendar():
    days = [f"2000-01-{day:02d}" for day in (9, 1, 5, 3, 7)]
    data = example(1.0, times=days)
    # The fine data has two of the times, so the units' times are in no order at all.
    pairing = paired(data._replace(fine=data.fine.isel(time=[2, 0])))
    parts = folds_of(pairing, "time", 2, seed=0)
    day = pairing.times[pairing.observed_unit // 32]
    assert parts.how == "2 stretches of time"
    early = day <= np.datetime64("2000-01-05")
    np.testing.assert_array_equal(parts.fold, np.where(early, 0, 1))


@pytest.mark.parametrize(
    ("by", "folds", "message"),
    [
        ("latitude", 5, "by 'space' or by 'time', not 'latitude'"),
        ("space", 1, "32 observations cannot be divided into 1 folds; choose 2 to 32"),
        ("space", 33, "cannot be divided into 33 folds"),
        ("time", 2, r"known at 1 time\(s\), too few for 2 folds in time; use fewer folds, or"),
    ],
)
def test_folds_that_cannot_be_made(matched, by, folds, message):
    with pytest.raises(UsageError, match=message):
        folds_of(paired(matched), by, folds, seed=0)


def test_one_place_cannot_be_divided_in_space():
    days = [f"2000-01-{day:02d}" for day in range(1, 7)]
    fields = synthetic_fields(4, 4, times=days, extent=(40, 50, 0, 10))
    pairing = paired(split_cells(fields, *ROLES, block=4, matched=1.0))
    with pytest.raises(UsageError, match="known in one coarse cell; use by='time'"):
        folds_of(pairing, "space", 2, seed=0)
    assert folds_of(pairing, "time", 3, seed=0).fold.tolist() == [0, 0, 1, 1, 2, 2]


# --- scores and choice --------------------------------------------------------------------------

Z = np.random.default_rng(0).standard_normal(40)


def predicted(error, std=1.0):
    """Means that are off by so much."""
    mean = Z + np.broadcast_to(error, Z.shape)
    return Predicted(Gaussians(mean[None], np.full((1, 40), std**2)), Z)


def tried(name, error, std=1.0, bag_gap=None):
    return Tried(name, predicted(error, std), 1.234, predicted(error), bag_gap)


def chosen(*models):
    return _chosen(models)


def test_the_lowest_crps_is_chosen():
    assert chosen(tried("first", 1.0), tried("other", 0.9)) == "other"
    assert chosen(tried("first", 1.0), tried("same", 1.0)) == "first"
    assert chosen(tried("first", 1.0), tried("too sure", 1.0, std=0.1)) == "first"


def test_a_simpler_model_is_chosen_where_scores_do_not_tell():
    noise = np.random.default_rng(0).normal(size=40)
    best = tried("best", 0.3 * noise)
    close = replace(tried("close", 0.3 * noise[::-1] + 1e-3), simplicity=1)
    far = replace(tried("far", 2.0), simplicity=2)
    assert chosen(best, close, far) == "close" and chosen(best, far) == "best"


def crps(mean, std):
    """Of a normal, by quadrature over its quantiles: twice the mean pinball loss."""
    levels = (np.arange(20_000) + 0.5) / 20_000
    quantiles = mean + std * ndtri(levels)[:, None]
    return 2 * np.mean((levels[:, None] - (quantiles > Z)) * (Z - quantiles), axis=0)


def test_models_that_are_far_from_the_bags_stand_back():
    near, far = 0.5 * PLAUSIBLE_GAP, 1.25 * PLAUSIBLE_GAP
    good, absurd = tried("good", 1.0, bag_gap=near), tried("absurd", 0.0, bag_gap=far)
    assert chosen(good, absurd) == chosen(absurd, good) == "good"
    assert chosen(tried("first", 1.0, bag_gap=PLAUSIBLE_GAP), tried("other", 0.0)) == "other"
    worse = tried("worse", 0.0, bag_gap=2 * PLAUSIBLE_GAP)
    assert chosen(worse, absurd) == "absurd"  # the lesser evil


def test_scores_are_in_the_units_of_the_target():
    models = [tried("a", 0.5, 0.8, bag_gap=0.7), tried("b", 3.0, 0.8, bag_gap=1.5)]
    found = compared(models, 4.0, "5 folds of 10 regions")
    row = found.rows[0]
    assert row["rmse"] == pytest.approx(4.0 * 0.5)
    assert row["crps"] == pytest.approx(4.0 * crps(Z + 0.5, 0.8).mean(), rel=1e-3)
    density = np.exp(-0.5 * (0.5 / 0.8) ** 2) / (np.sqrt(2 * np.pi) * 4.0 * 0.8)
    assert row["nll"] == pytest.approx(-np.log(density))
    assert (row["coverage95"], row["coverage50"]) == (1.0, float(0.8 * ndtri(0.75) > 0.5))
    assert found.rows[1]["coverage95"] == 0.0
    assert (row["bag_gap"], row["seconds"]) == (0.7, 1.23)
    np.testing.assert_allclose(found.pit["a"], ndtr(-0.5 / 0.8))
    assert found.chosen == "a" and found.columns[0] == "model"
    assert str(found).splitlines()[0] == "held-out coarse observations, 5 folds of 10 regions"
    assert str(found).splitlines()[2].startswith("a *")


# --- cross-validation of models -----------------------------------------------------------------


def arrays_of(data, **changes):
    """Standardised bags and observations, as a downscaler makes them."""
    downscaler = dc.Downscaler(*ROLES, **settings(), **changes)
    return downscaler.prepare(*two_sides(data.fine, data.coarse, downscaler.question()))


def standardised_pit(mean, variance, z):
    return ndtr((z - mean) / np.sqrt(variance))


def test_refitting_is_a_loop_over_folds(matched):
    """All but the noise is held, which is learnt anew without each fold."""
    free = {name: value for name, value in FIXED.items() if name != "noise_std"}
    options = settings(free, model_options={"fixed": free, "method": "map"})
    found = dc.cross_validate(
        matched.fine, matched.coarse, *ROLES, models=["bagg-gp"], folds=2, **options
    )
    downscaler = arrays_of(matched)
    fold = folds_of(downscaler.problem.pairing, "space", 2, seed=0).fold
    assert np.bincount(fold).tolist() == [16, 16]
    data = downscaler.data("bagg-gp")
    seen, unseen = np.flatnonzero(fold == 1), np.flatnonzero(fold == 0)
    model = dc.BaggGP(KERNEL, trend=SLOPES, fixed=free, n_restarts=1)
    model.fit(data.bags.select(seen), data.z[seen])
    predicted = model.predict_bags(data.bags.select(unseen))
    variance = predicted.variance + model.parameters_["noise_std"] ** 2
    expected = standardised_pit(predicted.mean, variance, data.z[unseen])
    np.testing.assert_allclose(found.pit["bagg-gp"][unseen], expected, rtol=1e-6)
    assert found.how == "2 folds of 8 regions, parameters learnt without the fold"
    assert found.chosen == "bagg-gp"


def test_without_refitting_parameters_are_held(matched):
    found = dc.cross_validate(
        matched.fine, matched.coarse, *ROLES, models=["bagg-gp"], refit=False, **settings(FIXED)
    )
    downscaler = arrays_of(matched)
    data = downscaler.data("bagg-gp")
    fold = folds_of(downscaler.problem.pairing, "space", 5, seed=0).fold
    model = dc.BaggGP(KERNEL, trend=SLOPES, fixed=FIXED, n_restarts=1).fit(data.bags, data.z)
    predicted = model.predict_held_out(fold)
    expected = standardised_pit(predicted.mean, predicted.variance, data.z)
    np.testing.assert_allclose(found.pit["bagg-gp"], expected, rtol=1e-9)
    rmse = np.sqrt(np.mean((predicted.mean - data.z) ** 2)) * matched.coarse.tas.values.std()
    assert found.rows[0]["rmse"] == pytest.approx(rmse, rel=1e-9)
    assert found.how == "5 folds of 20 regions, parameters held"


def test_times_are_held_out():
    days = ["2000-01-01", "2000-01-11"]
    fields = synthetic_fields(16, 16, times=days)
    data = split_cells(fields, *ROLES, block=4, matched=1.0)
    options = settings(FIXED, models=["bagg-gp"], by="time", folds=2, time="ignore")
    found = dc.cross_validate(data.fine, data.coarse, *ROLES, **options)
    parts = arrays_of(data, time="ignore").data("bagg-gp")
    model = dc.BaggGP(KERNEL, trend=SLOPES, fixed=FIXED, n_restarts=1)
    first, second = np.arange(16), np.arange(16, 32)
    predicted = model.fit(parts.bags.select(first), parts.z[:16]).predict_bags(
        parts.bags.select(second)
    )
    expected = standardised_pit(predicted.mean, predicted.variance + 0.1**2, parts.z[16:])
    np.testing.assert_allclose(found.pit["bagg-gp"][16:], expected, rtol=1e-6)
    assert found.how == "2 stretches of time, parameters learnt without the fold"


class Seen(dc.PseudoTarget):
    """A model whose answers tell what it was asked, and how many observations it has seen."""

    def __init__(self, n, noise):
        self.n, self.parameters_ = n, {"noise_std": noise}
        self.model_ = self.regressor_ = self

    def predict_bags(self, bags):
        return Gaussians(bags.means()[None, :, -1], np.full((1, len(bags)), 1.0 + self.n))

    def predict_coarse(self, mediator):
        return Gaussians(mediator[None, :, -1], np.full((1, len(mediator)), 2.0 + self.n))


@pytest.mark.parametrize("two_stages", [False, True])
def test_refitting_predicts_through_own_bags_and_mediators(partly, monkeypatch, two_stages):
    def fitted(self, name, data, z):
        assert len(data.mediator) == len(data.own_bag) == len(z) and data.bags.n_bags == 24
        model = Seen(len(z), 0.5)
        if two_stages:
            model.model_, model.regressor_ = Seen(len(z), 0.5), Seen(len(z), 0.7)
            model.parameters_ = None
        return model

    monkeypatch.setattr(Learner, "fit", fitted)
    found = dc.cross_validate(partly.fine, partly.coarse, *ROLES, models="cmp", folds=3)
    downscaler = arrays_of(partly)
    fold = folds_of(downscaler.problem.pairing, "space", 3, seed=0).fold
    data = downscaler.data("cmp")
    direct = data.own_bag >= 0
    assert 0 < direct.sum() < len(direct)
    seen = len(fold) - np.bincount(fold)[fold]
    mean = np.where(direct, data.bags.means()[data.own_bag, -1], data.mediator[:, -1])
    noise = np.where(direct, 0.5, 0.7 if two_stages else 0.5) ** 2
    variance = np.where(direct, 1.0, 2.0) + seen + noise
    np.testing.assert_allclose(found.pit["cmp"], standardised_pit(mean, variance, data.z))


class Standard:
    """A model that has learnt nothing: every held-out observation is standard normal."""

    def __init__(self, n):
        self.n = n

    def predict_held_out(self, folds):
        assert len(folds) == self.n
        return Gaussians(np.zeros((1, self.n)), np.ones((1, self.n)))


@pytest.fixture
def at_once(monkeypatch):
    """Everything but the fits as it is."""
    monkeypatch.setattr(Learner, "fit", lambda self, name, data, z: Standard(len(z)))


def test_models_are_compared_on_the_observations_they_share(matched, at_once):
    """Some cells lack mediators, which only one of the models needs."""
    known = matched.coarse.lon < 100
    coarse = matched.coarse.assign(water_vapour=matched.coarse.water_vapour.where(known))
    models = {"models": ["bagg-gp", "cmp"], "refit": False}
    found = dc.cross_validate(matched.fine, coarse, *ROLES, **models)
    z = matched.coarse.tas.values
    shared = np.broadcast_to(known, z.shape)
    expected = ndtr((z - z.mean()) / z.std())[shared]
    for name in models["models"]:
        np.testing.assert_allclose(found.pit[name], expected)
    rmse = np.sqrt(np.mean((z - z.mean())[shared] ** 2))
    assert [row["rmse"] for row in found.rows[:2]] == pytest.approx([rmse, rmse])


def test_models_are_those_of_auto_unless_named(matched, partly, at_once):
    def names(data, **options):
        found = dc.cross_validate(data.fine, data.coarse, *ROLES, refit=False, **options)
        return [row["model"] for row in found.rows]

    simple = ["kriging", "bilinear"]
    assert names(matched) == ["bagg-gp", "regression-kriging", *simple]
    assert names(partly) == ["bagg-gp", "regression-kriging", *simple]
    assert names(example(0.0)) == ["mediated", "bagg-gp", *simple]
    assert names(partly, model="cmp") == ["cmp", "bilinear"]
    assert names(partly, models=["varcmp", "gpr"]) == ["varcmp", "gpr", "bilinear"]
    assert names(matched, model=dc.BaggGP()) == ["BaggGP", "bilinear"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ["bagg-gp", "bag"]}, "there is no model 'bag'"),
        ({"by": "place"}, "'space' or by 'time', not 'place'"),
        ({"folds": 40}, "32 observations cannot be divided into 40 folds"),
        ({"by": "time"}, r"known at 1 time\(s\), too few for 5 folds in time"),
        ({"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_cross_validation_that_cannot_be_done(matched, changes, message):
    options = settings(FIXED, model="bagg-gp", refit=False) | changes
    with pytest.raises(UsageError, match=message):
        dc.cross_validate(matched.fine, matched.coarse, *ROLES, **options)
