"""Sudden infant deaths in the counties of North Carolina, 1974 to 1984, known of larger regions.

Cressie (1993, *Statistics for Spatial Data*, Wiley, pages 386 to 389) gives deaths, live births and
non-white live births of all 100 counties in two periods; borders and numbers are those of the
sample data ``sids2`` of libpysal. Here counties are joined to regions, whose deaths are to be
downscaled, and the deaths of counties are the truth that is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from sklearn.cluster import KMeans

from deconditional.errors import UsageError
from deconditional.fields.grids import find_grid
from deconditional.fields.overlap import overlap
from deconditional.fields.zones.layer import Layer

FILE = Path(__file__).with_name("north_carolina.geojson")
WEST, EAST, SOUTH, NORTH = -84.4, -75.4, 33.8, 36.6


@dataclass(frozen=True)
class CountsExample:
    """Counts in regions, and in the smaller zones that these are made of.

    Attributes
    ----------
    fine
        Covariates and exposure on a grid.
    zones
        A GeoDataFrame of regions with their counts.
    truth
        A GeoDataFrame of the smaller zones, with theirs.
    """

    fine: xr.Dataset
    zones: Any
    truth: Any


def north_carolina(regions: int = 30, step: float = 0.1, seed: int = 0) -> CountsExample:
    """Sudden infant deaths (``deaths``) of 1974 to 1984 in regions of a few counties each.

    The fine data has ``births`` in cells of some tenth of a degree, those of each county spread
    evenly over it, and ``nonwhite``, their share of non-white births.

    Parameters
    ----------
    regions
        How many the 100 counties are joined to, neighbours together.
    step
        Side of a cell, in degrees.
    seed
        Of the choice of regions.

    Examples
    --------
    >>> data = north_carolina(regions=20)
    >>> len(data.zones), len(data.truth), int(data.zones["deaths"].sum())
    (20, 100, 1503)
    >>> bool(np.isclose(data.fine["births"].sum(), data.truth["births"].sum(), rtol=1e-9))
    True
    """
    try:
        import geopandas
    except ImportError as error:
        raise UsageError(f"this needs {error.name}: pip install 'deconditional[geo]'.") from None
    given = geopandas.read_file(FILE).set_crs("EPSG:4267", allow_override=True)
    counties = given[["name", "geometry"]].set_index("name")
    for name, columns in {"deaths": "sid", "births": "bir", "nonwhite": "nwbir"}.items():
        counties[name] = (given[f"{columns}74"] + given[f"{columns}79"]).to_numpy()
    middles = counties.geometry.to_crs(2264).centroid
    places = np.stack([middles.x, middles.y], axis=1)
    counties["region"] = KMeans(regions, n_init=4, random_state=seed).fit_predict(places)
    zones = counties[["region", "geometry", "deaths"]].dissolve("region", aggfunc="sum")
    return CountsExample(_cells(counties, step), zones, counties)


def _cells(counties: Any, step: float) -> xr.Dataset:
    """Births and their share of non-white ones in cells."""
    lat = np.arange(SOUTH + 0.5 * step, NORTH, step)
    lon = np.arange(WEST + 0.5 * step, EAST, step)
    coords = {
        "lat": ("lat", lat, {"standard_name": "latitude", "units": "degrees_north"}),
        "lon": ("lon", lon, {"standard_name": "longitude", "units": "degrees_east"}),
    }
    empty = xr.Dataset({"cell": (("lat", "lon"), np.zeros((len(lat), len(lon))))}, coords)
    grid = find_grid(empty, ["cell"], "fine")
    shared = overlap(grid, Layer.of(counties, [], grid).grid)
    inside = np.asarray(shared.sum(0)).ravel()
    births, nonwhite = (shared @ (counties[c].to_numpy() / inside) for c in ("births", "nonwhite"))
    there = births > 0
    share = np.where(there, nonwhite / np.where(there, births, 1.0), np.nan)
    found = {"births": np.where(there, births, np.nan), "nonwhite": share}
    about = {"births": "live births 1974 to 1984", "nonwhite": "share of non-white live births"}
    return xr.Dataset(
        {
            name: (("lat", "lon"), values.reshape(grid.shape), {"long_name": about[name]})
            for name, values in found.items()
        },
        coords,
    )
