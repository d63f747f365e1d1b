"""Fields as maps: rows from south to north, columns from west to east, whatever their order.

Cells that each have a place of their own are drawn where they are, by their outlines.

Which axis is which, where cells end and how large they are says :mod:`deconditional.fields.grids`.
Of a field it cannot place, the cells of the last two dimensions are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import UsageError, visible
from deconditional.fields.axes import Axis, Floats, Grid, Lattice
from deconditional.fields.grids import LENGTHS, find_grid
from deconditional.fields.polygons import shorter_steps

COARSE = "coarse_"
"""How the dimensions of coarse fields begin in a result."""


@dataclass(frozen=True)
class Plane:
    """A field on a map: with rows from south to north, or with cells anywhere."""

    values: Floats  # (rows, columns): naN where there is none
    grid: Grid  # its cells, ascending along both axes where there are axes
    names: tuple[str, str]  # what to write along x and y
    # scale, unit: what turns metres into the unit that is written, and this unit; empty where
    # unknown.
    scale: float
    unit: str

    @property
    def x_edges(self) -> Floats:
        """Borders of the columns, one more than there are columns; else the ends of the map."""
        if isinstance(self.grid, Lattice):
            return _edges(self.grid.x) * self.scale
        return np.array([np.nanmin(self.outlines[..., 0]), np.nanmax(self.outlines[..., 0])])

    @property
    def y_edges(self) -> Floats:
        """Borders of the rows, one more than there are rows; else the ends of the map."""
        if isinstance(self.grid, Lattice):
            return _edges(self.grid.y) * self.scale
        return np.array([np.nanmin(self.outlines[..., 1]), np.nanmax(self.outlines[..., 1])])

    @cached_property
    def outlines(self) -> Floats:
        """Corners of all cells, (cells, k, 2), x before y; of points one, where they are."""
        centres, corners = self.grid.centres[:, None], self.grid.corners()
        to = np.zeros_like(centres) if corners is None else corners - centres
        if self.grid.frame.spherical:
            to, turns = shorter_steps(to), np.sort(np.mod(centres[..., 1].ravel(), 360.0))
            turns = turns[np.isfinite(turns)]
            west = turns[np.argmax(np.diff(turns, prepend=turns[-1] - 360.0))]
            east = np.mod(centres[..., 1] - west, 360.0) + west - 360.0 * (west > 180.0)
            centres = np.stack([centres[..., 0], east], axis=-1)
        return np.asarray((centres + to)[..., ::-1] * self.scale)

    @property
    def aspect(self) -> float:
        """Length on paper of one unit of y over one of x."""
        if not self.grid.spherical:
            return 1.0
        middle = np.deg2rad(0.5 * (self.y_edges[0] + self.y_edges[-1]))
        return float(1.0 / max(np.cos(middle), 0.2))

    @property
    def tallness(self) -> float:
        """Height over width of the whole map on paper."""
        return float(self.aspect * np.ptp(self.y_edges) / np.ptp(self.x_edges))


def plane(field: Any) -> Plane:
    """A field as a map; of any dimension besides the horizontal two, the first step.

    An array has rows from south to north.

    Examples
    --------
    >>> field = xr.DataArray([[1, 2], [3, 4]], {"lat": [50, 40], "lon": [5, 15]}, ("lat", "lon"))
    >>> drawn = plane(field)
    >>> drawn.values, drawn.y_edges
    (array([[3., 4.], [1., 2.]]), array([35., 45., 55.]))
    """
    if not isinstance(field, xr.DataArray):
        field = xr.DataArray(np.asarray(field, dtype=float))
        field = field.rename(dict(zip(field.dims, ("row", "column"), strict=True)))
    field = _bare(field)
    grid = grid_of(field)
    dims = grid.spatial
    field = field.isel({dim: 0 for dim in field.dims if dim not in dims}).transpose(*dims)
    units = {visible(_about(field, name, "units")) for name in grid.coordinates}
    unit = units.pop() if len(units) == 1 else ""
    in_metres = not grid.spherical and unit.lower() in LENGTHS
    scale, unit = (1e-3, "km") if in_metres else (1.0, "km" if grid.spherical else unit)
    y, x = (_label(field, name, k, grid, unit) for k, name in enumerate(grid.coordinates))
    values = np.asarray(field.values, dtype=float).reshape(grid.shape)
    if not isinstance(grid, Lattice):
        return Plane(values, grid, (x, y), scale, unit)
    rows, columns = (
        slice(None, None, -1 if a.centres[0] > a.centres[-1] else 1) for a in (grid.y, grid.x)
    )
    ascending = grid.cut(slice(None), rows, columns)
    return Plane(values[rows, columns], ascending, (x, y), scale, unit)


def _edges(axis: Axis) -> Floats:
    return np.append(axis.bounds[:, 0], axis.bounds[-1, 1])


def _label(field: xr.DataArray, coordinate: str, k: int, grid: Grid, unit: str) -> str:
    """What to write along y or x, k being 0 or 1."""
    name = visible(coordinate)
    if not grid.spherical:
        return f"{name} ({unit})" if unit else name
    if name.startswith("r") or _about(field, coordinate, "standard_name").startswith("grid_"):
        return f"{name} (°)"  # of a sphere whose poles have been moved
    return ("latitude (°N)", "longitude (°E)")[k]


def area_weights(field: xr.DataArray) -> xr.DataArray:
    """Areas of the cells, up to a factor."""
    grid = grid_of(field)
    return xr.DataArray(grid.areas.reshape(grid.shape[-len(grid.spatial) :]), dims=grid.spatial)


def time_dim(field: xr.DataArray) -> str | None:
    """The dimension that is time, if there is one."""
    for dim in map(str, field.dims):
        dates = dim in field.coords and np.issubdtype(field[dim].dtype, np.datetime64)
        said = _about(field, dim, "standard_name") == "time" or _about(field, dim, "axis") == "T"
        if dates or said or dim.lower() in ("time", "t"):
            return dim
    return None


def _bare(field: xr.DataArray) -> xr.DataArray:
    """A field with the names of dimensions and coordinates that it has in the user's data."""
    names = {*map(str, field.dims), *map(str, field.coords)}
    return field.rename({name: name.removeprefix(COARSE) or name for name in names})


def grid_of(field: xr.DataArray) -> Grid:
    """The grid that a field lies on; of one that cannot be told, its last two dimensions.

    Examples
    --------
    >>> grid = grid_of(xr.DataArray(np.zeros((2, 3)), {"x": [1.0, 2.0], "y": [3, 4, 5]}))
    >>> grid.spatial, grid.spherical
    (('y', 'x'), False)
    """
    try:
        return find_grid(field.to_dataset(name="a field"), (), "drawn")
    except ValueError:  # what it lacks is no matter for a picture
        flat = [str(dim) for dim in field.dims][-2:]
    if len(flat) < 2:
        raise UsageError(f"a map needs two horizontal dimensions; this field has {flat}.")
    lines = [np.arange(field.sizes[dim], dtype=float) for dim in flat]
    y, x = (
        Axis(dim, dim, "plane", line, line[:, None] + [-0.5, 0.5])
        for dim, line in zip(flat, lines, strict=True)
    )
    return Lattice(y, x)


def _about(field: xr.DataArray, name: str, attribute: str) -> str:
    """An attribute of a coordinate as a text, whatever a file has made of it."""
    return str(field[name].attrs.get(attribute, "")) if name in field.coords else ""
