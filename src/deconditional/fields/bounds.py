"""Coordinates as datasets give them: centres and ends of cells, checked, or inferred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import FULL_CIRCLE, Axis, AxisKind, Floats
from deconditional.fields.frames import EARTH_RADIUS, Frame
from deconditional.fields.polygons import estimated_corners
from deconditional.fields.surface import Surface

FARTHEST: dict[AxisKind, float] = {"latitude": 1e4, "longitude": 1e4, "plane": 1e15}
"""Degrees or metres from the origin that a coordinate may have, many turns allowed."""


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of a dataset: what it measures, and what a value of one is in degrees or metres.

    `which` is what errors call the dataset.
    """

    dataset: xr.Dataset
    name: str
    kind: AxisKind
    unit: float
    which: str

    def wrong(self, text: str) -> UsageError:
        """A complaint about the dataset."""
        return UsageError(f"{self.which} data: {text}")

    def axis(self) -> Axis:
        """The axis of cells whose centres the coordinate has; raises where they make none.

        Bounds that come with the dataset are checked; others lie half-way between the centres.
        """
        centres, named = self._centres(), bounds_name(self.dataset, self.name)
        if named is not None:
            bounds = self._given(named, centres)
        elif len(centres) < 2:
            raise self.wrong(
                f"{self.name!r} has a single value and no bounds, so the size of its cell is "
                f"unknown; add a variable {self.name + '_bnds'!r} with its two ends."
            )
        else:
            bounds = inferred_bounds(centres, self.kind)
        stored = self.dataset[named or self.name].dtype
        precision = np.finfo(stored).eps if stored.kind == "f" else 0.0
        tolerance = 2 * float(precision * np.abs(bounds).max())
        line = str(self.dataset[self.name].dims[0])
        return Axis(line, self.name, self.kind, centres, bounds, tolerance)

    def values(self, dims: Sequence[Any]) -> Floats:
        """Values in degrees or metres, NaN where a cell has none; raises where one is nowhere."""
        values = np.asarray(self.dataset[self.name].transpose(*dims).values, float) * self.unit
        known, name = values[np.isfinite(values)], self.name
        if not values.size:
            raise self.wrong(
                f"the coordinate {name!r} has no values at all, so there are no cells; check how "
                "the file was cut."
            )
        if not known.size:
            raise self.wrong(f"the coordinate {name!r} has missing values only.")
        farthest = known[np.abs(known).argmax()]
        if abs(farthest) > FARTHEST[self.kind]:
            raise self.wrong(
                f"the coordinate {name!r} runs to {farthest:.4g}, which is nowhere; correct it, or "
                "mark the value as missing and drop it."
            )
        if self.kind == "latitude" and abs(farthest) > 90 + 1e-6:
            raise self.wrong(
                f"latitudes in {name!r} run to {farthest:.6g}, beyond a pole; if the grid is "
                "projected, set units of 'm' and no latitude name."
            )
        return np.where(np.isfinite(values), values, np.nan)

    def corners(self, dims: Sequence[Any]) -> Floats | None:
        """Values at the corners of every cell, one axis more than `dims`; None without any."""
        bounds = bounds_name(self.dataset, self.name)
        if bounds is None:
            return None
        corners = self.dataset[bounds].transpose(*dims, ..., missing_dims="ignore")
        fits = corners.ndim == len(dims) + 1 and corners.dims[:-1] == tuple(dims)
        if not fits or corners.dtype.kind not in "fiu" or corners.shape[-1] < 2:
            raise self.wrong(
                f"the bounds {bounds!r} must hold the corners of every cell of {self.name!r}, on "
                f"{(*map(str, dims), 'corner')}; they lie on {tuple(map(str, corners.dims))}."
            )
        return np.asarray(corners.values, dtype=float) * self.unit

    def _centres(self) -> Floats:
        """Values in order, longitudes without a jump; raises where they have none."""
        name, centres = self.name, self.values(self.dataset[self.name].dims)
        if np.isnan(centres).any():
            raise self.wrong(f"the coordinate {name!r} has missing values, or infinite; drop them.")
        if len(np.unique(centres)) < len(centres):
            raise self.wrong(
                f"the coordinate {name!r} has repeated values; drop the duplicates, as in "
                f"ds.drop_duplicates({name!r})."
            )
        if self.kind == "longitude":
            return self._longitudes(centres)
        steps = np.diff(centres)
        if len(steps) and not (np.all(steps > 0) or np.all(steps < 0)):
            raise self.wrong(
                f"the coordinate {name!r} is not in order; sort it, as in ds.sortby({name!r})."
            )
        return centres

    def _longitudes(self, centres: Floats) -> Floats:
        turned = np.sort(np.mod(centres, 360.0))
        if np.any(np.diff(turned, append=turned[0] + 360.0) < 1e-6):
            raise self.wrong(
                f"the longitudes in {self.name!r} hold a meridian twice, such as 0 and 360; drop "
                f"one, as in ds.isel({self.name}=slice(None, -1))."
            )
        try:
            return unwrapped(centres)
        except ValueError:
            raise self.wrong(
                f"the longitudes in {self.name!r} are not in order; sort them, as in "
                f"ds.sortby({self.name!r})."
            ) from None

    def _given(self, named: str, centres: Floats) -> Floats:
        """The bounds (n, 2) that a dataset has; raises where they are not those of such cells."""
        given = self.dataset[named]
        bounds = given.transpose(*self.dataset[self.name].dims, ..., missing_dims="ignore").values
        if bounds.ndim == 1 and len(centres) == 1:
            bounds = bounds[None]
        numbers = bounds.dtype.kind in "fiu" and bool(np.isfinite(bounds).all())
        if bounds.shape != (len(centres), 2) or not numbers:
            raise self.wrong(
                f"the bounds {named!r} must hold two finite numbers for each of the "
                f"{len(centres)} values of {self.name!r}; their shape is {bounds.shape}."
            )
        bounds = bounds.astype(float) * self.unit
        slack = 1e-6 * max(1.0, float(np.abs(centres).max()))
        if self.kind == "longitude":
            bounds = _around(centres, bounds, slack)
        bounds = np.sort(bounds, axis=1)
        if not np.all((bounds[:, 0] <= centres + slack) & (centres - slack <= bounds[:, 1])):
            raise self.wrong(
                f"the bounds {named!r} do not enclose the values of {self.name!r}; correct or drop "
                "them."
            )
        if self.kind == "latitude":
            bounds = np.clip(bounds, -90.0, 90.0)
        width = bounds[:, 1] - bounds[:, 0]
        if not np.all(width > 0):
            raise self.wrong(f"a cell in the bounds {named!r} is empty; correct them.")
        low, high = bounds[np.argsort(centres)].T
        between = low[1:] - high[:-1]
        if self.kind == "longitude":
            between = np.append(between, low[0] + 360.0 - high[-1])
        if np.any(between < -0.01 * width.min()):
            raise self.wrong(
                f"cells in the bounds {named!r} overlap each other; correct or drop them."
            )
        return bounds


def placed_cells(y: Coordinate, x: Coordinate, names: Sequence[str], frame: Frame) -> Surface:
    """Cells that each have a place of their own, with their corners, or else with their areas.

    `names` are the variables of interest, which may say what measures the area of points.
    """
    dims = y.dataset[y.name].dims
    lines = np.stack([y.values(dims), x.values(dims)], axis=-1)
    lines = lines.reshape(-1, *lines.shape[-2:])
    north, east, given, sizes = y.corners(dims), x.corners(dims), None, None
    if north is not None and east is not None:
        if north.shape[-1] == 2:  # ends along each coordinate: a box
            north, east = north[..., [0, 0, 1, 1]], east[..., [0, 1, 1, 0]]
        given = np.stack([north, east], axis=-1).reshape(*lines.shape[:2], -1, 2)
    elif len(dims) == 2 and min(lines.shape[:2]) > 1:
        given = estimated_corners(lines, frame)
    else:
        sizes = _sizes(y.dataset, names, dims, frame)
    return Surface(tuple(map(str, dims)), (y.name, x.name), lines, given, frame, sizes=sizes)


def _sizes(
    dataset: xr.Dataset, names: Sequence[str], dims: Sequence[Any], frame: Frame
) -> Floats | None:
    """Areas in m² that a variable's ``cell_measures`` name, on the unit sphere or as they are."""
    for name in names:
        said = str(dataset[name].attrs.get("cell_measures", "")).split()
        measure = said[said.index("area:") + 1 :][:1] if "area:" in said else []
        if measure and measure[0] in dataset.variables and dataset[measure[0]].dims == tuple(dims):
            areas = np.asarray(dataset[measure[0]].values, dtype=float)
            areas = np.where(areas > 0, areas, 0.0).reshape(-1, areas.shape[-1])
            return areas / EARTH_RADIUS**2 if frame.spherical else areas
    return None


def bounds_name(dataset: xr.Dataset, name: str) -> str | None:
    """The variable with the bounds of a coordinate, by its attribute or by its usual name."""
    variable = dataset[name]
    named = [variable.attrs.get("bounds"), variable.encoding.get("bounds")]
    named += [f"{name}_bnds", f"{name}_bounds", f"bounds_{name}"]
    named += [f"{name}_vertices", f"vertices_{name}"]
    return next((n for n in named if n in dataset.variables), None)


def bounds_names(dataset: xr.Dataset, names: Iterable[Any]) -> set[str]:
    """The variables with the bounds of some coordinates, of those that have any."""
    found = (bounds_name(dataset, name) for name in names if name in dataset.variables)
    return {str(name) for name in found if name is not None}


def _around(centres: Floats, bounds: Floats, slack: float) -> Floats:
    """Bounds of longitudes turned so that they enclose the centres, whatever their seam."""
    turned = centres[:, None] + np.mod(bounds - centres[:, None] + 180.0, 360.0) - 180.0
    low, high = np.sort(turned, axis=1).T
    # Both ends of a whole circle are one; a centre on a bound may have it on the other side.
    whole = high - low < slack
    low, high = np.where(whole, centres - 180.0, low), np.where(whole, centres + 180.0, high)
    beside = (centres < low - slack) | (centres > high + slack)
    return np.stack([np.where(beside, high - 360.0, low), np.where(beside, low, high)], axis=1)


def unwrapped(longitude: npt.ArrayLike) -> Floats:
    """Longitudes as a monotonic sequence, wherever the seam is.

    Raises ValueError where they go around the globe more than once, as unsorted ones do.

    Examples
    --------
    >>> unwrapped([350.0, 355.0, 0.0, 5.0]).tolist()
    [350.0, 355.0, 360.0, 365.0]
    >>> unwrapped([0.0, -90.0, 180.0]).tolist()
    [0.0, -90.0, -180.0]
    """
    lon = np.asarray(longitude, dtype=float)
    if len(lon) < 2:
        return lon
    eastward = np.mod(np.diff(lon), FULL_CIRCLE)
    steps = eastward if eastward.sum() < FULL_CIRCLE else eastward - FULL_CIRCLE
    if len(steps) == 1 and steps[0] > FULL_CIRCLE / 2:
        steps = steps - FULL_CIRCLE  # both ways are possible; this one is shorter
    if not (np.all(steps != 0) and np.abs(steps).sum() < FULL_CIRCLE):
        raise ValueError("longitudes go around the globe more than once")
    straight = lon[0] + np.concatenate([[0.0], np.cumsum(steps)])
    # Whole turns leave the values themselves free of the rounding of a long sum.
    return lon + FULL_CIRCLE * np.round((straight - lon) / FULL_CIRCLE)


def inferred_bounds(centres: npt.ArrayLike, kind: AxisKind) -> Floats:
    """Cell bounds half-way between centres, (n, 2); the outermost cells are symmetric.

    Latitudes end at the poles. Longitudes must be unwrapped; they have no first and no last, so the
    seam of the data does not matter: cells meet all around the globe, except across a gap at least
    twice as wide as the steps beside it, where they are symmetric.

    Examples
    --------
    >>> inferred_bounds([90.0, 60.0, 30.0], "latitude").tolist()
    [[75.0, 90.0], [45.0, 75.0], [15.0, 45.0]]
    >>> inferred_bounds([0.0, 10.0, 350.0], "longitude").tolist()
    [[-5.0, 5.0], [5.0, 15.0], [345.0, 355.0]]
    """
    c = np.asarray(centres, dtype=float)
    if len(c) < 2:
        raise ValueError("the bounds of a single cell cannot be inferred")
    if c[0] > c[-1]:
        return inferred_bounds(c[::-1], kind)[::-1]
    if kind == "longitude":
        return _around_the_globe(c)
    middle = 0.5 * (c[1:] + c[:-1])
    edges = np.concatenate([[2 * c[0] - middle[0]], middle, [2 * c[-1] - middle[-1]]])
    if kind == "latitude":
        edges = np.clip(edges, -90.0, 90.0)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _around_the_globe(c: Floats) -> Floats:
    """Bounds of ascending longitudes."""
    gaps = np.diff(c, append=c[0] + FULL_CIRCLE)
    before = np.roll(gaps, 1)
    apart = gaps >= 2 * np.maximum(before, np.roll(gaps, -1))
    east = c + 0.5 * np.where(apart, before, gaps)
    west = np.roll(east, 1)
    west[0] -= FULL_CIRCLE
    west = np.where(np.roll(apart, 1), c - 0.5 * gaps, west)
    return np.stack([west, east], axis=1)
