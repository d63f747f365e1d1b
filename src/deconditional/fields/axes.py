"""Rectilinear grids: where their cells end, how large they are, and what two grids share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.errors import UsageError
from deconditional.fields.io import available_memory, shown_bytes
from deconditional.fields.overlap import (
    AxisKind,
    lengths,
    overlap_areas,
    overlap_lengths,
    unit_vectors,
)

__all__ = [
    "Axis",
    "Grid",
    "check_cells",
    "check_overlap",
    "meet",
    "overlap",
    "shared_lengths",
    "span",
    "time_label",
]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """One axis of a grid.

    Attributes
    ----------
    name, coordinate
        The dimension, and the variable that has its values.
    centres, bounds
        Of its cells: degrees, longitudes without a jump, or metres.
    tolerance
        How far off the bounds may be because of the precision in which they are stored.
    """

    name: str
    coordinate: str
    kind: AxisKind
    centres: Floats
    bounds: Floats
    tolerance: float = 0.0

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.centres)

    def cut(self, cells: slice) -> Axis:
        """The axis of some of its cells."""
        return replace(self, centres=self.centres[cells], bounds=self.bounds[cells])

    def describe(self) -> str:
        """Range and number of cells, in words."""
        unit = "m" if self.kind == "plane" else "°"
        low, high = self.bounds.min(), self.bounds.max()
        return f"{self.size} cells of {self.coordinate} from {low:.6g} to {high:.6g}{unit}"


@dataclass(frozen=True)
class Grid:
    """A rectilinear grid and the times on it.

    Attributes
    ----------
    time
        The dimension of time; None where there is none.
    times
        Values of its coordinate; None where there is no time.
    mapping
        Name of the grid-mapping variable, if there is one.
    """

    y: Axis
    x: Axis
    time: str | None
    times: np.ndarray | None
    mapping: str | None

    @property
    def shape(self) -> tuple[int, int]:
        """Cells along y and x."""
        return self.y.size, self.x.size

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions: time, if there is one, then y and x."""
        return tuple(d for d in (self.time, self.y.name, self.x.name) if d is not None)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return self.y.size * self.x.size

    @property
    def spherical(self) -> bool:
        """Whether the coordinates are latitude and longitude."""
        return self.y.kind == "latitude"

    @property
    def n_position(self) -> int:
        """Coordinates of a place on the sphere, or in the plane."""
        return 3 if self.spherical else 2

    @cached_property
    def areas(self) -> Floats:
        """Cell areas, row by row: on the unit sphere, or in square metres."""
        return np.outer(
            lengths(self.y.bounds, self.y.kind), lengths(self.x.bounds, self.x.kind)
        ).ravel()

    @cached_property
    def positions(self) -> Floats:
        """Cell centres, row by row: on the unit sphere, (n, 3), or in metres, (n, 2)."""
        y, x = np.meshgrid(self.y.centres, self.x.centres, indexing="ij")
        if not self.spherical:
            return np.stack([y.ravel(), x.ravel()], axis=1)
        return unit_vectors(y.ravel(), x.ravel())

    def cut(self, times: slice, y: slice, x: slice) -> Grid:
        """The grid of some of its rows, columns and times."""
        inside = None if self.times is None else self.times[times]
        return replace(self, y=self.y.cut(y), x=self.x.cut(x), times=inside)

    def same_as(self, other: Grid) -> bool:
        """Whether two grids have the same cells at the same times."""
        pairs: list[tuple[Any, Any]] = [(self.times, other.times)]
        for one, two in ((self.y, other.y), (self.x, other.x)):
            if one.kind != two.kind:
                return False
            pairs += [(one.centres, two.centres), (one.bounds, two.bounds)]
        return all(np.array_equal(one, two) for one, two in pairs)

    @property
    def n_times(self) -> int:
        """Number of times, one where there is no time."""
        return 1 if self.times is None else len(self.times)

    def describe(self) -> str:
        """The grid in words."""
        text = f"{self.y.describe()} by {self.x.describe()}"
        if self.times is None:
            return text
        return f"{text}, {len(self.times)} time{'s' * (len(self.times) > 1)} {span(self.times)}"


def span(times: np.ndarray) -> str:
    """The times in words."""
    first, last = (time_label(t) for t in np.sort(times)[[0, -1]])
    return first if len(times) == 1 else f"from {first} to {last}"


def time_label(time: Any) -> str:
    """A time as people write it."""
    text = str(time)
    return text.split("T00:00:00")[0].split(" 00:00:00")[0]


def overlap(fine: Grid, coarse: Grid) -> csr_array:
    """Areas that fine cells (rows) and coarse cells (columns) share."""
    return overlap_areas(*shared_lengths(fine, coarse))


def meet(fine: Grid, coarse: Grid) -> bool:
    """Whether two grids have cells in common."""
    same_kind = fine.spherical == coarse.spherical
    return same_kind and all(shared.any() for shared in shared_lengths(fine, coarse))


def shared_lengths(fine: Grid, coarse: Grid) -> tuple[Floats, Floats]:
    """What rows of the two grids share along y, and columns along x."""
    for a, b in ((fine.y, coarse.y), (fine.x, coarse.x)):
        needed = 48 * a.size * b.size
        if needed > available_memory():
            raise UsageError(
                f"the fine {a.describe()} and the coarse {b.describe()} are too many to compare: "
                f"that takes {shown_bytes(needed)} of memory. Cut both to the region needed."
            )
    rows, columns = (
        overlap_lengths(a.bounds, b.bounds, a.kind, a.tolerance + b.tolerance)
        for a, b in ((fine.y, coarse.y), (fine.x, coarse.x))
    )
    return rows, columns


def check_cells(grid: Grid, n_values: int, which: str) -> None:
    """Raise where a grid has more cells than memory can hold so many values of, and positions."""
    n = grid.n_cells * grid.n_times
    needed = 8 * n * (n_values + 6)
    if needed > available_memory():
        raise UsageError(
            f"the {which} grid has {n} cells ({grid.y.describe()} by {grid.x.describe()}), which "
            f"take {shown_bytes(needed)} of memory; cut it to the region that is needed, or, of "
            "fine data, use chunks (--chunked yes)."
        )


def check_overlap(fine: Grid, coarse: Grid) -> None:
    """Raise where two grids have nothing in common."""
    if fine.spherical != coarse.spherical:
        kinds = [("projected", "latitude-longitude")[grid.spherical] for grid in (fine, coarse)]
        raise UsageError(
            f"the fine grid is {kinds[0]}, the coarse one {kinds[1]}; regrid one of them to the "
            "coordinates of the other."
        )
    if not meet(fine, coarse):
        raise UsageError(
            f"the grids do not overlap: fine {fine.y.describe()} by {fine.x.describe()}, coarse "
            f"{coarse.y.describe()} by {coarse.x.describe()}. Check the units of their coordinates."
        )
