"""Fields on rectilinear grids: which axis is which, where cells end, how far apart they are.

Coordinates keep their own names and order in files; here every field becomes a :class:`Plane`, with
rows from south to north and columns from west to east.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deconditional.errors import visible

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Plane",
    "area_weights",
    "cell_edges",
    "horizontal_dims",
    "is_longitude",
    "plane",
    "time_dim",
]

EARTH_RADIUS = 6371.0
"""In kilometres."""

Floats = npt.NDArray[np.float64]

_METRES = {"m", "metre", "metres", "meter", "meters"}
_EAST = {"degrees_east", "degree_east", "degree_e", "degrees_e", "degreee", "degreese"}
_NORTH = {"degrees_north", "degree_north", "degree_n", "degrees_n", "degreen", "degreesn"}
_X = {"lon", "longitude", "x", "easting"}
_Y = {"lat", "latitude", "y", "northing"}
_X_STANDARD = {"longitude", "projection_x_coordinate", "grid_longitude"}
_Y_STANDARD = {"latitude", "projection_y_coordinate", "grid_latitude"}


@dataclass(frozen=True)
class Plane:
    """A field with rows from south to north and columns from west to east.

    Attributes
    ----------
    values : (rows, columns)
        NaN where there is none.
    x, y
        Centres of the columns and rows, ascending; metres are turned into kilometres.
    x_edges, y_edges
        Their borders, one more than there are centres.
    names
        What to write along x and y.
    geographic
        True where x and y are longitude and latitude in degrees.
    unit
        Unit of the distances between cells; empty where unknown.
    """

    values: Floats
    x: Floats
    y: Floats
    x_edges: Floats
    y_edges: Floats
    names: tuple[str, str]
    geographic: bool
    unit: str

    def distance(self, first: npt.ArrayLike, second: npt.ArrayLike) -> Floats:
        """Distances between cells given by their flat positions, along great circles on Earth.

        Examples
        --------
        >>> cells = plane(np.zeros((2, 3)))
        >>> cells.distance([0, 0], [2, 5])
        array([2.   , 2.236])
        """
        columns = len(self.x)
        row_1, column_1 = np.divmod(np.asarray(first), columns)
        row_2, column_2 = np.divmod(np.asarray(second), columns)
        across = self.x[column_2] - self.x[column_1]
        up = self.y[row_2] - self.y[row_1]
        if not self.geographic:
            return np.hypot(across, up)
        lat_1, lat_2 = np.deg2rad(self.y[row_1]), np.deg2rad(self.y[row_2])
        half = (
            np.sin(np.deg2rad(up) / 2) ** 2
            + np.cos(lat_1) * np.cos(lat_2) * np.sin(np.deg2rad(across) / 2) ** 2
        )
        return 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0)))

    @property
    def aspect(self) -> float:
        """Length on paper of one unit of y over one of x."""
        if not self.geographic:
            return 1.0
        middle = np.deg2rad(0.5 * (self.y_edges[0] + self.y_edges[-1]))
        return float(1.0 / max(np.cos(middle), 0.2))

    @property
    def tallness(self) -> float:
        """Height over width of the whole map on paper."""
        height, width = np.ptp(self.y_edges), np.ptp(self.x_edges)
        return float(self.aspect * height / width)


def plane(field: Any, extent: tuple[float, float, float, float] | None = None) -> Plane:
    """A field as a map; of any dimension besides the horizontal two, the first step.

    Parameters
    ----------
    field
        A DataArray, or an array with rows from south to north.
    extent
        West, east, south and north ends of an array; left out, cells count from zero.

    Examples
    --------
    >>> import xarray as xr
    >>> field = xr.DataArray([[1, 2], [3, 4]], {"lat": [50, 40], "lon": [5, 15]}, ("lat", "lon"))
    >>> drawn = plane(field)
    >>> drawn.values, drawn.y_edges
    (array([[3., 4.], [1., 2.]]), array([35., 45., 55.]))
    """
    if not hasattr(field, "dims"):
        return _plain(np.asarray(field, dtype=float), extent)
    y_dim, x_dim = horizontal_dims(field)
    field = field.isel({dim: 0 for dim in field.dims if dim not in (y_dim, x_dim)})
    field = field.transpose(y_dim, x_dim)
    y, x = _centres(field, y_dim), _centres(field, x_dim)
    geographic = _is_latitude(field, y_dim) and is_longitude(field, x_dim)
    if geographic:
        x = np.unwrap(x, period=360.0)
    up, across = np.argsort(y), np.argsort(x)
    values = np.asarray(field.values, dtype=float)[np.ix_(up, across)]
    x, y = x[across], y[up]
    units = {_about(field, dim).get("units", "") for dim in (y_dim, x_dim) if dim in field.coords}
    unit = visible(units.pop()) if len(units) == 1 else ""
    scale = 1.0
    if geographic:
        names, unit = ("longitude (°E)", "latitude (°N)"), "km"
    else:
        if unit.lower() in _METRES:
            scale, unit = 1e-3, "km"
        suffix = f" ({unit})" if unit else ""
        names = (f"{visible(_bare(x_dim))}{suffix}", f"{visible(_bare(y_dim))}{suffix}")
    y_edges = cell_edges(y)
    if geographic:
        y_edges = np.clip(y_edges, -90.0, 90.0)
    return Plane(
        values,
        x * scale,
        y * scale,
        cell_edges(x) * scale,
        y_edges * scale,
        names,
        geographic,
        unit,
    )


def _plain(values: Floats, extent: tuple[float, float, float, float] | None) -> Plane:
    if values.ndim != 2:
        raise ValueError(f"a map has two dimensions, not the {values.ndim} of this array.")
    rows, columns = values.shape
    west, east, south, north = (0.0, columns, 0.0, rows) if extent is None else extent
    x, y = np.linspace(west, east, columns + 1), np.linspace(south, north, rows + 1)
    return Plane(values, 0.5 * (x[1:] + x[:-1]), 0.5 * (y[1:] + y[:-1]), x, y, ("", ""), False, "")


def cell_edges(centres: npt.ArrayLike) -> Floats:
    """Borders of cells from their centres: half way between, and as far out at the ends.

    Examples
    --------
    >>> cell_edges([0.0, 1.0, 3.0])
    array([-0.5, 0.5, 2. , 4. ])
    >>> cell_edges([7.0])
    array([6.5, 7.5])
    """
    c = np.asarray(centres, dtype=float)
    if len(c) == 1:
        return np.array([c[0] - 0.5, c[0] + 0.5])
    inner = 0.5 * (c[1:] + c[:-1])
    return np.concatenate([[2 * c[0] - inner[0]], inner, [2 * c[-1] - inner[-1]]])


def area_weights(field: xr.DataArray) -> xr.DataArray:
    """Areas of the cells, up to a factor.

    Examples
    --------
    >>> import xarray as xr
    >>> field = xr.DataArray(np.zeros((2, 1)), {"lat": [0.0, 60.0], "lon": [0.0]}, ("lat", "lon"))
    >>> area_weights(field).values
    array([[60.], [30.]])
    """
    y_dim, x_dim = horizontal_dims(field)
    y, x = field[y_dim], field[x_dim]
    height, width = (np.abs(np.diff(cell_edges(axis.values))) for axis in (y, x))
    if _is_latitude(field, y_dim):
        height = height * np.cos(np.deg2rad(y.values.astype(float)))
    return y.copy(data=height) * x.copy(data=width)


def time_dim(field: xr.DataArray) -> str | None:
    """The dimension that is time, if there is one.

    Examples
    --------
    >>> import xarray as xr
    >>> time_dim(xr.DataArray(np.zeros((2, 3)), dims=("month", "y"))) is None
    True
    """
    for dim in map(str, field.dims):
        if dim in field.coords:
            attrs, values = _about(field, dim), field[dim].values
            named = attrs.get("standard_name") == "time" or attrs.get("axis") == "T"
            if named or np.issubdtype(values.dtype, np.datetime64):
                return dim
        if _bare(dim).lower() in ("time", "t"):
            return dim
    return None


def horizontal_dims(field: xr.DataArray) -> tuple[str, str]:
    """The dimensions northward and eastward: by attributes, else by name, else the last two.

    Examples
    --------
    >>> import xarray as xr
    >>> horizontal_dims(xr.DataArray(np.zeros((2, 3, 4)), dims=("lon", "lat", "time")))
    ('lat', 'lon')
    """
    dims = [str(dim) for dim in field.dims]
    ys = [dim for dim in dims if _leads(field, dim, _Y_STANDARD, "Y", _NORTH, _Y)]
    xs = [dim for dim in dims if _leads(field, dim, _X_STANDARD, "X", _EAST, _X)]
    if len(ys) == len(xs) == 1:
        return ys[0], xs[0]
    flat = [dim for dim in dims if dim != time_dim(field)]
    if len(flat) < 2:
        raise ValueError(f"a map needs two horizontal dimensions; this field has {tuple(dims)}.")
    return flat[-2], flat[-1]


def is_longitude(field: xr.DataArray, dim: str) -> bool:
    """Whether a dimension holds longitudes in degrees."""
    return _in_degrees(field, dim, "longitude", _EAST, ("lon", "longitude"))


def _is_latitude(field: xr.DataArray, dim: str) -> bool:
    return _in_degrees(field, dim, "latitude", _NORTH, ("lat", "latitude"))


def _in_degrees(
    field: xr.DataArray, dim: str, standard: str, units: set[str], names: tuple[str, ...]
) -> bool:
    if dim not in field.coords:
        return False
    attrs = _about(field, dim)
    if "standard_name" in attrs:
        return attrs["standard_name"] == standard
    return attrs.get("units", "").lower() in units or _bare(dim).lower() in names


def _leads(
    field: xr.DataArray, dim: str, standard: set[str], axis: str, units: set[str], names: set[str]
) -> bool:
    attrs = _about(field, dim) if dim in field.coords else {}
    if "standard_name" in attrs and attrs["standard_name"] in _X_STANDARD | _Y_STANDARD:
        return attrs["standard_name"] in standard
    if attrs.get("axis") in ("X", "Y"):
        return attrs["axis"] == axis
    return attrs.get("units", "").lower() in units or _bare(dim).lower() in names


def _about(field: xr.DataArray, dim: str) -> dict[str, str]:
    """Attributes of a coordinate as texts, whatever a file has made of them."""
    return {str(name): str(value) for name, value in field[dim].attrs.items()}


def _centres(field: xr.DataArray, dim: str) -> Floats:
    if dim in field.coords:
        return np.asarray(field[dim].values, dtype=float)
    return np.arange(field.sizes[dim], dtype=float)


def _bare(dim: str) -> str:
    return dim.removeprefix("coarse_")
