"""Several sources of one field: limits in which they are one, and models on the same bags."""

import warnings

import geopandas as gpd
import numpy as np
import pytest
import shapely
import xarray as xr

import deconditional as dc
from deconditional.errors import UsageError

OPTIONS = {"n_restarts": 1, "folds": 2, "model_options": {"n_inducing": 25, "max_iter": 8}}
POISSON = dc.Poisson(exposure="people")


@pytest.fixture(scope="module")
def example():
    """A field on 8 x 12 cells; counts and means in 24 polygons, stations, and coarse cells."""
    rng = np.random.default_rng(0)
    lat, lon = 40 + (np.arange(8) + 0.5) / 4, (np.arange(12) + 0.5) / 4
    slope = np.sin(np.arange(8))[:, None] + np.cos(np.arange(12) / 2)
    coords = {
        "lat": ("lat", lat, {"units": "degrees_north"}),
        "lon": ("lon", lon, {"units": "degrees_east"}),
    }
    people = rng.uniform(100, 900, slope.shape)
    both = {"slope": (("lat", "lon"), slope), "people": (("lat", "lon"), people)}
    fine = xr.Dataset(both, coords)
    field = 2.0 + slope
    boxes = [
        shapely.box(x, y, x + 0.5, y + 0.5)
        for y in np.arange(40, 42, 0.5)
        for x in np.arange(0, 3, 0.5)
    ]
    zones = gpd.GeoDataFrame(geometry=boxes, crs=4326, index=[f"d{k}" for k in range(24)])
    means = field.reshape(4, 2, 6, 2).mean((1, 3)).ravel()
    zones["tas"] = means + 0.05 * rng.normal(size=24)
    expected = (np.exp(slope - 5) * people).reshape(4, 2, 6, 2).sum((1, 3)).ravel()
    zones["cases"] = rng.poisson(expected)
    cell = rng.permutation(96)[:12]
    places = np.stack([np.tile(lon, 8), np.repeat(lat, 12)], axis=1)[cell]
    stations = gpd.GeoDataFrame(geometry=gpd.points_from_xy(*places.T), crs=4326)
    stations["tas"], stations["error"] = field.ravel()[cell], np.linspace(0.01, 0.05, 12)
    stations["cell"] = cell
    seen = fine[["slope"]].coarsen(lat=4, lon=4).mean()
    seen["seen"] = 1.0 + 2.0 * (seen["slope"] + 2.0)
    return fine, zones, stations, seen[["seen"]]


def fitted(fine, sources, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.DeconditionalWarning)
        return dc.Downscaler(covariates=["slope"], **(OPTIONS | options)).fit(fine, sources)


@pytest.fixture(scope="module")
def whole(example):
    fine, zones, _, _ = example
    return fitted(fine, zones, target="cases", family=POISSON)


@pytest.fixture(scope="module")
def counts(example, whole):
    """At the hyper-parameters of the whole table: steps of an optimiser differ by rounding."""
    fine, zones, _, _ = example
    halves = [dc.Source(zones.iloc[:10], "cases"), dc.Source(zones.iloc[10:], "cases")]
    held = {**OPTIONS["model_options"], "fixed": whole.model_.parameters_}
    return fitted(fine, halves, family=POISSON, model_options=held)


def test_halves_of_a_table_are_the_table(example, whole, counts):
    """Counts that have no parameters of their own, in two sources and in one."""
    fine, zones, _, _ = example
    one, two = (model.predict(fine) for model in (whole, counts))
    for name in ("rate", "std", "coarse_mean", "coarse_observed", "coarse_amount"):
        np.testing.assert_allclose(two[name], one[name], rtol=5e-4)  # rounds end early
    assert list(two["coarse_zone"].values) == list(zones.index)
    ours, theirs = (dc.aggregate(m, zones.iloc[:3], kind="count").table for m in (counts, whole))
    np.testing.assert_allclose(ours["count_q95"], theirs["count_q95"], rtol=0.05)


def test_hidden_zones_of_the_first_source_are_judged(example, counts):
    """Areal weighting by hand: the common rate of the first source's zones in the other fold."""
    _, zones, _, _ = example
    learner = counts.learner_
    z, people = zones["cases"].to_numpy(float)[:10], counts.pairing_.amount[:10]
    fold, expected = learner.folds.fold[:10], np.empty(10)
    for k in np.unique(fold):
        rest = fold != k
        expected[~rest] = z[rest].sum() / people[rest].sum() * people[~rest]
    row = next(r for r in counts.comparison_.rows if r["model"] == "areal weighting")
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean((z - expected) ** 2)), rel=1e-9)


@pytest.fixture(scope="module")
def mixed(example):
    fine, zones, stations, seen = example
    sources = [
        dc.Source(seen, "seen", bias="affine"),
        dc.Source(zones, "tas", kind="mean"),
        dc.Source(stations, "tas", noise_std="error"),
    ]
    return fitted(fine, sources)


def test_the_fit_is_that_of_the_model_on_the_same_sources(example, mixed):
    """Cells, polygons and stations of any weights by hand, in the order they are taken."""
    fine, zones, stations, seen = example
    part, target = mixed.learner_.bags.parts.only, mixed.target_scaling_
    x = mixed.input_scaling_(part.points)
    area = np.cos(np.radians(fine["lat"].values)).repeat(12)
    districts = (np.arange(8)[:, None] // 2 * 6 + np.arange(12) // 2).ravel()
    blocks = (np.arange(8)[:, None] // 4 * 3 + np.arange(12) // 4).ravel()

    def bags(of):
        order = np.argsort(of, kind="stable")
        return dc.Bags.from_points(x[order], of[order], weights=area[order])

    z = [
        target.standardised(values)
        for values in (zones["tas"].values, stations["tas"].values, seen["seen"].values.ravel())
    ]
    known = stations["error"].to_numpy() / target.scale
    by_hand = [
        dc.Source(bags(districts), z[0]),
        dc.Source(x[stations["cell"]], z[1], noise_std=known),
        dc.Source(bags(blocks), z[2], bias="affine"),
    ]
    model = mixed.learner_.recipe.estimator("vbagg", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.FitWarning)
        model.fit(by_hand)
    ours, theirs = mixed.model_.predict(x), model.predict(x)
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=2e-3)
    np.testing.assert_allclose(ours.std, theirs.std, rtol=2e-2)


def test_a_field_of_three_sources(example, mixed):
    """What a biased source says is on its own scale; the field is that of the others."""
    fine, zones, _, seen = example
    out = mixed.predict(fine)
    assert float(np.sqrt(((out["mean"] - 2.0 - fine["slope"]) ** 2).mean())) < 0.3
    said = dict(mixed.pairing_.understood)
    assert "affine bias" in said["source 3"] and "12 points" in said["source 2"]
    assert out.sizes["coarse_zone"] == 24 + 12 + 6
    np.testing.assert_allclose(out["coarse_observed"][-6:], seen["seen"].values.ravel())
    meanings = {row["name"]: row["meaning"] for row in mixed.parameters_}
    assert meanings["source2.scale"].endswith("of source 3")
    assert "source1.noise_std" not in meanings
    rows = {row["model"] for row in mixed.comparison_.rows}
    assert rows == {"vbagg", "regression", "bilinear"}
    whole = dc.aggregate(mixed, zones.dissolve(), samples=400).table.iloc[0]
    assert whole["mean"] == pytest.approx(float(zones["tas"].mean()), abs=0.1)


def test_saved_models_of_sources_predict_the_same(example, mixed, tmp_path):
    mixed.save(tmp_path / "model.npz")
    again = dc.load(tmp_path / "model.npz").predict(example[0])
    np.testing.assert_allclose(again["mean"], mixed.predict(example[0])["mean"])


def test_sums_are_divided_by_what_is_in_zones(example):
    """A source of sums says what the same means times areas would say, errors included."""
    fine, zones, stations, _ = example
    found = {}
    for kind in ("mean", "sum"):
        asked = dc.Downscaler(covariates=["slope"], kind=kind)
        amount = 1.0
        if kind == "sum":
            amount = found["mean"].amount[:24]
        table = zones.assign(tas=zones["tas"] * amount, error=0.1 * amount)
        sources = [dc.Source(table, "tas", noise_std="error"), dc.Source(stations, "tas")]
        found[kind] = asked.understand(fine, sources)
    np.testing.assert_allclose(found["sum"].z, found["mean"].z, rtol=1e-12)


def times_of(seen):
    return xr.concat([seen, seen], "time").assign_coords(time=[0, 1])


BAD = {
    "tables that are no sources": (
        lambda z, s, g: [z, s],
        {},
        "of dc.Source, not GeoDataFrame",
    ),
    "no source at all": (lambda z, s, g: [], {}, "an empty list"),
    "arrays": (lambda z, s, g: [dc.Source([1.0], [2.0])], {}, "a GeoDataFrame or an"),
    "no such column": (lambda z, s, g: [dc.Source(z, "t"), dc.Source(s, "tas")], {}, "column 't'"),
    "mean or sum?": (
        lambda z, s, g: [dc.Source(z, "tas"), dc.Source(s, "tas")],
        {"kind": None},
        "mean over each polygon, or the sum",
    ),
    "counts beside a temperature": (
        lambda z, s, g: [dc.Source(z, "cases", family=POISSON), dc.Source(s, "tas")],
        {"kind": None},
        "not of one field",
    ),
    "a target too": (
        lambda z, s, g: [dc.Source(z, "tas"), dc.Source(s, "tas")],
        {"target": "rain"},
        "leave 'rain' out",
    ),
    "mediators": (
        lambda z, s, g: [dc.Source(z, "tas"), dc.Source(s, "tas")],
        {"mediators": ["error"]},
        "leave them out",
    ),
    "an exposure of arrays": (
        lambda z, s, g: [dc.Source(z, "tas", exposure=[1.0]), dc.Source(s, "tas")],
        {},
        "exposure of dc.Source is for arrays",
    ),
    "several times": (
        lambda z, s, g: [dc.Source(z, "tas"), dc.Source(times_of(g), "seen", bias="affine")],
        {},
        r"'seen' has 2 time\(s\)",
    ),
    "two exposures": (
        lambda z, s, g: [
            dc.Source(z, "cases", family=POISSON),
            dc.Source(z, "cases", family=dc.Poisson()),
        ],
        {"kind": None},
        r"per people and per square kilometre \(cases\)",
    ),
    "cases at points among people": (
        lambda z, s, g: [
            dc.Source(z, "cases", family=POISSON),
            dc.Source(s.assign(cases=1), "cases", family=POISSON),
        ],
        {"kind": None},
        "known at points",
    ),
    "nothing known in one": (
        lambda z, s, g: [dc.Source(z, "tas"), dc.Source(s.assign(tas=np.nan), "tas")],
        {},
        "missing in every",
    ),
    "a transform": (
        lambda z, s, g: [dc.Source(z, "tas"), dc.Source(s, "tas")],
        {"transform": "log"},
        "transform, consistency and fine_noise are for one source",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sources_are_told_in_words(example, name):
    fine, zones, stations, seen = example
    spoil, asked, words = BAD[name]
    options = {"kind": "mean", **OPTIONS, **asked}
    with pytest.raises(UsageError, match=words):
        dc.Downscaler(covariates=["slope"], **options).understand(
            fine, spoil(zones, stations, seen)
        )
