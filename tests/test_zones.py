"""Polygons and points beside fields: geometry against Shapely, limits in which both roads meet."""

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
import xarray as xr

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.fields.axes import Axis, Lattice
from deconditional.fields.frames import GEOGRAPHIC, PLANE, Frame
from deconditional.fields.grids import find_grid
from deconditional.fields.overlap import overlap
from deconditional.fields.pair import pair
from deconditional.fields.question import Question
from deconditional.fields.sides import two_sides
from deconditional.fields.zones.layer import Layer
from tests.reliability import tries

LONLAT = "EPSG:4326"


def axis(edges, kind="plane", name="x"):
    ends = np.stack([edges[:-1], edges[1:]], axis=1)
    return Axis(name, name, kind, ends.mean(1), ends)


def lattice(y, x, spherical=False, frame=None):
    kinds = ("latitude", "longitude") if spherical else ("plane", "plane")
    lines = [axis(np.asarray(e, float), k, n) for e, k, n in zip((y, x), kinds, "yx", strict=True)]
    return Lattice(*lines, frame=frame or (GEOGRAPHIC if spherical else PLANE))


def table(shapes, crs=None, **columns):
    return gpd.GeoDataFrame(columns, geometry=list(shapes), crs=crs)


def shares(shapes, grid, crs=None):
    """The share of every cell that each zone covers."""
    zones = Layer.of(table(shapes, crs), [], grid).grid
    return overlap(grid, zones).toarray() / grid.areas[:, None], zones


def odd_polygons(n, rng):
    """Stars, with holes, of several parts, slivers; some beyond the cells of (0, 10) x (0, 8)."""
    for k in range(n):
        corners = rng.integers(3, 30)
        turn = np.sort(rng.uniform(0, 2 * np.pi, corners))
        reach = rng.uniform(0.2, 1, corners) * rng.uniform(0.05, 4)
        centre = rng.uniform(-1, 11, 2)
        ring = centre + reach[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        shape = shapely.make_valid(shapely.Polygon(ring)).buffer(0)
        if k % 3 == 0:
            shape = shape.difference(shapely.Point(centre).buffer(0.3 * reach.mean()))
        if k % 4 == 0:
            shape = shape.union(shapely.box(*(centre + 2), *(centre + 2.7)))
        if k % 7 == 0:
            shape = shapely.box(*centre, centre[0] + 3, centre[1] + 1e-7)
        if not shape.is_empty:
            yield shape


@pytest.mark.reliability
def test_cover_equals_the_intersections_of_shapely():
    rng = np.random.default_rng(0)
    shapes = list(odd_polygons(tries(30, 300), rng))
    y, x = (np.sort(rng.uniform(0, end, n)) for end, n in ((8, 10), (10, 13)))
    grid = lattice(y, x)  # cells of any size
    found, zones = shares(shapes, grid)
    cells = shapely.polygons(grid.corners()[..., ::-1])
    both = shapely.area(shapely.intersection(cells[:, None], np.array(shapes)[None]))
    np.testing.assert_allclose(found, both / shapely.area(cells)[:, None], atol=1e-11)
    np.testing.assert_allclose(zones.areas, shapely.area(shapes), rtol=1e-9)
    middles = shapely.centroid(shapes)
    want = np.stack([shapely.get_y(middles), shapely.get_x(middles)], axis=1)
    np.testing.assert_allclose(zones.centres, want, atol=1e-6)


def test_zones_that_fill_the_plane_share_out_every_cell_once():
    rng = np.random.default_rng(1)
    around = shapely.box(-5, -5, 15, 15)
    places = shapely.MultiPoint(rng.uniform(0, 10, (60, 2)))
    cells = shapely.get_parts(shapely.voronoi_polygons(places, extend_to=around))
    found, _ = shares(cells, lattice(np.linspace(0, 9, 40), np.linspace(0, 10, 57)[::-1][::-1]))
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-12)
    people = rng.uniform(0, 1e4, len(found))
    assert (people @ found).sum() == pytest.approx(people.sum(), rel=1e-12)


def test_rows_from_the_north_and_gaps_between_cells():
    south = lattice([0, 1, 2, 3], [0, 1, 2])
    north = lattice([0, 1, 2, 3], [0, 1, 2])
    turned = Axis("y", "y", "plane", south.y.centres[::-1], south.y.bounds[::-1])
    north = Lattice(turned, south.x)
    shape = [shapely.Polygon([(0.2, 0.1), (1.9, 0.4), (1.0, 2.8)])]
    one, two = (shares(shape, grid)[0].reshape(3, 2) for grid in (south, north))
    np.testing.assert_allclose(one, two[::-1], atol=1e-14)
    kept = np.array([[0.0, 1.0], [2.0, 3.0]])
    apart = Lattice(Axis("y", "y", "plane", kept.mean(1), kept), south.x)
    np.testing.assert_allclose(shares(shape, apart)[0].reshape(2, 2), one[[0, 2]], atol=1e-14)
    kept = np.array([[0.0, 1.0], [0.5, 3.0]])
    with pytest.raises(UsageError, match="overlap each other"):
        shares(shape, Lattice(Axis("y", "y", "plane", kept.mean(1), kept), south.x))


# ------------------------------------------------------------------------------ the globe


def globe(n_lat=18, n_lon=36, west=-180.0):
    y, x = np.linspace(-90, 90, n_lat + 1), np.linspace(west, west + 360, n_lon + 1)
    return lattice(y, x, spherical=True)


@pytest.mark.parametrize("west", [-180.0, 0.0, -35.0])
def test_longitudes_go_round(west):
    """The same zone however its longitudes are written, on globes that begin anywhere."""
    beyond = shapely.box(172, -14, 193, 37)
    cut = shapely.union(shapely.box(172, -14, 180, 37), shapely.box(-180, -14, -167, 37))
    grid = globe(west=west)
    found, zones = shares([beyond, cut, shapely.box(-188, -14, -167, 37)], grid, LONLAT)
    np.testing.assert_allclose(found[:, 1:], found[:, :1].repeat(2, 1), atol=1e-12)
    area = np.radians(21) * (np.sin(np.radians(37)) - np.sin(np.radians(-14)))
    np.testing.assert_allclose(zones.areas, area, rtol=1e-12)
    np.testing.assert_allclose(np.mod(zones.centres[:, 1], 360), 182.5, atol=1e-9)
    # Within a cell what is covered is a share of the map: the sphere differs by its curvature.
    np.testing.assert_allclose(found.T @ grid.areas, area, rtol=5e-3)


def test_the_whole_globe_is_covered_once():
    found, zones = shares([shapely.box(-180, -90, 180, 90)], globe(west=-35.0), LONLAT)
    np.testing.assert_allclose(found, 1.0, atol=1e-12)
    np.testing.assert_allclose(zones.areas, 4 * np.pi)


@pytest.mark.parametrize("pole", [1, -1])
def test_a_zone_around_a_pole(pole):
    """A ring on a polar map, with a hole around the pole too, on cells of latitude."""
    crs = "EPSG:3995" if pole > 0 else "EPSG:3031"
    from pyproj import Transformer

    _, radius = Transformer.from_crs(LONLAT, crs, always_xy=True).transform(0.0, 75.0 * pole)
    _, inner = Transformer.from_crs(LONLAT, crs, always_xy=True).transform(0.0, 85.0 * pole)
    disc = shapely.Point(0, 0).buffer(abs(radius), quad_segs=400)
    ring = disc.difference(shapely.Point(0, 0).buffer(abs(inner), quad_segs=400))
    # Of 5° by 10°: the last three rows are within 15° of a pole.
    grid = globe(36, 36)
    found, zones = shares([disc, ring], grid, crs)
    rows = found.reshape(36, 36, 2)[::-pole]
    np.testing.assert_allclose(rows[:3, :, 0], 1.0, atol=1e-3)
    np.testing.assert_allclose(
        rows[:3, :, 1], np.array([0.0, 1.0, 1.0])[:, None].repeat(36, 1), atol=1e-3
    )
    np.testing.assert_allclose(rows[3:], 0.0, atol=1e-3)
    np.testing.assert_allclose(zones.areas[0], 2 * np.pi * (1 - np.sin(np.radians(75))), rtol=1e-4)


def test_another_crs_is_reprojected():
    """Boxes of longitude and latitude on a UTM grid, against the same corners set densely."""
    from pyproj import CRS, Transformer

    frame = Frame(False, {"crs_wkt": CRS.from_epsg(32633).to_wkt()})
    move = Transformer.from_crs(LONLAT, 32633, always_xy=True).transform
    box = shapely.box(14.0, 45.0, 16.0, 46.5)
    dense = shapely.transform(shapely.segmentize(box, 1e-3), move, interleaved=False)
    (low_x, low_y), high = np.array(dense.bounds).reshape(2, 2)
    grid = lattice(
        np.linspace(low_y - 1e4, high[1] + 1e4, 31),
        np.linspace(low_x - 1e4, high[0] + 1e4, 41),
        frame=frame,
    )
    found, _ = shares([box], grid, LONLAT)
    cells = shapely.polygons(grid.corners()[..., ::-1])
    want = shapely.area(shapely.intersection(cells, dense)) / shapely.area(cells)
    np.testing.assert_allclose(found[:, 0], want, atol=1e-4)


def test_cells_of_any_form():
    """Turned cells with corners of their own, by intersections; points by where they are."""
    rng = np.random.default_rng(3)
    turn = np.array([[0.8, -0.6], [0.6, 0.8]])
    y, x = np.meshgrid(np.arange(6.0), np.arange(8.0), indexing="ij")
    centres = np.stack([y, x], axis=-1) @ turn
    from deconditional.fields.polygons import estimated_corners
    from deconditional.fields.surface import Surface

    corners = estimated_corners(centres, PLANE)
    cells = Surface(("j", "i"), ("y", "x"), centres, corners, PLANE)
    shapes = [s for s in odd_polygons(8, rng) if s.area > 0.1]
    found, zones = shares(shapes, cells)
    outlines = shapely.polygons(corners.reshape(-1, 4, 2)[..., ::-1])
    both = shapely.area(shapely.intersection(outlines[:, None], np.array(shapes)[None]))
    np.testing.assert_allclose(found, both / shapely.area(outlines)[:, None], atol=1e-9)
    points = Surface(("i",), ("y", "x"), centres.reshape(1, -1, 2), None, PLANE)
    inside = shapely.intersects_xy(np.array(shapes)[None], *centres.reshape(-1, 2).T[::-1, :, None])
    np.testing.assert_allclose(overlap(points, zones).toarray(), inside)


# ------------------------------------------------------------------------------ both roads


@pytest.fixture(scope="module")
def example():
    """Fields on 12 x 18 cells, their means over 36 blocks, and these blocks as polygons."""
    fields = dc.datasets.synthetic_fields(n_lat=12, n_lon=18, extent=(30, 50, 0, 30))
    data = dc.datasets.split_cells(
        fields, "tas", ["altitude"], ["cloud"], block=(2, 3), matched=1.0
    )
    grid = find_grid(data.coarse, ["tas"], "coarse")
    boxes = [shapely.box(x[0], y[0], x[1], y[1]) for y in grid.y.bounds for x in grid.x.bounds]
    values = data.coarse["tas"].transpose(grid.y.name, grid.x.name).values.ravel()
    return data, table(boxes, LONLAT, tas=values)


OPTIONS = {"model": "bagg-gp", "n_restarts": 1, "model_options": {"max_iter": 15}}


def fitted(fine, coarse, **more):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.FitWarning)  # a few steps are enough to compare
        downscaler = dc.Downscaler("tas", ["altitude"], **(OPTIONS | more))
        return downscaler.fit(fine, coarse)


@pytest.fixture(scope="module")
def by_grid(example):
    return fitted(example[0].fine, example[0].coarse)


def test_polygons_that_are_cells_are_the_cells(example, by_grid):
    """In another order, under other names and with a column more."""
    data, zones = example
    rng = np.random.default_rng(0)
    zones = zones.iloc[rng.permutation(len(zones))].set_index(
        pd.Index([f"z{k}" for k in range(len(zones))])
    )
    by_zones = fitted(data.fine, zones.assign(more="words"), kind="mean")
    one, two = (each.predict(data.fine) for each in (by_grid, by_zones))
    for name in ("mean", "std"):
        np.testing.assert_allclose(two[name], one[name], atol=1e-8)
    assert set(two["coarse_zone"].values) == set(zones.index)
    left = two["coarse_observed"].sel(coarse_zone="z3") - two["coarse_mean"].sel(coarse_zone="z3")
    assert float(two["coarse_residual"].sel(coarse_zone="z3")) == pytest.approx(float(left))


def pairing_of(fine, coarse, **asked):
    question = Question("tas", ("altitude",), (), **asked)
    found, bags = pair(*two_sides(fine, coarse, question))
    return found, bags.make()


def test_another_crs_changes_nothing_but_rounding(example):
    data, zones = example
    dense = zones.set_geometry(zones.segmentize(0.01)).to_crs(
        3035
    )  # what is straight on one map is not on the other
    one, two = (pairing_of(data.fine, z, kind="mean") for z in (zones, dense))
    np.testing.assert_allclose(two[0].amount, one[0].amount, rtol=1e-5)
    weights = [np.zeros((36, 216)) for _ in range(2)]
    for filled, (_, bags) in zip(weights, (one, two), strict=True):
        filled[bags.bag, bags.point] = bags.weights
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-5)


def test_points_are_bags_of_one(example):
    data, _ = example
    rng = np.random.default_rng(0)
    cell = rng.permutation(216)[:20]
    grid = find_grid(data.fine, ["altitude"], "fine")
    inside = grid.centres[cell] + rng.uniform(-0.4, 0.4, (20, 2))
    stations = table(shapely.points(inside[:, ::-1]), LONLAT, tas=np.arange(20.0))
    found, bags = pairing_of(data.fine, stations)
    assert bags.sizes.tolist() == [1] * 20
    np.testing.assert_allclose(bags.points[bags.bag.argsort(), :3], grid.positions[cell])
    np.testing.assert_allclose(found.z, np.arange(20.0))


def test_sums_are_means_times_what_is_there(example):
    """By area, and by an exposure; the mean of weights that are one everywhere is the mean."""
    data, zones = example
    per_area, bags = pairing_of(data.fine, zones, kind="sum")
    sphere = 6371.0**2 * overlap(*_grids(data.fine, zones)).sum(0)
    np.testing.assert_allclose(per_area.amount, sphere, rtol=1e-12)
    np.testing.assert_allclose(per_area.z, zones["tas"] / sphere, rtol=1e-12)
    rng = np.random.default_rng(0)
    people = data.fine["altitude"] * 0 + rng.uniform(1, 9, data.fine["altitude"].shape)
    fine = data.fine.assign(people=people.where(people > 2))
    found, bags = pairing_of(fine, zones, kind="sum", exposure="people")
    share, _ = shares(zones.geometry, _grids(data.fine, zones)[0], LONLAT)
    amount = np.nan_to_num(fine["people"].values.ravel()) @ share
    np.testing.assert_allclose(found.amount, amount, rtol=1e-12)
    np.testing.assert_allclose(found.z * found.amount, zones["tas"], rtol=1e-12)
    assert found.amount.sum() == pytest.approx(float(fine["people"].sum()), rel=1e-9)
    assert np.isfinite(bags.weights).all() and (bags.weights > 0).all()


def _grids(fine, zones):
    grid = find_grid(fine, ["altitude"], "fine")
    return grid, Layer.of(zones, [], grid).grid


def test_chunks_give_the_same_bags(example):
    data, zones = example
    people = data.fine["altitude"] * 0 + np.arange(18.0)
    fine = data.fine.assign(people=people)
    asked = {"kind": "mean", "exposure": "people"}
    whole, bags = pairing_of(fine, zones.to_crs(3035), **asked)
    cut, of_chunks = pairing_of(fine.chunk({"lat": 5, "lon": 7}), zones.to_crs(3035), **asked)
    np.testing.assert_allclose(cut.amount, whole.amount, rtol=1e-12)
    np.testing.assert_allclose(of_chunks.means(), bags.means(), atol=1e-12)


@pytest.mark.parametrize("chunks", [{}, {"lat": 5, "lon": 7}])
def test_weights_can_be_looked_at(example, chunks):
    """A row for each zone and cell in it: the shares of the overlap, times areas."""
    data, zones = example
    fine = data.fine.chunk(chunks) if chunks else data.fine
    question = Question("tas", ("altitude",), (), kind="mean")
    found = pair(*two_sides(fine, zones, question))[1].cells()
    shared = overlap(*_grids(data.fine, zones)).toarray()
    filled = np.zeros_like(shared)
    filled[found["cell"], found["unit"]] = found["amount"]
    np.testing.assert_allclose(filled, shared, atol=1e-14)
    np.testing.assert_allclose(found.groupby("unit")["weight"].sum(), 1.0)
    boxes = zones.geometry.to_numpy()[found["unit"]]
    inside = shapely.contains_xy(boxes, found["lon"], found["lat"])
    assert inside.all()


def test_mediators_are_columns_of_zones(example):
    """Covariates in the west, observations in the east: the pairing is that of the same cells."""
    data, zones = example
    grid = find_grid(data.coarse, ["tas"], "coarse")
    west = grid.centres[:, 1] < 15
    cloud = data.coarse["cloud"].transpose(grid.y.name, grid.x.name)
    fine = data.fine.where(data.fine["lon"] < 15)
    tas = data.coarse["tas"].where(data.coarse["lon"] > 15)
    question = Question("tas", ("altitude",), ("cloud",), kind="mean")
    table = zones.assign(cloud=cloud.values.ravel(), tas=zones["tas"].where(~west))
    by_cells, _ = pair(*two_sides(fine, data.coarse.assign(tas=tas), question))
    by_zones, _ = pair(*two_sides(fine, table, question))
    assert by_zones.matching == by_cells.matching == "unmatched"
    for name in ("z", "mediator", "bag_mediator", "amount"):
        one, two = (getattr(p, name) for p in (by_cells, by_zones))
        np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9)


def test_overlapping_zones_both_count(example):
    data, zones = example
    both = pd.concat([zones, zones.iloc[:3]], ignore_index=True)
    found, bags = pairing_of(data.fine, both, kind="mean")
    assert found.n_bags == 39 and "3 polygons lie on others" in dict(found.understood)["twice"]
    np.testing.assert_allclose(bags.means()[36:], bags.means()[:3], atol=1e-14)


def test_zones_beyond_the_cells_are_left_out_and_that_is_said(example):
    data, zones = example
    far = table([shapely.box(60, 60, 61, 61)], LONLAT, tas=[280.0])
    found, _ = pairing_of(data.fine, pd.concat([zones, far], ignore_index=True), kind="mean")
    assert found.n_bags == 36 and found.cover[36] == 0.0
    assert "36 observations have a bag" in dict(found.understood)["matching"]
    assert dict(found.understood)["CRS"] == "EPSG:4326, as the fine data"


# ------------------------------------------------------------------------------ bad inputs

BOX = shapely.box(0, 30, 5, 35)
BOWTIE = shapely.Polygon([(0, 30), (5, 35), (5, 30), (0, 35)])
UTM = "EPSG:32633"

BAD = {
    "a table without geometry": (lambda z: pd.DataFrame({"tas": z["tas"]}), {}, "without geometry"),
    "no rows": (lambda z: z.iloc[:0], {}, "no rows"),
    "no CRS": (lambda z: z.set_crs(None, allow_override=True), {}, "have no CRS"),
    "another CRS than it says": (
        lambda z: z.to_crs(UTM).set_crs(LONLAT, allow_override=True),
        {},
        "lie nowhere on the globe",
    ),
    "no geometry in a row": (lambda z: _with(z, 3, None), {}, "zones 3 have no geometry"),
    "an empty geometry": (lambda z: _with(z, 3, shapely.Polygon()), {}, "3 have no geometry"),
    "a line": (lambda z: _with(z, 3, BOX.exterior), {}, "3 are Linear"),
    "a point among polygons": (lambda z: _with(z, 3, BOX.centroid), {}, "polygons and points"),
    "a bow tie": (lambda z: _with(z, 3, BOWTIE), {}, "3 is not valid.*make_valid"),
    "several bow ties": (lambda z: _with(_with(z, 3, BOWTIE), 5, BOWTIE), {}, "zones 3, 5 is not"),
    "no area": (lambda z: _with(z, 3, shapely.Polygon([(0, 30), (1, 31), (2, 32)])), {}, "no"),
    "names that come twice": (lambda z: z.set_axis([0, *range(35)]), {}, "zones 0 come more than"),
    "long sides": (lambda z: _with(z, 3, shapely.box(-170, 30, 170, 35)), {}, "not clear which"),
    "no such column": (
        lambda z: z.rename(columns={"tas": "t"}),
        {},
        "no column 'tas'; they have t",
    ),
    "words for numbers": (lambda z: z.assign(tas="12 K"), {}, "'12 K'.*to_numeric"),
    "nothing known": (lambda z: z.assign(tas=np.nan), {}, "missing in every"),
    "an infinite value": (lambda z: z.assign(tas=np.inf), {}, "infinite in 0, 1, 2, 3, 4 and 31"),
    "one value everywhere": (lambda z: z.assign(tas=1.0), {}, "same value"),
    "marks of missing values": (
        lambda z: z.assign(tas=z["tas"].where(z.index > 2, 1e20)),
        {},
        "marks of missing",
    ),
    "too few": (lambda z: z.iloc[:3], {}, "at least 5"),
    "elsewhere": (lambda z: z.set_geometry(z.translate(0, -60)), {}, "do not overlap"),
    "mean or sum?": (lambda z: z, {"kind": None}, "mean over each polygon, or the sum"),
    "neither mean nor sum": (lambda z: z, {"kind": "total"}, "one of mean, sum, not 'total'"),
    "no such exposure": (lambda z: z, {"exposure": "people"}, "no variable 'people'"),
    "a negative exposure": (lambda z: z, {"exposure": "below"}, "falls to -1"),
    "an exposure of nothing": (
        lambda z: z,
        {"exposure": "none"},
        "zero or missing in all polygons",
    ),
    "nobody where there is a sum": (
        lambda z: z,
        {"exposure": "partly", "kind": "sum"},
        "polygons 0, 1.* have no partly at all and yet",
    ),
    "the target as exposure": (lambda z: z, {"exposure": "tas"}, "cannot be the target"),
    "several tables": (lambda z: [z, z], {}, "of dc.Source, not GeoDataFrame"),
    "no mediator": (lambda z: z, {"mediators": ["rain"]}, "no column 'rain'"),
    "a series": (
        lambda z: z.geometry,
        {},
        "or a GeoDataFrame with the target as a column, not GeoSeries",
    ),
}


def _with(zones, row, shape):
    shapes = list(zones.geometry)
    shapes[row] = shape
    return zones.set_geometry(gpd.GeoSeries(shapes, index=zones.index, crs=zones.crs))


@pytest.mark.parametrize("name", BAD)
def test_bad_inputs_are_told_in_words(example, name):
    data, zones = example
    spoil, asked, words = BAD[name]
    south = data.fine["lat"] > 35
    altitude = data.fine["altitude"]
    fine = data.fine.assign(
        below=altitude * 0 - 1, none=altitude * 0, partly=south * 1.0 + altitude * 0
    )
    with pytest.raises(UsageError, match=words):
        dc.Downscaler("tas", ["altitude"], **{"kind": "mean", **asked}).understand(
            fine, spoil(zones)
        )


def test_fine_data_that_is_nowhere(example):
    _, zones = example
    plane = xr.Dataset(
        {"altitude": (("y", "x"), np.random.default_rng(0).uniform(size=(4, 5)))},
        {"y": np.arange(4.0), "x": np.arange(5.0)},
    )
    with pytest.raises(UsageError, match=r"does not say where it is.*rio.write_crs"):
        dc.Downscaler("tas", ["altitude"], kind="mean").understand(plane, zones)


# ------------------------------------------------------------------------------ aggregates


def test_means_over_new_zones_are_those_of_the_joint_posterior(example, by_grid):
    """From the full covariance of all cells, and from samples of a result."""
    data, zones = example
    new = zones.iloc[[0, 1, 8]].dissolve([1, 1, 2])
    found = dc.aggregate(by_grid, new, samples=4000)
    grid, _ = _grids(data.fine, zones)
    share, _ = shares(new.geometry, grid, LONLAT)
    weights = share * grid.areas[:, None]
    weights /= weights.sum(0)
    part = by_grid.learner_.bags.parts.only
    post = by_grid.model_.predict(by_grid.input_scaling_(part.points))
    target = by_grid.target_scaling_
    mean = target.centre + target.scale * weights.T @ post.mean
    covariance = target.scale**2 * weights.T @ post.covariance() @ weights
    np.testing.assert_allclose(found.table["mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(found.table["std"], np.sqrt(np.diag(covariance)), rtol=1e-5)
    # Four thousand draws: relative errors of variances are sqrt(2 / 4000) = 0.022.
    np.testing.assert_allclose(found.covariance, covariance, rtol=0.15, atol=0.1 * covariance[0, 0])
    assert found.table["cover"].tolist() == pytest.approx([1.0, 1.0])
    result = by_grid.predict(data.fine, samples=2000)
    sampled = dc.aggregate(result, new).table
    np.testing.assert_allclose(sampled["mean"], mean, atol=4 * np.sqrt(covariance[0, 0] / 2000))
    np.testing.assert_allclose(sampled["std"], found.table["std"], rtol=0.1)


def test_sums_over_new_zones(example, by_grid):
    data, zones = example
    people = data.fine["altitude"] * 0 + 3.0
    fine = data.fine.assign(people=people)
    found = dc.aggregate(by_grid, zones, fine=fine, kind="sum", exposure="people", samples=10).table
    np.testing.assert_allclose(found["amount"], 18.0)
    np.testing.assert_allclose(found["sum"], 18.0 * found["mean"])
    np.testing.assert_allclose(found["sum_q05"], 18.0 * found["q05"])
    half = zones.iloc[:1].translate(-4.0)
    seen = dc.aggregate(by_grid, zones.iloc[:1].set_geometry(half), min_cover=0.1, samples=10).table
    assert seen["cover"].item() == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m, r, z: (r.drop_vars("samples"), z), "samples=200"),
        (lambda m, r, z: (xr.Dataset(), z), "not Dataset"),
        (lambda m, r, z: (m, z.set_geometry(z.translate(0, -60))), "the grids do not overlap"),
        (lambda m, r, z: (m, z.set_crs(None, allow_override=True)), "have no CRS"),
        (lambda m, r, z: (m, z, {"kind": "count"}), "with a family of counts"),
        (lambda m, r, z: (m, z, {"samples": 1}), "from 2 on"),
        (lambda m, r, z: (r, z, {"exposure": "people"}), "give the fine data"),
    ],
)
def test_bad_aggregates_are_told_in_words(example, by_grid, spoil, words):
    data, zones = example
    given = spoil(by_grid, by_grid.predict(data.fine, samples=2), zones)
    with pytest.raises(UsageError, match=words):
        dc.aggregate(*given[:2], **(given[2] if len(given) > 2 else {}))


def test_saved_models_of_zones_predict_the_same(example, tmp_path):
    data, zones = example
    model = fitted(data.fine, zones, kind="mean")
    model.save(tmp_path / "model.npz")
    again = dc.load(tmp_path / "model.npz")
    xr.testing.assert_allclose(again.predict(data.fine)["mean"], model.predict(data.fine)["mean"])
    with pytest.raises(UsageError, match="left the fine data"):
        dc.aggregate(again, zones)
    one, two = (dc.aggregate(m, zones, fine=data.fine, samples=2).table for m in (model, again))
    np.testing.assert_allclose(one["mean"], two["mean"])
