"""A part of the fine data: which of its cells count, and in which units they lie.

A unit is a coarse cell, or a coarse cell at a time. A part has a grid of its own, so whatever works
on one part works on all of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError
from deconditional.fields.axes import Flags, Floats, Grid, Ints
from deconditional.fields.clock import Clock
from deconditional.fields.overlap import overlap
from deconditional.fields.question import Question

ROUNDING = 1e-3
"""Error allowed in shares of a cell: coordinates and masks are often stored in few digits."""

UNMARKED = 1e19
"""Files mark missing values by 1e20, 9.97e36 and the like. Where the mark is not declared, values
of this size stand beside ordinary ones."""


class Extent(NamedTuple):
    """Where a part lies in the fine data."""

    times: slice
    y: slice
    x: slice


class Memberships(NamedTuple):
    """Which fine points belong to which units: for each the unit, the point, the area they share.

    Points are counted among those of a part that are present, times in turn. The amount is what
    lies in that area: the area itself, unless there is an exposure.
    """

    unit: Ints
    row: Ints
    area: Floats
    amount: Floats

    def take(self, which: npt.NDArray[Any]) -> Memberships:
        """Some of the memberships."""
        return Memberships(*(column[which] for column in self))


@dataclass(frozen=True)
class Part:
    """One chunk of every variable, or all that is in memory: cells and what is known there."""

    reader: Reader
    place: Extent
    # (times, cells, ...): values of the covariates, and of further variables, NaN where missing.
    covariates: Floats
    others: Floats
    present: Flags  # (times, cells): where something is known, and the mask, if any, is positive
    share: Floats  # (cells,): the mask; one everywhere without
    # (times, cells): the exposure of a cell over its area; None without exposure.
    density: Floats | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Times, rows and columns."""
        return len(self.present), *self.grid.shape

    @cached_property
    def grid(self) -> Grid:
        """The grid of the part."""
        return self.reader.grid.cut(*self.place)

    @cached_property
    def _shared(self) -> tuple[Any, Floats]:
        """Areas shared by fine and coarse cells that count, and what the mask takes of the latter.

        What lies beyond the fine grid counts: nothing is known of a mask there.
        """
        shared = overlap(self.grid, self.reader.coarse)
        counted = shared.multiply(self.share[:, None]).tocsr()
        masked = np.asarray(shared.sum(0) - counted.sum(0)).ravel()
        return counted, masked

    @property
    def areas(self) -> Any:
        """Areas shared by fine cells (rows) and coarse cells (columns), less what is masked out."""
        return self._shared[0]

    @property
    def masked(self) -> Floats:
        """What the mask takes of every coarse cell; it has no time, so the first part says it."""
        masked = self._shared[1]
        return np.zeros_like(masked) if self.place.times.start > 0 else masked

    @cached_property
    def memberships(self) -> Memberships:
        """Memberships of all points in units."""
        n_cells, n_coarse = self.areas.shape
        row_of = np.full(self.present.size, -1)
        row_of[self.present.ravel()] = np.arange(self.present.sum())
        pairs, is_point = self.areas.tocoo(), self.reader.coarse.is_point
        columns = []
        for t, time in enumerate(self.reader.unit_time[self.place.times]):
            row = row_of[t * n_cells + pairs.row]
            used = (row >= 0) & (pairs.data > 0) & (time >= 0)
            area, unit = pairs.data[used], time * n_coarse + pairs.col[used]
            of_area = 1.0 if self.density is None else self.density[t][pairs.row[used]]
            dense = np.where(is_point[pairs.col[used]], 1.0, of_area)
            columns.append((unit, row[used], area, area * dense))
        unit, row, area, amount = (np.concatenate(column) for column in zip(*columns, strict=True))
        return Memberships(unit.astype(np.int64), row.astype(np.int64), area, amount)

    @property
    def amount(self) -> float:
        """The exposure of all cells at all times, what the mask takes left out."""
        if self.density is None:
            return 0.0
        return float((self.density * self.grid.areas * self.share).sum())

    @cached_property
    def numbers(self) -> Ints:
        """The number of every point in the whole fine data, times in turn."""
        time, cell = np.nonzero(self.present)
        width, whole = self.grid.shape[1], self.reader.grid
        row, column = cell // width + self.place.y.start, cell % width + self.place.x.start
        return (time + self.place.times.start) * whole.n_cells + row * whole.shape[1] + column

    @property
    def known(self) -> Ints:
        """Number of cells in which each covariate is known."""
        return np.isfinite(self.covariates).sum((0, 1))

    def check_known(self) -> None:
        """Raise where nothing can be predicted in any cell."""
        n_counted, n_present = int((self.share > 0).sum()), int(self.present.sum())
        check_known(self.reader.question, self.known, n_counted, n_present)

    @cached_property
    def points(self) -> Floats:
        """Positions, if these are asked for, times and covariates of the cells that are present."""
        time, cell = np.nonzero(self.present)
        reader, columns = self.reader, [self.covariates[time, cell]]
        times = self.grid.times
        if times is not None:
            columns.insert(0, reader.clock(times)[time])
        if reader.question.position:
            columns.insert(0, self.grid.positions[cell])
        return np.concatenate(columns, 1)


@dataclass(frozen=True)
class Reader:
    """What every task needs to know to make sense of a chunk."""

    # grid, coarse: the whole fine grid, and the coarse one.
    grid: Grid
    coarse: Grid
    question: Question
    unit_time: Ints  # (times of the fine data,): the unit time each belongs to, or -1
    n_unit_times: int  # how many there are
    clock: Clock  # what times are as inputs

    @property
    def n_units(self) -> int:
        """Number of units."""
        return self.n_unit_times * self.coarse.n_cells

    def part(self, place: Extent, arrays: Sequence[np.ndarray]) -> Part:
        """The part that some arrays make up: covariates, then others, exposure and mask last."""
        n_times = place.times.stop - place.times.start
        n_cells = self.grid.cut(*place).n_cells
        values = [np.asarray(a, dtype=float).reshape(-1, n_cells) for a in arrays]
        mask = values.pop()[0] if self.question.mask else None
        exposure = values.pop() if self.question.exposure else None
        question = self.question
        for name, array in zip(question.inputs, values, strict=False):
            check_marks(array, name)
        stack = np.full((n_times, n_cells, len(values)), np.nan)
        for k, array in enumerate(values):
            stack[..., k] = np.where(np.isfinite(array), array, np.nan)
        n_inputs = len(question.inputs)
        covariates, others = stack[..., :n_inputs], stack[..., n_inputs:]
        for k, name in enumerate(question.split, len(question.covariates)):
            covariates[..., question.covariates.index(name)] -= covariates[..., k]
        return self.of_cells(place, covariates, others, mask, exposure)

    def of_cells(
        self,
        place: Extent,
        covariates: Floats,
        others: Floats,
        mask: Floats | None,
        exposure: Floats | None = None,
    ) -> Part:
        """The part whose cells count where all covariates are known, as far as a mask has them."""
        known = np.asarray(np.isfinite(covariates).all(-1))
        share = np.ones(known.shape[1]) if mask is None else self._share(mask)
        grid = self.grid.cut(*place)
        density = None if exposure is None else self._density(exposure, grid, known.shape)
        present = known & (share > 0) & grid.there
        return Part(self, place, covariates, others, present, share, density)

    def _density(self, exposure: Floats, grid: Grid, shape: tuple[int, ...]) -> Floats:
        """Exposure over area, zero where it is missing; raises where it is no amount."""
        name = str(self.question.exposure)
        check_marks(exposure, name)
        low = float(np.nanmin(exposure, initial=0.0))
        if low < 0:
            raise UsageError(
                f"the exposure {name!r} falls to {low:.6g}; it is an amount, from zero on. If that "
                "marks missing values, set _FillValue (nodata), or make them NaN."
            )
        areas = np.broadcast_to(grid.areas, shape)
        amount = np.broadcast_to(np.nan_to_num(exposure, posinf=0.0), shape)
        return np.asarray(amount / np.where(areas > 0, areas, 1.0))

    def _share(self, mask: Floats) -> Floats:
        """Shares of cells from the values of the mask; raises where they are none."""
        share = np.nan_to_num(mask)
        if share.min() < -ROUNDING or share.max() > 1 + ROUNDING:
            raise UsageError(
                f"the mask {self.question.mask!r} runs from {share.min():.4g} to "
                f"{share.max():.4g}; it is a share of the cell, between 0 and 1 (divide "
                "percentages by 100)."
            )
        return np.clip(share, 0.0, 1.0)

    def cover(self, area: Floats, masked: Floats) -> Floats:
        """The share of every unit that fine points cover, from their area in it."""
        counts = np.bincount(self.unit_time[self.unit_time >= 0], minlength=self.n_unit_times)
        left = np.maximum(self.coarse.areas - masked, 0.0)
        full = (np.maximum(counts, 1)[:, None] * left).ravel()
        return area / np.where(full > 0, full, 1.0)

    def enough(self, area: Floats, masked: Floats) -> Flags:
        """Whether fine points cover as much of every unit as was asked for."""
        return (area > 0) & (self.cover(area, masked) >= self.question.min_cover - ROUNDING)


def check_marks(values: Floats, name: str) -> None:
    """Raise where marks of missing values have been read as values."""
    sizes = np.abs(values[np.isfinite(values)])
    largest = sizes.max(initial=0.0)
    if largest < UNMARKED:
        return
    ordinary = sizes[sizes < 1e-6 * largest]
    if ordinary.size:
        raise UsageError(
            f"{name!r} holds values up to {largest:.4g} beside values of {np.median(ordinary):.4g} "
            "and less: marks of missing values that the file does not declare. Set the attribute "
            "_FillValue of the variable, or make them NaN."
        )


def check_known(question: Question, known: Ints, n_counted: int, n_present: int) -> None:
    """Raise where a covariate, or every cell with all of them, is missing everywhere.

    `known` has the cells in which each covariate is known; `n_counted` cells are left by the mask,
    `n_present` of them have all covariates.
    """
    for name, n in zip(question.inputs, known, strict=True):
        if not n:
            raise UsageError(
                f"the covariate {name!r} is missing everywhere in the fine data; check the data, "
                "or leave it out."
            )
    if not n_counted:
        raise UsageError(
            f"no fine cell has all covariates and counts: the mask {question.mask!r} is zero or "
            "missing everywhere; check it."
        )
    if not n_present:
        raise UsageError(
            "no fine cell has all covariates: wherever one is known, another is missing. Check "
            "that they lie on the same cells."
        )
