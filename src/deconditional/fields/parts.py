"""Fine data as parts, each worked on by itself: one in memory, or one for every chunk.

Nothing ever holds more of chunked data than a few parts. What is in memory is one part, so both go
one road. Parts of chunked data are tasks of Dask, and what a task needs beside its chunk travels
once to every worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats
from deconditional.fields.cluster import limit_threads
from deconditional.fields.grids import laid_out
from deconditional.fields.part import Extent, Part, Reader

Merge = Callable[[list[Any]], Any]

FAN_IN = 16
"""Answers that are merged at a time."""

LARGEST_CHUNK = 2**31
"""Bytes of all variables in a chunk, at most."""


@dataclass(frozen=True)
class Parts:
    """All parts of a dataset: places, and the arrays of every variable."""

    reader: Reader
    chunks: tuple[tuple[int, ...], ...]  # sizes along time, y and x
    places: tuple[Extent, ...]  # of the parts, time by time and row by row
    # For each part one array for every variable, or one task that makes it.
    arrays: tuple[tuple[Any, ...], ...]
    lazy: bool  # whether they are tasks; what is in memory is one part

    @classmethod
    def of(cls, variables: Mapping[str, xr.DataArray], reader: Reader, lazy: bool) -> Parts:
        """The parts of variables on the grid of the reader, in the order it expects."""
        grid = reader.grid
        given = [laid_out(grid, variable) for variable in variables.values()]
        if not lazy:
            sizes = (grid.n_times, *grid.shape)
            place = Extent(*(slice(0, n) for n in sizes))
            arrays = tuple(variable.values for variable in given)
            return cls(reader, tuple((n,) for n in sizes), (place,), (arrays,), False)
        import dask.array as da

        sizes_of = dict(zip(grid.spatial[::-1], grid.shape[::-1], strict=False))
        sizes_of |= {} if grid.time is None else {grid.time: grid.n_times}
        given = [
            v.expand_dims({d: n for d, n in sizes_of.items() if d not in v.dims}).transpose(
                *grid.dims
            )
            for v in given
        ]
        chunked = xr.unify_chunks(*(v if v.chunks is not None else v.chunk() for v in given))
        data = [grid.full(v.data) for v in chunked]
        chunks = data[0].chunks
        _check_size(chunks, len(given))
        edges = [np.concatenate([[0], np.cumsum(c)]).tolist() for c in chunks]
        slices = [[slice(a, b) for a, b in pairwise(line)] for line in edges]
        places = tuple(Extent(*where) for where in product(*slices))
        tasks = [a.to_delayed(optimize_graph=False).ravel() for a in map(da.asarray, data)]
        return cls(reader, chunks, places, tuple(zip(*tasks, strict=True)), True)

    @cached_property
    def only(self) -> Part:
        """The one part of what is in memory."""
        return self.reader.part(self.places[0], self.arrays[0])

    def same_as(self, other: Parts) -> bool:
        """Whether two datasets in memory have the same cells, mask and covariates."""
        if self.lazy or other.lazy or not self.reader.grid.same_as(other.reader.grid):
            return False
        one, two = self.only, other.only
        return np.array_equal(one.share, two.share) and np.array_equal(
            one.covariates, two.covariates, equal_nan=True
        )

    def gather(self, work: Callable[..., Any], merge: Merge, *more: Any) -> Any:
        """What a function of a part, and of more, answers for every part, merged; computed now."""
        if not self.lazy:
            return work(self.only, *more)
        from dask.base import compute

        limit_threads()
        (answer,) = compute(merged(self._tasks(work, *more), merge))
        return answer

    def stack(self, work: Callable[..., Floats], leading: int, *more: Any) -> Any:
        """A Dask array (leading, time, y, x) of what a function makes for every chunk."""
        import dask.array as da

        limit_threads()
        pieces = np.empty([len(c) for c in self.chunks], dtype=object)
        for index, task in zip(np.ndindex(*pieces.shape), self._tasks(work, *more), strict=True):
            sizes = tuple(c[i] for c, i in zip(self.chunks, index, strict=True))
            pieces[index] = da.from_delayed(task, (leading, *sizes), dtype=float)
        return da.block([pieces.tolist()])

    def _tasks(self, work: Callable[..., Any], *more: Any) -> list[Any]:
        from dask.delayed import delayed

        task = delayed(partial(_worked, work), pure=False)
        reader, *shared = (delayed(v, pure=False, traverse=False) for v in (self.reader, *more))
        return [
            task(reader, place, list(arrays), *shared)
            for place, arrays in zip(self.places, self.arrays, strict=True)
        ]

    def area_means(self, field: Any) -> Any:
        """Means over all units, (units,), of a field (time, y, x) with the chunks of the parts.

        NaN where too little of a unit is covered. Of a Dask array the means are one too.
        """
        if not self.lazy:
            values = field.reshape(len(field), -1)
            return _divided(self.reader, _area_sums(self.only, values))
        import dask.array as da
        from dask.delayed import delayed

        reader = delayed(self.reader, pure=False, traverse=False)
        sums = delayed(_area_sums_of, pure=False)
        question = self.reader.question
        n_last = (question.exposure is not None) + (question.mask is not None)
        tasks = field.to_delayed(optimize_graph=False).ravel()
        tasks_of_sums = [
            sums(reader, place, task, list(arrays[len(arrays) - n_last :]))
            for place, task, arrays in zip(self.places, tasks, self.arrays, strict=True)
        ]
        total = delayed(_divided, pure=False)(reader, merged(tasks_of_sums, _added))
        return da.from_delayed(total, (self.reader.n_units,), dtype=float)


def _worked(
    work: Callable[..., Any], reader: Reader, place: Extent, arrays: list[Any], *more: Any
) -> Any:
    return work(reader.part(place, arrays), *more)


def merged(tasks: Sequence[Any], merge: Merge) -> Any:
    """One task that merges the answers of all, a few at a time."""
    from dask.delayed import delayed

    combine = delayed(merge, pure=False)
    level = list(tasks)
    while len(level) > 1:
        level = [combine(level[k : k + FAN_IN]) for k in range(0, len(level), FAN_IN)]
    return level[0]


def _check_size(chunks: tuple[tuple[int, ...], ...], n_values: int) -> None:
    """Raise where a chunk is too large to be worked on."""
    largest = math.prod(max(c) for c in chunks)
    if largest * n_values * 8 > LARGEST_CHUNK:
        raise UsageError(
            f"a chunk of the fine data has {largest:,} cells, too many to work on at a time; make "
            "chunks smaller, as in ds.chunk({'lat': 1000, 'lon': 1000})."
        )


def _area_sums(part: Part, field: Floats) -> tuple[Floats, Floats]:
    """Sums over units of amount times field, amount and area; what the mask takes of cells."""
    members, values = part.memberships, field[part.present]
    each = (members.amount * values[members.row], members.amount, members.area)
    sums = [np.bincount(members.unit, row, part.reader.n_units) for row in each]
    return np.stack(sums).astype(float), part.masked


def _area_sums_of(
    reader: Reader, place: Extent, block: np.ndarray, last: list[Any]
) -> tuple[Floats, Floats]:
    """Area sums over units of one block of a field, whose exposure and mask are the last arrays."""
    field = block.reshape(len(block), -1)
    values = [np.asarray(a, dtype=float).reshape(-1, field.shape[1]) for a in last]
    mask = values.pop()[0] if reader.question.mask else None
    exposure = values.pop() if values else None
    part = reader.of_cells(place, field[..., None], field[..., None], mask, exposure)
    return _area_sums(part, field)


def _added(parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    sums, masked = zip(*parts, strict=True)
    return np.sum(sums, axis=0), np.sum(masked, axis=0)


def _divided(reader: Reader, sums: tuple[Floats, Floats]) -> Floats:
    (total, amount, area), masked = sums
    there = reader.enough(area, masked) & (amount > 0)
    return np.where(there, total / np.where(there, amount, 1.0), np.nan)
