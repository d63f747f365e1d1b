"""GeoTIFFs, GeoPackages and tables of points: read, resampled, downscaled and written."""

import json
import warnings

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rioxarray
import shapely
import xarray as xr
from pyproj import Transformer

from deconditional import datasets
from deconditional.cli import demo
from deconditional.cli import main as cli
from deconditional.errors import FitWarning, UsageError
from deconditional.fields.grids import find_grid
from deconditional.fields.io import open_fine, open_table
from deconditional.fields.regridding import together
from deconditional.fields.zones.layer import Layer

UTM = "EPSG:32633"
X = 300_000 + 1000 * (np.arange(12) + 0.5)
Y = 5_200_000 - 1000 * (np.arange(9) + 0.5)


def raster(values, x, y, crs, path):
    data = xr.DataArray(np.asarray(values, "float32"), {"y": y, "x": x}, ("y", "x"))
    data.rio.write_crs(crs).rio.write_nodata(-9999.0).fillna(-9999.0).rio.to_raster(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Elevation and slope in UTM, people in longitude and latitude, districts of 3 x 3 cells."""
    place, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    x, y = np.meshgrid(X, Y)
    raster(np.sin(x / 3000) + y / 1e4, X, Y, UTM, place / "elevation.tif")
    raster(rng.normal(size=x.shape), X, Y, UTM, place / "slope.tif")
    lon, lat = Transformer.from_crs(UTM, 4326, always_xy=True).transform(x, y)
    lines = (
        np.arange(lon.min() - 0.05, lon.max() + 0.05, 0.004),
        np.arange(lat.max() + 0.05, lat.min() - 0.05, -0.004),
    )
    raster(rng.uniform(0, 9, (len(lines[1]), len(lines[0]))), *lines, 4326, place / "people.tif")
    corners = [(a, b) for a in range(0, 12, 3) for b in range(0, 9, 3)]
    boxes = [
        shapely.box(
            300_000 + 1000 * a, 5_191_000 + 1000 * b, 303_000 + 1000 * a, 5_194_000 + 1000 * b
        )
        for a, b in corners
    ]
    districts = gpd.GeoDataFrame(
        {"name": [f"d{k}" for k in range(12)], "yield": rng.uniform(1, 9, 12)},
        geometry=boxes,
        crs=UTM,
    )
    districts.to_file(place / "districts.gpkg")
    districts.dissolve([0] * 6 + [1] * 6).to_crs(3035).to_file(
        place / "regions.geojson", driver="GeoJSON"
    )
    centres = shapely.centroid(np.array(boxes))
    there = gpd.GeoSeries(centres, crs=UTM).to_crs(4326)
    pd.DataFrame({"Lon": there.x, "Lat": there.y, "yield": districts["yield"]}).to_csv(
        place / "stations.csv", index=False
    )
    return place


def test_rasters_become_variables_of_their_names(folder):
    first, second = open_fine([str(folder / f) for f in ("elevation.tif", "slope.tif")])
    assert list(first.data_vars) == ["elevation"] and list(second.data_vars) == ["slope"]
    both, said = together([first, second])
    assert said == () and set(both.data_vars) == {"elevation", "slope"}
    grid = find_grid(both, ["elevation"], "fine")
    np.testing.assert_allclose(grid.x.bounds[0], [300_000, 301_000])
    assert not grid.frame.spherical and grid.frame.known


@pytest.mark.parametrize("first", ["elevation", "slope"])
def test_rasters_of_which_one_has_no_crs_are_refused(folder, first):
    known, bare = open_fine([str(folder / f) for f in ("elevation.tif", "slope.tif")])
    bare = bare.drop_vars("spatial_ref")
    both = [known, bare] if first == "elevation" else [bare, known]
    with pytest.raises(UsageError, match="with slope has no CRS, and that with elevation has one"):
        together(both)


def test_amounts_of_another_grid_are_shared_out(folder):
    """Where the goal covers all, the total is kept; means of a constant are that constant."""
    elevation, people = open_fine([str(folder / f) for f in ("elevation.tif", "people.tif")])
    elevation = elevation.astype(float)
    both, said = together([elevation, people.assign(one=people["people"] * 0 + 1)], ["people"])
    np.testing.assert_allclose(both["one"], 1.0, rtol=1e-12)
    wide, _ = together([people[["people"]].rename(people="n") * 0, elevation], ["elevation"])
    assert float(wide["elevation"].sum()) == pytest.approx(
        float(elevation["elevation"].sum()), rel=1e-9
    )
    assert "people brought to the cells of the first fine data" in said[0][1]
    # On cells of one size and another, along the same axes, totals are kept to the last digits.
    coarse = elevation.coarsen(x=3, y=3).sum()
    fine, _ = together([elevation.rename(elevation="a"), coarse], ["elevation"])
    assert float(fine["elevation"].sum()) == pytest.approx(
        float(coarse["elevation"].sum()), rel=1e-12
    )
    back, _ = together([coarse.rename(elevation="a"), elevation], ["elevation"])
    np.testing.assert_allclose(back["elevation"], coarse["elevation"], rtol=1e-12)


def test_tables_of_points(folder):
    stations = open_table(str(folder / "stations.csv"))
    assert stations.crs.to_epsg() == 4326 and list(stations.columns) == ["yield", "geometry"]
    grid = find_grid(open_fine([str(folder / "elevation.tif")]), ["elevation"], "fine")
    layer = Layer.of(stations, ["yield"], grid)
    assert layer.grid.is_point.all()
    np.testing.assert_allclose(layer.grid.centres[0], [5_192_500, 301_500], atol=1e-3)


def run(folder, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return cli.main(
            [
                "downscale",
                "--quiet",
                *[str(folder / a[1:]) if a[:1] == "@" else a for a in arguments],
            ]
        )


FILES = [
    "--fine",
    "@elevation.tif",
    "@slope.tif",
    "--coarse",
    "@districts.gpkg",
    "--target",
    "yield",
]
REST = [
    "--covariates",
    "elevation,slope",
    "--kind",
    "sum",
    "--exposure",
    "@people.tif",
    "--model",
    "gpr",
    "--restarts",
    "1",
]


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_from_files_to_a_raster_and_a_table(folder):
    out = ["--out", "@rate.tif", "--quantiles", "0.1", "--aggregate", "@regions.geojson"]
    assert run(folder, *FILES, *REST, *out, "--id", "name") == 0
    written = rioxarray.open_rasterio(folder / "rate.tif", masked=True, band_as_variable=True)
    names = [written[band].attrs["long_name"] for band in written.data_vars]
    assert names == ["mean", "std", "quantiles_10", "extrapolation"]
    assert written.rio.crs == UTM and written.sizes == {"y": 9, "x": 12}
    facts = json.loads(written.attrs["deconditional"])
    assert facts["target"] == "yield" and facts["options"]["exposure"] == "people"
    table = pd.read_csv(folder / "rate_regions.csv")
    np.testing.assert_allclose(table["cover"], 1.0, atol=1e-3)
    np.testing.assert_allclose(table["sum"], table["mean"] * table["amount"])


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_districts_and_stations_are_sources_of_one_field(folder, capsys):
    start = ["--fine", "@elevation.tif", "--coarse", "@districts.gpkg", "@stations.csv"]
    rest = ["--target", "yield", "--covariates", "elevation", "--kind", "mean", "--folds", "2"]
    assert run(folder, *start, *rest, "--restarts", "1", "--out", "@both.tif") == 0
    facts = json.loads(rioxarray.open_rasterio(folder / "both.tif").attrs["deconditional"])
    said = dict(facts["understood"])
    assert "12 polygons" in said["source 1"] and "12 points" in said["source 2"]


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_cases_from_files_to_a_report(folder):
    """Counts of people: rates, what they exceed, counts over other zones, and a page with maps."""
    districts = gpd.read_file(folder / "districts.gpkg")
    districts["cases"] = np.arange(12) * 7 % 11 + 1
    districts.to_file(folder / "cases.gpkg")
    options = ["--family", "poisson", "--exposure", "@people.tif", "--exceedance", "0.05"]
    out = ["--out", "@risk.nc", "--aggregate", "@regions.geojson", "--report", "@risk.html"]
    start = ["--fine", "@elevation.tif", "--coarse", "@cases.gpkg", "--target", "cases"]
    few = ["--covariates", "elevation", "--folds", "2", "--restarts", "1"]
    assert run(folder, *start, *options, *few, *out) == 0
    result = xr.open_dataset(folder / "risk.nc")
    assert {"rate", "exceedance", "coarse_node_x", "coarse_cover"} <= set(result.data_vars)
    assert "Poisson regression" in result.attrs["skill"] or "areal" in result.attrs["skill"]
    table = pd.read_csv(folder / "risk_regions.csv")
    assert (table["count_q95"] > table["sum_q95"]).all()
    page = (folder / "risk.html").read_text()
    assert "crude rate" in page and "probability of more than 0.05" in page


def test_counts_of_hidden_counties_add_up_to_those_of_their_state():
    """Given the totals, and with the mean that a dasymetric map of the same rates has."""
    expected = np.array([[3.0, 1.0, 2.0, 2.0, 1.0]]).repeat(4000, 0)
    state, totals = np.array([0, 0, 1, 1, 1]), np.array([40, 10])
    found = demo.split(expected, state, totals, 0)
    np.testing.assert_array_equal(found[:, :2].sum(1), 40)
    np.testing.assert_array_equal(found[:, 2:].sum(1), 10)
    mean = np.array([30.0, 10.0, 4.0, 4.0, 2.0])
    # Four thousand draws: five standard errors of a binomial mean.
    assert (np.abs(found.mean(0) - mean) < 5 * np.sqrt(mean / 4000)).all()


def test_simple_answers_of_the_demo_have_what_counties_have():
    """Areal weighting by hand: the rate of a state times the people of a county."""
    data = datasets.us_homicides(step=1.0, states=("Utah", "Nevada", "Arizona", "Wyoming", "Idaho"))
    rates = np.full((50, len(data.truth)), 1e-4)
    scores = demo.compare_counts(rates, data, 0)
    people = data.truth["people"]
    share = people / people.groupby(data.truth["state"]).transform("sum")
    expected = share * data.zones["homicides"].loc[data.truth["state"]].to_numpy()
    error = np.sqrt(np.mean((expected - data.truth["homicides"]) ** 2))
    assert scores["areal weighting"]["rmse"] == pytest.approx(error, rel=1e-9)
    # A map that is the same everywhere, given the totals, is areal weighting with Poisson scatter.
    assert scores["deconditional"]["rmse"] == pytest.approx(error, rel=0.05)


BAD = {
    "no such column": (["--id", "code"], "no column 'code'"),
    "an exposure that is not there": (["--exposure", "@none.tif"], "none.tif' does not exist"),
    "an exposure without a name": (["--exposure", "persons"], "no variable 'persons'"),
    "not said what it is": (["--kind", "total"], "invalid choice"),
    "polygons with times": (["--time", "2000"], "times of gridded data"),
    "a map over polygons": (["--map-over", "time"], "dimension of gridded data"),
    "a table without polygons": (["--table", "@t.csv"], "--table is written of --aggregate"),
    "a table of another kind": (
        ["--aggregate", "@regions.geojson", "--table", "@t.shp"],
        ".csv or .gpkg",
    ),
    "no such zones": (["--aggregate", "@none.gpkg"], "does not exist"),
    "a table that is none": (["--coarse", "@broken.gpkg"], "cannot read the coarse file"),
    "a CSV without places": (["--coarse", "@bare.csv"], "no columns lon and lat"),
    "a CSV with holes": (["--coarse", "@holes.csv"], "in line(s) 3"),
    "a raster that is none": (["--fine", "@broken.tif"], "as a raster"),
    "a raster from nowhere": (["--fine", "@bare.tif"], "nothing of where"),
    "an output of another kind": (["--out", "@o.png"], "must end in .nc, .zarr, .tif"),
}


COUNTS = [
    *("--covariates", "elevation", "--family", "poisson", "--exposure", "@people.tif"),
    *("--out", "@never.nc"),
]
BOW = shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])
SPOILT = {
    "no CRS": (lambda d: d.set_crs(None, allow_override=True), "have no CRS"),
    "a bow tie": (lambda d: with_shape(d, BOW), "gdf.make_valid()"),
    "no geometry in a row": (lambda d: with_shape(d, None), "'d0' have no geometry"),
    "a line": (lambda d: with_shape(d, shapely.LineString([(0, 0), (1, 1)])), "'d0' are LineStr"),
    "a point": (lambda d: with_shape(d, shapely.Point(0, 0)), "polygons and points in one table"),
    "no rows": (lambda d: d.iloc[:0], "have no rows"),
    "names that come twice": (lambda d: d.assign(name=["d1", *d["name"][1:]]), "more than once"),
    "another continent": (lambda d: d.set_geometry(d.translate(3e6)), "do not overlap"),
    "degrees that are none": (lambda d: d.set_crs(4326, allow_override=True), "nowhere on the gl"),
    "no such target": (lambda d: d.drop(columns="cases"), "no column 'cases'"),
    "words": (lambda d: d.assign(cases="many"), "not numbers"),
    "endless": (lambda d: d.assign(cases=[np.inf, *d["cases"][1:]]), "is infinite in 'd0'"),
    "nothing known": (lambda d: d.assign(cases=np.nan), "missing in every"),
    "two known": (lambda d: d.assign(cases=[1.0, 2.0] + [np.nan] * 10), "are needed to learn"),
    "half a case": (lambda d: d.assign(cases=d["cases"] + 0.5), "'d0' has a count of 0.5"),
    "less than none": (lambda d: d.assign(cases=d["cases"] - 1), "'d0' has an observation of -1"),
}


def with_shape(districts, shape):
    """The table with another geometry in its first row."""
    return districts.set_geometry([shape, *districts.geometry[1:]], crs=districts.crs)


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_districts_end_with_two_and_a_line(folder, name, capsys):
    spoil, words = SPOILT[name]
    districts = gpd.read_file(folder / "districts.gpkg").assign(cases=np.arange(12.0))
    place = folder / f"{name}.gpkg"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoil(districts).to_file(place)
    start = ["--fine", "@elevation.tif", "--coarse", str(place), "--id", "name"]
    code = run(folder, *start, "--target", "cases", *COUNTS)
    told = capsys.readouterr().err
    assert code == 2 and words in told and "Traceback" not in told and told.count("\n") == 1


@pytest.fixture(scope="module")
def spoiled(folder):
    (folder / "broken.gpkg").write_bytes(b"not a table")
    (folder / "broken.tif").write_bytes(b"not a raster")
    pd.DataFrame({"a": [1]}).to_csv(folder / "bare.csv")
    (folder / "holes.csv").write_text("lon,lat,yield\n1,2,3\n,2,3\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xr.DataArray(np.zeros((3, 4), "float32"), dims=("y", "x")).rio.to_raster(
            folder / "bare.tif"
        )
    return folder


@pytest.mark.parametrize("name", BAD)
def test_bad_commands_end_with_two_and_a_line(spoiled, name, capsys):
    options, words = BAD[name]
    try:
        code = run(spoiled, *FILES, *REST, "--out", "@never.nc", *options)
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr().err
    assert code == 2 and words in told and "Traceback" not in told
    assert not (spoiled / "never.nc").exists()


def test_a_raster_has_one_size_and_a_rate_once(folder):
    from deconditional.fields.io.writing import bands

    data = xr.Dataset(
        {"mean": (("y", "x"), np.zeros((2, 3)))}, {"y": [0.0, 1.0], "x": [0.0, 1.0, 3.0]}
    )
    rates = data.assign(rate=data["mean"], std=data["mean"]).isel(x=slice(2))
    assert list(bands(rates)) == ["rate", "std"]
    with pytest.raises(UsageError, match="several sizes"):
        bands(data)
    with pytest.raises(UsageError, match="choose one time"):
        bands(data.expand_dims(time=2))
