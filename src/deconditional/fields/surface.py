"""Cells with corners anywhere, or cells in no order: ocean and regional models, stations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deconditional.errors import UsageError
from deconditional.fields.axes import Floats, Grid, Ints
from deconditional.fields.frames import Frame
from deconditional.fields.polygons import Polygons, shorter_steps


@dataclass(frozen=True)
class Surface(Grid):
    """Cells each with a place and corners of its own, in rows and columns or in no order.

    `spatial` and `coordinates` are dimensions of the cells, and variables that say where they are;
    `lines`, (rows, columns, 2), their coordinates, y before x, NaN where a cell has no place;
    `given`, (rows, columns, k, 2), those of their corners, None where cells are points; `sizes`,
    (rows, columns), areas of points, where there is one.
    """

    spatial: tuple[str, ...]
    coordinates: tuple[str, str]
    lines: Floats
    given: Floats | None
    frame: Frame
    time: str | None = None
    times: np.ndarray | None = None
    mapping: str | None = None
    seen: Frame | None = None
    sizes: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Rows and columns; cells in no order are one row."""
        return self.lines.shape[0], self.lines.shape[1]

    @property
    def centres(self) -> Floats:  # type: ignore[override]
        """Coordinates of all cells, row by row."""
        return self.lines.reshape(-1, 2)

    @cached_property
    def there(self) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        """Which cells have a place, and corners if cells have any."""
        places = [self.lines] if self.given is None else [self.lines[:, :, None], self.given]
        known = [np.isfinite(each).reshape(self.n_cells, -1).all(1) for each in places]
        return np.asarray(np.logical_and.reduce(known))

    @cached_property
    def polygons(self) -> Polygons:
        """The cells by their corners; those without a place are points at the origin."""
        corners = self.corners()
        assert corners is not None
        return Polygons(np.where(self.there[:, None, None], corners, 0.0), self.frame)

    @cached_property
    def areas(self) -> Floats:
        """Cell areas, row by row, one each where cells are points."""
        if self.given is None:
            return np.ones(self.n_cells) if self.sizes is None else self.sizes.ravel()
        if self.seen is None:
            return self.polygons.areas
        return Polygons(self.frame.into(self.seen, self.polygons.corners), self.seen).areas

    def corners(self) -> Floats | None:
        """Coordinates of the corners of all cells."""
        return None if self.given is None else self.given.reshape(self.n_cells, -1, 2)

    def holding(self, yx: Floats, guess: Ints | None = None) -> Ints:
        """The cell that holds each of some places; of cells without corners none does."""
        if self.given is None:
            return np.full(len(yx), -1)
        found = self.polygons.holding(yx, guess)
        return np.where((found >= 0) & self.there[found], found, -1)

    def cut(self, times: slice, y: slice, x: slice) -> Surface:
        """The grid of some of its rows, columns and times."""
        given, sizes = (None if a is None else a[y, x] for a in (self.given, self.sizes))
        inside = None if self.times is None else self.times[times]
        return replace(self, lines=self.lines[y, x], given=given, sizes=sizes, times=inside)

    def same_as(self, other: Grid) -> bool:
        """Whether two grids have the same cells at the same times."""
        if not isinstance(other, Surface) or self.frame.spherical != other.frame.spherical:
            return False
        cells = [(self.lines, other.lines), (self.given, other.given), (self.sizes, other.sizes)]
        return np.array_equal(self.times, other.times) and all(  # type: ignore[arg-type]
            one is two
            or (one is not None and two is not None and np.array_equal(one, two, equal_nan=True))
            for one, two in cells
        )

    def outlines(self, rows: int, columns: int) -> Floats:
        """Corners of blocks of so many cells, (.., .., k, 2): all that lie on their outline."""
        c = self._in_order().reshape(self.shape[0] // rows, rows, -1, columns, 4, 2)
        sides = (c[:, 0, :, :, 0], c[:, :, :, -1, 1].swapaxes(1, 2))
        back = (c[:, -1, :, ::-1, 2], c[:, ::-1, :, 0, 3].swapaxes(1, 2))
        return np.concatenate([*sides, *back], axis=2)

    def _in_order(self) -> Floats:
        """Corners as they lie in rows and columns: before, after along x, along both, along y."""
        given = self.given
        if given is None or given.shape[2] != 4 or min(self.shape) < 2:
            raise UsageError("blocks need cells of four corners, in two rows and columns at least.")
        shorter = shorter_steps if self.frame.spherical else np.asarray
        along = [shorter(np.diff(self.lines, axis=k)) for k in (0, 1)]
        steps = np.stack([along[0][:, :-1], along[1][:-1]], axis=-1)
        to = shorter(given - self.lines[:, :, None])[:-1, :-1]
        ways = np.einsum("rcij,rckj->kirc", np.linalg.pinv(np.nan_to_num(steps)), to)
        down, right = np.sign(np.nanmedian(ways, axis=(2, 3))).T
        wanted = {(-1.0, -1.0): 0, (-1.0, 1.0): 1, (1.0, 1.0): 2, (1.0, -1.0): 3}
        order = [wanted.get(way, -1) for way in zip(down, right, strict=True)]
        if sorted(order) != [0, 1, 2, 3]:
            raise UsageError("the corners of cells do not lie between them; drop the bounds.")
        return given[:, :, np.argsort(order)]

    def sized_by(self, coarse: Grid) -> Surface:
        """The grid with sizes for points that have none: those in a coarse cell share it."""
        if self.given is not None or self.sizes is not None:
            return self
        at = coarse.holding(self.frame.into(coarse.frame, self.centres))
        count = np.bincount(at[at >= 0], minlength=coarse.n_cells)
        sizes = np.where(at >= 0, (coarse.areas / np.maximum(count, 1))[at], 0.0)
        return replace(self, sizes=sizes.reshape(self.shape))

    def describe_cells(self) -> str:
        """The cells in words."""
        ends = self.extent(*(end(self.centres, axis=0) for end in (np.nanmin, np.nanmax)))
        many = " x ".join(map(str, self.shape)) if len(self.spatial) == 2 else str(self.n_cells)
        return f"{many} {'points' if self.given is None else 'cells'} with {ends}"
