"""Rectilinear grids of datasets: which dimensions they have, where their cells end.

Dimensions are found through their CF attributes, with the usual names as a fallback, unless the
user names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cf_xarray  # noqa: F401  (gives datasets their .cf)
import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.attributes import understandable
from deconditional.fields.declared import available_memory, shown_bytes
from deconditional.fields.overlap import (
    AxisKind,
    inferred_bounds,
    lengths,
    overlap_areas,
    overlap_lengths,
    unwrapped,
)

__all__ = [
    "Axis",
    "Grid",
    "check_cells",
    "check_overlap",
    "find_grid",
    "overlap",
    "shared_lengths",
    "values_on",
]

Floats = npt.NDArray[np.float64]

DEGREES = {
    f"{word}{rest}"
    for word in ("degree", "degrees")
    for rest in ("", "_north", "_east", "_n", "_e", "n", "e")
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
SPHERICAL: dict[str, AxisKind] = {
    "latitude": "latitude",
    "longitude": "longitude",
    "grid_latitude": "latitude",
    "grid_longitude": "longitude",
}
PLAIN_NAMES: dict[AxisKind, tuple[str, ...]] = {
    "latitude": ("lat", "rlat", "nav_lat"),
    "longitude": ("lon", "rlon", "nav_lon"),
}
"""How the names of coordinates of a sphere begin."""


FARTHEST: dict[AxisKind, float] = {"latitude": 1e4, "longitude": 1e4, "plane": 1e15}
"""Degrees or metres from the origin that a coordinate may have, many turns allowed."""

UNMARKED = 1e19
"""Files mark missing values by 1e20, 9.97e36 and the like. Where the mark is not declared, values
of this size stand beside ordinary ones."""


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

    def part(self, cells: slice) -> Axis:
        """Some of its cells."""
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

    def part(self, times: slice, y: slice, x: slice) -> Grid:
        """Some of its rows, columns and times."""
        inside = None if self.times is None else self.times[times]
        return replace(self, y=self.y.part(y), x=self.x.part(x), times=inside)

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


def overlap(fine: Grid, coarse: Grid) -> Any:
    """Areas that fine cells (rows) and coarse cells (columns) share; sparse."""
    check_overlap(fine, coarse)
    return overlap_areas(*shared_lengths(fine, coarse))


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
    if not all(shared.any() for shared in shared_lengths(fine, coarse)):
        raise UsageError(
            f"the grids do not overlap: fine {fine.y.describe()} by {fine.x.describe()}, coarse "
            f"{coarse.y.describe()} by {coarse.x.describe()}. Check the units of their coordinates."
        )


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
        Its variables of interest; without any, the grid of the dataset, and no time.
    which
        What to call the dataset in errors: ``"fine"`` or ``"coarse"``.
    dims
        Dimensions by role, ``{"y": ..., "x": ..., "time": ...}``, where CF attributes are absent
        or mislead. What this dataset does not have is ignored, for two datasets may share one
        mapping.

    Examples
    --------
    >>> from deconditional.datasets import synthetic_fields
    >>> grid = find_grid(synthetic_fields(4, 8, extent=(30, 50, 0, 40)), ["tas"], "fine")
    >>> grid.describe()
    '4 cells of lat from 30 to 50° by 8 cells of lon from 0 to 40°'
    """
    _check_names(dataset, names, which)
    dataset = understandable(dataset)
    unknown = sorted(set(dims or {}) - set(CF_NAMES))
    if unknown:
        raise UsageError(f"dims has no role {unknown[0]!r}; its roles are y, x and time.")
    found = _candidates(dataset, dims or {})
    lines = [_coordinate(dataset, names, role, which, dims or {}, found[role]) for role in "yx"]
    if lines[0] == lines[1]:
        raise UsageError(
            f"{which} data: {lines[0]!r} cannot be both the y and the x axis; name two dimensions."
        )
    if dataset[lines[0]].dims == dataset[lines[1]].dims:
        raise UsageError(
            f"{which} data: {lines[0]!r} and {lines[1]!r} both lie on the dimension "
            f"{dataset[lines[0]].dims[0]!r}, so they are places of points and not a grid; grid the "
            "data first."
        )
    mapping = _mapping(dataset, names)
    y = _axis(dataset, lines[0], "y", which, mapping)
    x = _axis(dataset, lines[1], "x", which, mapping)
    if (y.kind == "plane") != (x.kind == "plane"):
        raise UsageError(
            f"{which} data: {y.coordinate!r} and {x.coordinate!r} are not coordinates of one kind; "
            "both must be degrees, or both lengths. Correct their units."
        )
    time, times = _time(dataset, names, which, dims or {}, found["time"], {y.name, x.name})
    known = {y.name, x.name, time}
    for name in names:
        for extra in dataset[name].dims:
            if extra not in known and dataset.sizes[extra] > 1:
                raise UsageError(
                    f"{which} data: {name!r} has a dimension {str(extra)!r} of size "
                    f"{dataset.sizes[extra]} besides position and time; select one value of it "
                    f"first, as in ds.isel({extra}=0)."
                )
    return Grid(y, x, time, times, mapping)


def _mapping(dataset: xr.Dataset, names: Sequence[str]) -> str | None:
    for name in names or dataset.data_vars:
        about = dataset[name]
        # The long form of the attribute is "crs: x y".
        mapping = str(about.attrs.get("grid_mapping") or about.encoding.get("grid_mapping"))
        mapping = mapping.split(":")[0].strip()
        if mapping in dataset.variables:
            return mapping
    return None


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
        dims = dataset.variables[name].dims
        if len(set(dims)) < len(dims):
            raise UsageError(
                f"{which} data: {name!r} has a dimension twice, {dims}; a field has every one once."
            )
        kind = dataset[name].dtype.kind
        if kind not in "fiubM":
            raise UsageError(
                f"{which} data: {name!r} holds {dataset[name].dtype} values, not numbers; convert "
                "or leave it out."
            )


def _candidates(dataset: xr.Dataset, dims: Mapping[str, str]) -> dict[str, list[str]]:
    """For every role the variables that may have its values, the likeliest first."""
    bare = dataset.drop_vars([n for n in dataset.variables if dataset[n].ndim > 2])
    guessed = bare.cf.guess_coord_axis()  # attributes where names and units give them away
    coordinates, axes = guessed.cf.coordinates, guessed.cf.axes
    found = {}
    for role, keys in CF_NAMES.items():
        given = dims.get(role)
        names = [
            name
            for name in guessed.variables
            if guessed[name].attrs.get("standard_name") in STANDARD_NAMES.get(role, ())
        ]
        for key in keys:
            names += coordinates.get(key, []) + axes.get(key, [])
        if given in dataset.variables:
            names = [given]
        elif given in dataset.dims:  # its values may have another name
            names = [n for n in dataset.coords if dataset[n].dims == (given,)]
        found[role] = list(dict.fromkeys(map(str, names)))
    return found


def _axis(dataset: xr.Dataset, coordinate: str, role: str, which: str, mapping: str | None) -> Axis:
    variable = dataset[coordinate]
    about = {} if mapping is None else dataset[mapping].attrs
    degrees = about.get("grid_mapping_name") == "latitude_longitude"
    kind, scale = _kind(coordinate, variable, role, which, degrees)
    values = np.asarray(variable.values, dtype=float)
    centres = _checked_centres(values * scale, kind, coordinate, which)
    found = _bounds_name(dataset, coordinate)
    if found is not None:
        bounds = _given_bounds(dataset, coordinate, found, centres, kind, scale, which)
    elif len(centres) < 2:
        raise UsageError(
            f"{which} data: {coordinate!r} has a single value and no bounds, so the size of "
            f"its cell is unknown; add a variable {coordinate + '_bnds'!r} with its two ends."
        )
    else:
        bounds = inferred_bounds(centres, kind)
    stored = dataset[found or coordinate].dtype
    precision = np.finfo(stored).eps if stored.kind == "f" else 0.0
    tolerance = 2 * float(precision * np.abs(bounds).max())
    return Axis(str(variable.dims[0]), coordinate, kind, centres, bounds, tolerance)


def _coordinate(
    dataset: xr.Dataset,
    names: Sequence[str],
    role: str,
    which: str,
    dims: Mapping[str, str],
    candidates: Sequence[str],
) -> str:
    """The variable that has the values of an axis."""
    found = {n: dataset[n] for n in candidates}
    used = {d for name in names or dataset.data_vars for d in dataset[name].dims}
    lines = [n for n, v in found.items() if v.ndim == 1 and v.dtype.kind in "fiu"]
    lines.sort(key=lambda n: (found[n].dims[0] not in used, _bare(found[n]), n != found[n].dims[0]))
    surface = next((n for n, v in found.items() if v.ndim == 2 and set(v.dims) <= used), None)
    if surface is not None and (not lines or _counts(found[lines[0]])):
        raise UsageError(
            f"{which} data: {surface!r} is two-dimensional; curvilinear grids are not supported. "
            "Regrid to a rectilinear grid first."
        )
    if lines:
        return lines[0]
    given = dims.get(role)
    if given in dataset.dims:
        raise UsageError(
            f"{which} data: the dimension {given!r} has no coordinate, so the places of its cells "
            "are unknown; give it values."
        )
    words = {"y": "latitude (or y)", "x": "longitude (or x)"}[role]
    raise UsageError(
        f"{which} data: no {words} coordinate was found among "
        f"{', '.join(map(str, dataset.dims)) or 'no dimensions'}; give it a CF standard_name, "
        f"or name the dimension with dims={{'{role}': ...}} (--dims {role}=...)."
    )


def _bare(variable: xr.DataArray) -> bool:
    """Whether a coordinate does not say what it measures."""
    described = "units" in variable.attrs or "standard_name" in variable.attrs
    return not described and _named_kind(variable) is None


def _counts(variable: xr.DataArray) -> bool:
    """Whether a coordinate merely numbers the rows or columns."""
    return _bare(variable) and bool(np.all(np.diff(variable.values) == 1))


def _named_kind(variable: xr.DataArray) -> AxisKind | None:
    """What the standard name of a coordinate, or else its name, says."""
    standard = variable.attrs.get("standard_name")
    if standard is not None:
        return SPHERICAL.get(str(standard))
    name = str(variable.name).lower()
    return next((kind for kind, starts in PLAIN_NAMES.items() if name.startswith(starts)), None)


def _kind(
    name: str, variable: xr.DataArray, role: str, which: str, degrees: bool
) -> tuple[AxisKind, float]:
    """Latitude, longitude or plane, and the unit in degrees or metres.

    `degrees` says what it is where there is no unit.
    """
    units = str(variable.attrs.get("units", "")).strip()
    plain = units.lower().replace(" ", "_")
    spherical: AxisKind = "latitude" if role == "y" else "longitude"
    named = _named_kind(variable)
    if named not in (None, spherical):
        raise UsageError(
            f"{which} data: {name!r} is a {named}, so it cannot be the {role} axis; name another "
            f"dimension with dims={{'{role}': ...}} (--dims {role}=...)."
        )
    if plain in DEGREES or ((named or degrees) and not units):
        return spherical, 1.0
    if not named and plain in LENGTHS:
        return "plane", LENGTHS[plain]
    if not named and plain in ("", "1"):
        return "plane", 1.0
    expected = "degrees" if named else "degrees, m or km"
    raise UsageError(
        f"{which} data: the units of {name!r} are {units!r}; expected {expected}. Convert the "
        "coordinate, or correct its units attribute."
    )


def _checked_centres(centres: Floats, kind: AxisKind, name: str, which: str) -> Floats:
    if not len(centres):
        raise UsageError(
            f"{which} data: the coordinate {name!r} has no values at all, so there are no cells; "
            "check how the file was cut."
        )
    if not np.isfinite(centres).all():
        raise UsageError(
            f"{which} data: the coordinate {name!r} has missing values, or infinite; drop them."
        )
    if np.abs(centres).max() > FARTHEST[kind]:
        raise UsageError(
            f"{which} data: the coordinate {name!r} runs to {centres[np.abs(centres).argmax()]:.4g}"
            ", which is nowhere; correct it, or mark the value as missing and drop it."
        )
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
        turned = np.sort(np.mod(centres, 360.0))
        if np.any(np.diff(turned, append=turned[0] + 360.0) < 1e-6):
            raise UsageError(
                f"{which} data: the longitudes in {name!r} hold a meridian twice, such as 0 and "
                f"360; drop one, as in ds.isel({name}=slice(None, -1))."
            )
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


def _bounds_name(dataset: xr.Dataset, name: str) -> str | None:
    """The variable with the bounds of a coordinate, by its attribute or by its usual name."""
    variable = dataset[name]
    named = [variable.attrs.get("bounds"), variable.encoding.get("bounds")]
    named += [f"{name}_bnds", f"{name}_bounds", f"bounds_{name}"]
    return next((n for n in named if n in dataset.variables), None)


def _given_bounds(
    dataset: xr.Dataset,
    name: str,
    found: str,
    centres: Floats,
    kind: AxisKind,
    scale: float,
    which: str,
) -> Floats:
    """Bounds that come with the dataset, checked."""
    bounds = dataset[found].transpose(*dataset[name].dims, ..., missing_dims="ignore").values
    if bounds.ndim == 1 and len(centres) == 1:
        bounds = bounds[None]
    numbers = bounds.dtype.kind in "fiu" and bool(np.isfinite(bounds).all())
    if bounds.shape != (len(centres), 2) or not numbers:
        raise UsageError(
            f"{which} data: the bounds {found!r} must hold two finite numbers for each of the "
            f"{len(centres)} values of {name!r}; their shape is {bounds.shape}."
        )
    bounds = bounds.astype(float) * scale
    slack = 1e-6 * max(1.0, float(np.abs(centres).max()))
    if kind == "longitude":
        bounds = _around(centres, bounds, slack)
    bounds = np.sort(bounds, axis=1)
    if not np.all((bounds[:, 0] <= centres + slack) & (centres - slack <= bounds[:, 1])):
        raise UsageError(
            f"{which} data: the bounds {found!r} do not enclose the values of {name!r}; correct "
            "or drop them."
        )
    if kind == "latitude":
        bounds = np.clip(bounds, -90.0, 90.0)
    width = bounds[:, 1] - bounds[:, 0]
    if not np.all(width > 0):
        raise UsageError(f"{which} data: a cell in the bounds {found!r} is empty; correct them.")
    low, high = bounds[np.argsort(centres)].T
    between = low[1:] - high[:-1]
    if kind == "longitude":
        between = np.append(between, low[0] + 360.0 - high[-1])
    if np.any(between < -0.01 * width.min()):
        raise UsageError(
            f"{which} data: cells in the bounds {found!r} overlap each other; correct or drop them."
        )
    return bounds


def _around(centres: Floats, bounds: Floats, slack: float) -> Floats:
    """Bounds of longitudes turned so that they enclose the centres, whatever their seam."""
    first, second = bounds.T
    width = np.mod(second - first, 360.0)
    width = np.where(width == 0, 360.0, width)

    def beyond(start: Floats) -> Floats:
        """How far east of a bound the centre is; one that lies on it is not a circle away."""
        return np.mod(centres - start + slack, 360.0) - slack

    eastward = beyond(first) <= width + slack
    westward = (beyond(second) <= 360.0 - width + slack) & (width < 360.0)
    # A centre on a bound is in both arcs; the cell is the shorter one.
    turn = westward & (~eastward | (width > 180.0))
    low = centres - beyond(np.where(turn, second, first))
    return np.stack([low, low + np.where(turn, 360.0 - width, width)], axis=1)


def _time(
    dataset: xr.Dataset,
    names: Sequence[str],
    which: str,
    dims: Mapping[str, str],
    candidates: Sequence[str],
    taken: set[str],
) -> tuple[str | None, np.ndarray | None]:
    """The dimension of time and its values; the coordinate may have another name."""
    used = {str(d) for name in names for d in dataset[name].dims} - taken
    found, given = [*candidates, "time"], dims.get("time")
    lines = [n for n in found if n in dataset.variables and dataset[n].ndim == 1]
    lines = [n for n in lines if n in dataset.dims or n == given or _is_time(dataset[n])]
    lines.sort(key=lambda n: n not in dataset.dims)
    for name in lines:
        dimension, times = str(dataset[name].dims[0]), dataset[name].values
        if dimension in used:
            _check_times(times, name, which)
            return dimension, times
    for name in used & {*found, given}:
        if dataset.sizes[name] > 1:
            raise UsageError(
                f"{which} data: the dimension {name!r} has no coordinate, so times cannot be "
                "told apart; give it values."
            )
    return None, None


def _check_times(times: np.ndarray, name: str, which: str) -> None:
    if not len(times):
        raise UsageError(f"{which} data: {name!r} has no times at all; check how it was cut.")
    if pd.isnull(times).any():
        raise UsageError(f"{which} data: the times in {name!r} have missing values; drop them.")
    try:
        n_distinct = len(np.unique(times))
    except TypeError:
        raise UsageError(
            f"{which} data: the times in {name!r} are of different kinds or calendars, so they "
            "have no order; convert them to one."
        ) from None
    if n_distinct < len(times):
        raise UsageError(f"{which} data: the times in {name!r} are not distinct.")


def _is_time(variable: xr.DataArray) -> bool:
    return variable.attrs.get("standard_name") == "time" or variable.dtype.kind in "MO"


# ---------------------------------------------------------------------- values


def values_on(grid: Grid, dataset: xr.Dataset, name: str) -> Floats:
    """A variable as (times, cells), one time where it has none; infinite values are missing.

    Dates become days since 2000.
    """
    array = dataset[name]
    if array.dtype.kind == "M":
        array = (array - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "D")
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
    values = np.where(np.isfinite(values), values, np.nan)
    _check_marks(values, name)
    return values


def _check_marks(values: Floats, name: str) -> None:
    """Raise where marks of missing values have been read as values."""
    sizes = np.abs(values)
    largest = np.nanmax(sizes, initial=0.0)
    if largest < UNMARKED:
        return
    ordinary = sizes[sizes < 1e-6 * largest]
    if ordinary.size:
        raise UsageError(
            f"{name!r} holds values up to {largest:.4g} beside values of {np.median(ordinary):.4g} "
            "and less: marks of missing values that the file does not declare. Set the attribute "
            "_FillValue of the variable, or make them NaN."
        )
