"""Fields in time: inputs, windows, and what they must agree with."""

import warnings
from dataclasses import replace

import cftime
import numpy as np
import pytest

import deconditional as dc

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

import gpjax.kernels as gk  # noqa: E402

from deconditional.errors import UsageError  # noqa: E402
from deconditional.fields import series  # noqa: E402
from deconditional.fields.clock import Clock, years  # noqa: E402
from deconditional.fields.default_kernels import Inputs, field_kernel  # noqa: E402
from deconditional.fields.sides import two_sides  # noqa: E402
from deconditional.kernels.repeats import repeats_of, separated  # noqa: E402
from deconditional.kernels.sweeps import bag_cross, bag_gram  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::deconditional.errors.DeconditionalWarning")

MONTHS = [f"2001-{month:02d}-15" for month in range(1, 7)]
QUICK = {"model": "bagg-gp", "n_restarts": 1, "model_options": {"max_iter": 5, "method": "map"}}


@pytest.fixture(scope="module")
def data():
    return dc.datasets.split_cells(
        dc.datasets.synthetic_fields(8, 12, times=MONTHS, seed=1),
        *("tas", ["altitude"], []),
        block=4,
        matched=1.0,
    )


@pytest.fixture(scope="module")
def together(data):
    with warnings.catch_warnings():  # it stops early
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        return dc.Downscaler("tas", ["altitude"], **QUICK).fit(data.fine, data.coarse)


# --- times as numbers -------------------------------------------------------------------------


def test_years_of_calendars():
    months = [cftime.Datetime360Day(2000 + k // 12, 1 + k % 12, 1) for k in range(36)]
    np.testing.assert_allclose(years(np.array(months)), np.arange(36) / 12, atol=1e-12)
    clock = Clock.of(np.array(months), "smooth")
    found = clock(np.array(months))
    assert clock.season and clock.step == pytest.approx(1 / 12)
    np.testing.assert_allclose(found[:12, 1:], found[24:, 1:], atol=1e-9)
    squares = ((found[0, 1:] - found[3, 1:]) ** 2).sum()
    assert squares == pytest.approx(4 * np.sin(np.pi / 4) ** 2)


def test_a_season_needs_two_years_and_several_times_in_each():
    days = np.array(["2000-01-01"], "datetime64[ns]") + np.arange(1000) * np.timedelta64(1, "D")
    assert Clock.of(days, "smooth").season
    assert not Clock.of(days[:600], "smooth").season
    assert not Clock.of(days[::365], "smooth").season
    assert Clock.of(days, "ignore").n_inputs == 0
    numbered = Clock.of(days[::10], "independent")(days[[0, 20]])
    np.testing.assert_array_equal(numbered, [[0], [2]])


# --- bags that come again ---------------------------------------------------------------------


def test_repeated_bags_cost_what_distinct_ones_cost_and_agree():
    rng = np.random.default_rng(0)
    cells = [rng.normal(size=(n, 3)) for n in (3, 4, 3)]
    each = [
        np.column_stack([cell[:, :2], np.full(len(cell), t), cell[:, 2]])
        for t in (0.0, 0.5, 2.0)
        for cell in cells
    ]
    bags = dc.Bags.from_list(each)
    kernel = field_kernel(Inputs(2, 1, 1))
    found = repeats_of(bags, kernel)
    assert found.base.n_bags == 3 and found.columns == (2,)
    np.testing.assert_allclose(found.gram(kernel), bag_gram(kernel, bags), atol=1e-12)
    x = rng.normal(size=(5, 4))
    np.testing.assert_allclose(found.cross(kernel, x), bag_cross(kernel, x, bags), atol=1e-12)
    one = dc.Bags.from_list(each[3:6])  # at one time, which x need not be at
    found = repeats_of(one, kernel)
    np.testing.assert_allclose(found.gram(kernel), bag_gram(kernel, one), atol=1e-12)
    np.testing.assert_allclose(found.cross(kernel, x), bag_cross(kernel, x, one), atol=1e-12)
    assert separated(gk.RBF(), (2,)) is None and repeats_of(bags, gk.RBF()) is None


# --- windows of time ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def days():
    """A field every five days of four months, itself the target, and its monthly means."""
    every = np.arange("2001-01-01", "2001-05-01", 5, dtype="datetime64[D]").astype("datetime64[ns]")
    fields = dc.datasets.synthetic_fields(8, 12, times=list(every), seed=2)
    fine = fields[["cloud"]].assign(known=fields.cloud)
    data = dc.datasets.split_cells(fine, "cloud", ["known"], [], block=4, matched=1.0)
    months = data.coarse.cloud.resample(time="MS").mean()
    starts = np.arange("2001-01", "2001-06", dtype="datetime64[M]").astype("datetime64[ns]")
    bounds = ("time", "bnds"), np.stack([starts[:-1], starts[1:]], 1)
    coarse = data.coarse[["lat_bnds", "lon_bnds"]].drop_vars("time", errors="ignore")
    coarse = coarse.assign(cloud=months, time_bnds=bounds)
    coarse.time.attrs["bounds"] = "time_bnds"
    return data.fine, coarse


@pytest.mark.parametrize("said", ["bounds", "month"])
def test_a_monthly_mean_is_a_bag_of_points_in_space_and_time(days, said):
    fine, coarse = days
    if said == "month":  # dated at the end of the month
        ends = coarse.time.values + np.timedelta64(26, "D")
        coarse = coarse[["cloud"]].assign_coords(time=ends)
    downscaler = dc.Downscaler("cloud", ["known"], window=None if said == "bounds" else said)
    learner = downscaler.prepare(*two_sides(fine, coarse, downscaler.question()))
    pairing, bags = learner.problem.pairing, learner.bags.make()
    assert pairing.matching == "matched" and pairing.n_bags == len(pairing.z) == 4 * 6
    values = bags.points[:, -2] + bags.points[:, -1]  # the deviation, and the mean over time
    np.testing.assert_allclose(bags.means(values)[pairing.own_bag], pairing.z, rtol=1e-6)
    assert "with 5 to 7 fine time(s) in each; 4 of 4 windows" in dict(pairing.understood)["time"]


def test_files_that_date_their_months_differently_meet(data):
    expected = dc.Downscaler("tas", ["altitude"]).understand(data.fine, data.coarse)
    cloud = data.fine.assign(cloud=dc.datasets.synthetic_fields(8, 12, times=MONTHS).cloud)
    asked = dc.Downscaler("tas", ["altitude", "cloud"])
    for day in ("01", "28"):
        dates = np.array([f"{month[:7]}-{day}" for month in MONTHS], "datetime64[ns]")
        found = asked.understand(cloud, data.coarse.assign_coords(time=dates))
        assert found.matching == "matched" and found.n_bags == expected.n_bags
        np.testing.assert_array_equal(found.z[np.argsort(found.own_bag)], expected.z)
    none = dc.Downscaler("tas", ["altitude", "cloud"], window="none")
    late = data.coarse.assign_coords(time=dates)
    assert none.understand(cloud, late).matching == "unmatched"
    one = asked.understand(cloud.isel(time=[2]), late.isel(time=[2]))
    assert one.matching == "matched" and len(one.z) == 6
    standard = [cftime.DatetimeGregorian(2001, m, 15) for m in range(1, 7)]
    plain = asked.understand(cloud, data.coarse.assign_coords(time=standard))
    assert plain.matching == "matched"


def test_half_a_month_of_days_is_not_the_month(days):
    fine, coarse = days
    asked = dc.Downscaler("cloud", ["known"], min_cover=0.8)
    found = asked.understand(fine.isel(time=slice(4, None)), coarse)
    assert "3 of 4 windows" in dict(found.understood)["time"]
    with pytest.raises(UsageError, match="window must be one of day, month, year, none"):
        dc.Downscaler("cloud", ["known"], window="week").question()


def test_windows_of_a_series_hold_whole_months(days, monkeypatch):
    fine, coarse = days
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        together = dc.Downscaler("cloud", ["known"], **QUICK).fit(fine, coarse)
        expected = together.predict(fine)
        monkeypatch.setattr(series, "LEARNT", 18)
        same = dc.Downscaler("cloud", ["known"], **parameters_held(together)).fit(fine, coarse)
    assert same.learner_.series.reach == 4
    learner = together.learner_
    same.learner_ = replace(learner, recipe=same.learner_.recipe, series=same.learner_.series)
    found = same.predict(fine)
    for name in ("mean", "std", "coarse_mean", "coarse_observed"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


# --- covariates within places and between them ------------------------------------------------


def test_a_covariate_of_space_and_time_is_its_mean_and_what_is_left(data):
    cloud = dc.datasets.synthetic_fields(8, 12, times=MONTHS, seed=1).cloud
    fine = data.fine.assign(cloud=cloud)
    downscaler = dc.Downscaler("tas", ["altitude", "cloud"], **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        downscaler.fit(fine, data.coarse)
    learner = downscaler.learner_
    points = learner.bags.make().points
    assert learner.problem.pairing.question.split == ("cloud",)  # altitude has no time
    left, mean = points[:, -2], points[:, -1]
    expected = np.sort(cloud.mean("time").values.ravel())
    np.testing.assert_allclose(np.unique(mean.round(9)), np.unique(expected.round(9)))
    np.testing.assert_allclose(np.sort(left + mean), np.sort(cloud.values.ravel()))
    whole = downscaler.predict(fine)["mean"]
    for one in (fine.isel(time=[2]), fine.isel(time=[2], lat=slice(2, 5))):
        there = whole.sel(time=one.time, lat=one.lat)
        np.testing.assert_allclose(downscaler.predict(one)["mean"], there, rtol=1e-9)
    chunked = downscaler.predict(fine.chunk(time=1, lat=3))["mean"]
    np.testing.assert_allclose(chunked, whole, rtol=1e-6)
    elsewhere = fine.isel(time=[2]).assign_coords(lon=fine.lon + 0.5).drop_vars("lon_bnds")
    with pytest.raises(UsageError, match="'cloud' was learnt from as its mean over time"):
        downscaler.predict(elsewhere)


def test_simple_models_see_a_cell_through_the_same_points_at_all_times(data):
    cloud = dc.datasets.synthetic_fields(8, 12, times=MONTHS, seed=1).cloud
    asked = dc.Downscaler("tas", ["altitude", "cloud"], points_per_bag=5)
    fine = data.fine.assign(cloud=cloud)
    learner = asked.prepare(*two_sides(fine, data.coarse, asked.question()))
    found = learner.data("regression-kriging").bags
    kernel = field_kernel(replace(learner.recipe.inputs, n_others=0))
    assert repeats_of(found, kernel).base.n_bags == 6 and found.sizes.max() == 5
    whole = learner.bags.make(np.array(found.ids))
    whole = replace(whole, points=learner.problem.inputs(whole.points))
    np.testing.assert_allclose(  # what is linear in covariates: exact
        found.means(found.points[:, -3:]), whole.means(whole.points[:, -3:]), atol=1e-12
    )
    np.testing.assert_allclose(bag_gram(kernel, found), bag_gram(kernel, whole), rtol=0.05)


def test_trends_of_unmatched_fields_leave_time_to_its_kernel(data):
    early, late = data.fine.isel(time=slice(3)), data.coarse.isel(time=[3, 4])
    humid = data.coarse.tas.isel(time=slice(5)) + 1.0
    coarse = late.assign(humid=humid).reindex(time=humid.time)
    asked = dc.Downscaler("tas", ["altitude"], ["humid"])
    learner = asked.prepare(*two_sides(early, coarse, asked.question()))
    made = learner.recipe.estimator("mediated", matched=False)
    n = learner.problem.pairing.n_position
    assert made.trend == (*range(n), n + 1) and made.mediator_trend == made.trend
    assert learner.recipe.estimator("bagg-gp", matched=False).trend == made.trend


# --- windows ----------------------------------------------------------------------------------


def parameters_held(downscaler):
    values = downscaler.model_.fitted_.values()[0]
    return {"model": "bagg-gp", "n_restarts": 1, "model_options": {"fixed": values}}


def test_a_window_of_all_times_is_the_exact_posterior(data, together, monkeypatch):
    expected = together.predict(data.fine, quantiles=[0.1])
    monkeypatch.setattr(series, "LEARNT", 24)
    held = parameters_held(together)
    learner = together.learner_
    same = dc.Downscaler("tas", ["altitude"], **held).fit(data.fine, data.coarse)
    assert same.learner_.series.reach == len(MONTHS)
    # The sample has scalings of its own; with those of all data the posterior is that of all data.
    same.learner_ = type(learner)(
        learner.problem, same.learner_.recipe, None, 5, learner.bags, series=same.learner_.series
    )
    found = same.predict(data.fine, quantiles=[0.1])
    for name in ("mean", "std", "quantiles", "coarse_mean", "coarse_observed"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found["coarse_role"], expected["coarse_role"])


def test_a_window_of_all_times_has_every_draw_of_every_model(data, monkeypatch):
    options = {"n_restarts": 1, "model_options": {"max_iter": 5}}
    together = dc.Downscaler("tas", ["altitude"], **options).fit(data.fine, data.coarse)
    assert together.model_name_ == "mixture" and sum(together.model_.shares.values()) == 16
    expected = together.predict(data.fine, quantiles=[0.1])
    monkeypatch.setattr(series, "LEARNT", 24)
    found = series.series_of(*two_sides(data.fine, data.coarse, together.question()))
    assert found.is_short
    together.learner_ = replace(together.learner_, series=found)
    by_window = together.predict(data.fine, quantiles=[0.1])
    for name in ("mean", "std", "quantiles", "coarse_mean"):
        np.testing.assert_allclose(by_window[name], expected[name], rtol=1e-6, atol=1e-6)
