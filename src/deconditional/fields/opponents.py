r"""The simplest answers, which a model has to beat, and the places where all of them are compared.

Held-out coarse cells tell how well a model extrapolates. Downscaling is something else: the mean
over a cell is known and the detail within it is not. *One scale up* the same can be done with known
truth: groups of neighbouring coarse cells give their means, and the cells themselves are predicted
from these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deconditional.fields.axes import Axis, Grid
from deconditional.fields.interpolation import between
from deconditional.fields.pair import Pairing
from deconditional.fields.units import mean_over_times

__all__ = ["BILINEAR", "Coarser", "coarser", "interpolated_held_out", "interpolated_within"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BILINEAR = "bilinear"
"""What bilinear interpolation is called among models."""

SIDE = 2
"""Coarse cells of a group along both axes."""


@dataclass(frozen=True)
class Coarser:
    """Groups of neighbouring observations at the same time, one of several ways to make them.

    Attributes
    ----------
    grid
        The cells of the groups.
    cell : (cells of the observations' grid,)
        The cell of `grid` that each lies in.
    group : (M,)
        The group of every observation.
    area : (M,)
        The area of its cell.
    """

    grid: Grid
    cell: Ints
    group: Ints
    area: Floats

    @property
    def shares(self) -> Floats:
        """What every observation counts in the mean over its group, (G, M)."""
        found = np.zeros((self.group.max() + 1, len(self.group)))
        found[self.group, np.arange(len(self.group))] = self.area
        return found / found.sum(1, keepdims=True)

    @property
    def among(self) -> npt.NDArray[np.bool_]:
        """Whether an observation is one of several of its group; else it is its mean."""
        return np.bincount(self.group)[self.group] > 1


def coarser(pairing: Pairing, used: Ints) -> list[Coarser]:
    """Groups of two by two cells of some observations, in every place that they may begin."""
    grid, unit = pairing.coarse, pairing.observed_unit[used]
    found = []
    for down in range(min(SIDE, grid.y.size)):
        for right in range(min(SIDE, grid.x.size)):
            (y, row), (x, column) = _paired(grid.y, down), _paired(grid.x, right)
            cell = (row[:, None] * x.size + column).ravel()
            n_groups = y.size * x.size
            group = unit // grid.n_cells * n_groups + cell[unit % grid.n_cells]
            _, label = np.unique(group, return_inverse=True)
            area = grid.areas[unit % grid.n_cells]
            found.append(Coarser(replace(grid, y=y, x=x), cell, label, area))
    return found


def _paired(axis: Axis, start: int) -> tuple[Axis, Ints]:
    """The axis of pairs of neighbouring cells, and the pair that each cell is in."""
    place = (np.arange(axis.size) + start) // SIDE
    firsts = np.flatnonzero(np.diff(place, prepend=-1))
    lasts = np.append(firsts[1:], axis.size) - 1
    ends = np.stack([axis.bounds[firsts], axis.bounds[lasts]], axis=1).reshape(len(firsts), -1)
    bounds = np.stack([ends.min(1), ends.max(1)], axis=1)
    return replace(axis, centres=bounds.mean(1), bounds=bounds), place


def interpolated_held_out(pairing: Pairing, used: Ints, z: Floats, fold: Ints) -> Floats:
    """Bilinear interpolation of every observation between those of the other folds."""
    grid, out = pairing.coarse, np.empty(len(used))
    for label in np.unique(fold):
        unseen = np.flatnonzero(fold == label)
        known = np.full(len(pairing.target), np.nan)
        known[pairing.observed_unit[used[fold != label]]] = z[fold != label]
        out[unseen] = _interpolated(
            grid, known.reshape(-1, grid.n_cells), grid, pairing.observed_unit[used[unseen]]
        )
    return out


def interpolated_within(pairing: Pairing, used: Ints, z: Floats, groups: Coarser) -> Floats:
    """Bilinear interpolation of every observation between the means over groups."""
    unit, n_cells = pairing.observed_unit[used], pairing.coarse.n_cells
    time, cell = unit // n_cells, groups.cell[unit % n_cells]
    means = np.full((len(pairing.target) // n_cells, groups.grid.n_cells), np.nan)
    means[time, cell] = (groups.shares @ z)[groups.group]
    return _interpolated(groups.grid, means, pairing.coarse, unit)


def _interpolated(grid: Grid, known: Floats, onto: Grid, unit: Ints) -> Floats:
    """At units of a grid, each time by itself; what is known at no cell of a time, from all."""
    out, n_cells = np.empty(len(unit)), onto.n_cells
    anywhen = mean_over_times(known)
    for time in np.unique(unit // n_cells):
        here = unit // n_cells == time
        values = known[time] if np.isfinite(known[time]).any() else anywhen
        field = between(grid, values.reshape(grid.shape), onto.y.centres, onto.x.centres)
        out[here] = field.ravel()[unit[here] % n_cells]
    return out
