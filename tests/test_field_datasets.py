"""Fields on grids: the real ones, the synthetic ones, their block means and their split."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from deconditional import datasets
from deconditional.datasets import (
    coarsen,
    global_fields,
    split_cells,
    synthetic_fields,
)
from deconditional.datasets.made_up import smooth
from made_up_grids import on_land, projected_fields, upside_down
from studies.data import synthetic_globe

xr = pytest.importorskip("xarray")
needs_itur = pytest.mark.skipif(importlib.util.find_spec("itur") is None, reason="needs itur")


# --- global fields ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def january() -> "xr.Dataset":
    return global_fields(1)


@pytest.fixture(scope="module")
def july() -> "xr.Dataset":
    return global_fields(7)


def itur_file(name: str) -> np.ndarray:
    """A map or an axis of itur, as its own loader reads it."""
    folder = Path(importlib.util.find_spec("itur").submodule_search_locations[0])
    return np.load(folder / "data" / f"{name}.npz")["arr_0"]


def area_mean(values, lat_edges, lon_edges, lat, lon):
    """Mean over a cell of 0.75 degrees, from pieces that fit into it a whole number of times."""
    rows = (lat_edges[:-1] > lat - 0.376) & (lat_edges[1:] < lat + 0.376)
    middle = (lon_edges[:-1] + lon_edges[1:]) / 2
    columns = np.abs((middle - lon + 180.0) % 360.0 - 180.0) < 0.375
    weight = np.diff(np.sin(np.radians(lat_edges)))[rows]
    return np.average(values[np.ix_(rows, columns)].mean(1), weights=weight)


@needs_itur
def test_temperature_is_that_of_the_file_at_its_own_latitude_and_longitude(january, july):
    lat, lon = itur_file("1510/v1_lat"), itur_file("1510/v1_lon")
    values = itur_file("1510/v1_t_month01")
    assert january.tas.shape == (240, 480)
    rng = np.random.default_rng(0)
    for row, column in zip(rng.integers(1, 241, 20), rng.integers(0, 480, 20), strict=True):
        here = january.tas.sel(lat=lat[row, column], lon=lon[row, column])
        assert float(here) == values[row, column]
    np.testing.assert_array_equal(july.tas, itur_file("1510/v1_t_month07")[1:, :-1])


@needs_itur
@pytest.mark.parametrize(
    ("name", "file", "axis"),
    [
        ("altitude", "1511/v2_topo", "1511/v2_lat"),
        ("rain", "837/v7_mt_month01", "837/v7_lat_mt"),
    ],
)
def test_finer_maps_are_averaged_by_area(january, name, file, axis):
    values, lats = itur_file(file), itur_file(axis)[:, 0]
    margin = int((np.abs(lats) > 90.0).sum()) // 2
    values, lats = values[margin:-margin, margin:-margin], lats[margin:-margin]
    if lats[0] > lats[-1]:
        values = values[::-1]
    # The edges of the cells fall on the middle of the map's pieces: cut every piece into four.
    pieces = values.repeat(2, 0).repeat(2, 1)
    lat_edges = np.linspace(-90, 90, len(pieces) + 1)
    lon_edges = np.linspace(-180, 180, pieces.shape[1] + 1)
    for lat, lon in ((28.5, 86.25), (-66.0, -180.0), (-16.5, 179.25), (90.0, 12.0)):
        expected = area_mean(pieces, lat_edges, lon_edges, lat, lon)
        assert float(january[name].sel(lat=lat, lon=lon)) == pytest.approx(expected, rel=1e-9)


@needs_itur
def test_coarser_maps_are_interpolated_at_the_files_own_points(january):
    lat, lon = itur_file("839/v4_esalat")[:, 0], itur_file("839/v4_esalon")[0]
    height = RegularGridInterpolator((lat[::-1], lon), itur_file("839/v4_esa0height")[::-1])
    north, east = np.meshgrid(january.lat, january.lon % 360.0, indexing="ij")
    np.testing.assert_allclose(january.freezing_height, 1000.0 * height((north, east)), rtol=1e-10)


@needs_itur
@pytest.mark.parametrize(("name", "stem"), [("cloud", "840/v7_lred"), ("water_vapour", "836/v6_v")])
def test_annual_means_integrate_the_values_exceeded(january, name, stem):
    percent = [0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 20, 30, 50, 60, 70, 80, 90, 95, 99]
    maps = [itur_file(f"{stem}_{p}".replace(".", "")) for p in percent]
    mean = np.trapezoid([maps[0], *maps, maps[-1]], [0, *percent, 100], axis=0) / 100
    lat, lon = itur_file(f"{stem[:6]}_lat")[:, 0], itur_file(f"{stem[:6]}_lon")[0]
    gaps = np.isnan(mean)
    assert gaps.sum() == 287
    assert set(lat[gaps.any(1)]) == {88.875}
    known = january[name].sel(lat=slice(-90, 87.5))
    exact = RegularGridInterpolator((lat[::-1], lon), mean[::-1])
    north, east = np.meshgrid(known.lat, known.lon % 360.0, indexing="ij")
    np.testing.assert_allclose(known, exact((north, east)), rtol=1e-10, atol=1e-14)
    # In the gap the two rows around it are joined by a straight line.
    column = 100
    assert gaps[1, column]
    assert "88.875" in january[name].attrs["comment"]
    across = np.interp(88.5, [87.75, 90.0], [mean[2, column], mean[0, column]])
    assert lon[column] == 112.5
    assert float(january[name].sel(lat=88.5, lon=112.5)) == pytest.approx(across, rel=1e-9)


@needs_itur
def test_fields_look_like_the_earth(january, july):
    assert not {"itur", "astropy"} & set(sys.modules)  # its files are read without it

    def at(name, lat, lon, fields=january):
        return float(fields[name].sel(lat=lat, lon=lon, method="nearest"))

    assert at("altitude", 33, 88) > 4500  # Tibet
    assert 2500 < at("altitude", 72, -39) < 3500  # Greenland
    assert at("altitude", 0, -140) == 0.0 == at("altitude", 0, 75)
    assert at("tas", 65, 130) < 240 and at("tas", 65, 130, july) > 285  # eastern Siberia
    assert at("rain", 22.5, 88.5, july) > 10 * at("rain", 22.5, 88.5)  # monsoon
    assert at("water_vapour", 0, -60) > 40 > 15 > at("water_vapour", 24, 6)  # Amazon, Sahara
    assert at("freezing_height", 0, 0) > 4000 > 2500 > at("freezing_height", 50, 0)
    # Within coarse cells, temperature falls with altitude, and best where the maps are not shifted.
    blocks = {name: january[name].values.reshape(20, 12, 40, 12) for name in ("tas", "altitude")}
    tas, altitude = ((v - v.mean((1, 3), keepdims=True)).reshape(240, 480) for v in blocks.values())
    shifted = {
        (i, j): np.corrcoef(tas.ravel(), np.roll(altitude, (i, j), (0, 1)).ravel())[0, 1]
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
    }
    assert min(shifted, key=shifted.get) == (0, 0)
    assert shifted[0, 0] < -0.4


@needs_itur
def test_global_fields_carry_units_and_bounds(january):
    units = {name: field.attrs["units"] for name, field in january.data_vars.items()}
    assert units == {
        "tas": "K",
        "altitude": "m",
        "rain": "mm month-1",
        "cloud": "kg m-2",
        "water_vapour": "kg m-2",
        "freezing_height": "m",
    }
    assert all(field.dtype == float and field.dims == ("lat", "lon") for field in january.values())
    assert not any(field.isnull().any() for field in january.values())
    assert all(field.attrs["long_name"] for field in january.values())
    assert january.lat.attrs["units"] == "degrees_north" and january.lon.attrs["bounds"] in january
    assert january.lat_bnds.values[0].tolist() == [-89.625, -88.875]
    assert january.lat_bnds.values[-1].tolist() == [89.625, 90.0]
    np.testing.assert_array_equal(january.lon_bnds.values[1:, 0], january.lon_bnds.values[:-1, 1])
    assert "itur 0.4" in january.attrs["source"] and "not a model run" in january.attrs["comment"]


@needs_itur
@pytest.mark.parametrize("month", [0, 13, "January"])
def test_months_are_1_to_12(month):
    with pytest.raises(ValueError, match="month must be 1"):
        global_fields(month)


def test_missing_packages_are_named_with_their_remedy(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r"pip install 'deconditional\[demo\]'"):
            global_fields()
    monkeypatch.setitem(sys.modules, "xarray", None)
    monkeypatch.delitem(sys.modules, "deconditional.datasets.made_up", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'deconditional\[fields\]'"):
        _ = datasets.synthetic_fields


def test_an_itur_without_the_maps_is_named(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_loader("itur", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(ImportError, match="has no data file 1510/v1_t_month01"):
        global_fields()


# --- block means --------------------------------------------------------------------------------


def slow_means(field, lat_edges, rows, columns):
    """Block means by a loop over cells, longitudes being equally wide."""
    weight = np.abs(np.diff(np.sin(np.radians(lat_edges))))
    out = np.full((field.shape[0] // rows, field.shape[1] // columns), np.nan)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = area = 0.0
            for row in range(i * rows, (i + 1) * rows):
                for column in range(j * columns, (j + 1) * columns):
                    if not np.isnan(field[row, column]):
                        total += weight[row] * field[row, column]
                        area += weight[row]
            out[i, j] = total / area if area else np.nan
    return out


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("with_bounds", [False, True])
def test_block_means_weigh_cells_by_area(descending, with_bounds):
    fields = on_land(synthetic_fields(12, 18, seed=1), 0.4)
    fields = upside_down(fields) if descending else fields
    if not with_bounds:
        fields = fields.drop_vars(["lat_bnds", "lon_bnds"])
    coarse = coarsen(fields, (3, 2))
    edges = np.linspace(-90, 90, 13)[:: -1 if descending else 1]
    for name in fields.data_vars:
        np.testing.assert_allclose(
            coarse[name], slow_means(fields[name].values, edges, 3, 2), rtol=1e-12
        )
    assert coarse.tas.isnull().any()
    np.testing.assert_allclose(coarse.lat_bnds, np.stack([edges[:-1:3], edges[3::3]], 1))
    np.testing.assert_allclose(coarse.lat, (edges[:-1:3] + edges[3::3]) / 2)
    np.testing.assert_allclose(coarse.lon_bnds[0], [-180, -140])
    assert coarse.lat.attrs["bounds"] == "lat_bnds"
    assert coarse.tas.attrs["units"] == "K" and coarse.tas.attrs["cell_methods"] == "area: mean"


def test_block_means_keep_the_integral_and_cell_methods():
    fields = synthetic_fields(12, 24)
    fields.tas.attrs["cell_methods"] = "time: mean"
    coarse = coarsen(fields, 4)

    def integral(data):
        bounds = np.sin(np.radians(data.lat_bnds.values))
        return (data.tas.mean("lon").values * (bounds[:, 1] - bounds[:, 0])).sum()

    assert integral(coarse) == pytest.approx(integral(fields), rel=1e-13)
    assert coarse.tas.attrs["cell_methods"] == "time: mean area: mean"
    assert coarsen(coarse, 1).tas.attrs["cell_methods"] == "time: mean area: mean"
    xr.testing.assert_allclose(coarsen(coarsen(fields, 2), 2).tas, coarse.tas)


def test_cells_beyond_the_pole_end_there():
    lat = np.array([45.0, 60.0, 75.0, 90.0])
    fields = xr.Dataset({"a": (("lat", "lon"), np.arange(8.0).reshape(4, 2))})
    coarse = coarsen(fields.assign_coords(lat=lat, lon=[0.0, 90.0]), (4, 1))
    assert coarse.lat_bnds.values.tolist() == [[37.5, 90.0]]
    weight = np.diff(np.sin(np.radians([37.5, 52.5, 67.5, 82.5, 90.0])))
    np.testing.assert_allclose(
        coarse.a.values[0], np.average(np.arange(8.0).reshape(4, 2), axis=0, weights=weight)
    )


def test_projected_block_means_are_plain():
    times = np.array(["2001-05-01", "2001-05-02"], dtype="datetime64[D]")
    fields = projected_fields(6, 8, times=times)
    coarse = coarsen(fields, (3, 4))
    np.testing.assert_allclose(
        coarse.tas, fields.tas.values.reshape(2, 2, 3, 2, 4).mean((2, 4)), rtol=1e-12
    )
    assert coarse.tas.dims == ("time", "y", "x") and coarse.altitude.dims == ("y", "x")
    assert coarse.tas.attrs["grid_mapping"] == "crs"
    assert coarse.crs.attrs == fields.crs.attrs
    renamed = fields.rename(y="north", x="east").drop_vars(["y_bnds", "x_bnds"])
    swapped = renamed.transpose("east", "north", "time", "bnds", missing_dims="ignore")
    again = coarsen(swapped, (3, 4))
    assert again.tas.dims == ("east", "north", "time")
    np.testing.assert_allclose(again.tas.transpose("time", "north", "east"), coarse.tas)


def test_blocks_must_divide_the_grid_and_axes_must_exist():
    fields = synthetic_fields(6, 8)
    with pytest.raises(ValueError, match="a block of 3 does not divide the 8 cells along lon"):
        coarsen(fields, 3)
    with pytest.raises(ValueError, match="a block of 0 does not divide"):
        coarsen(fields, (0, 1))
    with pytest.raises(ValueError, match=r"no latitude .* coordinate was found"):
        coarsen(fields.drop_vars(["lat", "lat_bnds"]), 2)
    with pytest.raises(ValueError, match="'lat' has a single value and no bounds"):
        coarsen(fields.isel(lat=[0]).drop_vars("lat_bnds"), 1)


@pytest.mark.parametrize("decode", [True, "all"])
@pytest.mark.parametrize("projected", [False, True])
def test_fields_survive_a_netcdf_file(tmp_path, decode, projected):
    pytest.importorskip("netCDF4")
    fields = (projected_fields if projected else synthetic_fields)(4, 6, times=["2020-02-29"])
    fields.to_netcdf(tmp_path / "fields.nc")
    with xr.open_dataset(tmp_path / "fields.nc", decode_coords=decode) as file:
        again = file.load()
    for name in fields.variables:
        np.testing.assert_array_equal(again[name], fields[name])
    expected, coarse = coarsen(fields, 2), coarsen(again, 2)
    xr.testing.assert_allclose(coarse, expected)
    assert coarse.tas.attrs == expected.tas.attrs


# --- who gives what -----------------------------------------------------------------------------


def givers(example, columns=6):
    """The coarse cells that give covariates, and those that give the target."""
    covariates = example.fine.altitude.notnull().values
    blocks = covariates.reshape(covariates.shape[0] // 3, 3, columns, -1)
    return blocks.any((1, 3)), example.coarse.tas.notnull().values


@pytest.mark.parametrize(
    ("matched", "both", "covariates", "target"),
    [(0.0, 0, 12, 12), (1.0, 24, 24, 24), (0.3, 7, 15, 16), (0.5, 12, 18, 18)],
)
def test_share_of_matched_cells(matched, both, covariates, target):
    fields = synthetic_fields(12, 24)
    example = split_cells(
        fields, "tas", ["altitude", "cloud"], ["water_vapour"], (3, 4), matched=matched, seed=5
    )
    first, second = givers(example)
    assert (first.sum(), second.sum(), (first & second).sum()) == (covariates, target, both)
    assert (first | second).all()


def test_what_is_given_is_the_field():
    fields = synthetic_fields(12, 24, seed=2)
    example = split_cells(fields, "tas", ["altitude", "cloud"], ["water_vapour", "rain"], (3, 4))
    coarse = coarsen(fields, (3, 4))
    first, second = givers(example)
    assert (first ^ second).all()
    seen = first.repeat(3, 0).repeat(4, 1)
    for name in ("altitude", "cloud"):
        values = fields[name].values
        np.testing.assert_array_equal(example.fine[name], np.where(seen, values, np.nan))
        np.testing.assert_array_equal(example.everywhere[name], values)
        assert example.fine[name].attrs == fields[name].attrs
    np.testing.assert_array_equal(example.coarse.tas, np.where(second, coarse.tas, np.nan))
    xr.testing.assert_identical(example.coarse.rain, coarse.rain)
    xr.testing.assert_identical(example.truth, fields.tas)
    assert set(example.coarse.data_vars) == {"tas", "water_vapour", "rain"}
    assert "lat_bnds" in example.coarse.coords and "lat_bnds" in example.fine.coords
    assert example.coarse.tas.attrs["units"] == "K"


def test_cells_and_noise_depend_on_the_seed_alone():
    fields = synthetic_fields(24, 48)
    roles = (fields, "tas", ["altitude"], ["water_vapour"], 2)
    plain, noisy, other = (
        split_cells(*roles, matched=1.0, noise_std=std, seed=seed)
        for std, seed in ((0.0, 1), (3.0, 1), (3.0, 2))
    )
    noise = (noisy.coarse.tas - plain.coarse.tas).values / 3.0
    assert noise.size == 288
    assert abs(noise.mean()) < 4 / np.sqrt(288) and abs(noise.std() - 1) < 4 / np.sqrt(2 * 288)
    assert (
        np.corrcoef(noise.ravel(), (other.coarse.tas - plain.coarse.tas).values.ravel())[0, 1] < 0.3
    )
    halves = [split_cells(*roles, seed=seed).coarse.tas.notnull() for seed in (1, 1, 2)]
    assert halves[0].equals(halves[1]) and not halves[0].equals(halves[2])


def test_cells_without_covariates_give_nothing():
    fields = on_land(synthetic_fields(12, 24, seed=3), 0.4)
    example = split_cells(fields, "tas", ["altitude", "cloud"], ["water_vapour"], (3, 4))
    land = coarsen(fields, (3, 4)).altitude.notnull().values
    first, second = givers(example)
    assert 0 < land.sum() < land.size
    np.testing.assert_array_equal(first ^ second, land)
    assert first.sum() == land.sum() // 2
    # A cell where the covariates are never known together gives nothing either.
    fields.altitude[:3, :4] = np.where(np.arange(4) < 2, np.nan, 1.0)
    fields.cloud[:3, :4] = np.where(np.arange(4) < 2, 0.5, np.nan)
    fields.tas[:3, :4] = 280.0
    first, second = givers(
        split_cells(fields, "tas", ["altitude", "cloud"], ["water_vapour"], (3, 4), matched=1.0)
    )
    assert not first[0, 0] and not second[0, 0]


def test_cells_are_the_same_at_all_times():
    fields = projected_fields(12, 24, times=["2000-01-01", "2000-06-01"])
    example = split_cells(fields, "tas", ["altitude", "cloud"], ["water_vapour"], (3, 4), seed=4)
    first, second = givers(example)
    assert second.shape == (2, 4, 6)
    np.testing.assert_array_equal(second[0], second[1])
    np.testing.assert_array_equal(first, ~second[0])
    assert example.fine.altitude.dims == ("y", "x") and example.fine.cloud.dims[0] == "time"
    np.testing.assert_array_equal(
        example.fine.cloud.isnull(), np.stack([example.fine.altitude.isnull()] * 2)
    )
    assert "crs" in example.fine.coords and "crs" in example.coarse.coords
    # The grid mapping and the bounds of a file may be plain variables.
    plain = fields.reset_coords(["crs", "y_bnds", "x_bnds"])
    again = split_cells(plain, "tas", ["altitude", "cloud"], ["water_vapour"], (3, 4), seed=4)
    assert "crs" in again.coarse and "crs" in again.fine and "y_bnds" in again.fine
    np.testing.assert_array_equal(again.coarse.tas, example.coarse.tas)
    np.testing.assert_array_equal(again.coarse.y_bnds, example.coarse.y_bnds)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "pressure"}, "target: the fields have no variable 'pressure'; they have"),
        ({"covariates": ["altitude", "lat"]}, "covariates: the fields have no variable 'lat'"),
        ({"covariates": "altitude"}, "covariates must be a list of variable names"),
        ({"covariates": []}, "covariates is empty"),
        ({"mediators": ["sst"]}, "mediators: the fields have no variable 'sst'"),
        ({"matched": 1.5}, "matched is a share of the cells, 0 to 1, not 1.5"),
        ({"noise_std": -1.0}, "noise_std must not be negative"),
        ({"block": 5}, "does not divide"),
    ],
)
def test_splits_that_cannot_be_made(changes, message):
    roles = {"target": "tas", "covariates": ["altitude"], "mediators": [], "block": 2}
    with pytest.raises(ValueError, match=message):
        split_cells(synthetic_fields(4, 6), **(roles | changes))


# --- synthetic fields ---------------------------------------------------------------------------


def test_fields_do_not_depend_on_the_resolution():
    options = {"extent": (30, 66, -20, 34), "seed": 7}
    coarse, fine = synthetic_fields(4, 6, **options), synthetic_fields(12, 18, **options)
    middles = fine.isel(lat=slice(1, None, 3), lon=slice(1, None, 3))
    for name in coarse.data_vars:
        np.testing.assert_allclose(coarse[name], middles[name], rtol=1e-10)
    np.testing.assert_allclose(coarse.lat, [34.5, 43.5, 52.5, 61.5])
    np.testing.assert_allclose(fine.lon_bnds[0], [-20, -17])


def test_fields_change_with_time_and_altitude_does_not():
    dates = np.array(["2000-01-01", "2000-01-02", "2000-07-01"], dtype="datetime64[ns]")
    still, moving = synthetic_fields(12, 24), synthetic_fields(12, 24, times=dates)
    np.testing.assert_array_equal(moving.altitude, still.altitude)
    np.testing.assert_array_equal(moving.time, dates)
    for name in ("tas", "cloud", "rain", "water_vapour"):
        np.testing.assert_allclose(moving[name][0], still[name], rtol=1e-12)
        assert moving[name].dims == ("time", "lat", "lon")
    # A day later the weather is much the same, half a year later it is not.
    weather = np.arctanh(2 * moving.cloud - 1).values.reshape(3, -1)
    alike = np.corrcoef(weather)[0]
    assert alike[1] > 0.95 and abs(alike[2]) < 0.5
    later = synthetic_fields(12, 24, times=dates[2:])
    np.testing.assert_allclose(later.tas[0], moving.tas[2], rtol=1e-12)


def test_temperature_is_made_of_what_the_docstring_says():
    fields = synthetic_fields(30, 60, seed=2)
    lat = np.radians(fields.lat.values)[:, None] * np.ones(60)
    known = [
        np.ones(lat.shape),
        np.sin(lat) ** 2,
        fields.altitude.values / 1000.0,
        np.cos(np.pi * fields.cloud.values),
    ]
    remainder = fields.tas.values - (
        303.0 * known[0] - 38.0 * known[1] - 6.5 * known[2] + 3.0 * known[3]
    )
    assert 1.0 < remainder.std() < 3.0
    steps = np.abs(np.diff(remainder, axis=0)).max()
    assert steps < 2.0  # smooth on a grid of 6 degrees: its length is 29 degrees
    assert 235 < fields.tas.min() < 265 and 295 < fields.tas.max() < 320
    assert fields.altitude.min() == 0.0 and 1500 < fields.altitude.max() < 6000
    assert fields.cloud.min() >= 0.0 and fields.cloud.max() <= 1.0


def test_rain_is_skewed_and_water_vapour_follows_temperature():
    fields = synthetic_fields(30, 60, seed=1)
    rain = fields.rain.values.ravel()

    def skewness(values):
        return (((values - values.mean()) / values.std()) ** 3).mean()

    assert rain.min() > 0.0
    assert skewness(rain) > 1.0 > abs(skewness(np.log(rain)))
    error = np.log(fields.water_vapour.values / 15.0) - 0.06 * (fields.tas.values - 288.0)
    assert 0.1 < error.std() < 0.2
    assert np.corrcoef(fields.tas.values.ravel(), fields.water_vapour.values.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extent": (50, 40, 0, 10)}, "extent is"),
        ({"extent": (0, 91, 0, 10)}, "extent is"),
        ({"extent": (0, 10, 0, 400)}, "extent is"),
        ({"n_lat": 0}, "cells along both axes"),
    ],
)
def test_synthetic_fields_that_cannot_be_drawn(options, message):
    with pytest.raises(ValueError, match=message):
        synthetic_fields(**options)


def test_smooth_has_unit_variance_and_a_gaussian_covariance():
    points = np.array([[0.0, 0.0], [0.3, 0.0], [0.0, 0.3]])
    length = np.array([0.3, 0.15])
    draws = np.stack([smooth(np.random.default_rng(seed), points, length) for seed in range(1500)])
    expected = np.exp(-0.5 * ((points[:, None] - points) ** 2 / length**2).sum(-1))
    np.testing.assert_allclose(draws.T @ draws / len(draws), expected, atol=0.11)


def test_the_synthetic_globe_is_as_before():
    globe = synthetic_globe(rows=4, columns=6, block=3, seed=0)
    np.testing.assert_allclose(
        globe.z[:3], [-0.34332931595, -0.18437467005, 0.94101344437], rtol=1e-9
    )
