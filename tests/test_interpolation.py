"""Bilinear interpolation of coarse fields, against one-dimensional interpolation by NumPy."""

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields.opponents import bilinear  # noqa: E402

LAT, LON = np.linspace(-75, 75, 6), np.linspace(15, 345, 12)
FINE_LAT, FINE_LON = np.linspace(-88, 88, 23), np.linspace(2.5, 357.5, 72)


def field(values, lat, lon, y="lat", x="lon", **attrs):
    """An array, or a function of latitude and longitude, on a grid."""
    if callable(values):
        values = values(*np.meshgrid(lat, lon, indexing="ij"))
    return xr.DataArray(values, {y: (y, lat, attrs), x: (x, lon, attrs)}, (y, x))


def plane(values, y, x, units="m"):
    return field(values, y, x, "y", "x", units=units)


def noise(*shape):
    return np.random.default_rng(0).normal(size=shape)


def along_both(values, lat, lon, at_lat, at_lon, period=None):
    """Interpolation along every row, then along every column; constant beyond the ends."""
    order = np.argsort(lat)
    rows = np.stack([np.interp(at_lon, lon, row, period=period) for row in values])
    return np.stack([np.interp(at_lat, lat[order], column[order]) for column in rows.T], axis=1)


def on(grid):
    """The same grid without values."""
    return xr.zeros_like(grid)


# --------------------------------------------------------------------------- the globe


SEAMS = {
    "from 0 to 360": (LON, FINE_LON),
    "fine from -180 to 180": (LON, FINE_LON - 180),
    "coarse from -180 to 180": (LON - 180, FINE_LON),
    "coarse westward": (LON[::-1], FINE_LON),
    "coarse across the seam": (np.mod(LON + 200, 360), FINE_LON),
    "fine across the seam": (LON, np.mod(FINE_LON + 100, 360)),
    "many turns": (LON + 720, FINE_LON - 360),
}


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("southward", [False, True])
def test_any_field_on_the_globe(seam, southward):
    lat = LAT[::-1] if southward else LAT
    lon, fine_lon = SEAMS[seam]
    values = noise(6, 12)
    out = bilinear(field(values, lat, lon), field(lambda a, _: 0 * a, FINE_LAT, fine_lon))
    expected = along_both(values, lat, lon, FINE_LAT, fine_lon, period=360)
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_it_is_constant_towards_the_poles():
    out = bilinear(field(noise(6, 12), LAT, LON), field(noise(3, 72), [75.0, 80.0, 90.0], FINE_LON))
    np.testing.assert_allclose(out[1:], np.stack([out[0]] * 2), atol=1e-12)


def test_it_is_the_field_at_its_own_centres():
    coarse = field(noise(6, 12), LAT, LON)
    np.testing.assert_allclose(bilinear(coarse, on(coarse)), coarse, atol=1e-12)


def test_values_lie_between_those_around_them():
    coarse = field(noise(6, 12), LAT, LON)
    out = bilinear(coarse, field(noise(23, 72), FINE_LAT, FINE_LON))
    assert out.min() >= coarse.min() and out.max() <= coarse.max()


# --------------------------------------------------------------------------- a region


def linear(lat, lon):
    return 2.0 + 0.3 * lat - 0.1 * lon + 0.02 * lat * lon


REGION = np.arange(30.0, 51.0, 5.0), np.arange(10.0, 31.0, 4.0)


@pytest.mark.parametrize("turn", [0, -360, 720])
def test_a_function_linear_in_both_is_reproduced_inside(turn):
    coarse = field(linear, *REGION)
    fine = field(linear, np.linspace(50, 30, 17), np.linspace(10, 30, 33))
    moved = fine.assign_coords(lon=fine.lon + turn)
    np.testing.assert_allclose(bilinear(coarse, moved), fine, rtol=1e-12)


def test_beyond_the_outermost_centres_of_a_region_the_nearest_value_is_taken():
    lat, lon = np.linspace(27.6, 52.4, 13), np.linspace(8.1, 31.9, 29)
    out = bilinear(field(linear, *REGION), field(linear, lat, lon))
    held = np.meshgrid(np.clip(lat, 30, 50), np.clip(lon, 10, 30), indexing="ij")
    np.testing.assert_allclose(out, linear(*held), rtol=1e-12)


def test_a_region_across_the_seam():
    lon = np.array([340.0, 350.0, 0.0, 10.0])
    values = noise(5, 4)
    out = bilinear(field(values, REGION[0], lon), field(noise(2, 3), [32.0, 44.0], [-15, -5, 5]))
    expected = along_both(values, REGION[0], np.arange(-20, 11, 10), [32.0, 44.0], [-15, -5, 5])
    np.testing.assert_allclose(out, expected, atol=1e-12)


# --------------------------------------------------------------------------- a plane


@pytest.mark.parametrize("southward", [False, True])
def test_any_field_on_a_plane(southward):
    y, x = np.array([0.0, 3.0, 4.0, 9.0]), np.array([-2.0, 0.0, 1.0, 5.0, 6.0])
    y = y[::-1] if southward else y
    at_y, at_x = np.linspace(-2, 11, 27), np.linspace(-4, 8, 25)
    values = noise(4, 5)
    out = bilinear(plane(values, y, x), plane(noise(27, 25), at_y, at_x))
    np.testing.assert_allclose(out, along_both(values, y, x, at_y, at_x), atol=1e-12)


def test_units_of_lengths_may_differ():
    values = noise(3, 4)
    y, x = np.arange(3.0), np.arange(4.0)
    at_y, at_x = np.linspace(0, 2, 5), np.linspace(0, 3, 7)
    fine = plane(noise(5, 7), 1000 * at_y, 1000 * at_x)
    out = bilinear(plane(values, y, x, "km"), fine)
    np.testing.assert_allclose(out, along_both(values, y, x, at_y, at_x), atol=1e-12)


# --------------------------------------------------------------------------- missing cells


def test_gaps_are_filled_as_if_a_linear_field_were_there():
    y, x = np.arange(6.0), np.arange(7.0)
    fine = plane(
        lambda y, x: 1 + 2 * y - 3 * x, np.linspace(0.2, 4.8, 13), np.linspace(0.2, 5.8, 9)
    )
    coarse = plane(lambda y, x: 1 + 2 * y - 3 * x, y, x)
    coarse[2, 3] = coarse[2, 4] = coarse[4, 1] = np.nan
    coarse[0, 2] = np.inf
    inside = fine.y > 1.0  # below, the hull of what is there has a dent
    out = bilinear(coarse, fine)
    np.testing.assert_allclose(out[inside], fine[inside], atol=1e-9)
    assert np.isfinite(out).all()


def test_cells_that_are_there_keep_their_values():
    coarse = field(noise(6, 12), LAT, LON)
    coarse[1, 2] = coarse[3, 11] = np.nan
    known = np.isfinite(coarse.values)
    out = bilinear(coarse, on(coarse)).values
    np.testing.assert_allclose(out[known], coarse.values[known], atol=1e-9)
    assert np.isfinite(out).all()


def test_gaps_are_filled_across_the_seam():
    coarse = field(lambda lat, lon: 3 - 0.1 * lat + np.cos(np.radians(lon)), LAT, LON)
    coarse[:, 0] = coarse[:, -1] = np.nan
    # What is there ends at 315 and 45 degrees, where the cosine is √½.
    out = bilinear(coarse, field(noise(3, 2), [-45.0, 0.0, 60.0], [10.0, 350.0]))
    expected = 3 - 0.1 * np.array([-45.0, 0.0, 60.0]) + np.sqrt(0.5)
    np.testing.assert_allclose(out, np.stack([expected] * 2, axis=1), atol=1e-9)


def test_outside_the_cells_that_are_there_the_nearest_value_is_taken():
    y, x = np.arange(5.0), np.arange(5.0)
    coarse = plane(noise(5, 5), y, x)
    coarse[3:] = np.nan
    out = bilinear(coarse, on(coarse))
    np.testing.assert_allclose(out[:3], coarse[:3], atol=1e-9)
    np.testing.assert_allclose(out[3:], np.stack([coarse[2]] * 2), atol=1e-9)


@pytest.mark.parametrize("there", [[0], [0, 1, 2, 3, 4]], ids=["one cell", "one row"])
def test_cells_without_triangles_between_them(there):
    values = np.full((3, 5), np.nan)
    values[1, there] = np.arange(5.0)[there]
    coarse = plane(values, np.arange(3.0), np.arange(5.0))
    fine = plane(noise(3, 5), np.arange(3.0), np.arange(5.0) + 0.1)
    np.testing.assert_allclose(
        bilinear(coarse, fine), np.stack([values[1, there]] * 3) * np.ones(5)
    )


# --------------------------------------------------------------------------- what comes back


def test_the_result_lies_on_the_fine_grid():
    coarse = field(noise(6, 12), LAT, LON, "latitude", "longitude").transpose()
    fine = field(noise(23, 72), FINE_LAT, FINE_LON).expand_dims(time=[0.0, 1.0]).transpose()
    out = bilinear(coarse, fine)
    assert out.dims == ("lat", "lon")
    assert set(out.coords) == {"lat", "lon"}
    xr.testing.assert_identical(out.lat, fine.lat)
    xr.testing.assert_identical(out.lon, fine.lon)
    expected = along_both(coarse.values.T, LAT, LON, FINE_LAT, FINE_LON, period=360)
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_inputs_are_left_as_they_were():
    coarse, fine = field(noise(6, 12), LAT, LON), field(noise(23, 72), FINE_LAT, FINE_LON)
    before = coarse.copy(deep=True), fine.copy(deep=True)
    bilinear(coarse, fine)
    xr.testing.assert_identical(coarse, before[0])
    xr.testing.assert_identical(fine, before[1])
