"""Random smooth fields with known truth, on the globe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from deconditional.datasets.cells import cell_axis, cf_attributes

_DAYS = 10.0  # how long the weather takes to change
_LONG_NAMES = {
    "tas": "temperature near the surface",
    "altitude": "altitude of the surface",
    "cloud": "share of the sky with clouds",
    "rain": "rainfall",
    "water_vapour": "column of water vapour",
}


def smooth(rng: np.random.Generator, points: np.ndarray, length: float | np.ndarray) -> np.ndarray:
    """A random field of unit variance with a Gaussian covariance, roughly.

    It is the sum of 60 waves, at `points` (..., d), with a `length` scale for all coordinates or
    for each.

    Examples
    --------
    >>> at = np.linspace(0.0, 1.0, 5)[:, None]
    >>> coarse = smooth(np.random.default_rng(0), at[::2], 0.3)
    >>> bool(np.allclose(coarse, smooth(np.random.default_rng(0), at, 0.3)[::2]))
    True
    """
    out = np.zeros(points.shape[:-1])
    waves = 60
    for _ in range(waves):
        wave = rng.standard_normal(points.shape[-1]) / length
        out += np.cos(points @ wave + rng.uniform(0, 2 * np.pi))
    return out * np.sqrt(2.0 / waves)


def synthetic_fields(
    n_lat: int = 48,
    n_lon: int = 96,
    *,
    extent: tuple[float, float, float, float] = (-90, 90, -180, 180),
    times: Sequence[Any] | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Temperature, altitude, cloud, rain and water vapour, drawn at random.

    The temperature falls from the equator to the poles and by 6.5 K with every kilometre of
    altitude, is changed by cloud, and has a smooth remainder. The water vapour follows the
    temperature with an error of its own. A value is that of its cell's centre, and a seed's fields
    depend on the place (and the time) alone: another resolution shows the same fields.

    Parameters
    ----------
    n_lat, n_lon
        Cells along the two axes.
    extent
        Southern, northern, western and eastern end, in degrees.
    times
        Times of a leading axis, in any form that numpy takes for a date; the altitude has no such
        axis. Without times the fields are those of 1 January 2000.
    seed
        Seed of the fields.

    Examples
    --------
    >>> fields = synthetic_fields(times=["2000-01-01", "2000-02-01"])
    >>> fields.tas.dims, fields.altitude.dims
    (('time', 'lat', 'lon'), ('lat', 'lon'))
    """
    south, north, west, east = extent
    if not (-90 <= south < north <= 90 and west < east <= west + 360):
        raise ValueError(
            f"extent is (south, north, west, east) in degrees, in rising order, not {extent!r}."
        )
    if n_lat < 1 or n_lon < 1:
        raise ValueError(f"the grid needs cells along both axes, not {n_lat} x {n_lon}.")
    rows, columns = np.linspace(south, north, n_lat + 1), np.linspace(west, east, n_lon + 1)
    sphere = _on_sphere(np.sin(np.radians(_middle(rows))), _middle(columns))
    dims: tuple[str, ...] = ("lat", "lon")
    coords = _axis("lat", rows) | _axis("lon", columns)
    days, in_time = np.zeros(()), dims
    if times is not None:
        dates = np.asarray(list(times), dtype="datetime64[ns]")
        days = (dates - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "D")
        in_time = ("time", *dims)
        about = {"standard_name": "time", "long_name": "time"}
        coords = {"time": xr.Variable(("time",), dates, about)} | coords

    maps = _draw(np.random.default_rng(seed), sphere, _at_days(sphere, days))
    return xr.Dataset(
        {
            name: (
                dims if name == "altitude" else in_time,
                values,
                cf_attributes(name, _LONG_NAMES[name]),
            )
            for name, values in maps.items()
        },
        coords=coords,
        attrs={
            "Conventions": "CF-1.11",
            "title": "Synthetic fields",
            "source": f"sums of random waves, seed {seed}",
            "comment": "Made up; not observations and not a model run.",
        },
    )


def _draw(
    rng: np.random.Generator, sphere: np.ndarray, places: np.ndarray
) -> dict[str, np.ndarray]:
    """The fields at unit vectors, and at unit vectors with the days as a fourth coordinate."""

    def changing(length: float) -> np.ndarray:
        return smooth(rng, places, np.array([length, length, length, _DAYS]))

    altitude = 1000.0 * np.maximum(smooth(rng, sphere, 0.4) + 0.5 * smooth(rng, sphere, 0.1), 0.0)
    cloud = 0.5 + 0.5 * np.tanh(changing(0.3) + 0.5 * changing(0.1))
    tas = (
        303.0
        - 38.0 * sphere[..., 2] ** 2
        - 6.5e-3 * altitude
        + 3.0 * np.cos(np.pi * cloud)
        + 2.0 * changing(0.5)
    )
    rain = 50.0 * np.exp(cloud - 0.5 + 0.8 * changing(0.2))
    water_vapour = 15.0 * np.exp(0.06 * (tas - 288.0) + 0.15 * changing(0.3))
    return {
        "tas": tas,
        "altitude": altitude,
        "cloud": cloud,
        "rain": rain,
        "water_vapour": water_vapour,
    }


def _on_sphere(sine: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Unit vectors ``(n, m, 3)`` from sines of latitudes and longitudes in degrees."""
    sine, longitude = np.meshgrid(sine, np.radians(longitude), indexing="ij")
    cosine = np.sqrt(1.0 - sine**2)
    return np.stack([cosine * np.cos(longitude), cosine * np.sin(longitude), sine], -1)


def _at_days(sphere: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Unit vectors with the days as fourth coordinate, ``days.shape + (n, m, 4)``."""
    shape = (*days.shape, *sphere.shape[:-1])
    vectors = np.broadcast_to(sphere, (*shape, 3))
    return np.concatenate([vectors, np.broadcast_to(days[..., None, None, None], (*shape, 1))], -1)


def _middle(edges: np.ndarray) -> np.ndarray:
    return (edges[:-1] + edges[1:]) / 2


def _axis(name: str, edges: np.ndarray) -> dict[str, xr.Variable]:
    return cell_axis(name, _middle(edges), np.stack([edges[:-1], edges[1:]], 1))
