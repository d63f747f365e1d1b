"""Rectilinear grids of datasets: which dimensions they have, where their cells end.

Dimensions are found through their CF attributes, with the usual names as a fallback, unless the
user names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cf_xarray  # noqa: F401  (gives datasets their .cf)
import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.fields.overlap import (
    AxisKind,
    inferred_bounds,
    lengths,
    overlap_areas,
    overlap_lengths,
    unwrapped,
)
from deconditional.outputs import UsageError

__all__ = ["Axis", "Grid", "find_grid", "overlap", "values_on"]

Floats = npt.NDArray[np.float64]

DEGREES = {
    f"{word}{rest}"
    for word in ("degree", "degrees")
    for rest in ("", "_north", "_east", "_N", "_E", "N", "E")
} | {"deg"}
LENGTHS = {
    **dict.fromkeys(("m", "metre", "metres", "meter", "meters"), 1.0),
    **dict.fromkeys(("km", "kilometre", "kilometres", "kilometer", "kilometers"), 1000.0),
}
"""Units of projected coordinates, in metres."""

CF_NAMES = {"y": ("latitude", "Y"), "x": ("longitude", "X"), "time": ("time", "T")}
STANDARD_NAMES = {
    "y": ("latitude", "grid_latitude", "projection_y_coordinate"),
    "x": ("longitude", "grid_longitude", "projection_x_coordinate"),
}
SPHERICAL = {"latitude": "latitude", "longitude": "longitude"} | {
    "grid_latitude": "latitude",
    "grid_longitude": "longitude",
}


@dataclass(frozen=True)
class Axis:
    """One axis of a grid.

    Attributes
    ----------
    name, coordinate
        The dimension, and the variable that has its values.
    centres, bounds
        Of its cells: degrees, longitudes without a jump, or metres.
    """

    name: str
    coordinate: str
    kind: AxisKind
    centres: Floats
    bounds: Floats

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.centres)

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
    times
        Values of the time coordinate; None where there is no time.
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
    def n_cells(self) -> int:
        """Number of cells."""
        return self.y.size * self.x.size

    @property
    def spherical(self) -> bool:
        """Whether the coordinates are latitude and longitude."""
        return self.y.kind == "latitude"

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
        y, x = np.radians(y.ravel()), np.radians(x.ravel())
        return np.stack([np.cos(y) * np.cos(x), np.cos(y) * np.sin(x), np.sin(y)], axis=1)

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
    first, last = time_label(times[0]), time_label(times[-1])
    return first if len(times) == 1 else f"from {first} to {last}"


def time_label(time: Any) -> str:
    """A time as people write it."""
    text = str(time)
    return text.split("T00:00:00")[0].split(" 00:00:00")[0]


def overlap(fine: Grid, coarse: Grid) -> Any:
    """Areas that fine cells (rows) and coarse cells (columns) share; sparse."""
    if fine.spherical != coarse.spherical:
        kinds = [("projected", "latitude-longitude")[grid.spherical] for grid in (fine, coarse)]
        raise UsageError(
            f"the fine grid is {kinds[0]}, the coarse one {kinds[1]}; regrid one of them to the "
            "coordinates of the other."
        )
    areas = overlap_areas(
        overlap_lengths(fine.y.bounds, coarse.y.bounds, fine.y.kind),
        overlap_lengths(fine.x.bounds, coarse.x.bounds, fine.x.kind),
    )
    if areas.nnz == 0:
        raise UsageError(
            f"the grids do not overlap: fine {fine.y.describe()} by {fine.x.describe()}, coarse "
            f"{coarse.y.describe()} by {coarse.x.describe()}. Check the units of their coordinates."
        )
    return areas


# ---------------------------------------------------------------------- finding a grid


def find_grid(
    dataset: xr.Dataset, names: Sequence[str], which: str, dims: Mapping[str, str] | None = None
) -> Grid:
    """The grid that some variables of a dataset lie on.

    Parameters
    ----------
    dataset
        The dataset.
    names
        Its variables of interest.
    which
        What to call the dataset in errors: ``"fine"`` or ``"coarse"``.
    dims
        Dimensions by role, ``{"y": ..., "x": ..., "time": ...}``, where CF attributes are absent
        or mislead.
    """
    _check_names(dataset, names, which)
    y = _axis(dataset, names, "y", which, dims)
    x = _axis(dataset, names, "x", which, dims)
    if (y.kind == "plane") != (x.kind == "plane"):
        raise UsageError(
            f"{which} data: {y.coordinate!r} and {x.coordinate!r} are not coordinates of one kind; "
            "both must be degrees, or both lengths. Correct their units."
        )
    time = _time(dataset, names, dims, which)
    known = {y.name, x.name, time}
    for name in names:
        for extra in dataset[name].dims:
            if extra not in known and dataset.sizes[extra] > 1:
                raise UsageError(
                    f"{which} data: {name!r} has a dimension {str(extra)!r} of size "
                    f"{dataset.sizes[extra]} besides position and time; select one value of it "
                    f"first, as in ds.isel({extra}=0)."
                )
    times = None
    if time is not None:
        times = np.atleast_1d(dataset[time].values)
        if len(np.unique(times)) < len(times):
            raise UsageError(f"{which} data: the times in {time!r} are not distinct.")
    mapping = next(
        (
            dataset[n].attrs.get("grid_mapping") or dataset[n].encoding.get("grid_mapping")
            for n in names
        ),
        None,
    )
    return Grid(y, x, time, times, mapping if mapping in dataset.variables else None)


def _check_names(dataset: Any, names: Sequence[str], which: str) -> None:
    if not isinstance(dataset, xr.Dataset):
        raise UsageError(
            f"the {which} data must be an xarray Dataset, not {type(dataset).__name__}; open a "
            "file with xarray.open_dataset, or use DataArray.to_dataset(name=...)."
        )
    for name in names:
        if name not in dataset.variables:
            there = ", ".join(map(str, dataset.data_vars)) or "no variables at all"
            raise UsageError(f"the {which} data has no variable {name!r}; it has {there}.")
        kind = dataset[name].dtype.kind
        if kind not in "fiubM":
            raise UsageError(
                f"{which} data: {name!r} holds {dataset[name].dtype} values, not numbers; convert "
                "or leave it out."
            )


def _guessed(dataset: xr.Dataset) -> xr.Dataset:
    """With axis attributes where names and units give them away."""
    bare = dataset.drop_vars([n for n in dataset.variables if dataset[n].ndim > 2])
    return bare.cf.guess_coord_axis()


def _candidates(dataset: xr.Dataset, role: str, dims: Mapping[str, str] | None) -> list[str]:
    if dims and role in dims:
        return [dims[role]] if dims[role] in dataset.variables or dims[role] in dataset.dims else []
    guessed = _guessed(dataset)
    found = [
        str(name)
        for name in guessed.variables
        if guessed[name].attrs.get("standard_name") in STANDARD_NAMES.get(role, ())
    ]
    for key in CF_NAMES[role]:
        found += guessed.cf.coordinates.get(key, []) + guessed.cf.axes.get(key, [])
    return list(dict.fromkeys(map(str, found)))


def _axis(
    dataset: xr.Dataset,
    names: Sequence[str],
    role: str,
    which: str,
    dims: Mapping[str, str] | None,
) -> Axis:
    words = {"y": "latitude (or y)", "x": "longitude (or x)"}[role]
    found = _candidates(dataset, role, dims)
    lines = [n for n in found if n in dataset.variables and dataset[n].ndim == 1]
    used = {d for name in names for d in dataset[name].dims}
    lines.sort(key=lambda n: dataset[n].dims[0] not in used)
    if not lines:
        if any(n in dataset.variables and dataset[n].ndim == 2 for n in found):
            raise UsageError(
                f"{which} data: {found[0]!r} is two-dimensional; curvilinear grids are not "
                "supported. Regrid to a rectilinear grid first."
            )
        raise UsageError(
            f"{which} data: no {words} coordinate was found among "
            f"{', '.join(map(str, dataset.dims)) or 'no dimensions'}; give it a CF standard_name, "
            f"or name the dimension with dims={{'{role}': ...}} (--dims {role}=...)."
        )
    coordinate = lines[0]
    variable = dataset[coordinate]
    name = str(variable.dims[0])
    kind, scale = _kind(coordinate, variable, role, which)
    centres = np.asarray(variable.values, dtype=float) * scale
    centres = _checked_centres(centres, kind, coordinate, which)
    bounds = _given_bounds(dataset, coordinate, centres, kind, scale, which)
    if bounds is None:
        if len(centres) < 2:
            raise UsageError(
                f"{which} data: {coordinate!r} has a single value and no bounds, so the size of "
                f"its cell is unknown; add a variable {coordinate + '_bnds'!r} with its two ends."
            )
        bounds = inferred_bounds(centres, kind)
    if kind == "longitude" and np.diff(bounds, axis=1).sum() > 360.0 * (1 + 1e-9):
        raise UsageError(
            f"{which} data: the cells of {coordinate!r} overlap around the globe (a repeated "
            "meridian?); drop the last one."
        )
    return Axis(name, coordinate, kind, centres, bounds)


def _kind(name: str, variable: xr.DataArray, role: str, which: str) -> tuple[AxisKind, float]:
    """Latitude, longitude or plane; and the unit in degrees or metres."""
    standard = variable.attrs.get("standard_name")
    units = str(variable.attrs.get("units", "")).strip()
    spherical: AxisKind = "latitude" if role == "y" else "longitude"
    named = name.lower().startswith(("lat", "lon", "rlat", "rlon", "nav_l"))
    by_name = standard in SPHERICAL or (standard is None and named)
    if units in DEGREES or (not units and by_name):
        return spherical, 1.0
    if units in LENGTHS and not by_name:
        return "plane", LENGTHS[units]
    if not units or units == "1":
        return "plane", 1.0
    expected = "degrees" if by_name else "degrees, m or km"
    raise UsageError(
        f"{which} data: the units of {name!r} are {units!r}; expected {expected}. Convert the "
        "coordinate, or correct its units attribute."
    )


def _checked_centres(centres: Floats, kind: AxisKind, name: str, which: str) -> Floats:
    if not np.isfinite(centres).all():
        raise UsageError(f"{which} data: the coordinate {name!r} has missing values; drop them.")
    if len(np.unique(centres)) < len(centres):
        raise UsageError(
            f"{which} data: the coordinate {name!r} has repeated values; drop the duplicates, as "
            f"in ds.drop_duplicates({name!r})."
        )
    if kind == "latitude" and np.abs(centres).max() > 90 + 1e-6:
        raise UsageError(
            f"{which} data: latitudes in {name!r} run to {centres[np.abs(centres).argmax()]:.6g}, "
            "beyond a pole; if the grid is projected, set units of 'm' and no latitude name."
        )
    if kind == "longitude":
        try:
            return unwrapped(centres)
        except ValueError:
            raise UsageError(
                f"{which} data: the longitudes in {name!r} are not in order; sort them, as in "
                f"ds.sortby({name!r})."
            ) from None
    steps = np.diff(centres)
    if len(steps) and not (np.all(steps > 0) or np.all(steps < 0)):
        raise UsageError(
            f"{which} data: the coordinate {name!r} is not in order; sort it, as in "
            f"ds.sortby({name!r})."
        )
    return centres


def _given_bounds(
    dataset: xr.Dataset, name: str, centres: Floats, kind: AxisKind, scale: float, which: str
) -> Floats | None:
    """Bounds that come with the dataset, checked; None where there are none."""
    variable = dataset[name]
    named = [variable.attrs.get("bounds"), variable.encoding.get("bounds")]
    named += [f"{name}_bnds", f"{name}_bounds", f"bounds_{name}"]
    found = next((n for n in named if n in dataset.variables), None)
    if found is None:
        return None
    bounds = np.asarray(dataset[found].values, dtype=float) * scale
    if bounds.ndim == 1 and len(centres) == 1:
        bounds = bounds[None]
    if bounds.shape != (len(centres), 2) or not np.isfinite(bounds).all():
        raise UsageError(
            f"{which} data: the bounds {found!r} must hold two finite numbers for each of the "
            f"{len(centres)} values of {name!r}; their shape is {bounds.shape}."
        )
    if kind == "longitude":
        bounds = _around(centres, bounds)
    bounds = np.sort(bounds, axis=1)
    slack = 1e-6 * max(1.0, float(np.abs(centres).max()))
    if not np.all((bounds[:, 0] <= centres + slack) & (centres - slack <= bounds[:, 1])):
        raise UsageError(
            f"{which} data: the bounds {found!r} do not enclose the values of {name!r}; correct "
            "or drop them."
        )
    if not np.all(bounds[:, 1] > bounds[:, 0]):
        raise UsageError(f"{which} data: a cell in the bounds {found!r} is empty; correct them.")
    return np.clip(bounds, -90.0, 90.0) if kind == "latitude" else bounds


def _around(centres: Floats, bounds: Floats) -> Floats:
    """Bounds of longitudes turned so that they enclose the centres, whatever their seam."""
    first, second = bounds.T
    width = np.mod(second - first, 360.0)
    width = np.where(width == 0, 360.0, width)
    reversed_order = np.mod(centres - first, 360.0) > width
    low = np.where(reversed_order, second, first)
    width = np.where(reversed_order, 360.0 - width, width)
    low = centres - np.mod(centres - low, 360.0)
    return np.stack([low, low + width], axis=1)


def _time(
    dataset: xr.Dataset, names: Sequence[str], dims: Mapping[str, str] | None, which: str
) -> str | None:
    found = [*_candidates(dataset, "time", dims), "time"]
    used = {d for name in names for d in dataset[name].dims}
    for name in found:
        if name in used:
            if name not in dataset.variables:
                raise UsageError(
                    f"{which} data: the dimension {name!r} has no coordinate, so times cannot be "
                    "told apart; give it values."
                )
            return name
    return None


# ---------------------------------------------------------------------- values


def values_on(grid: Grid, dataset: xr.Dataset, name: str) -> Floats:
    """A variable as (times, cells), one time where it has none; infinite values are missing."""
    array = dataset[name]
    if array.dtype.kind == "M":
        days = (array - array.min()) / np.timedelta64(1, "D")
        array = days
    keep = [d for d in (grid.time, grid.y.name, grid.x.name) if d is not None]
    array = array.squeeze([d for d in array.dims if d not in keep], drop=True)
    missing = {
        d: n
        for d, n in ((grid.y.name, grid.y.size), (grid.x.name, grid.x.size))
        if d not in array.dims
    }
    if missing:
        array = array.expand_dims(missing)
    order = [d for d in keep if d in array.dims]
    values = np.asarray(array.transpose(*order).values, dtype=float)
    values = values.reshape(-1, grid.n_cells)
    return np.where(np.isfinite(values), values, np.nan)
