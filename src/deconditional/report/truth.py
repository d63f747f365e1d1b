"""The truth on the grid of a result, cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats, Ints, Lattice
from deconditional.report.grids import grid_of
from deconditional.report.result import floats


def align_truth(truth: xr.DataArray | xr.Dataset, like: xr.DataArray, target: str) -> xr.DataArray:
    """The truth in the order of the result's own grid, found by its coordinates.

    The truth may be larger than the result and ordered otherwise, and its longitudes may count
    from -180 or from 0.

    Parameters
    ----------
    truth
        The field, or a dataset with a variable of the target's name.
    like
        A variable on the result's grid.
    target
        Name of the target.
    """
    given = _variable(truth, target)
    single = [dim for dim in given.dims if dim not in like.dims and given.sizes[dim] == 1]
    placed = given.squeeze(single, drop=True).expand_dims(
        [dim for dim in like.dims if dim not in given.dims and like.sizes[dim] == 1]
    )
    if set(placed.dims) != set(like.dims):
        raise UsageError(
            f"the truth has the dimensions {_listed(given.dims)}, the result {_listed(like.dims)}; "
            "give the truth on the grid of the result."
        )
    for dim in like.dims:
        placed = placed.isel({dim: _places(placed, like, str(dim))})
    values = floats(placed.transpose(*like.dims))
    return like.copy(data=values).assign_attrs(given.attrs).rename(target)


def _variable(truth: xr.DataArray | xr.Dataset, target: str) -> xr.DataArray:
    """The target's variable of a dataset; a single field as it is."""
    if isinstance(truth, xr.DataArray):
        return truth
    if target in truth.data_vars:
        return truth[target]
    raise UsageError(
        f"the truth has no variable {target!r}, the target of the result; its variables are: "
        f"{_listed(truth.data_vars) or 'none'}. Rename the one that is meant."
    )


def _places(truth: xr.DataArray, like: xr.DataArray, dim: str) -> Ints:
    """Positions along the truth's dimension of the values of the result's."""
    if dim not in truth.coords or dim not in like.coords:
        if truth.sizes[dim] == like.sizes[dim]:
            return np.arange(like.sizes[dim])
        raise UsageError(
            f"the truth has {truth.sizes[dim]} values along {dim!r}, the result {like.sizes[dim]}, "
            "and without coordinates they cannot be matched; give both their coordinates."
        )
    have, wanted = truth[dim].values, like[dim].values
    if np.issubdtype(have.dtype, np.number) and np.issubdtype(wanted.dtype, np.number):
        places = _nearest(have.astype(float), wanted.astype(float), _is_longitude(like, dim))
    else:
        known = {value: place for place, value in enumerate(truth.indexes[dim])}
        places = np.array([known.get(value, -1) for value in like.indexes[dim]])
    if (places < 0).any():
        missing = wanted[np.argmax(places < 0)]
        raise UsageError(
            f"the truth has no value at {dim} = {missing}, one of {int((places < 0).sum())} of "
            f"{len(wanted)} that it lacks; give the truth on the grid of the result."
        )
    return places


def _is_longitude(field: xr.DataArray, dim: str) -> bool:
    """Whether a dimension of a field on a sphere goes around it."""
    if field.ndim < 2:
        return False
    grid = grid_of(field)
    return isinstance(grid, Lattice) and grid.x.name == dim and grid.x.kind == "longitude"


def _nearest(have: Floats, wanted: Floats, around: bool) -> Ints:
    """Position of the value that is the same but for rounding; -1 where there is none.

    Degrees around a sphere are first counted from half a turn west of the middle of those wanted.
    """
    if not len(have):
        return np.full(len(wanted), -1)
    if around:
        wanted = np.unwrap(wanted, period=360.0)
        west = 0.5 * (wanted.min() + wanted.max()) - 180.0
        have, wanted = (west + (values - west) % 360.0 for values in (have, wanted))
    steps = np.diff(np.unique(wanted))
    # Coordinates are often stored in single precision.
    rounding = 4 * np.finfo(np.float32).eps * np.abs(wanted)
    tolerance = np.maximum(1e-3 * steps.min(), rounding) if steps.size else rounding
    values, place = np.unique(have, return_index=True)
    nearest = pd.Index(values).get_indexer(wanted, method="nearest", tolerance=tolerance)
    return np.where(nearest < 0, -1, place[nearest])


def _listed(names: Any) -> str:
    return ", ".join(map(str, names))
