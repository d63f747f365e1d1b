r"""Where models are compared with simple answers, and these: linear interpolation, regression.

Both kinds of :class:`Trial` say some linear functions of the observations and ask for others.

*Held-out cells.* The other cells are known. That tells how well a model extrapolates.

*Held-out detail.* Downscaling is something else: the mean over a cell is known and the detail
within it is not. With groups of two by two coarse cells for a cell the same can be done with known
truth. In one region after the other the means over groups are known in place of the cells, which
are asked for; elsewhere the cells are known, so that what covariates have to do with the target can
be learnt as well as from all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.interpolate import RegularGridInterpolator, griddata
from scipy.spatial import QhullError
from sklearn.cluster import KMeans

from deconditional.errors import UsageError
from deconditional.fields.axes import Flags, Floats, Ints, Lattice
from deconditional.fields.grids import find_grid, values_on
from deconditional.fields.pair import Pairing

BILINEAR = "bilinear"
"""What linear interpolation is called among models."""

REGRESSION = "regression"
"""What a linear regression on covariates, its residuals interpolated, is called."""

SIDE = 2
"""Coarse cells of a group along both axes."""


class Trial(NamedTuple):
    """What is known of the observations, and which of them are asked for.

    Attributes
    ----------
    shares : (K, M)
        The weights of the observations in each mean that is known.
    asked : (M,)
        Those to predict.
    """

    shares: Floats
    asked: Flags


def others(fold: Ints) -> Iterator[Trial]:
    """Every fold from the observations of the other folds."""
    single = np.eye(len(fold))
    for label in np.unique(fold):
        yield Trial(single[fold != label], fold == label)


def detail(pairing: Pairing, used: Ints, regions: int, seed: int) -> Iterator[Trial]:
    """The cells of every region from means over groups of them, and from the cells elsewhere.

    Points in no order have no neighbours, so there is nothing to ask.
    """
    grid, unit = pairing.coarse, pairing.observed_unit[used]
    if 1 in grid.shape and not isinstance(grid, Lattice):
        return
    time, cell = np.divmod(unit, grid.n_cells)
    row, column = np.divmod(cell, grid.shape[1])
    places, single = grid.positions[cell], np.eye(len(unit))
    for region in range(regions):  # groups begin elsewhere in each
        down, right = divmod(region, SIDE)
        pair = (row + down) // SIDE, (column + right) // SIDE, time
        _, group = np.unique(np.stack(pair), axis=1, return_inverse=True)
        shares = np.zeros((group.max() + 1, len(unit)))
        shares[group, np.arange(len(unit))] = grid.areas[cell]
        shares /= shares.sum(1, keepdims=True)
        centres = shares @ places
        apart = np.unique((centres / np.abs(centres).max()).round(9), axis=0)
        n = min(regions, len(apart))
        inside = KMeans(n, n_init=1, random_state=seed).fit_predict(centres) == region
        asked = inside[group] & (np.bincount(group)[group] > 1)
        if asked.any():
            yield Trial(np.concatenate([shares[inside], single[~inside[group]]]), asked)


def interpolated(
    pairing: Pairing, used: Ints, z: Floats, trial: Trial, covariates: Floats | None = None
) -> Floats:
    """Values asked for, interpolated linearly between what is known, each time by itself.

    Of a time at which nothing is known, cells have their mean over all times. With means of
    `covariates`, (M, c), what a linear regression on them leaves is interpolated.
    """
    if covariates is not None:
        x = np.column_stack([np.ones(len(z)), covariates])
        slopes = np.linalg.lstsq(trial.shares @ x, trial.shares @ z, rcond=None)[0]
        left = interpolated(pairing, used, z - x @ slopes, trial)
        return np.asarray(x[trial.asked] @ slopes + left)
    grid, unit = pairing.coarse, pairing.observed_unit[used]
    time, cell = np.divmod(unit, grid.n_cells)
    places = grid.positions[cell]
    centres, values = trial.shares @ places, trial.shares @ z
    moment = time[trial.shares.argmax(1)]
    out = np.empty(int(trial.asked.sum()))
    for now in np.unique(time[trial.asked]):
        here = moment == now if (moment == now).any() else np.ones(len(moment), dtype=bool)
        asked = trial.asked & (time == now)
        found, index = np.unique(centres[here], axis=0, return_inverse=True)
        means = np.bincount(index, values[here]) / np.bincount(index)
        out[(time == now)[trial.asked]] = scattered(found, means, places[asked])
    return out


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
    lattices = isinstance(grid, Lattice) and isinstance(fine, Lattice)
    if lattices and grid.frame.same_as(fine.frame):
        out = _between_lines(grid, values, fine)
    else:  # seen from above the middle of places in no rows and columns
        known = np.isfinite(values.ravel()) & grid.there
        at = grid.frame.place(fine.frame.into(grid.frame, fine.centres))
        out = scattered(grid.positions[known], values.ravel()[known], np.nan_to_num(at))
    field = like.transpose(..., *fine.spatial)
    coords = {n: v for n, v in field.coords.items() if set(v.dims) <= set(fine.spatial)}
    return xr.DataArray(out.reshape([field.sizes[d] for d in fine.spatial]), coords, fine.spatial)


def _between_lines(grid: Any, values: Floats, fine: Any) -> Floats:
    """Values of a lattice between its rows and columns, at the centres of another, row by row."""
    lines = {"y": grid.y.centres, "x": grid.x.centres}
    field, x = xr.DataArray(values, lines, ("y", "x")).sortby(["y", "x"]), fine.x.centres
    if grid.spherical and np.diff(grid.x.bounds).sum() > 359.0:  # a copy on either side
        turns = (-360.0, 0.0, 360.0)
        field = xr.concat([field.assign_coords(x=field.x + turn) for turn in turns], "x")
    south, north = field.y.values[[0, -1]]
    west, east = field.x.values[[0, -1]]
    if grid.spherical:
        middle = 0.5 * (west + east)
        x = middle + np.mod(x - middle + 180.0, 360.0) - 180.0
    y, x = np.clip(fine.y.centres, south, north), np.clip(x, west, east)
    at = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1).reshape(-1, 2)
    known = field.stack(cell=("y", "x")).dropna("cell")
    if known.size == field.size:
        return RegularGridInterpolator((field.y, field.x), field.values)(at)
    return scattered(np.column_stack([known.y, known.x]), known.values, at)


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
