"""Grids of datasets: found however they are named, and refused in words where they cannot be."""

import cftime
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deconditional.errors import UsageError
from made_up_grids import projected_fields

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields.axes import span  # noqa: E402
from deconditional.fields.grids import find_grid, values_on  # noqa: E402
from deconditional.fields.overlap import check_overlap, overlap  # noqa: E402

LON3 = [0.0, 10.0, 20.0]
LAT, LON = [-60.0, 0.0, 60.0], [45.0, 135.0, 225.0, 315.0]
LAT_BOUNDS = [[-90.0, -30.0], [-30.0, 30.0], [30.0, 90.0]]
LON_BOUNDS = [[0.0, 90.0], [90.0, 180.0], [180.0, 270.0], [270.0, 360.0]]


def field(lat=LAT, lon=LON, y="lat", x="lon", y_attrs=None, x_attrs=None, **more):
    """One variable `a` on two axes, with other variables and coordinates as given."""
    values = np.arange(float(len(lat) * len(lon))).reshape(len(lat), len(lon))
    coords = {y: (y, lat, y_attrs or {}), x: (x, lon, x_attrs or {})}
    return xr.Dataset({"a": ((y, x), values)}, coords=coords).assign_coords(more)


def bounds_of(dataset, names=("a",), **options):
    grid = find_grid(dataset, names, "fine", **options)
    return grid.y.bounds, grid.x.bounds


def refused(dataset, message, names=("a",), **options):
    """The error, which must be a single line and say which dataset is meant."""
    with pytest.raises(UsageError, match=message) as error:
        find_grid(dataset, names, "fine", **options)
    assert "\n" not in str(error.value) and "fine" in str(error.value)


# --- which dimensions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "x"), [("lat", "lon"), ("latitude", "longitude"), ("Lat", "Lon"), ("nav_lat", "nav_lon")]
)
def test_plain_names_of_the_sphere(y, x):
    grid = find_grid(field(y=y, x=x), ["a"], "fine")
    assert (grid.y.name, grid.x.name, grid.time) == (y, x, None)
    assert (grid.y.kind, grid.x.kind) == ("latitude", "longitude")
    np.testing.assert_allclose(grid.y.bounds, LAT_BOUNDS)
    np.testing.assert_allclose(grid.x.bounds, LON_BOUNDS)
    np.testing.assert_allclose(grid.areas.sum(), 4 * np.pi, rtol=1e-14)


@pytest.mark.parametrize("shape", ["axes", "surfaces", "places"])
def test_latitudes_that_are_plain_variables_of_numbered_cells(shape):
    lat, lon = np.meshgrid(LAT, LON, indexing="ij")
    dims, y, x = {
        "axes": (("row", "column"), ("row", LAT), ("column", LON)),
        "surfaces": (("row", "column"), (("row", "column"), lat), (("row", "column"), lon)),
        "places": (("cell",), ("cell", lat.ravel()), ("cell", lon.ravel())),
    }[shape]
    values = np.zeros(lat.shape if len(dims) == 2 else lat.size)
    units = {"units": "degrees_north"}, {"units": "degrees_east"}
    of_field = xr.Dataset({"a": (dims, values), "lat": (*y, units[0]), "lon": (*x, units[1])})
    found = find_grid(of_field, ["a"], "fine")
    asked = find_grid(of_field.set_coords(["lat", "lon"]), ["a"], "fine")
    np.testing.assert_array_equal(found.positions, asked.positions)
    np.testing.assert_array_equal(found.areas, asked.areas)
    assert found.frame.spherical


def test_plain_x_and_y_are_a_plane():
    grid = find_grid(field([0.0, 10.0, 20.0], [5.0, 7.0, 9.0], "y", "x"), ["a"], "fine")
    assert (grid.y.kind, grid.x.kind, grid.spherical) == ("plane", "plane", False)
    np.testing.assert_allclose(grid.areas, 20.0)
    np.testing.assert_array_equal(grid.positions[1], [0.0, 7.0])


def test_x_and_y_of_a_geographic_raster_are_degrees():
    """As rioxarray reads them: nothing but the grid mapping tells the unit."""
    raster = field(y="y", x="x").assign_coords(
        spatial_ref=((), 0, {"grid_mapping_name": "latitude_longitude"})
    )
    raster.a.encoding["grid_mapping"] = "spatial_ref"
    grid = find_grid(raster, ["a"], "fine")
    assert grid.mapping == "spatial_ref" and grid.spherical
    np.testing.assert_allclose(grid.areas.sum(), 4 * np.pi, rtol=1e-14)


@pytest.mark.parametrize("attribute", ["standard_name", "axis", "units"])
def test_attributes_find_dimensions_of_any_name(attribute):
    about = {
        "standard_name": ({"standard_name": "latitude"}, {"standard_name": "longitude"}),
        "axis": ({"axis": "Y", "units": "degrees"}, {"axis": "X", "units": "degrees"}),
        "units": ({"units": "degrees_north"}, {"units": "degree_E"}),
    }[attribute]
    dataset = field(y="north", x="east", y_attrs=about[0], x_attrs=about[1])
    before = dataset.copy(deep=True)
    grid = find_grid(dataset, ["a"], "fine")
    assert (grid.y.name, grid.x.name, grid.y.kind) == ("north", "east", "latitude")
    np.testing.assert_allclose(grid.areas.sum(), 4 * np.pi, rtol=1e-14)
    xr.testing.assert_identical(dataset, before)


def test_a_coordinate_may_have_another_name_than_its_dimension():
    dataset = xr.Dataset(
        {"a": (("nlat", "nlon"), np.zeros((3, 4)))},
        coords={"lat": ("nlat", LAT), "lon": ("nlon", LON)},
    )
    for options in ({}, {"dims": {"y": "nlat", "x": "nlon"}}, {"dims": {"y": "lat", "x": "lon"}}):
        grid = find_grid(dataset, ["a"], "fine", **options)
        assert (grid.y.name, grid.y.coordinate) == ("nlat", "lat")
        assert (grid.x.name, grid.x.coordinate) == ("nlon", "lon")
        np.testing.assert_allclose(grid.x.bounds, LON_BOUNDS)
    # Numbers of rows do not tell where the rows are.
    counted = dataset.assign_coords(nlat=[0, 1, 2], nlon=[0, 1, 2, 3])
    assert find_grid(counted, ["a"], "fine").y.coordinate == "lat"


def test_dims_overrule_what_attributes_say():
    dataset = field(y="lat", x="lon").assign(
        b=(("row", "column"), np.zeros((2, 3))), row=[0.0, 5.0], column=[1.0, 2.0, 4.0]
    )
    dims = {"y": "row", "x": "column"}
    grid = find_grid(dataset, ["b"], "fine", dims)
    assert (grid.shape, grid.spherical) == ((2, 3), False)
    np.testing.assert_allclose(grid.x.bounds, [[0.5, 1.5], [1.5, 3.0], [3.0, 5.0]])
    # A mapping may be meant for two datasets, of which one has other names.
    other = find_grid(field(), ["a"], "coarse", dims)
    assert (other.y.name, other.spherical) == ("lat", True)


def test_dims_that_are_no_axes():
    dataset = field()
    with pytest.raises(UsageError, match="dims has no role 'lat'; its roles are y, x and time"):
        find_grid(dataset, ["a"], "fine", {"lat": "lat"})
    refused(dataset, "'lon' cannot be both the y and the x axis", dims={"y": "lon"})
    swapped = {"y": "lon", "x": "lat"}
    refused(dataset, "'lon' is a longitude, so it cannot be the y axis", dims=swapped)
    bare = dataset.drop_vars("lat")
    refused(bare, "the dimension 'lat' has no coordinate", dims={"y": "lat"})


@pytest.mark.parametrize("units", ["degrees", "degrees_north", None])
def test_rotated_grids_are_spheres(units):
    attrs = [
        {"standard_name": f"grid_{n}"} | ({"units": units} if units else {})
        for n in ("latitude", "longitude")
    ]
    dataset = field(y="rlat", x="rlon", y_attrs=attrs[0], x_attrs=attrs[1])
    dataset = dataset.assign_coords(
        lat=(("rlat", "rlon"), np.zeros((3, 4)), {"standard_name": "latitude"}),
        lon=(("rlat", "rlon"), np.zeros((3, 4)), {"standard_name": "longitude"}),
    )
    grid = find_grid(dataset, ["a"], "fine")
    assert (grid.y.coordinate, grid.x.coordinate, grid.y.kind) == ("rlat", "rlon", "latitude")
    np.testing.assert_allclose(grid.areas.sum(), 4 * np.pi, rtol=1e-14)


@pytest.mark.parametrize("attrs", [{"units": "m"}, {"standard_name": "projection"}, {}])
def test_projected_axes_win_over_auxiliary_latitudes(attrs):
    y, x = (
        {
            k: f"projection_{axis}_coordinate" if k == "standard_name" else v
            for k, v in attrs.items()
        }
        for axis in "yx"
    )
    dataset = field([0.0, 2e3], [1e3, 3e3, 5e3], "y", "x", y, x)
    dataset = dataset.assign_coords(
        lat=(("y", "x"), np.full((2, 3), 50.0), {"units": "degrees_north"}),
        lon=(("y", "x"), np.full((2, 3), 8.0), {"units": "degrees_east"}),
    )
    grid = find_grid(dataset, ["a"], "fine")
    assert (grid.y.coordinate, grid.x.coordinate, grid.spherical) == ("y", "x", False)
    np.testing.assert_allclose(grid.areas, 4e6)


@pytest.mark.parametrize("counted", [False, True])
def test_coordinates_of_two_dimensions_are_cells(counted):
    lat, lon = np.meshgrid([10.0, 20.0], [0.0, 10.0, 20.0], indexing="ij")
    dataset = xr.Dataset(
        {"a": (("y", "x"), np.zeros((2, 3)))},
        coords={"lat": (("y", "x"), lat), "lon": (("y", "x"), lon)},
    )
    if counted:  # rows and columns that are merely numbered are no projection
        dataset = dataset.assign_coords(y=np.arange(2), x=np.arange(1, 4))
    grid, axes = find_grid(dataset, ["a"], "fine"), find_grid(field([10.0, 20.0], LON3), ["a"], "f")
    assert (grid.spatial, grid.coordinates) == (("y", "x"), ("lat", "lon"))
    np.testing.assert_allclose(grid.areas, axes.areas, rtol=1e-12)
    np.testing.assert_allclose(grid.positions, axes.positions, rtol=1e-12)


def test_nothing_that_looks_like_an_axis():
    refused(
        xr.Dataset({"a": (("p", "q"), np.zeros((2, 2)))}),
        r"no latitude \(or y\) coordinate was found among p, q; .*dims=\{'y': \.\.\.\}",
    )
    text = field().assign_coords(lat=["south", "middle", "north"])
    refused(text, "no latitude")


def test_kilometres_are_metres():
    both = [
        find_grid(
            field([0.0, step], [step, 2 * step, 4 * step], "y", "x", {"units": u}, {"units": u}),
            ["a"],
            "fine",
        )
        for step, u in ((2.0, "km"), (2000.0, "m"))
    ]
    for km, m in zip((both[0].y, both[0].x), (both[1].y, both[1].x), strict=True):
        np.testing.assert_allclose(km.bounds, m.bounds)
        np.testing.assert_allclose(km.centres, m.centres)
    np.testing.assert_allclose(both[0].areas, both[1].areas)
    with_bounds = field([0.0], [1.0, 2.0], "y", "x", {"units": "km"}, {"units": "km"})
    with_bounds["y_bnds"] = (("y", "bnds"), [[-1.0, 1.0]])
    np.testing.assert_allclose(find_grid(with_bounds, ["a"], "fine").areas, 2e3 * 1e3)


# --- bounds -------------------------------------------------------------------------------------


def with_bounds(lat_bounds=LAT_BOUNDS, lon_bounds=LON_BOUNDS, names=("lat_bnds", "lon_bnds"), **kw):
    dataset = field(**kw)
    return dataset.assign(
        {
            names[0]: (("lat", "bnds"), np.asarray(lat_bounds)),
            names[1]: (("lon", "bnds"), np.asarray(lon_bounds)),
        }
    )


UNEVEN = [[-90.0, -40.0], [-40.0, 10.0], [10.0, 90.0]]


@pytest.mark.parametrize("suffix", ["_bnds", "_bounds", None])
def test_bounds_are_found_by_name_and_by_attribute(suffix):
    if suffix is None:
        dataset = with_bounds(UNEVEN, names=("ends", "lon_bnds"), y_attrs={"bounds": "ends"})
    else:
        dataset = with_bounds(UNEVEN, names=(f"lat{suffix}", f"lon{suffix}"))
    rows, columns = bounds_of(dataset)
    np.testing.assert_allclose(rows, UNEVEN)
    np.testing.assert_allclose(columns, LON_BOUNDS)


@pytest.mark.parametrize("decode", [True, "all"])
def test_bounds_are_found_in_files(tmp_path, decode):
    pytest.importorskip("netCDF4")
    names = ("lat_edges", "lon_edges")
    attrs = [
        {"bounds": name, "standard_name": s}
        for name, s in zip(names, ("latitude", "longitude"), strict=True)
    ]
    with_bounds(UNEVEN, names=names, y_attrs=attrs[0], x_attrs=attrs[1]).to_netcdf(
        tmp_path / "a.nc"
    )
    with xr.open_dataset(tmp_path / "a.nc", decode_coords=decode) as dataset:
        rows, _ = bounds_of(dataset.load())
    np.testing.assert_allclose(rows, UNEVEN)


def test_bounds_in_any_order_and_of_any_shape():
    descending = with_bounds(np.array(UNEVEN)[:, ::-1], np.array(LON_BOUNDS)[:, ::-1])
    rows, columns = bounds_of(descending)
    np.testing.assert_allclose(rows, UNEVEN)
    np.testing.assert_allclose(columns, LON_BOUNDS)
    lying = with_bounds(UNEVEN).transpose("bnds", "lat", "lon")
    np.testing.assert_allclose(bounds_of(lying)[0], UNEVEN)
    upside_down = with_bounds(UNEVEN).isel(lat=slice(None, None, -1))
    np.testing.assert_allclose(bounds_of(upside_down)[0], UNEVEN[::-1])


@pytest.mark.parametrize(
    ("lon", "bounds"),
    [
        ([0.0, 90.0, 180.0, 270.0], [(315, 45), (45, 135), (135, 225), (225, 315)]),
        ([0.0, 90.0, 180.0, 270.0], [(45, 315), (135, 45), (225, 135), (315, 225)]),
        ([0.0, 90.0, 180.0, -90.0], [(-45, 45), (45, 135), (135, 225), (-135, -45)]),
        ([0.0, 90.0, 180.0, -90.0], [(-45, 45), (45, 135), (135, -135), (225, 315)]),
        ([360.0, 90.0, 180.0, 270.0], [(-45, 45), (405, 495), (135, 225), (225, 315)]),
        # Values at the western or the eastern end of their cells.
        ([-45.0, 45.0, 135.0, 225.0], [(315, 45), (45, 135), (135, 225), (225, 315)]),
        ([45.0, 135.0, 225.0, 315.0], [(45, -45), (135, 45), (225, 135), (315, 225)]),
    ],
)
def test_bounds_across_the_seam(lon, bounds):
    grid = find_grid(with_bounds(lon_bounds=np.array(bounds, float), lon=lon), ["a"], "fine")
    np.testing.assert_allclose(np.diff(grid.x.bounds), 90.0)
    assert np.all(grid.x.bounds[:, 0] <= grid.x.centres)
    assert np.all(grid.x.centres <= grid.x.bounds[:, 1])
    np.testing.assert_allclose(np.mod(grid.x.bounds[0], 360.0), [315.0, 45.0])


def test_a_narrow_cell_across_the_seam():
    dataset = field(lon=[0.0, 1.0, 2.0])
    dataset["lon_bnds"] = (("lon", "bnds"), [[359.5, 0.5], [0.5, 1.5], [1.5, 2.5]])
    _, columns = bounds_of(dataset)
    np.testing.assert_allclose(columns, [[-0.5, 0.5], [0.5, 1.5], [1.5, 2.5]])


def test_inferred_bounds_stop_at_the_poles():
    rows, columns = bounds_of(field([90.0, 0.0, -90.0], [0.0, 180.0]))
    np.testing.assert_allclose(rows, [[45.0, 90.0], [-45.0, 45.0], [-90.0, -45.0]])
    np.testing.assert_allclose(columns, [[-90.0, 90.0], [90.0, 270.0]])
    given = with_bounds([[-91.0, -30.0], [-30.0, 30.0], [30.0, 91.0]])
    np.testing.assert_allclose(bounds_of(given)[0], LAT_BOUNDS)


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.05, 1.0), min_size=2, max_size=6),
    st.lists(st.floats(0.05, 1.0), min_size=2, max_size=6),
    st.floats(-180.0, 360.0),
    st.integers(0, 5),
    st.booleans(),
)
def test_random_bounds_are_read_as_they_are(rows, columns, start, roll, wrapped):
    """Cells of unequal size cover the sphere, whichever meridian the file begins with."""
    lat = np.cumsum([0.0, *rows]) / np.sum(rows) * 180.0 - 90.0
    lon = start + np.cumsum([0.0, *columns]) / np.sum(columns) * 360.0
    lat_bounds, lon_bounds = (np.stack([e[:-1], e[1:]], 1) for e in (np.clip(lat, -90, 90), lon))
    if wrapped:
        lon_bounds = np.mod(lon_bounds, 360.0)
    centres = np.mod(0.5 * (lon[1:] + lon[:-1]), 360.0)
    dataset = with_bounds(
        lat_bounds[::-1],
        np.roll(lon_bounds, roll, axis=0),
        lat=lat_bounds.mean(1)[::-1],
        lon=np.roll(centres, roll),
    )
    grid = find_grid(dataset, ["a"], "fine")
    np.testing.assert_allclose(grid.areas.sum(), 4 * np.pi, rtol=1e-12)
    expected = np.outer(np.diff(np.sin(np.radians(lat)))[::-1], np.roll(np.diff(lon), roll))
    np.testing.assert_allclose(grid.areas, np.radians(expected).ravel(), atol=1e-12)
    shared = overlap(grid, find_grid(field(), ["a"], "coarse"))
    np.testing.assert_allclose(shared.sum(1), grid.areas, atol=1e-12)
    np.testing.assert_allclose(shared.sum(), 4 * np.pi, rtol=1e-12)


def test_one_cell_needs_bounds():
    single = field([10.0], LON)
    refused(single, "'lat' has a single value and no bounds.* add a variable 'lat_bnds'")
    for ends in (("lat", "bnds"), [[0.0, 20.0]]), ("bnds", [20.0, 0.0]):
        rows, _ = bounds_of(single.assign(lat_bnds=ends))
        np.testing.assert_allclose(rows, [[0.0, 20.0]])
    globe = field([0.0], [0.0]).assign(
        lat_bnds=(("lat", "bnds"), [[-90.0, 90.0]]), lon_bnds=(("lon", "bnds"), [[-180.0, 180.0]])
    )
    np.testing.assert_allclose(find_grid(globe, ["a"], "fine").areas, 4 * np.pi)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            [[-90.0, -30.0], [-30.0, np.nan], [30.0, 90.0]],
            "'lat_bnds' must hold two finite numbers",
        ),
        ([[-90.0, -30.0, 0.0]] * 3, r"'lat_bnds' must hold two .* their shape is \(3, 3\)"),
        ([["a", "b"]] * 3, "'lat_bnds' must hold two finite numbers"),
        ([[-90.0, -70.0], [-30.0, 30.0], [30.0, 90.0]], "'lat_bnds' do not enclose .*'lat'"),
        ([[-90.0, -30.0], [0.0, 0.0], [30.0, 90.0]], "a cell in the bounds 'lat_bnds' is empty"),
        ([[-90.0, 0.0], [-45.0, 45.0], [0.0, 90.0]], "cells in the bounds 'lat_bnds' overlap"),
    ],
)
def test_bounds_that_cannot_be(bounds, message):
    dataset = field().assign(lat_bnds=(("lat", "ends"), bounds))
    refused(dataset, message)


def test_longitudes_may_not_go_around_twice():
    wide = np.array(LON_BOUNDS) + np.array([-20.0, 20.0])
    refused(with_bounds(lon_bounds=wide), "cells in the bounds 'lon_bnds' overlap")


# --- rounding of files --------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_stored_precision_makes_no_slivers(precision, bounds):
    """Nested grids of steps that binary numbers do not have: a fine cell is in one coarse cell."""

    def regular(n_lat, n_lon):
        lat, lon = (np.linspace(a, b, n + 1) for a, b, n in ((-60, 60, n_lat), (-180, 180, n_lon)))
        dataset = field(*(((e[1:] + e[:-1]) / 2).astype(precision) for e in (lat, lon)))
        if bounds:
            for name, e in (("lat", lat), ("lon", lon)):
                dataset[f"{name}_bnds"] = (
                    (name, "bnds"),
                    np.stack([e[:-1], e[1:]], 1).astype(precision),
                )
        return find_grid(dataset, ["a"], "fine")

    fine, coarse = regular(300, 900), regular(60, 100)
    shared = overlap(fine, coarse)
    assert shared.nnz == fine.n_cells
    assert np.array_equal(np.diff(shared.indptr), np.ones(fine.n_cells))
    whole = 2 * np.sin(np.radians(60.0)) * 2 * np.pi
    np.testing.assert_allclose(shared.sum(), whole, rtol=1e-12 if precision == "float64" else 1e-4)


# --- other dimensions ---------------------------------------------------------------------------


def test_a_further_dimension_may_have_one_value_only():
    dataset = field().expand_dims(height=[2.0])
    grid = find_grid(dataset, ["a"], "fine")
    np.testing.assert_array_equal(values_on(grid, dataset, "a"), np.arange(12.0)[None])
    many = xr.concat([dataset, dataset.assign_coords(height=[10.0])], "height")
    refused(many, r"'a' has a dimension 'height' of size 2 .* ds.isel\(height=0\)")


@pytest.mark.parametrize("name", ["time", "t", "date"])
def test_times_are_found(name):
    days = np.array(["2000-01-01", "2000-01-03"], dtype="datetime64[ns]")
    dataset = xr.concat([field(), field() + 100.0], name).assign_coords({name: days})
    grid = find_grid(dataset, ["a"], "fine")
    assert (grid.time, grid.n_times) == (name, 2)
    np.testing.assert_array_equal(grid.times, days)
    assert grid.describe().endswith("2 times from 2000-01-01 to 2000-01-03")
    np.testing.assert_array_equal(
        values_on(grid, dataset.transpose("lon", name, "lat"), "a"),
        np.arange(12.0) + np.array([[0.0], [100.0]]),
    )


def test_times_may_have_another_name_than_their_dimension():
    days = np.array(["2000-01-01", "2000-01-03"], dtype="datetime64[ns]")
    dataset = xr.concat([field(), field()], "record")
    refused(dataset, "'a' has a dimension 'record'")
    dataset = dataset.assign_coords(time=("record", days), year=("record", [2000, 2000]))
    for dims in (None, {"time": "record"}, {"time": "time"}):
        grid = find_grid(dataset, ["a"], "fine", dims)
        assert grid.time == "record"
        np.testing.assert_array_equal(grid.times, days)
    # Coordinates that merely sound like time are not.
    odd = field().assign_coords(day_length=("lat", [1.0, 2.0, 3.0]), year=2000)
    assert find_grid(odd, ["a"], "fine").time is None


def test_times_of_other_calendars():
    days = [cftime.DatetimeNoLeap(2000, 2, 28), cftime.DatetimeNoLeap(2000, 3, 1)]
    dataset = xr.concat([field(), field()], "time").assign_coords(time=days)
    grid = find_grid(dataset, ["a"], "fine")
    assert grid.times.tolist() == days
    assert span(grid.times[::-1]) == "from 2000-02-28 to 2000-03-01"
    assert span(grid.times[:1]) == "2000-02-28"


def test_times_that_cannot_be_told_apart():
    dataset = xr.concat([field(), field()], "time")
    refused(dataset, "the dimension 'time' has no coordinate, so times cannot be told apart")
    refused(dataset.assign_coords(time=[1, 1]), "the times in 'time' are not distinct")
    one = field().expand_dims("time")
    assert find_grid(one, ["a"], "fine").time is None


def test_variables_may_lie_on_a_part_of_the_dimensions():
    dataset = field().assign(rows=("lat", [1.0, 2.0, 3.0]), level=((), 5.0))
    grid = find_grid(dataset, ["a", "rows"], "fine")
    np.testing.assert_array_equal(values_on(grid, dataset, "rows")[0], np.repeat([1.0, 2, 3], 4))
    np.testing.assert_array_equal(values_on(grid, dataset, "level")[0], np.full(12, 5.0))
    np.testing.assert_array_equal(values_on(grid, dataset, "lon")[0], np.tile(LON, 3))


def test_values_that_are_not_finite_are_missing():
    dataset = field()
    dataset["a"][0, :2] = [np.inf, np.nan]
    values = values_on(find_grid(dataset, ["a"], "fine"), dataset, "a")
    assert np.isnan(values[0, :2]).all() and np.isfinite(values[0, 2:]).all()


def test_values_of_other_types_become_numbers():
    dataset = field(lat=[0.0, 10.0], lon=[0.0, 10.0]).assign(
        yes=(("lat", "lon"), [[True, False], [False, True]]),
        day=(
            ("lat", "lon"),
            np.array([["2000-01-02", "2000-01-01"], ["NaT", "2000-01-05"]], "M8[ns]"),
        ),
    )
    grid = find_grid(dataset, ["yes", "day"], "fine")
    np.testing.assert_array_equal(values_on(grid, dataset, "yes")[0], [1, 0, 0, 1])
    np.testing.assert_array_equal(values_on(grid, dataset, "day")[0], [1, 0, np.nan, 4])


# --- coordinates that cannot be right -----------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (field(y_attrs={"units": "radians"}), "the units of 'lat' are 'radians'; expected degrees"),
        (field(y_attrs={"units": "m"}), "the units of 'lat' are 'm'; expected degrees"),
        (field(y_attrs={"units": "1"}), "the units of 'lat' are '1'; expected degrees"),
        (field(y="y", x="x", y_attrs={"units": "feet"}), "the units of 'y' .* degrees, m or km"),
        (field([-60.0, 0.0, 120.0]), "latitudes in 'lat' run to 120, beyond a pole"),
        (field([-60.0, np.nan, 60.0]), "the coordinate 'lat' has missing values"),
        (field([0.0, 0.0, 60.0]), "'lat' has repeated values; .* ds.drop_duplicates"),
        (field([0.0, 60.0, 30.0]), r"'lat' is not in order; .* ds.sortby\('lat'\)"),
        (field(lon=[0.0, 20.0, 10.0, 30.0]), r"longitudes in 'lon' are not in order; .* ds.sortby"),
        (field(lon=[0.0, 120.0, 240.0, 360.0]), "'lon' hold a meridian twice, such as 0 and 360"),
        (field(lon=[-180.0, 0.0, 180.0]), "'lon' hold a meridian twice"),
        (field(lon=[0.0, np.inf, 10.0]), "'lon' has missing values"),
        (field(y="lat", x="x", x_attrs={"units": "m"}), "'lat' and 'x' are not coordinates of one"),
    ],
)
def test_coordinates_that_cannot_be(dataset, message):
    refused(dataset, message)


def test_variables_that_cannot_be():
    dataset = field().assign(word=(("lat", "lon"), np.full((3, 4), "x")))
    refused(dataset, "the fine data has no variable 'b'; it has a, word", names=["a", "b"])
    refused(xr.Dataset(), "has no variable 'a'; it has no variables at all")
    refused(dataset, "'word' holds <U1 values, not numbers", names=["word"])
    refused(dataset["a"], "must be an xarray Dataset, not DataArray")


# --- what a grid says of itself -----------------------------------------------------------------


def test_positions_are_on_the_unit_sphere():
    grid = find_grid(field(), ["a"], "fine")
    assert grid.positions.shape == (12, 3)
    np.testing.assert_allclose(np.linalg.norm(grid.positions, axis=1), 1.0)
    expected = [0.5 * np.cos(np.pi / 4), 0.5 * np.sin(np.pi / 4), -np.sqrt(0.75)]
    np.testing.assert_allclose(grid.positions[0], expected)


def test_the_grid_mapping_is_found():
    fields = projected_fields(3, 4)
    assert find_grid(fields, ["tas"], "fine").mapping == "crs"
    assert find_grid(fields, [], "fine").mapping == "crs"
    del fields.tas.attrs["grid_mapping"]
    assert find_grid(fields, ["tas"], "fine").mapping is None
    assert find_grid(fields, ["tas", "cloud"], "fine").mapping == "crs"
    fields.tas.attrs["grid_mapping"] = "crs: x y"
    assert find_grid(fields, ["tas"], "fine").mapping == "crs"
    fields.tas.attrs["grid_mapping"] = "lost"
    assert find_grid(fields, ["tas"], "fine").mapping is None


def test_grids_that_do_not_meet():
    here, there = (
        find_grid(field([10.0, 20.0], lon), ["a"], "fine") for lon in ([0.0, 10.0], [90.0, 100.0])
    )
    with pytest.raises(UsageError, match="do not overlap: fine 2 cells of lat from 5 to 25° by"):
        check_overlap(here, there)
