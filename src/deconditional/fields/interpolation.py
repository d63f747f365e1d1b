"""What a coarse field gives without covariates: bilinear interpolation, the least to beat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr
from scipy.interpolate import RegularGridInterpolator, griddata
from scipy.spatial import QhullError

from deconditional.errors import UsageError
from deconditional.fields.axes import Axis, Floats, Grid, Lattice
from deconditional.fields.grids import find_grid, values_on


def bilinear(coarse: xr.DataArray, like: xr.DataArray) -> xr.DataArray:
    """A coarse field between its cell centres, on the fine grid of another.

    Longitudes that go all around the globe wrap; beyond the outermost centres the nearest value is
    taken. Where cells are missing, values are interpolated linearly over the triangles between
    those that are there.

    Examples
    --------
    >>> def row(n):
    ...     x = (np.arange(n) + 0.5) / n
    ...     coords = {"y": ("y", [0.0, 1.0], {"units": "m"}), "x": ("x", x, {"units": "m"})}
    ...     return xr.DataArray(np.stack([x, x]), coords, ("y", "x"))
    >>> bilinear(row(4), row(8)).values[0, 1:-1].round(4).tolist()
    [0.1875, 0.3125, 0.4375, 0.5625, 0.6875, 0.8125]
    """
    given = coarse.to_dataset(name="field")
    grid = find_grid(given, ["field"], "coarse")
    fine = find_grid(like.to_dataset(name="field"), ["field"], "fine")
    if grid.n_times > 1:
        raise UsageError("interpolate one time at a time: select one with isel(time=...).")
    values = values_on(grid, given, "field")[0].reshape(grid.shape)
    if np.isnan(values).all():
        raise UsageError("the coarse field is missing everywhere, so there is nothing between.")
    if not (
        isinstance(grid, Lattice) and isinstance(fine, Lattice) and grid.frame.same_as(fine.frame)
    ):
        return _over_triangles(grid, values, fine, like)
    (y, x), values = _padded(grid, values)
    at = np.stack(
        [
            np.clip(rows.ravel(), y[0], y[-1])
            if axis == 0
            else _turned(rows.ravel(), x, grid.spherical)
            for axis, rows in enumerate(np.meshgrid(fine.y.centres, fine.x.centres, indexing="ij"))
        ],
        axis=1,
    )
    known = np.isfinite(values)
    if known.all():
        out = RegularGridInterpolator((y, x), values)(at)
    else:
        centres = np.stack([part[known] for part in np.meshgrid(y, x, indexing="ij")], axis=1)
        out = scattered(centres, values[known], at)
    order = [fine.y.name, fine.x.name]
    field = like.transpose(..., *order)
    return xr.DataArray(
        out.reshape(fine.shape), {n: field[n] for n in order if n in field.coords}, order
    )


def _over_triangles(grid: Grid, values: Floats, fine: Grid, like: xr.DataArray) -> xr.DataArray:
    """A field between places in no rows and columns, seen from above the middle of them."""
    known = np.isfinite(values.ravel()) & grid.there
    at = grid.frame.place(fine.frame.into(grid.frame, fine.centres))
    out = scattered(grid.positions[known], values.ravel()[known], np.nan_to_num(at))
    field = like.transpose(..., *fine.spatial)
    shape = [field.sizes[d] for d in fine.spatial]
    coords = {n: v for n, v in field.coords.items() if set(v.dims) <= set(fine.spatial)}
    return xr.DataArray(out.reshape(shape), coords, fine.spatial)


def scattered(places: Floats, values: Floats, at: Floats) -> Floats:
    """Values at positions, linear over the triangles between others; beyond, the nearest."""
    maps = _from_above(places)
    given, wanted = maps(places), maps(at)
    try:
        out = griddata(given, values, wanted, "linear")
    except (QhullError, ValueError):  # no triangles: too few places, or all of them on one line
        out = np.full(len(at), np.nan)
    gaps = np.isnan(out)
    if gaps.any():
        out[gaps] = griddata(given, values, wanted[gaps], "nearest")
    return out


def _from_above(places: Floats) -> Callable[[Floats], Floats]:
    """A map on which triangles are looked for: that of a plane, or a stereographic projection."""
    if places.shape[1] == 2:
        return lambda p: p
    middle = places.mean(0)
    turn = np.linalg.svd(np.eye(3) - np.outer(middle, middle) / (middle @ middle))[0][:, :2]
    up = middle / np.linalg.norm(middle)
    return lambda p: (p @ turn) / np.maximum(1.0 + p @ up, 1e-6)[:, None]


def _padded(grid: Lattice, values: Floats) -> tuple[tuple[Floats, Floats], Floats]:
    """Ascending axes; all around the globe a copy of the columns on either side."""
    y, values = _ascending(grid.y, values, 0)
    x, values = _ascending(grid.x, values, 1)
    if grid.spherical and np.diff(grid.x.bounds).sum() > 359.0:
        x = np.concatenate([x - 360.0, x, x + 360.0])
        values = np.concatenate([values] * 3, axis=1)
    return (y, x), values


def _ascending(axis: Axis, values: Floats, along: int) -> tuple[Floats, Floats]:
    if axis.centres[0] <= axis.centres[-1]:
        return axis.centres, values
    return axis.centres[::-1], np.flip(values, along)


def _turned(x: Floats, ends: Floats, spherical: bool) -> Floats:
    """Longitudes brought near the middle of the axis; all held to the outermost centres."""
    if spherical:
        middle = 0.5 * (ends[0] + ends[-1])
        x = middle + np.mod(x - middle + 180.0, 360.0) - 180.0
    return np.clip(x, ends[0], ends[-1])
