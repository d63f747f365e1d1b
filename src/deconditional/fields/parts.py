"""A chunked fine dataset as parts: what a task sees of it, and how the answers come together.

A part is one chunk of all variables. It has a grid of its own, so whatever works on a dataset in
memory works on a part; nothing ever holds all of the fine data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.fine_points import FinePoints, Members, check_mask, members
from deconditional.fields.grids import Grid, shared_lengths
from deconditional.fields.overlap import overlap_areas
from deconditional.fields.question import Question

__all__ = ["Part", "Parts", "Place", "Reader", "check_size", "divided", "reduced"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FAN_IN = 16
"""Answers that are merged at a time."""


class Place(NamedTuple):
    """Where a part lies in the fine data."""

    times: slice
    y: slice
    x: slice


@dataclass(frozen=True)
class Part:
    """One chunk of every variable."""

    place: Place
    points: FinePoints
    others: Floats

    @property
    def shape(self) -> tuple[int, int, int]:
        """Times, rows and columns."""
        return len(self.points.present), *self.points.grid.shape


@dataclass(frozen=True)
class Reader:
    """What every task needs to know to make sense of a chunk; travels once to every worker.

    Attributes
    ----------
    grid, coarse
        The whole fine grid, and the coarse one.
    unit_time : (times of the fine data,)
        The unit time each belongs to, or -1.
    n_unit_times
        How many there are.
    """

    grid: Grid
    coarse: Grid
    question: Question
    unit_time: Ints
    n_unit_times: int

    @property
    def overlaps(self) -> bool:
        """Whether the grids have cells in common."""
        same_kind = self.grid.spherical == self.coarse.spherical
        return same_kind and all(s.any() for s in shared_lengths(self.grid, self.coarse))

    def part(self, place: Place, blocks: Sequence[np.ndarray]) -> Part:
        """The part that some blocks make up: covariates first, then others, the mask last."""
        grid = self.grid.part(*place)
        n_times = place.times.stop - place.times.start
        values = [np.asarray(block, dtype=float).reshape(n_times, -1) for block in blocks]
        share = np.ones(grid.n_cells)
        if self.question.mask:
            share = check_mask(self.question.mask, values.pop()[0])
        n_covariates = len(self.question.covariates)
        stack = np.stack(values, -1) if values else np.zeros((n_times, grid.n_cells, 0))
        stack = np.where(np.isfinite(stack), stack, np.nan)
        covariates, others = stack[..., :n_covariates], stack[..., n_covariates:]
        present = np.isfinite(covariates).all(-1) & (share > 0)
        return Part(place, FinePoints(grid, present, covariates, share), others)

    def members(self, part: Part) -> tuple[Members, Floats]:
        """Memberships of the points of a part, and what the mask takes of every coarse cell."""
        shared = overlap_areas(*shared_lengths(part.points.grid, self.coarse))
        counted = shared.multiply(part.points.share[:, None]).tocsr()
        masked = np.asarray(shared.sum(0) - counted.sum(0)).ravel()
        if part.place.times.start > 0:  # the mask has no time
            masked = np.zeros_like(masked)
        here = self.unit_time[part.place.times]
        found = members(part.points, here, self.n_unit_times, counted, self.coarse.areas)
        return found, masked

    def cells(self, part: Part) -> Ints:
        """The number of every point of a part in the whole fine data, times in turn."""
        time, cell = np.nonzero(part.points.present)
        width = part.points.grid.x.size
        row, column = cell // width + part.place.y.start, cell % width + part.place.x.start
        inside = row * self.grid.x.size + column
        return (time + part.place.times.start) * self.grid.n_cells + inside

    def whole(self, masked: Floats) -> Floats:
        """Areas of coarse cells, less what the mask takes."""
        return np.maximum(self.coarse.areas - masked, 0.0)

    def cover(self, area: Floats, masked: Floats) -> Floats:
        """The share of every unit that fine points cover, from their area in it."""
        counts = np.bincount(self.unit_time[self.unit_time >= 0], minlength=self.n_unit_times)
        full = (np.maximum(counts, 1)[:, None] * self.whole(masked)).ravel()
        return area / np.where(full > 0, full, 1.0)


@dataclass(frozen=True)
class Parts:
    """All parts of a dataset: places, and the blocks of every variable as tasks.

    Attributes
    ----------
    chunks
        Sizes along time, y and x.
    places
        Of the parts, time by time and row by row.
    blocks
        For each part one task for every variable.
    """

    chunks: tuple[tuple[int, ...], ...]
    places: tuple[Place, ...]
    blocks: tuple[tuple[Any, ...], ...]

    def map(self, function: Callable[..., Any], *shared: Any) -> list[Any]:
        """Tasks that call a function with (*shared, place, blocks) for every part."""
        from dask.delayed import delayed

        task = delayed(function, pure=False)
        constants = [delayed(value, pure=False, traverse=False) for value in shared]
        return [
            task(*constants, place, list(blocks))
            for place, blocks in zip(self.places, self.blocks, strict=True)
        ]

    def array(self, tasks: Sequence[Any], leading: int) -> Any:
        """A Dask array, (leading, time, y, x), of tasks that make one block each."""
        import dask.array as da

        pieces = np.empty([len(c) for c in self.chunks], dtype=object)
        for index, task in zip(np.ndindex(*pieces.shape), tasks, strict=True):
            sizes = tuple(c[i] for c, i in zip(self.chunks, index, strict=True))
            pieces[index] = da.from_delayed(task, (leading, *sizes), dtype=float)
        return da.block([pieces.tolist()])


def divided(arrays: Mapping[str, xr.DataArray], grid: Grid) -> Parts:
    """The parts of variables on one grid; those without time or an axis are repeated along it."""
    import dask.array as da

    dims = [d for d in (grid.time, grid.y.name, grid.x.name) if d is not None]
    sizes = dict(zip((grid.y.name, grid.x.name), grid.shape, strict=True))
    if grid.time is not None:
        sizes[grid.time] = grid.n_times
    found = []
    for array in arrays.values():
        if array.dtype.kind == "M":
            array = (array - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "D")
        single = [d for d in array.dims if d == grid.time and array.sizes[d] == 1]
        extra = [d for d in array.dims if d not in dims]
        array = array.squeeze([*single, *extra], drop=True)
        array = array.drop_vars([str(name) for name in array.coords])
        absent = {d: sizes[d] for d in dims if d not in array.dims}
        found.append(array.expand_dims(absent).transpose(*dims))
    chunked = xr.unify_chunks(*(a if a.chunks is not None else a.chunk() for a in found))
    data = [a.data if grid.time is not None else a.data[None] for a in chunked]
    chunks = data[0].chunks
    edges = [np.concatenate([[0], np.cumsum(c)]).tolist() for c in chunks]
    slices = [[slice(a, b) for a, b in pairwise(line)] for line in edges]
    places = tuple(Place(*where) for where in product(*slices))
    tasks = [a.to_delayed(optimize_graph=False).ravel() for a in map(da.asarray, data)]
    return Parts(chunks, places, tuple(zip(*tasks, strict=True)))


def reduced(tasks: Sequence[Any], merge: Callable[[list[Any]], Any]) -> Any:
    """One task that merges the answers of all, a few at a time."""
    from dask.delayed import delayed

    combine = delayed(merge, pure=False)
    level = list(tasks)
    while True:
        level = [combine(level[k : k + FAN_IN]) for k in range(0, len(level), FAN_IN)]
        if len(level) == 1:
            return level[0]


def check_size(parts: Parts, n_values: int) -> None:
    """Raise where a chunk is too large to be worked on."""
    largest = math.prod(max(c) for c in parts.chunks)
    if largest * n_values * 8 > 2**31:
        raise UsageError(
            f"a chunk of the fine data has {largest:,} cells, too many to work on at a time; make "
            "chunks smaller, as in ds.chunk({'lat': 1000, 'lon': 1000})."
        )
