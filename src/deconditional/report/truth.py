"""The truth in the cells of a result, found by where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.spatial import KDTree

from deconditional.errors import UsageError
from deconditional.fields.axes import Grid, Ints, time_label
from deconditional.fields.clock import time_places
from deconditional.fields.grids import find_grid, values_on

NEAR = 1e-2
"""Share of the distance of neighbours by which places may differ: files have few digits."""


def align_truth(truth: xr.DataArray | xr.Dataset, like: xr.DataArray, target: str) -> xr.DataArray:
    """The truth in the cells and at the times of a result, of any grid that has the same places.

    The truth may be larger than the result and ordered otherwise, its dimensions may have other
    names, and its longitudes may count from -180 or from 0.

    Of a dataset the variable of the target's name is taken; `like` is a variable on the result's
    grid.
    """
    given = truth.to_dataset(name=target) if isinstance(truth, xr.DataArray) else truth
    if target not in given.data_vars:
        raise UsageError(
            f"the truth has no variable {target!r}, the target of the result; its variables are: "
            f"{', '.join(map(str, given.data_vars)) or 'none'}. Rename the one that is meant."
        )
    grid = find_grid(given, [target], "true")
    wanted = find_grid(like.to_dataset(name=target), [target], "result")
    values = values_on(grid, given, target)[_times(grid, wanted)][:, _cells(grid, wanted)]
    shape = [like.sizes[dim] for dim in wanted.dims]
    found = xr.DataArray(values.reshape(shape), dims=wanted.dims).transpose(*like.dims)
    return like.copy(data=found.values).assign_attrs(given[target].attrs).rename(target)


def _cells(grid: Grid, wanted: Grid) -> Ints:
    """The cells of a grid that lie where those of another are; raises where one is missing."""
    seen = replace(grid, seen=wanted.view)  # type: ignore[type-var]
    known = np.flatnonzero(np.isfinite(seen.positions).all(1))
    there = np.isfinite(wanted.positions).all(1)
    places = wanted.positions[there]
    neighbours = KDTree(places).query(places[:: len(places) // 1000 + 1], k=2)[0][:, 1]
    apart, nearest = KDTree(seen.positions[known]).query(np.nan_to_num(wanted.positions))
    absent = there & (apart > NEAR * np.median(neighbours))
    if absent.any():
        first = wanted.centres[np.argmax(absent)]
        place = ", ".join(f"{n} = {v:.6g}" for n, v in zip(wanted.coordinates, first, strict=True))
        raise UsageError(
            f"the truth has no cell at {place}, one of {int(absent.sum())} of {wanted.n_cells} "
            "that it lacks; give the truth on the grid of the result."
        )
    return known[nearest]


def _times(grid: Grid, wanted: Grid) -> Ints:
    """The times of a grid that are those of another; raises where one is missing."""
    if wanted.times is None or grid.times is None:
        if grid.n_times != wanted.n_times:
            raise UsageError(
                f"the truth has {grid.n_times} time(s), the result {wanted.n_times}; give the "
                "truth at the times of the result, as in truth.isel(time=0)."
            )
        return np.arange(grid.n_times)
    places = time_places(wanted.times, grid.times)
    if (places < 0).any():
        missing = time_label(wanted.times[np.argmax(places < 0)])
        raise UsageError(
            f"the truth has no value at time = {missing}, one of {int((places < 0).sum())} of "
            f"{len(places)} that it lacks; give the truth at the times of the result."
        )
    return places
