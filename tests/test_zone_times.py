"""Tables with a row for every zone and time, beside the same as cells of a grid with times."""

import warnings

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
import xarray as xr

import deconditional as dc
from deconditional.errors import UsageError

OPTIONS = {"n_restarts": 1, "folds": 2, "model_options": {"n_inducing": 25, "max_iter": 8}}
WHEN = {"time": "month"}
POISSON = dc.Poisson(exposure="people")
MONTHS = pd.date_range("2001-01-01", periods=3, freq="MS")


def cells(lat, lon, **variables):
    coords = {
        "lat": ("lat", lat, {"units": "degrees_north"}),
        "lon": ("lon", lon, {"units": "degrees_east"}),
    }
    if any(values.ndim == 3 for values in variables.values()):
        coords["time"] = MONTHS
    dims = ("time", "lat", "lon")
    return xr.Dataset({k: (dims[-v.ndim :], v) for k, v in variables.items()}, coords)


@pytest.fixture(scope="module")
def example():
    """Counts, tests and a mean in 24 cells at three months, and the rows of a table of them."""
    rng = np.random.default_rng(0)
    slope = np.sin(np.arange(8))[:, None] + np.cos(np.arange(12) / 2)
    people = rng.uniform(100, 900, slope.shape)
    fine = cells(
        40 + (np.arange(8) + 0.5) / 4, (np.arange(12) + 0.5) / 4, slope=slope, people=people
    )
    field = slope + np.array([0.0, 0.5, 0.2])[:, None, None]
    expected = (np.exp(field - 5) * people).reshape(3, 4, 2, 6, 2)
    coarse = cells(
        40.25 + np.arange(4) / 2,
        0.25 + np.arange(6) / 2,
        cases=rng.poisson(expected.sum((2, 4))).astype(float),
        tested=rng.integers(50, 90, (3, 4, 6)).astype(float),
        tas=field.reshape(3, 4, 2, 6, 2).mean((2, 4)),
    )
    y, x = (
        line.ravel() for line in np.meshgrid(coarse.lat - 0.25, coarse.lon - 0.25, indexing="ij")
    )
    columns = {name: coarse[name].values.ravel() for name in ("cases", "tested", "tas")}
    rows = gpd.GeoDataFrame(
        columns | {"month": np.repeat(MONTHS, 24)},
        np.tile([f"d{k}" for k in range(24)], 3),
        geometry=np.tile(shapely.box(x, y, x + 0.5, y + 0.5), 3),
        crs=4326,
    )
    return fine, coarse, rows.sample(frac=1.0, random_state=0)


def by_place(pairing, values):
    """Values of observations or bags in an order that both roads have."""
    n = pairing.coarse.n_cells
    when, where = np.divmod(pairing.bag_unit, n)
    return values[np.lexsort((*pairing.coarse.centres[where].round(6).T, pairing.times[when]))]


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("cases", {"family": POISSON}),
        ("cases", {"family": dc.Binomial(trials="tested")}),
        ("tas", {"kind": "mean"}),
    ],
)
def test_zones_with_times_are_cells_with_times(example, target, options):
    """Amounts that a column says belong to their month, on either road."""
    fine, coarse, rows = example
    coarse, rows = (
        each.assign(cases=np.minimum(each["cases"], each["tested"])) for each in (coarse, rows)
    )
    grid = dc.Downscaler(target, ["slope"], **options).understand(fine, coarse)
    table = dc.Downscaler(target, ["slope"], dims=WHEN, **options).understand(fine, rows)
    assert table.n_bags == 72 and table.clock.mode == "smooth"
    for name in ("z", "amount", "bag_mediator"):
        one, two = (by_place(p, getattr(p, name)) for p in (grid, table))
        np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-12)


def fitted(fine, rows, target, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        return dc.Downscaler(target, ["slope"], dims=WHEN, **OPTIONS, **options).fit(fine, rows)


def test_cases_by_district_and_month(example):
    """A rate for every month; hidden districts are hidden in all months; counts of new zones."""
    fine, coarse, rows = example
    model = fitted(fine, rows, "cases", family=POISSON)
    out = model.predict(fine)
    assert out["rate"].sizes == {"time": 3, "lat": 8, "lon": 12}
    assert out["coarse_observed"].sizes == {"coarse_time": 3, "coarse_zone": 24}
    seen = out["coarse_observed"].sel(coarse_zone="d3").values
    np.testing.assert_allclose(seen, coarse["cases"][:, 0, 3])
    months = out["coarse_mean"].sum("coarse_zone").values
    assert (np.abs(months / coarse["cases"].sum(("lat", "lon")).values - 1) < 0.2).all()
    fold = model.learner_.folds.fold.reshape(3, 24)
    assert (fold == fold[0]).all()
    whole = rows[rows["month"] == MONTHS[0]].dissolve()
    found = dc.aggregate(model, whole, kind="count", samples=200)
    assert found.table["time"].tolist() == MONTHS.tolist() and found.counts.shape == (200, 3)
    np.testing.assert_allclose(found.table["amount"], fine["people"].sum(), rtol=1e-9)
    np.testing.assert_allclose(found.table["sum"], months, rtol=0.05)


def test_means_of_a_series_over_zones_are_means_of_its_map(example):
    """Each month conditioned by itself: the mean over a zone is that of the cells in it."""
    fine, _, rows = example
    model = fitted(fine, rows, "tas", kind="mean", time="independent", model="vbagg")
    assert model.learner_.series is not None
    box = gpd.GeoDataFrame({"name": ["west"]}, geometry=[shapely.box(0, 40, 1.5, 42)], crs=4326)
    found = dc.aggregate(model, box, samples=20).table
    mean = model.predict(fine)["mean"].isel(lon=slice(6))
    weight = np.cos(np.radians(fine["lat"]))
    np.testing.assert_allclose(found["mean"], mean.weighted(weight).mean(("lat", "lon")), rtol=1e-5)
    again = dc.aggregate(model, box, fine=fine, samples=20).table
    np.testing.assert_allclose(again["mean"], found["mean"])


BAD = {
    "no such column": (lambda r: r, {"dims": {"time": "when"}}, "names 'when' as time"),
    "nothing said": (lambda r: r, {"dims": None}, r"dims=\{'time': 'month'\}"),
    "a time that is missing": (
        lambda r: r.assign(month=r["month"].where(r["cases"] > r["cases"].min())),
        {},
        "have no 'month'",
    ),
    "words": (lambda r: r.assign(month="soon"), {}, "holds no times"),
    "a zone twice at a time": (
        lambda r: pd.concat([r, r.iloc[:1]]),
        {},
        "more than once at one 'mo",
    ),
    "zones that move": (
        lambda r: r.set_geometry(r.geometry.where(r["month"] > MONTHS[0], r.translate(0.1))),
        {},
        "another geometry at one time",
    ),
    "means of counts": (lambda r: r, {"time": "ignore"}, "means of counts are no counts"),
    "half a case": (
        lambda r: r.assign(cases=r["cases"] + 0.5 * ((r.index == "d2") & (r["month"] > MONTHS[1]))),
        {},
        "polygon 'd2 at 2001-03-01' has a count of",
    ),
    "several sources": (
        lambda r: [dc.Source(r, "cases"), dc.Source(r, "cases")],
        {"target": None},
        "sources are of one time",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_times_are_told_in_words(example, name):
    fine, _, rows = example
    spoil, asked, words = BAD[name]
    options = {"target": "cases", "family": POISSON, "dims": WHEN, **asked}
    with pytest.raises(UsageError, match=words):
        dc.Downscaler(covariates=["slope"], **options).understand(fine, spoil(rows))
