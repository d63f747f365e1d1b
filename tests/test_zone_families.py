"""Counts over polygons: the fields' road against the models themselves, and what is refused."""

import warnings

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
import xarray as xr

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.fields.grids import find_grid
from deconditional.fields.overlap import overlap
from deconditional.fields.question import resolved
from deconditional.fields.zones.layer import Layer

N_LAT, N_LON = 8, 12
OPTIONS = {"n_restarts": 1, "folds": 2, "model_options": {"n_inducing": 25, "max_iter": 8}}


@pytest.fixture(scope="module")
def example():
    """A rate that a covariate explains, people, and counts in 24 polygons of 4 cells and a bit."""
    rng = np.random.default_rng(0)
    lat, lon = 40 + (np.arange(N_LAT) + 0.5) / 4, (np.arange(N_LON) + 0.5) / 4
    slope = np.sin(np.arange(N_LAT))[:, None] + np.cos(np.arange(N_LON) / 2)
    people = rng.uniform(100, 900, slope.shape)
    coords = {
        "lat": ("lat", lat, {"units": "degrees_north"}),
        "lon": ("lon", lon, {"units": "degrees_east"}),
    }
    both = {"slope": (("lat", "lon"), slope), "people": (("lat", "lon"), people)}
    fine = xr.Dataset(both, coords)
    boxes = [
        shapely.box(x, y, x + 0.5, y + 0.5)
        for y in np.arange(40, 42, 0.5)
        for x in np.arange(0, 3, 0.5)
    ]
    zones = gpd.GeoDataFrame(geometry=boxes, crs=4326, index=[f"d{k}" for k in range(len(boxes))])
    zones["tested"] = rng.integers(50, 200, len(zones))
    share = _shares(fine, zones)
    expected = (np.exp(-5 + 0.5 * slope) * people).ravel() @ share
    zones["cases"] = rng.poisson(expected)
    zones["positive"] = rng.binomial(zones["tested"], 0.2)
    return fine, zones, share


def _shares(fine, zones):
    grid = find_grid(fine, ["slope"], "fine")
    return overlap(grid, Layer.of(zones, [], grid).grid).toarray() / grid.areas[:, None]


@pytest.fixture(scope="module")
def fitted(example):
    fine, zones, _ = example
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        return dc.Downscaler(
            "cases", ["slope"], family=dc.Poisson(exposure="people"), **OPTIONS
        ).fit(fine, zones)


@pytest.mark.filterwarnings("ignore::deconditional.FitWarning")
def test_the_fit_is_that_of_the_model_on_the_same_bags(example, fitted):
    """Weights, exposures and order of the bags by hand, from shares of Shapely's kind."""
    fine, zones, share = example
    people = fine["people"].values.ravel()
    bag, point = np.nonzero((share * people[:, None]).T > 1e-9)
    part = fitted.learner_.bags.parts.only
    x = fitted.input_scaling_(part.points)
    bags = dc.Bags.from_points(x[point], bag, exposure=people[point] * share[point, bag])
    np.testing.assert_allclose(bags.exposure, fitted.pairing_.amount, rtol=1e-9)
    model = fitted.learner_.recipe.estimator("vbagg", True)
    by_hand = model.fit(bags, zones["cases"].to_numpy(float))
    ours, theirs = fitted.model_.predict(x), by_hand.predict(x)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-4)
    np.testing.assert_allclose(ours.std, theirs.std, rtol=1e-3)


def test_a_result_has_the_rate_and_what_it_exceeds(example, fitted):
    fine, zones, share = example
    out = fitted.predict(fine, quantiles=[0.5], exceedance=[0.01], samples=2)
    latent = fitted.model_.predict(
        fitted.input_scaling_(fitted.learner_.bags.parts.only.points)
    ).latent
    np.testing.assert_allclose(out["rate"], out["mean"])
    mean = np.exp(latent.mean + 0.5 * latent.variance)
    np.testing.assert_allclose(out["mean"].values.ravel(), mean, rtol=1e-9)
    std = mean * np.sqrt(np.expm1(latent.variance))
    np.testing.assert_allclose(out["std"].values.ravel(), std, rtol=1e-7)
    np.testing.assert_allclose(out["quantiles"][0].values.ravel(), np.exp(latent.mean), rtol=1e-9)
    above = 1 - latent.cdf(np.log(0.01))
    np.testing.assert_allclose(out["exceedance"][0].values.ravel(), above, atol=1e-12)
    sums = (out["mean"].values * fine["people"].values).ravel() @ share
    np.testing.assert_allclose(out["coarse_mean"], sums, rtol=1e-9)
    np.testing.assert_allclose(out["coarse_observed"], zones["cases"])
    # The mean of sums over all zones is within the noise of what was observed of them.
    assert abs(sums.sum() - zones["cases"].sum()) < 3 * np.sqrt(zones["cases"].sum())
    assert out["mean"].attrs["units"] == "per people" and out["exceedance"].attrs["units"] == "1"
    truth = np.exp(-5 + 0.5 * fine["slope"].values)
    assert np.corrcoef(truth.ravel(), out["mean"].values.ravel())[0, 1] > 0.9


def test_counts_over_new_zones(example, fitted):
    """Of all zones together: the sum of draws; with scatter, more than without."""
    _, zones, _ = example
    whole = zones.dissolve()
    found = dc.aggregate(fitted, whole, kind="count", samples=400).table.iloc[0]
    parts = dc.aggregate(fitted, zones, kind="sum", samples=400)
    observed = dc.aggregate(fitted, zones, kind="count", samples=400)
    np.testing.assert_allclose(observed.draws, parts.draws)  # the rates that counts scatter about
    assert found["amount"] == pytest.approx(parts.table["amount"].sum(), rel=1e-9)
    assert found["sum"] == pytest.approx(parts.table["sum"].sum(), rel=0.02)
    wide, narrow = (found[f"{name}_q95"] - found[f"{name}_q05"] for name in ("count", "sum"))
    # Poisson scatter of about the square root of the sum is added to the spread of the sum.
    expected = np.hypot(narrow, 2 * 1.645 * np.sqrt(found["sum"]))
    assert wide == pytest.approx(expected, rel=0.2)


def test_simple_answers_are_in_the_table(fitted):
    rows = {row["model"]: row for row in fitted.comparison_.rows}
    assert set(rows) == {"vbagg", "areal weighting", "Poisson regression"}
    assert (
        fitted.comparison_.judged_by == "crps" and "of held-out zones" in fitted.comparison_.skill()
    )
    assert rows["areal weighting"]["crps"] > rows["vbagg"]["crps"]
    assert len(fitted.comparison_.pit["vbagg"]) == 24


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_cross_validation_of_counts(example, fitted):
    """With parameters held it is the table of the fit."""
    fine, zones, _ = example
    family = dc.Poisson(exposure="people")
    options = {**OPTIONS, "family": family, "refit": False}
    found = dc.cross_validate(fine, zones, "cases", ["slope"], **options)
    mine, theirs = (next(iter(table.rows)) for table in (found, fitted.comparison_))
    assert mine["crps"] == pytest.approx(theirs["crps"], rel=1e-6)
    assert found.how.endswith("parameters held")
    with pytest.raises(UsageError, match="those of counts can be compared"):
        dc.cross_validate(
            fine, zones, "cases", ["slope"], family=dc.Tweedie(), kind="mean", **OPTIONS
        )


def test_areal_weighting_of_hidden_zones_is_one_rate(example, fitted):
    """The common rate of the other fold, times people: by hand."""
    _, zones, _ = example
    learner, found = fitted.learner_, fitted.comparison_
    fold, people = learner.folds.fold, fitted.pairing_.amount
    z, expected = zones["cases"].to_numpy(float), np.empty(24)
    for k in (0, 1):
        rest = fold != k
        expected[fold == k] = z[rest].sum() / people[rest].sum() * people[fold == k]
    row = next(row for row in found.rows if row["model"] == "areal weighting")
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean((z - expected) ** 2)), rel=1e-9)


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_trials_are_a_column_and_areas_an_exposure(example):
    fine, zones, share = example
    tests = dc.Downscaler(
        "positive", ["slope"], family=dc.Binomial(trials="tested"), kind=None, **OPTIONS
    )
    found = tests.understand(fine, zones)
    np.testing.assert_allclose(found.amount, zones["tested"])
    stations = zones.set_geometry(gpd.points_from_xy(*zones.bounds.T.values[:2]))
    watched = dc.Downscaler("cases", ["slope"], family=dc.Poisson(exposure="tested"), **OPTIONS)
    np.testing.assert_allclose(watched.understand(fine, stations).amount, zones["tested"])
    by_area = dc.Downscaler("cases", ["slope"], family=dc.Poisson(), **OPTIONS).understand(
        fine, zones
    )
    grid = find_grid(fine, ["slope"], "fine")
    np.testing.assert_allclose(by_area.amount, 6371.0**2 * (grid.areas @ share), rtol=1e-9)
    assert "per square kilometre" in dict(by_area.understood)["sums"]


POISSON = dc.Poisson(exposure="people")
BAD = {
    "a count that is not whole": (
        lambda f, z: (f, z.assign(cases=z["cases"] + 0.5)),
        {},
        "polygon 'd0' has a count of",
    ),
    "a negative count": (
        lambda f, z: (f, z.assign(cases=-1 - z["cases"])),
        {},
        "polygon 'd0' has an observation of -",
    ),
    "nobody where there are cases": (
        lambda f, z: (
            f.assign(people=f["people"].where(f["lon"] > 1, 0.0)),
            z.assign(cases=z["cases"] + 1),
        ),
        {},
        "polygons 'd0', 'd1', 'd6'.* have no people at all and yet",
    ),
    "no such exposure": (
        lambda f, z: (f, z),
        {"family": dc.Poisson(exposure="persons")},
        "neither a variable",
    ),
    "a family without brackets": (lambda f, z: (f, z), {"family": dc.Poisson}, "with its brackets"),
    "a transform too": (lambda f, z: (f, z), {"transform": "log"}, "has a link of its own"),
    "a kind too": (lambda f, z: (f, z), {"kind": "sum"}, "sums by themselves"),
    "another model": (lambda f, z: (f, z), {"model": "gpr"}, "goes with vbagg or bagg-gp"),
    "more successes than trials": (
        lambda f, z: (f, z.assign(cases=z["tested"] + 1)),
        {"family": dc.Binomial(trials="tested")},
        "polygon 'd0' has .* successes in",
    ),
    "trials that are missing": (
        lambda f, z: (f, z.assign(tested=z["tested"].where(z.index != "d3"))),
        {"family": dc.Binomial(trials="tested")},
        "polygon 'd3' has trials nan",
    ),
    "normal as a family": (lambda f, z: (f, z), {"family": dc.Normal()}, "leave family out"),
    "cases at points among people in a raster": (
        lambda f, z: (f, z.set_geometry(z.centroid)),
        {},
        r"known at points.*dc.Poisson\(exposure='hours'\)",
    ),
    "cases at points, nothing said": (
        lambda f, z: (f, z.set_geometry(z.centroid)),
        {"family": dc.NegativeBinomial()},
        "not known what each is counted",
    ),
    "sums at points": (
        lambda f, z: (f, z.set_geometry(z.centroid)),
        {"family": None, "kind": "sum"},
        "leave kind='sum' out",
    ),
    "a negative number of people": (
        lambda f, z: (f.assign(people=f["people"] - 500), z),
        {},
        "falls to -",
    ),
}


@pytest.mark.filterwarnings("ignore:Geometry is in a geographic CRS")
@pytest.mark.parametrize("name", BAD)
def test_bad_counts_are_told_in_words(example, name):
    fine, zones, _ = example
    spoil, asked, words = BAD[name]
    options = {"family": POISSON, **OPTIONS, **asked}
    with pytest.raises(UsageError, match=words):
        dc.Downscaler("cases", ["slope"], **options).understand(*spoil(fine, zones))


def test_the_exposure_is_found_where_it_is(example):
    fine, zones, _ = example
    question = dc.Downscaler("cases", ["slope"], family=POISSON).question()
    assert resolved(question, fine, zones).exposure == "people"
    assert resolved(question, [fine[["slope"]], fine[["people"]]], zones).exposure == "people"
    by_column = pd.DataFrame({"people": [1.0]})
    assert resolved(question, fine[["slope"]], by_column).amounts == "people"
