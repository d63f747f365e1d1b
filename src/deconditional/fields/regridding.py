"""Fine data of several grids on one: resampled by the areas that cells share, and that is said.

Values become means over the cells of the first grid, amounts are shared out, so that their total
stays. Nothing is interpolated: a cell of a coarser grid gives its value to all finer ones in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.sparse import csr_array

from deconditional.errors import UsageError
from deconditional.fields.axes import Grid, Lattice
from deconditional.fields.frames import GEOGRAPHIC, Frame
from deconditional.fields.grids import find_grid, laid_out
from deconditional.fields.overlap import overlap

Floats = npt.NDArray[np.float64]

LEAST_KNOWN = 0.5
"""Share of a cell in which a value must be known."""

WITHIN = 0.99
"""Share of a cell from which on it counts as lying within the cells it is shared out to."""


def together(
    datasets: Sequence[Any], amounts: Collection[str | None] = ()
) -> tuple[xr.Dataset, tuple[tuple[str, str], ...]]:
    """Several datasets on the grid of the first, and what was done to them in words.

    They have different variables, each set a grid of its own. `amounts` are so much in every cell,
    such as people: their total is kept.
    """
    first, *others = (_as_dataset(each) for each in datasets)
    goal = find_grid(first, _fields(first), "fine")
    said: list[tuple[str, str]] = []
    for each in others:
        names = _fields(each)
        twice = [name for name in names if name in first]
        if twice:
            raise UsageError(f"two of the fine datasets have a variable {twice[0]!r}; drop one.")
        grid = find_grid(each, names, "fine")
        if grid.frame.known != goal.frame.known:
            one, other = ", ".join(names), ", ".join(_fields(first))
            without, within = (other, one) if grid.frame.known else (one, other)
            raise UsageError(
                f"the fine data with {without} has no CRS, and that with {within} has one, so it "
                "is not known how they lie on each other; name it, as in ds.rio.write_crs('EPSG:"
                "32633')."
            )
        if grid.same_as(goal) and grid.spatial == goal.spatial:
            first = first.merge(each[names].drop_vars(set(each.coords)), join="exact")
            continue
        if any(each[name].chunks is not None for name in names):
            raise UsageError(
                f"{', '.join(names)} lie on another grid than the first fine data, and in chunks; "
                "load them, or bring them to one grid with odc-geo or rioxarray first."
            )
        shared, size = _shared(grid, goal)
        for name in names:
            is_amount = name in amounts
            found, words = _resampled(each, name, grid, (shared, size), is_amount)
            dims = ((grid.time,) if found.ndim == 2 else ()), goal.spatial
            shape = (*found.shape[:-1], *goal.shape[-len(goal.spatial) :])
            first[name] = ((*dims[0], *dims[1]), found.reshape(shape), each[name].attrs)
            said.append(("resampled", f"{name} brought to the cells of the first fine data{words}"))
    return first, tuple(said)


def _as_dataset(data: Any) -> xr.Dataset:
    if isinstance(data, xr.DataArray) and data.name is not None:
        data = data.to_dataset()
    if not isinstance(data, xr.Dataset):
        raise UsageError(
            "each of several fine data must be an xarray Dataset, or a DataArray with a name, not "
            f"{type(data).__name__}."
        )
    return data.copy()


def _fields(data: xr.Dataset) -> list[str]:
    """Variables with cells, grid mappings and bounds left out."""
    bounds = {str(v.attrs.get("bounds")) for v in data.variables.values()}
    return [str(n) for n, v in data.data_vars.items() if v.ndim >= 2 and str(n) not in bounds]


def _shared(grid: Grid, goal: Grid) -> tuple[csr_array, Floats]:
    """Areas that cells of a grid (rows) share with those of the goal, and areas of the former."""
    aligned = isinstance(grid, Lattice) and isinstance(goal, Lattice)
    if not grid.frame.same_as(goal.frame) and _typical(grid) > _typical(goal):
        # Larger cells than those of the goal would be shared out by too few points within them.
        seen: Frame | None = goal.frame
        sizes = replace(grid, seen=seen).areas  # type: ignore[type-var]
        return csr_array(overlap(goal, grid).T), sizes
    if not aligned and _typical(grid) > _typical(goal):
        return csr_array(overlap(goal, grid).T), grid.areas
    return overlap(grid, goal), grid.areas


def _typical(grid: Grid) -> float:
    """The typical area of a cell on the globe, or on a plane that is nowhere."""
    if grid.frame.geographic or not grid.frame.known:
        return float(np.median(grid.areas))
    return float(np.median(replace(grid, seen=GEOGRAPHIC).areas))  # type: ignore[type-var]


def _resampled(
    data: xr.Dataset, name: str, grid: Grid, link: tuple[csr_array, Floats], is_amount: bool
) -> tuple[Floats, str]:
    """A variable on the cells of the goal, (..., cells), and words on its total."""
    shared, size = link
    values = np.asarray(laid_out(grid, data[name]).values, dtype=float)
    values = values.reshape(*values.shape[: values.ndim - len(grid.spatial)], grid.n_cells)
    known = np.isfinite(values)
    filled, all_there = np.where(known, values, 0.0), np.asarray(shared.sum(0)).ravel()
    there = known.astype(float) @ shared
    if is_amount:
        inside = np.asarray(shared.sum(1)).ravel()
        # Areas in another projection are near: of a cell that lies within, all is shared out.
        size = np.where(inside > WITHIN * size, inside, size)
        found = (filled / np.where(size > 0, size, 1.0)) @ shared
        found = np.where(there > 0, found, np.nan)
        return found, f", {filled.sum():.8g} in all, {np.nansum(found):.8g} within these cells"
    enough = (there > 0) & (there >= LEAST_KNOWN * all_there)
    found = np.where(enough, (filled @ shared) / np.where(there > 0, there, 1.0), np.nan)
    return found, ", as means by area"
