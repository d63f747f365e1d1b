"""Grids as they come: coordinates of two dimensions, points in no order, other projections."""

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

import deconditional as dc  # noqa: E402
from deconditional.datasets import coarsen, split_cells, synthetic_fields  # noqa: E402
from deconditional.errors import UsageError  # noqa: E402
from deconditional.fields.frames import GEOGRAPHIC, Frame  # noqa: E402
from deconditional.fields.grids import find_grid  # noqa: E402
from deconditional.fields.overlap import overlap  # noqa: E402
from deconditional.fields.polygons import Polygons  # noqa: E402
from deconditional.fields.question import Question  # noqa: E402
from made_up_grids import projected_fields  # noqa: E402
from pairs import pair  # noqa: E402

ROLES = ("tas", ["altitude", "cloud"], ["water_vapour"])
QUESTION = Question("tas", ("altitude", "cloud"), ("water_vapour",))
ABOUT = {
    "lat": {"standard_name": "latitude", "units": "degrees_north"},
    "lon": {"standard_name": "longitude", "units": "degrees_east"},
}
ROTATED = {
    "grid_mapping_name": "rotated_latitude_longitude",
    "grid_north_pole_latitude": 39.25,
    "grid_north_pole_longitude": -162.0,
}


@pytest.fixture(scope="module")
def data():
    return split_cells(synthetic_fields(18, 36), *ROLES, 3, matched=0.5)


def curved(dataset, west=None):
    """The same cells with coordinates of two dimensions; longitudes from `west` on."""
    lat, lon = np.meshgrid(dataset.lat.values, dataset.lon.values, indexing="ij")
    lon = lon if west is None else west + np.mod(lon - west, 360.0)
    plain = dataset.drop_vars(["lat", "lon", "lat_bnds", "lon_bnds"], errors="ignore")
    return plain.rename(lat="j", lon="i").assign_coords(
        nav_lat=(("j", "i"), lat, ABOUT["lat"]), nav_lon=(("j", "i"), lon, ABOUT["lon"])
    )


def scattered(dataset, seed=0):
    """The same cells in no order, with their corners."""
    corners = find_grid(dataset, list(dataset.data_vars)[:1], "fine").corners()
    cells = curved(dataset).stack(cell=("j", "i")).reset_index("cell", drop=True)
    for k, name in enumerate(("nav_lat", "nav_lon")):
        cells[name].attrs["bounds"] = f"{name}_corners"
        cells[f"{name}_corners"] = (("cell", "corner"), corners[..., k])
    return cells.isel(cell=np.random.default_rng(seed).permutation(cells.sizes["cell"]))


def assert_same_bags(found, expected, tolerance=1e-10):
    """The same bags of the same points, in whatever order."""
    assert found.matching == expected.matching
    one, two = (np.lexsort(p.bag_mediator.round(6).T) for p in (found, expected))
    np.testing.assert_array_equal(found.bag_sizes[one], expected.bag_sizes[two])
    np.testing.assert_allclose(
        found.bag_mediator[one], expected.bag_mediator[two], atol=tolerance, rtol=tolerance
    )
    means = [p.bags.means() for p in (found, expected)]
    np.testing.assert_allclose(means[0][one], means[1][two], atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(np.sort(found.z), np.sort(expected.z))


def weights(fine, coarse):
    """The share of every fine cell in every coarse one's area."""
    found = overlap(fine, coarse).toarray()
    return found / np.maximum(found.sum(0), 1e-300)


# --- cells with corners anywhere ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_fine", "of_coarse"),
    [
        pytest.param(curved, lambda d: d, id="fine"),
        pytest.param(lambda d: d, curved, id="coarse"),
        pytest.param(lambda d: curved(d, 0.0), lambda d: curved(d, -180.0), id="both, two seams"),
        pytest.param(lambda d: curved(d, 85.0), lambda d: d, id="a seam anywhere"),
        pytest.param(scattered, lambda d: d, id="fine, in no order"),
        pytest.param(scattered, lambda d: scattered(d, 1), id="both, in no order"),
    ],
)
def test_rectilinear_cells_in_another_form_are_the_same_cells(data, of_fine, of_coarse):
    found = pair(of_fine(data.fine), of_coarse(data.coarse), QUESTION)
    assert_same_bags(found, pair(data.fine, data.coarse, QUESTION))


def regular(n_lat, n_lon, lat=(-60.0, 60.0), lon=(0.0, 120.0)):
    """Zeros on a regular grid."""
    lines = [np.linspace(*ends, n + 1) for ends, n in ((lat, n_lat), (lon, n_lon))]
    coords = {
        name: (name, 0.5 * (line[1:] + line[:-1]), ABOUT[name])
        for name, line in zip(("lat", "lon"), lines, strict=True)
    }
    return xr.Dataset({"a": (("lat", "lon"), np.zeros((n_lat, n_lon)))}, coords)


def test_a_variable_made_of_a_latitude_is_no_latitude(data):
    fine = curved(data.fine)
    fine["altitude"] = (("j", "i"), fine.altitude.values, ABOUT["lat"])
    assert find_grid(fine, ["altitude"], "fine").coordinates == ("nav_lat", "nav_lon")
    assert find_grid(fine, [], "fine").coordinates == ("nav_lat", "nav_lon")


@pytest.mark.parametrize("of_fine", [regular, lambda *n: curved(regular(*n))])
def test_cells_that_do_not_nest_are_shared_out(of_fine):
    """Eleven fine cells along the side of a coarse one: weights of a bag are off by 0.8 %."""
    fine, coarse = of_fine(77, 99), regular(7, 9, (-58.0, 59.0), (2.0, 117.0))
    exact = weights(*(find_grid(d, ["a"], "fine") for d in (regular(77, 99), coarse)))
    found = weights(*(find_grid(d, ["a"], "fine") for d in (fine, curved(coarse))))
    assert np.abs(found - exact).sum(0).max() < 0.01


def test_cells_of_a_turned_pole_have_their_areas():
    pytest.importorskip("pyproj")
    step = 0.44
    y, x = np.meshgrid(np.arange(-8.0, 8.0, step), np.arange(-12.0, 3.0, step), indexing="ij")
    frame = Frame(True, ROTATED)
    places = frame.into(GEOGRAPHIC, np.stack([y, x], axis=-1))
    cells = xr.Dataset(
        {"a": (("y", "x"), y)},
        {name: (("y", "x"), places[..., k], ABOUT[name]) for k, name in enumerate(ABOUT)},
    )
    found = find_grid(cells, ["a"], "fine").areas.reshape(y.shape)
    ends = np.sin(np.radians([y - 0.5 * step, y + 0.5 * step]))
    np.testing.assert_allclose(
        found[1:-1, 1:-1], (np.radians(step) * (ends[1] - ends[0]))[1:-1, 1:-1], rtol=1e-5
    )


def test_cells_around_a_pole_and_shares_of_random_points():
    cap = np.stack([np.full(6, 70.0), np.arange(6) * 60.0 - 170.0], axis=1)[None]
    leaning = np.array([[[70.0, 10.0], [70.0, 30.0], [50.0, 28.0], [35.0, 12.0]]])
    south = -leaning * [1.0, -1.0]
    rng = np.random.default_rng(0)
    z, turn = rng.uniform(-1, 1, 40_000), rng.uniform(-180, 180, 40_000)
    points = np.stack([np.degrees(np.arcsin(z)), turn], axis=1)
    assert Polygons(cap, GEOGRAPHIC).areas[0] == pytest.approx(
        2 * np.pi * (1 - np.sin(np.radians(70.0)))
    )
    for corners in (cap, leaning, leaning[:, ::-1], south):
        cells = Polygons(corners, GEOGRAPHIC)
        share = (cells.holding(points) == 0).mean()
        expected = cells.areas[0] / (4 * np.pi)
        assert abs(share - expected) < 4 * np.sqrt(expected / 40_000)
        inside, shares = cells.within(4)
        assert (cells.holding(inside[0]) == 0).all() and shares.sum() == pytest.approx(1.0)


def test_cells_without_a_place_are_left_out_and_their_neighbours_are_whole(data):
    fine = curved(data.fine)
    gone = xr.DataArray(np.arange(18) // 3 == 2, dims="j")
    holes = {name: fine[name].where(~gone) for name in ("nav_lat", "nav_lon")}
    found = pair(fine.assign_coords(holes), data.coarse, QUESTION)
    below = data.fine.where((data.fine.lat < -30) | (data.fine.lat > 0))
    assert_same_bags(found, pair(below, data.coarse, QUESTION))


# --- points -------------------------------------------------------------------------------------


def test_points_without_corners_share_the_cell_they_lie_in():
    fields = projected_fields(12, 24)
    data = split_cells(fields, *ROLES, 3, matched=0.5)
    expected = pair(data.fine, data.coarse, QUESTION)
    y, x = np.meshgrid(data.fine.y, data.fine.x, indexing="ij")
    plain = data.fine.drop_vars(["y", "x", "y_bnds", "x_bnds"], errors="ignore")
    points = plain.stack(cell=("y", "x")).reset_index("cell", drop=True)
    for name, places in (("y", y), ("x", x)):
        points = points.assign_coords({name: ("cell", places.ravel(), data.fine[name].attrs)})
    shuffled = points.isel(cell=np.random.default_rng(3).permutation(points.sizes["cell"]))
    assert_same_bags(pair(shuffled, data.coarse, QUESTION), expected)
    with pytest.raises(UsageError, match=r"'y' and 'x' are places of points, .* give the corners"):
        coarse = data.coarse.drop_vars(["y_bnds", "x_bnds"], errors="ignore")
        pair(data.fine, coarse.stack(cell=("y", "x")).reset_index("cell"), QUESTION)


def test_points_may_say_their_areas(data):
    points = scattered(data.fine).drop_vars(["nav_lat_corners", "nav_lon_corners"])
    areas = find_grid(scattered(data.fine), ["cloud"], "fine").areas
    points["size"] = ("cell", 6_371_000.0**2 * areas)
    points.altitude.attrs["cell_measures"] = "area: size"
    assert_same_bags(pair(points, data.coarse, QUESTION), pair(data.fine, data.coarse, QUESTION))


# --- projections --------------------------------------------------------------------------------


def on_the_globe(dataset):
    """Cells of a cylindrical projection by their latitudes and longitudes."""
    pytest.importorskip("pyproj")
    grid = find_grid(dataset, [], "fine")
    ends = [grid.y.bounds, grid.x.bounds]
    here = [np.stack([ends[0].ravel(), np.zeros(ends[0].size)], 1)]
    here += [np.stack([np.zeros(ends[1].size), ends[1].ravel()], 1)]
    lat = grid.frame.into(GEOGRAPHIC, here[0])[:, 0].reshape(-1, 2)
    lon = grid.frame.into(GEOGRAPHIC, here[1])[:, 1].reshape(-1, 2)
    middle = grid.frame.into(GEOGRAPHIC, grid.centres).reshape(*grid.shape, 2)
    bare = dataset.drop_vars(["y", "x", "y_bnds", "x_bnds", "crs"], errors="ignore")
    bare = bare.rename(y="lat", x="lon").assign_coords(
        lat=("lat", middle[:, 0, 0], ABOUT["lat"]), lon=("lon", middle[0, :, 1], ABOUT["lon"])
    )
    return bare.assign(lat_bnds=(("lat", "b"), lat), lon_bnds=(("lon", "b"), lon))


def test_a_projected_grid_is_the_same_cells_by_latitude_and_longitude():
    fields = projected_fields(12, 24, extent=(20.0, 60.0, 0.0, 60.0))
    data = split_cells(fields, *ROLES, 3, matched=0.5)
    fine, coarse = on_the_globe(data.fine), on_the_globe(data.coarse)
    expected = pair(fine, coarse, QUESTION)
    assert_same_bags(pair(data.fine, coarse, QUESTION), expected, 1e-8)
    assert_same_bags(pair(fine, data.coarse, QUESTION), expected, 1e-8)
    unnamed = data.fine.drop_vars("crs")
    with pytest.raises(UsageError, match="the fine grid is of unknown projection"):
        pair(unnamed, coarse, QUESTION)
    grid = find_grid(data.fine, ["altitude"], "fine")
    places = grid.frame.into(GEOGRAPHIC, grid.centres).reshape(*grid.shape, 2)
    helped = unnamed.assign_coords(
        {name: (("y", "x"), places[..., k], ABOUT[name]) for k, name in enumerate(ABOUT)}
    )
    assert pair(helped, coarse, QUESTION).n_bags == expected.n_bags


def test_cells_beyond_the_globe_are_left_out():
    pytest.importorskip("pyproj")
    line = np.linspace(-7.5e6, 7.5e6, 40)
    about = {"grid_mapping_name": "orthographic", "latitude_of_projection_origin": 0.0}
    about |= {"longitude_of_projection_origin": 0.0, "earth_radius": 6.4e6}
    seen = xr.Dataset(
        {"altitude": (("y", "x"), np.add.outer(line, line), {"grid_mapping": "disc"})},
        {
            "y": ("y", line, {"units": "m"}),
            "x": ("x", line, {"units": "m"}),
            "disc": ((), 0, about),
        },
    )
    coarse = regular(4, 4, (-40.0, 40.0), (-40.0, 40.0)).rename(a="tas")
    coarse["tas"] = coarse.tas + np.arange(16.0).reshape(4, 4)
    found = pair(seen, coarse, Question("tas", ("altitude",), ()))
    assert found.n_bags == 16 and np.isfinite(found.bags.points).all()
    assert found.bags.weights.sum() == pytest.approx(16.0)


# --- results ------------------------------------------------------------------------------------

FIXED = {"kernel.lengthscale": [0.7, 0.7, 0.7, 1.5, 1.1], "kernel.variance": 1.3, "noise_std": 0.1}


@pytest.fixture(scope="module")
def matched():
    import gpjax.kernels as gk
    import jax.numpy as jnp

    example = split_cells(synthetic_fields(12, 24), *ROLES, 3, matched=1.0)
    options = {"model": "bagg-gp", "model_options": {"fixed": FIXED}, "n_restarts": 1}
    ask = dc.Downscaler(*ROLES, kernel=gk.RBF(lengthscale=jnp.ones(5)), **options)
    fitted = ask.fit(example.fine, example.coarse)
    return example, fitted, fitted.predict(example.fine)


def test_results_come_back_as_the_grid_was_given(matched, tmp_path):
    example, fitted, expected = matched
    fine, coarse = curved(example.fine, 0.0), curved(example.coarse)
    again = dc.Downscaler(**fitted.get_params(deep=False)).fit(fine, coarse)
    found = again.predict(fine)
    assert found["mean"].dims == ("j", "i")
    for name in ("nav_lon", "nav_lat"):
        xr.testing.assert_identical(found[name].variable, fine[name].variable)
    np.testing.assert_allclose(found["mean"], expected["mean"], atol=1e-10, rtol=1e-10)
    assert found["coarse_mean"].dims == ("coarse_j", "coarse_i")
    np.testing.assert_allclose(found["coarse_mean"], expected["coarse_mean"], rtol=1e-9)
    np.testing.assert_array_equal(found["coarse_nav_lat"], coarse["nav_lat"])
    again.save(tmp_path / "kept.npz")
    kept = dc.load(tmp_path / "kept.npz").predict(fine)
    np.testing.assert_array_equal(kept["mean"], found["mean"])


@pytest.mark.parametrize("end", ["nc", "zarr"])
def test_cells_in_no_order_are_predicted_chunk_by_chunk(matched, tmp_path, end):
    pytest.importorskip("dask")
    example, fitted, expected = matched
    cells = scattered(example.fine)
    found = fitted.predict(cells)
    assert found["mean"].dims == ("cell",)
    order = np.lexsort((cells.nav_lon, cells.nav_lat))
    np.testing.assert_allclose(found["mean"][order], expected["mean"].values.ravel(), rtol=1e-10)
    np.testing.assert_allclose(found["coarse_mean"], expected["coarse_mean"], rtol=1e-9)
    path = fitted.predict_to(tmp_path / f"out.{end}", cells.chunk(cell=50))
    engine = "zarr" if end == "zarr" else None
    with xr.open_dataset(path, engine=engine, decode_coords="all") as written:
        np.testing.assert_allclose(written["mean"], found["mean"], atol=1e-9)
        np.testing.assert_allclose(written["coarse_mean"], found["coarse_mean"], atol=1e-9)
        np.testing.assert_array_equal(written["nav_lat_corners"], cells["nav_lat_corners"])


def test_chunks_of_curved_cells_change_nothing(data):
    pytest.importorskip("dask")
    fine, coarse = curved(data.fine), curved(data.coarse)
    expected = pair(fine, coarse, QUESTION)
    assert_same_bags(pair(fine.chunk(j=5, i=7), coarse, QUESTION), expected)


# --- blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [0, 2], ids=["corners estimated", "corners in another order"])
def test_blocks_of_curved_cells_are_those_of_the_same_cells_on_axes(turns):
    fields = synthetic_fields(12, 24)
    expected, cells = coarsen(fields, (3, 4)), curved(fields, 0.0)
    if turns:
        corners = find_grid(fields, ["tas"], "fine").corners().reshape(12, 24, 4, 2)
        for k, name in enumerate(("nav_lat", "nav_lon")):
            cells[f"{name}_bnds"] = (("j", "i", "v"), np.roll(corners[:, :, ::-1, k], turns, 2))
    found = coarsen(cells, (3, 4))
    np.testing.assert_allclose(found.tas, expected.tas, rtol=1e-12)
    grid = find_grid(found, ["tas"], "coarse")
    np.testing.assert_allclose(grid.areas, find_grid(expected, ["tas"], "coarse").areas, rtol=1e-12)
    fine = find_grid(fields, ["tas"], "fine")
    np.testing.assert_allclose(overlap(fine, grid).sum(0), grid.areas, rtol=1e-12)
    examples = [split_cells(f, *ROLES, (3, 4), matched=0.5) for f in (cells, fields)]
    np.testing.assert_allclose(examples[0].coarse.tas, examples[1].coarse.tas, rtol=1e-12)
    found = [pair(e.fine, e.coarse, QUESTION) for e in examples]
    np.testing.assert_array_equal(*(p.bag_unit for p in found))
    np.testing.assert_array_equal(*(p.bag_sizes for p in found))


# --- maps ---------------------------------------------------------------------------------------


def test_maps_draw_cells_where_they_are():
    pytest.importorskip("matplotlib")
    from deconditional.report.grids import area_weights, plane
    from deconditional.report.maps import Panel, field_map

    fields = synthetic_fields(6, 8, extent=(20.0, 50.0, 150.0, 210.0))
    drawn, axes = plane(curved(fields, -180.0).tas), plane(fields.tas)
    np.testing.assert_allclose(drawn.y_edges, axes.y_edges[[0, -1]])
    np.testing.assert_allclose(np.mod(drawn.x_edges, 360.0), axes.x_edges[[0, -1]])
    np.testing.assert_allclose(drawn.values, axes.values)
    weights = area_weights(curved(fields).tas).values
    np.testing.assert_allclose(weights, area_weights(fields.tas).values)
    (image,) = field_map(Panel(curved(fields).tas, "cells")).axes[0].collections
    assert len(image.get_paths()) == 48
    points = scattered(fields).drop_vars(["nav_lat_corners", "nav_lon_corners"])
    (dots,) = field_map(Panel(points.tas, "points")).axes[0].collections
    assert len(dots.get_offsets()) == 48
