"""Grids: where their cells are, where they end, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deconditional.fields.frames import EARTH_RADIUS, PLANE, Frame
from deconditional.fields.polygons import Polygons

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
AxisKind = Literal["latitude", "longitude", "plane"]

FULL_CIRCLE = 360.0


def measured(bounds: Floats, kind: AxisKind) -> Floats:
    """Bounds in the coordinate in which area is length."""
    if kind == "plane":
        return bounds
    if kind == "latitude":
        return np.sin(np.radians(bounds))
    return np.radians(bounds)


def lengths(bounds: Floats, kind: AxisKind) -> Floats:
    """The factor of a cell's area that belongs to one axis: unit sphere, or plane."""
    return np.diff(measured(bounds, kind), axis=1)[:, 0]


@dataclass(frozen=True)
class Axis:
    """One axis of a grid."""

    # name, coordinate: the dimension, and the variable that has its values.
    name: str
    coordinate: str
    kind: AxisKind
    # centres, bounds: of its cells: degrees, longitudes without a jump, or metres.
    centres: Floats
    bounds: Floats
    # How far off the bounds may be because of the precision in which they are stored.
    tolerance: float = 0.0

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.centres)

    def holding(self, values: Floats) -> Ints:
        """The cell that holds each of some values; -1 where none does."""
        order = np.argsort(self.bounds[:, 0])
        low, high = self.bounds[order].T
        if self.kind == "longitude":
            values = low[0] + np.mod(values - low[0] + self.tolerance, FULL_CIRCLE)
        cell = np.searchsorted(low, values + self.tolerance, side="right") - 1
        inside = (cell >= 0) & (values <= high[cell] + self.tolerance)
        return np.where(inside, order[cell], -1)

    def cut(self, cells: slice) -> Axis:
        """The axis of some of its cells."""
        return replace(self, centres=self.centres[cells], bounds=self.bounds[cells])

    def describe(self) -> str:
        """Range and number of cells, in words."""
        unit = "m" if self.kind == "plane" else "°"
        low, high = self.bounds.min(), self.bounds.max()
        return f"{self.size} cells of {self.coordinate} from {low:.6g} to {high:.6g}{unit}"


class Grid:
    """Cells on the globe or on a plane, and the times at which something is known of them."""

    # time, times: the dimension of time and values of its coordinate; None where there is no time.
    time: str | None
    times: np.ndarray | None
    mapping: str | None  # name of the grid-mapping variable, if there is one
    frame: Frame  # what the coordinates of cells are
    seen: Frame | None  # the frame of positions and areas; None is that of the coordinates
    # spatial, coordinates: dimensions of cells, and variables that say where they are, y before x.
    spatial: tuple[str, ...]
    coordinates: tuple[str, str]
    shape: tuple[int, int]  # rows and columns of cells; cells in no order are one row
    centres: Floats  # (cells, 2): coordinates of the cells, y before x
    there: Flags  # (cells,): which cells have a place

    @property
    def is_point(self) -> Flags:
        """Which of them are points, each of which stands for the fine cell it lies in."""
        return np.zeros(self.n_cells, dtype=bool)

    @property
    def noun(self) -> str:
        """What the cells of coarse data are called."""
        return "coarse cells"

    @property
    def square_km(self) -> float:
        """Square kilometres of an area of one."""
        return 1e-6 * (EARTH_RADIUS**2 if self.spherical else 1.0)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions: time, if there is one, then those of the cells."""
        return (*(() if self.time is None else (self.time,)), *self.spatial)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return self.shape[0] * self.shape[1]

    @property
    def n_times(self) -> int:
        """Number of times, one where there is no time."""
        return 1 if self.times is None else len(self.times)

    @property
    def view(self) -> Frame:
        """The frame of positions and areas."""
        return self.frame if self.seen is None else self.seen

    @property
    def spherical(self) -> bool:
        """Whether positions are places on a sphere."""
        return self.view.spherical

    @property
    def n_position(self) -> int:
        """Coordinates of a place on the sphere, or in the plane."""
        return 3 if self.spherical else 2

    @cached_property
    def positions(self) -> Floats:
        """Cell centres, row by row: on the unit sphere, (n, 3), or in metres, (n, 2)."""
        return self.view.place(self.frame.into(self.view, self.centres))

    @cached_property
    def areas(self) -> Floats:
        """Cell areas, row by row: on the unit sphere, or in square metres."""
        raise NotImplementedError

    def corners(self) -> Floats | None:
        """Coordinates of the corners of cells, (n, k, 2); None where cells are points."""
        raise NotImplementedError

    def within(self, cells: Ints, steps: int) -> tuple[Floats, Floats]:
        """Coordinates of points in some cells, (n, p, 2), and the share of the cell of each."""
        corners = self.corners()
        assert corners is not None
        return Polygons(corners[cells], self.frame).within(steps)

    def holding(self, yx: Floats, guess: Ints | None = None) -> Ints:
        """The cell that holds each of some places, by coordinates (m, 2); -1 where none does.

        Cells that are guessed, (m, g), are asked first.
        """
        raise NotImplementedError

    def cut(self, times: slice, y: slice, x: slice) -> Grid:
        """The grid of some of its rows, columns and times."""
        raise NotImplementedError

    def at(self, time: str | None, times: np.ndarray | None) -> Any:
        """The grid of the same cells at other times."""
        return replace(self, time=time, times=times)  # type: ignore[type-var]

    def same_as(self, other: Grid) -> bool:
        """Whether two grids have the same cells at the same times."""
        raise NotImplementedError

    def sized_by(self, coarse: Grid) -> Grid:
        """The grid with sizes for points that have none, from the coarse cells they lie in."""
        return self

    def describe_cells(self) -> str:
        """The cells in words."""
        raise NotImplementedError

    def extent(self, low: Floats, high: Floats) -> str:
        """Least and greatest coordinates, y before x, in words."""
        unit = "°" if self.frame.spherical else "m"
        ends = zip(self.coordinates, low, high, strict=True)
        return " and ".join(f"{name} from {a:.6g} to {b:.6g}{unit}" for name, a, b in ends)

    def describe(self) -> str:
        """The grid in words."""
        text = self.describe_cells()
        if self.times is None:
            return text
        return f"{text}, {len(self.times)} time{'s' * (len(self.times) > 1)} {span(self.times)}"

    def full(self, array: Any) -> Any:
        """An array (..., time, y, x) of one along the dimensions of the grid."""
        array = array if len(self.spatial) == 2 else array[..., None, :]
        return array if self.time is not None else array[..., None, :, :]

    def bare(self, array: Any) -> Any:
        """An array along the dimensions of the grid of one (..., time, y, x)."""
        array = array if self.time is not None else array[..., 0, :, :]
        return array if len(self.spatial) == 2 else array[..., 0, :]


@dataclass(frozen=True)
class Lattice(Grid):
    """Cells between two values of y and two values of x: the product of two axes."""

    y: Axis
    x: Axis
    time: str | None = None
    times: np.ndarray | None = None
    mapping: str | None = None
    frame: Frame = PLANE
    seen: Frame | None = None

    @property
    def spatial(self) -> tuple[str, ...]:  # type: ignore[override]
        """Dimensions of y and x."""
        return self.y.name, self.x.name

    @property
    def coordinates(self) -> tuple[str, str]:  # type: ignore[override]
        """Variables with the values of y and x."""
        return self.y.coordinate, self.x.coordinate

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Cells along y and x."""
        return self.y.size, self.x.size

    @cached_property
    def there(self) -> Flags:  # type: ignore[override]
        """Every cell has a place, but for what a projection has beyond the globe."""
        if self.seen is None:
            return np.ones(self.n_cells, dtype=bool)
        return np.asarray(np.isfinite(self.frame.into(self.seen, self.centres)).all(1))

    @property
    def centres(self) -> Floats:  # type: ignore[override]
        """Coordinates of all cells, row by row."""
        return _product(self.y.centres, self.x.centres)

    @cached_property
    def areas(self) -> Floats:
        """Cell areas, row by row: on the unit sphere, or in square metres."""
        if self.seen is not None:
            found = Polygons(self.frame.into(self.seen, self.corners()), self.seen).areas
            return np.nan_to_num(found)
        sides = (lengths(axis.bounds, axis.kind) for axis in (self.y, self.x))
        return np.outer(*sides).ravel()

    def corners(self) -> Floats:
        """Coordinates of the four corners of all cells."""
        y, x = self.y.bounds, self.x.bounds
        ends = ((0, 0), (0, 1), (1, 1), (1, 0))
        return np.stack([_product(y[:, i], x[:, j]) for i, j in ends], axis=1)

    def holding(self, yx: Floats, guess: Ints | None = None) -> Ints:
        """The cell that holds each of some places, found along each axis."""
        rows, columns = self.y.holding(yx[:, 0]), self.x.holding(yx[:, 1])
        return np.where((rows >= 0) & (columns >= 0), rows * self.x.size + columns, -1)

    def cut(self, times: slice, y: slice, x: slice) -> Lattice:
        """The grid of some of its rows, columns and times."""
        inside = None if self.times is None else self.times[times]
        return replace(self, y=self.y.cut(y), x=self.x.cut(x), times=inside)

    def same_as(self, other: Grid) -> bool:
        """Whether two grids have the same cells at the same times."""
        if not isinstance(other, Lattice) or not self.frame.same_as(other.frame):
            return False
        pairs: list[tuple[Any, Any]] = [(self.times, other.times)]
        for one, two in ((self.y, other.y), (self.x, other.x)):
            pairs += [(one.centres, two.centres), (one.bounds, two.bounds)]
        return all(np.array_equal(one, two) for one, two in pairs)

    def describe_cells(self) -> str:
        """The cells in words."""
        return f"{self.y.describe()} by {self.x.describe()}"


def _product(y: Floats, x: Floats) -> Floats:
    """All pairs of values, y by y."""
    return np.stack([np.repeat(y, len(x)), np.tile(x, len(y))], axis=1)


def span(times: np.ndarray) -> str:
    """The times in words."""
    first, last = (time_label(t) for t in np.sort(times)[[0, -1]])
    return first if len(times) == 1 else f"from {first} to {last}"


def time_label(time: Any) -> str:
    """A time as people write it."""
    text = str(time)
    return text.split("T00:00:00")[0].split(" 00:00:00")[0]
