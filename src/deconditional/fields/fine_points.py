"""Fine cells with covariates, and the coarse cells they lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.grids import Grid, check_cells, find_grid, overlap, values_on
from deconditional.fields.question import Question

__all__ = [
    "ROUNDING",
    "FinePoints",
    "Members",
    "check_mask",
    "check_mask_grid",
    "counted_areas",
    "fine_points",
    "members",
    "stacked",
    "weighted_count",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROUNDING = 1e-3
"""Error allowed in shares of a cell: coordinates and masks are often stored in few digits."""


@dataclass(frozen=True)
class FinePoints:
    """Fine cells at their times: positions and covariates where nothing is missing.

    Attributes
    ----------
    present : (times, cells) bool
        Where all covariates are known and the mask, if any, is positive.
    covariates : (times, cells, c)
        Their values.
    share : (cells,)
        The mask; one everywhere without.
    """

    grid: Grid
    present: npt.NDArray[np.bool_]
    covariates: Floats
    share: Floats

    def rows(self, position: bool) -> Floats:
        """Positions and covariates of the cells that are present, times in turn."""
        time, cell = np.nonzero(self.present)
        values = self.covariates[time, cell]
        return np.concatenate([self.grid.positions[cell], values], 1) if position else values


def fine_points(fine: xr.Dataset, question: Question) -> FinePoints:
    """The fine covariates of a dataset."""
    grid = find_grid(fine, question.covariates, "fine", question.dims)
    check_cells(grid, len(question.covariates), "fine")
    values = [values_on(grid, fine, name) for name in question.covariates]
    covariates = stacked(values, grid.n_times, grid.n_cells)
    for k, name in enumerate(question.covariates):
        if np.isnan(covariates[..., k]).all():
            raise UsageError(
                f"the covariate {name!r} is missing everywhere in the fine data; check the data, "
                "or leave it out."
            )
    share = _share(fine, grid, question.mask, question.dims)
    present = np.isfinite(covariates).all(-1) & (share > 0)
    if not share.any():
        raise UsageError(
            f"no fine cell has all covariates and counts: the mask {question.mask!r} is zero or "
            "missing everywhere; check it."
        )
    if not present.any():
        raise UsageError(
            "no fine cell has all covariates: wherever one is known, another is missing. Check "
            "that they lie on the same cells."
        )
    return FinePoints(grid, present, covariates, share)


def _share(
    fine: xr.Dataset, grid: Grid, mask: str | None, dims: Mapping[str, str] | None
) -> Floats:
    if not mask:
        return np.ones(grid.n_cells)
    check_mask_grid(fine, grid, mask, dims)
    own = find_grid(fine, [mask], "fine", dims)
    return check_mask(mask, values_on(own, fine, mask)[0])


def check_mask_grid(
    fine: xr.Dataset, grid: Grid, mask: str, dims: Mapping[str, str] | None
) -> None:
    """Raise where a mask lies on another grid, or has times."""
    own = find_grid(fine, [mask], "fine", dims)
    if (own.y.name, own.x.name) != (grid.y.name, grid.x.name):
        raise UsageError(f"the mask {mask!r} and the covariates lie on different dimensions.")
    if own.n_times > 1:
        raise UsageError(
            f"the mask {mask!r} has {own.n_times} times; it is the same at all, so give one of "
            f"them, as in ds[{mask!r}].isel({own.time}=0)."
        )


def check_mask(name: str, values: Floats) -> Floats:
    """Shares of cells from the values of a mask; raises where they are none."""
    share = np.nan_to_num(values)
    if share.min() < -ROUNDING or share.max() > 1 + ROUNDING:
        raise UsageError(
            f"the mask {name!r} runs from {share.min():.4g} to {share.max():.4g}; it is a share of "
            "the cell, between 0 and 1 (divide percentages by 100)."
        )
    return np.clip(share, 0.0, 1.0)


def stacked(values: Sequence[Floats], n_times: int, n_cells: int) -> Floats:
    """Variables side by side, (times, cells, variables), those without time at all times."""
    if not values:
        return np.zeros((n_times, n_cells, 0))
    return np.stack([np.broadcast_to(v, (n_times, n_cells)) for v in values], axis=-1)


# ---------------------------------------------------------------------- members


def counted_areas(points: FinePoints, coarse: Grid) -> tuple[Any, Floats]:
    """Areas shared by fine and coarse cells, and those of coarse cells, less what is masked out.

    What lies beyond the fine grid counts: nothing is known of a mask there.
    """
    shared = overlap(points.grid, coarse)
    counted = shared.multiply(points.share[:, None]).tocsr()
    masked = np.asarray(shared.sum(0) - counted.sum(0)).ravel()
    return counted, np.maximum(coarse.areas - masked, 0.0)


class Members(NamedTuple):
    """Which fine points belong to which units.

    Attributes
    ----------
    unit, row, area
        For every membership the unit, the row of the fine points, and the area they share.
    cover
        The share of every unit that fine points cover.
    """

    unit: Ints
    row: Ints
    area: Floats
    cover: Floats

    def well_covered(self, least: float) -> Members:
        """Those of the units that are covered enough."""
        kept = (self.cover >= least - ROUNDING)[self.unit]
        return Members(self.unit[kept], self.row[kept], self.area[kept], self.cover)


def members(
    points: FinePoints, unit_time: Ints, n_unit_times: int, areas: Any, whole: Floats
) -> Members:
    """Memberships of fine points in units; `unit_time` is that of every fine time, or -1."""
    n_cells, n_coarse = areas.shape
    row_of = np.full(points.present.size, -1)
    row_of[points.present.ravel()] = np.arange(points.present.sum())
    pairs = areas.tocoo()
    units, rows, shared = [], [], []
    for t, time in enumerate(unit_time):
        row = row_of[t * n_cells + pairs.row]
        used = (row >= 0) & (pairs.data > 0) & (time >= 0)
        units.append(time * n_coarse + pairs.col[used])
        rows.append(row[used])
        shared.append(pairs.data[used])
    unit, area = np.concatenate(units), np.concatenate(shared)
    counts = np.bincount(unit_time[unit_time >= 0], minlength=n_unit_times)
    full = np.maximum(counts, 1)[:, None] * whole
    total = np.bincount(unit, area, minlength=n_unit_times * n_coarse)
    cover = total / np.where(full > 0, full, 1.0).ravel()
    return Members(unit.astype(np.int64), np.concatenate(rows).astype(np.int64), area, cover)


def weighted_count(index: Ints, weights: Floats, n: int) -> Floats:
    """Sums of weights by index, floats also where there are none."""
    return np.bincount(index, weights, minlength=n).astype(np.float64)
