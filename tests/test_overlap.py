"""Shared areas of cells: nothing is lost or counted twice, wherever edges and seams lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deconditional.fields.axes import lengths
from deconditional.fields.bounds import inferred_bounds, unwrapped
from deconditional.fields.overlap import overlap_areas, overlap_lengths

EXACT = 1e-12


def cells(edges):
    return np.stack([edges[:-1], edges[1:]], axis=1)


@st.composite
def intervals(draw, kind, low=None, high=None, least=1, most=7):
    """Adjacent cells of unequal size, in either direction, with the seam anywhere."""
    steps = draw(st.lists(st.floats(0.02, 1.0), min_size=least, max_size=most))
    inner = np.cumsum([0.0, *steps]) / np.sum(steps)
    if kind == "longitude":
        bounds = cells(draw(st.floats(-720.0, 720.0)) + 360.0 * inner)
        bounds = np.roll(bounds, draw(st.integers(0, len(bounds) - 1)), axis=0)
        turns = draw(st.lists(st.integers(-2, 2), min_size=len(bounds), max_size=len(bounds)))
        bounds = bounds + 360.0 * np.array(turns)[:, None]
    else:
        low, high = (-90.0, 90.0) if low is None else (low, high)
        bounds = np.clip(cells(low + (high - low) * inner), low, high)
    return bounds[::-1] if draw(st.booleans()) else bounds


@st.composite
def globes(draw):
    """Bounds of latitude and longitude that cover the globe."""
    return draw(intervals("latitude")), draw(intervals("longitude"))


def areas(rows, columns):
    return np.outer(lengths(rows, "latitude"), lengths(columns, "longitude")).ravel()


def shared_areas(fine, coarse):
    return overlap_areas(
        overlap_lengths(fine[0], coarse[0], "latitude"),
        overlap_lengths(fine[1], coarse[1], "longitude"),
    )


def by_pieces(first, second, kind):
    """Shared lengths from the pieces that the edges of both axes cut: each lies in one cell or not.

    A piece belongs to a cell if its middle does; its length is taken from its own ends.
    """
    edges = np.concatenate([first.ravel(), second.ravel()])
    if kind == "longitude":
        edges = np.append(np.mod(edges, 360.0), [0.0, 360.0])
    edges = np.unique(edges)
    middle = 0.5 * (edges[1:] + edges[:-1])
    size = {
        "latitude": lambda e: np.diff(np.sin(np.radians(e))),
        "longitude": lambda e: np.diff(np.radians(e)),
        "plane": np.diff,
    }[kind](edges)

    def inside(bounds):
        ahead = middle - bounds[:, :1]
        if kind == "longitude":
            ahead = np.mod(ahead, 360.0)
        return (ahead >= 0) & (ahead < bounds[:, 1:] - bounds[:, :1])

    return (inside(first) * size) @ inside(second).T.astype(float)


# --- conservation -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "whole"), [("latitude", 2.0), ("longitude", 2 * np.pi)])
@given(st.data())
def test_axes_that_cover_the_globe_share_all_of_it(kind, whole, data):
    fine, coarse = data.draw(intervals(kind)), data.draw(intervals(kind))
    shared = overlap_lengths(fine, coarse, kind)
    np.testing.assert_allclose(shared.sum(1), lengths(fine, kind), rtol=EXACT)
    np.testing.assert_allclose(shared.sum(0), lengths(coarse, kind), rtol=EXACT)
    np.testing.assert_allclose(shared.sum(), whole, rtol=EXACT)
    np.testing.assert_allclose(shared, by_pieces(fine, coarse, kind), atol=EXACT * whole)


@given(globes(), globes())
def test_areas_add_up_to_the_sphere(fine, coarse):
    shared, own, other = shared_areas(fine, coarse), areas(*fine), areas(*coarse)
    np.testing.assert_allclose(shared.sum(1), own, rtol=EXACT)
    np.testing.assert_allclose(shared.sum(0), other, rtol=EXACT)
    np.testing.assert_allclose([own.sum(), other.sum(), shared.sum()], 4 * np.pi, rtol=EXACT)


@given(globes(), globes(), st.integers(0, 1000))
def test_area_means_conserve_the_integral(fine, coarse, seed):
    shared, own, other = shared_areas(fine, coarse), areas(*fine), areas(*coarse)
    values = np.random.default_rng(seed).uniform(1.0, 2.0, len(own))
    means = (shared.T @ values) / shared.sum(0)
    np.testing.assert_allclose(other @ means, own @ values, rtol=EXACT)
    np.testing.assert_allclose((shared.T @ np.full(len(own), 7.0)) / other, 7.0, rtol=EXACT)


@given(globes(), st.data())
def test_means_over_nested_cells_are_those_of_the_field(fine, data):
    """The mean of sin(lat) + cos(lon) over any cell is known; so is its average over cells."""
    rows, columns = (np.array(sorted(axis.tolist())) for axis in fine)
    columns = cells(columns[0, 0] + np.append(0.0, np.cumsum(np.diff(columns, axis=1))))

    def merged(bounds):
        inner = st.integers(1, len(bounds) - 1) if len(bounds) > 1 else st.nothing()
        cuts = data.draw(st.lists(inner, unique=True, max_size=len(bounds) - 1).map(sorted))
        return cells(np.append(bounds[[0, *cuts], 0], bounds[-1, 1]))

    def mean(rows, columns):
        sines, east = np.sin(np.radians(rows)), np.radians(columns)
        by_column = np.diff(np.sin(east), axis=1) / np.diff(east, axis=1)
        return (0.5 * sines.sum(1)[:, None] + by_column[:, 0]).ravel()

    coarse = merged(rows), merged(columns)
    shared = shared_areas((rows, columns), coarse)
    assert shared.nnz == len(rows) * len(columns)  # a fine cell lies in one coarse cell
    means = (shared.T @ mean(rows, columns)) / shared.sum(0)
    np.testing.assert_allclose(means, mean(*coarse), atol=EXACT)


@given(st.floats(-1e7, 1e7), st.floats(1.0, 1e6), st.data())
def test_planes_share_what_both_cover(start, size, data):
    fine = data.draw(intervals("plane", start, start + size))
    shift = data.draw(st.floats(-1.5, 1.5)) * size
    coarse = data.draw(intervals("plane", start + shift, start + shift + size))
    shared = overlap_lengths(fine, coarse, "plane")
    both = max(min(fine.max(), coarse.max()) - max(fine.min(), coarse.min()), 0.0)
    # Differences of coordinates are known to their rounding.
    error = EXACT * max(np.abs(fine).max(), np.abs(coarse).max())
    np.testing.assert_allclose(shared.sum(), both, rtol=EXACT, atol=error)
    np.testing.assert_allclose(shared, by_pieces(fine, coarse, "plane"), atol=error)


@given(intervals("latitude", -30.0, 75.0), intervals("latitude"), intervals("longitude"))
def test_a_region_keeps_its_area(rows, globe_rows, globe_columns):
    columns = cells(np.linspace(170.0, 230.0, 5))
    shared = shared_areas((rows, columns), (globe_rows, globe_columns))
    region = (np.sin(np.radians(75.0)) + 0.5) * np.radians(60.0)
    np.testing.assert_allclose(shared.sum(), region, rtol=EXACT)


def test_areas_agree_with_random_points_of_the_sphere():
    """40000 points: a share p is known to sqrt(p (1 - p) / n); four such errors are allowed."""
    fine = cells(np.array([-90.0, -50.0, 10.0, 35.0, 90.0])), cells(np.linspace(-170.0, 190.0, 4))
    coarse = cells(np.array([90.0, 20.0, -90.0])[::-1]), cells(np.linspace(15.0, 375.0, 5))
    shared = shared_areas(fine, coarse).toarray()
    rng, n = np.random.default_rng(0), 40_000
    vectors = rng.normal(size=(n, 3))
    lat = np.degrees(np.arcsin(vectors[:, 2] / np.linalg.norm(vectors, axis=1)))
    lon = np.degrees(np.arctan2(vectors[:, 1], vectors[:, 0]))

    def cell(rows, columns):
        row = (lat[:, None] >= rows[:, 0]) & (lat[:, None] < rows[:, 1])
        column = np.mod(lon[:, None] - columns[:, 0], 360.0) < columns[:, 1] - columns[:, 0]
        return row.argmax(1) * len(columns) + column.argmax(1)

    counted = np.zeros(shared.shape)
    np.add.at(counted, (cell(*fine), cell(*coarse)), 1)
    share = shared / (4 * np.pi)
    assert np.all(np.abs(counted / n - share) <= 4 * np.sqrt(share * (1 - share) / n) + 1e-15)


def test_cells_are_counted_row_by_row():
    rows, columns = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [5.0, 7.0]])
    found = overlap_areas(rows, columns).toarray()
    for i, j, above, beside in np.ndindex(2, 2, 2, 2):
        expected = rows[i, above] * columns[j, beside]
        assert found[2 * i + j, 2 * above + beside] == expected


# --- edges that coincide but for rounding -------------------------------------------------------


@pytest.mark.parametrize("turn", [-360.0, 0.0, 360.0])
@pytest.mark.parametrize("start", [0.0, -180.0, -179.95])
@pytest.mark.parametrize("step", [0.1, 0.3, 0.75])
def test_nested_cells_touch_no_neighbour(step, start, turn):
    """The same edges, made in two ways, differ in the last digits."""
    n = round(360 / step)
    fine = cells(np.linspace(start + turn, start + turn + 360.0, n + 1))
    coarse = cells(start + 10 * step * np.arange(n // 10 + 1))
    assert set(fine.ravel()) - set(coarse.ravel()) != set()
    shared = overlap_lengths(fine, coarse, "longitude")
    assert np.count_nonzero(shared) == n
    np.testing.assert_array_equal(shared.argmax(1), np.arange(n) // 10)


def test_pieces_within_the_tolerance_are_nothing():
    fine = cells(np.array([0.0, 0.99995, 2.0]))
    coarse = cells(np.array([0.0, 1.0, 2.0]))
    assert np.count_nonzero(overlap_lengths(fine, coarse, "plane")) == 3
    loose = overlap_lengths(fine, coarse, "plane", tolerance=1e-4)
    np.testing.assert_allclose(loose, [[0.99995, 0.0], [0.0, 1.0]])


# --- longitudes ---------------------------------------------------------------------------------


@given(st.lists(st.floats(0.5, 40.0), min_size=2, max_size=8), st.data())
def test_longitudes_are_unwrapped_wherever_the_seam_is(steps, data):
    east = np.cumsum([data.draw(st.floats(-180.0, 360.0)), *steps])
    if data.draw(st.booleans()):
        east = east[::-1]
    seam = data.draw(st.sampled_from([0.0, -180.0, 33.0]))
    straight = unwrapped(np.mod(east - seam, 360.0) + seam)
    np.testing.assert_allclose(np.diff(straight), np.diff(east), atol=1e-9)
    turns = (straight - east) / 360.0
    np.testing.assert_allclose(turns, np.round(turns[0]), atol=1e-9)


def test_unwrapping_adds_whole_turns_only():
    lon = np.mod(np.arange(3600) * 0.1 + 123.4, 360.0)
    np.testing.assert_array_equal(unwrapped(lon), lon + 360.0 * (np.arange(3600) >= lon.argmin()))


def test_two_longitudes_go_the_shorter_way():
    assert unwrapped([10.0, 5.0]).tolist() == [10.0, 5.0]
    assert unwrapped([359.0, 1.0]).tolist() == [359.0, 361.0]
    assert unwrapped([1.0, 359.0]).tolist() == [1.0, -1.0]
    assert unwrapped([90.0, 270.0]).tolist() == [90.0, 270.0]
    assert unwrapped([5.0]).tolist() == [5.0]


@pytest.mark.parametrize("lon", [[0.0, 20.0, 10.0, 30.0], [0.0, 120.0, 240.0, 360.0], [1.0, 1.0]])
def test_longitudes_out_of_order_are_refused(lon):
    with pytest.raises(ValueError, match="more than once"):
        unwrapped(lon)


# --- inferred bounds ----------------------------------------------------------------------------


def test_inferred_latitudes_end_at_the_poles():
    assert inferred_bounds([-90.0, 0.0, 90.0], "latitude").tolist() == [
        [-90.0, -45.0],
        [-45.0, 45.0],
        [45.0, 90.0],
    ]
    assert inferred_bounds([80.0, 40.0, 20.0], "latitude").tolist() == [
        [60.0, 90.0],
        [30.0, 60.0],
        [10.0, 30.0],
    ]
    assert inferred_bounds([80.0, 100.0], "plane").tolist() == [[70.0, 90.0], [90.0, 110.0]]


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), st.floats(-1e4, 1e4))
def test_inferred_bounds_meet_half_way(steps, start):
    centres = np.cumsum([start, *steps])
    bounds = inferred_bounds(centres, "plane")
    np.testing.assert_allclose(bounds[:-1, 1], 0.5 * (centres[1:] + centres[:-1]))
    np.testing.assert_array_equal(bounds[1:, 0], bounds[:-1, 1])
    np.testing.assert_allclose(bounds[[0, -1]].mean(1), centres[[0, -1]], atol=1e-9)
    np.testing.assert_array_equal(inferred_bounds(centres[::-1], "plane"), bounds[::-1])


@given(st.lists(st.floats(0.5, 100.0), min_size=2, max_size=8), st.data())
def test_inferred_longitudes_do_not_depend_on_where_the_data_begins(steps, data):
    """Cells are the same around the globe, hold their centres, and do not overlap."""
    steps = np.array(steps) * min(1.0, 359.0 / np.sum(steps))
    centres = np.cumsum([data.draw(st.floats(-180.0, 180.0)), *steps])
    bounds = inferred_bounds(centres, "longitude")
    assert np.all((bounds[:, 0] < centres) & (centres < bounds[:, 1]))
    np.testing.assert_allclose(
        overlap_lengths(bounds, bounds, "longitude"),
        np.diag(lengths(bounds, "longitude")),
        atol=1e-12,
    )
    n = data.draw(st.integers(0, len(centres) - 1))
    rolled = unwrapped(np.roll(centres, n))
    again = np.roll(inferred_bounds(rolled, "longitude"), -n, axis=0)
    again -= 360.0 * np.round((again[:, :1] - bounds[:, :1]) / 360.0)
    np.testing.assert_allclose(again, bounds, atol=1e-9)


@pytest.mark.parametrize(
    ("centres", "expected"),
    [
        ([0.0, 90.0, 180.0, 270.0], [[-45, 45], [45, 135], [135, 225], [225, 315]]),
        ([0.0, 180.0], [[-90, 90], [90, 270]]),
        ([0.0, 160.0], [[-100, 80], [80, 260]]),
        ([10.0, 5.0], [[7.5, 12.5], [2.5, 7.5]]),
        ([0.0, 100.0, 220.0], [[-70, 50], [50, 160], [160, 290]]),
        # A region on both sides of the Greenwich meridian, cut there.
        ([0.0, 5.0, 10.0, 350.0, 355.0], [[-2.5, 2.5], [2.5, 7.5], [7.5, 12.5]]),
    ],
)
def test_inferred_longitudes(centres, expected):
    bounds = inferred_bounds(centres, "longitude")
    np.testing.assert_allclose(bounds[: len(expected)], expected)
    if len(centres) == 5:
        np.testing.assert_allclose(bounds[3:], [[347.5, 352.5], [352.5, 357.5]])


def test_a_single_cell_has_no_inferred_bounds():
    with pytest.raises(ValueError, match="single cell"):
        inferred_bounds([3.0], "plane")
