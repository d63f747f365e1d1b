"""Made-up fields on grids of other kinds than that of ``synthetic_fields``."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from deconditional.datasets import synthetic_fields
from deconditional.datasets.cells import cell_axis
from deconditional.datasets.made_up import smooth
from deconditional.fields.frames import EARTH_RADIUS

CRS = {
    "grid_mapping_name": "lambert_cylindrical_equal_area",
    "standard_parallel": 0.0,
    "longitude_of_central_meridian": 0.0,
    "false_easting": 0.0,
    "false_northing": 0.0,
    "earth_radius": EARTH_RADIUS,
}


def projected_fields(
    n_lat: int = 48,
    n_lon: int = 96,
    extent: tuple[float, float, float, float] = (-90, 90, -180, 180),
    **options: Any,
) -> xr.Dataset:
    """Fields on axes in metres of Lambert's projection: equal steps of y are of equal area."""
    south, north, west, east = extent
    rows = np.linspace(*np.sin(np.radians([south, north])), n_lat + 1)
    lines = []
    for lat in np.degrees(np.arcsin(0.5 * (rows[:-1] + rows[1:]))):
        near = min(1.0, 90.0 - abs(lat))
        band = (lat - near, lat + near, west, east)
        lines.append(synthetic_fields(1, n_lon, extent=band, **options).drop_vars("lat_bnds"))
    fields = xr.concat(lines, "lat", data_vars="minimal", coords="minimal", compat="override")
    fields = fields.assign({n: v.transpose(..., "lat", "lon") for n, v in fields.items()})
    columns = np.radians(np.linspace(west, east, n_lon + 1))
    bare = fields.drop_vars(["lat", "lon", "lon_bnds"]).rename(lat="y", lon="x")
    for name, edges in (("y", EARTH_RADIUS * rows), ("x", EARTH_RADIUS * columns)):
        ends = np.stack([edges[:-1], edges[1:]], axis=1)
        bare = bare.assign_coords(cell_axis(name, ends.mean(1), ends))
    for name in fields.data_vars:
        bare[name].attrs["grid_mapping"] = "crs"
    return bare.assign_coords(crs=xr.Variable((), np.int32(0), dict(CRS)))


def on_land(fields: xr.Dataset, share: float, seed: int = 0) -> xr.Dataset:
    """Fields that are NaN at sea; the land has about this share of the cells."""
    y, x = dims = fields.altitude.dims
    places = np.stack(np.meshgrid(fields[y], fields[x], indexing="ij"), axis=-1)
    height = smooth(np.random.default_rng([seed, 1]), places, 0.2 * np.ptp(places, axis=(0, 1)))
    land = xr.DataArray(height >= np.quantile(height, 1.0 - share), dims=dims)
    return fields.assign({name: field.where(land) for name, field in fields.items()})


def upside_down(fields: xr.Dataset) -> xr.Dataset:
    """Fields with rows from north to south."""
    return fields.isel(lat=slice(None, None, -1))
