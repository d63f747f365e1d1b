"""The grid that variables of a dataset lie on, and their values there.

Dimensions are found through their CF attributes, with the usual names as a fallback, unless the
user names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cf_xarray  # noqa: F401  (gives datasets their .cf)
import numpy as np
import pandas as pd
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import AxisKind, Floats, Grid, Lattice
from deconditional.fields.bounds import Coordinate, placed_cells
from deconditional.fields.frames import GEOGRAPHIC, Frame
from deconditional.fields.io import understandable
from deconditional.fields.surface import Surface

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


def find_grid(
    dataset: xr.Dataset,
    names: Sequence[str],
    which: str,
    dims: Mapping[str, str] | None = None,
    globe: bool = False,
) -> Grid:
    """The grid that some variables of a dataset lie on.

    Without `names` it is the grid of the dataset, and no time. `which`, fine or coarse, is what
    errors call the dataset. `dims` has dimensions by role, {"y": ..., "x": ..., "time": ...}, where
    CF attributes are absent or mislead; what this dataset does not have is ignored, for two
    datasets may share one mapping. With `globe` latitude and longitude are taken where there are
    these beside other coordinates.

    Examples
    --------
    >>> from deconditional.datasets import synthetic_fields
    >>> grid = find_grid(synthetic_fields(4, 8, extent=(30, 50, 0, 40)), ["tas"], "fine")
    >>> grid.describe()
    '4 cells of lat from 30 to 50° by 8 cells of lon from 0 to 40°'
    """
    check_names(dataset, names, which)
    unknown = sorted(set(dims or {}) - set(CF_NAMES))
    if unknown:
        raise UsageError(f"dims has no role {unknown[0]!r}; its roles are y, x and time.")
    search = Search(understandable(dataset), tuple(names), which, dims or {})
    candidates = search.candidates()
    mapping = search.mapping()
    pair = search.scattered(candidates, globe)
    if pair is not None:
        cells: Grid = search.surface(pair, mapping)
    else:
        cells = search.lattice([search.coordinate(r, candidates[r]) for r in "yx"], mapping)
    time, times = search.time(candidates["time"], set(cells.spatial))
    search.check_rest({*cells.spatial, time})
    return replace(cells, time=time, times=times, mapping=mapping)  # type: ignore[type-var]


def check_names(dataset: Any, names: Sequence[str], which: str) -> None:
    """Raise unless this is a dataset that has numbers under all of these names."""
    if not isinstance(dataset, xr.Dataset):
        raise UsageError(
            f"the {which} data must be an xarray Dataset, not {type(dataset).__name__}; open a "
            "file with xarray.open_dataset, or use DataArray.to_dataset(name=...)."
        )
    for name in names:
        if name not in dataset.variables:
            there = ", ".join(map(str, dataset.data_vars)) or "no variables at all"
            raise UsageError(f"the {which} data has no variable {name!r}; it has {there}.")
        variable = dataset.variables[name]
        if len(set(variable.dims)) < len(variable.dims):
            raise UsageError(
                f"{which} data: {name!r} has a dimension twice, {variable.dims}; a field has every "
                "one once."
            )
        if variable.dtype.kind not in "fiubM":
            raise UsageError(
                f"{which} data: {name!r} holds {variable.dtype} values, not numbers; convert "
                "or leave it out."
            )


@dataclass(frozen=True)
class Search:
    """A dataset in which a grid is looked for; see :func:`find_grid`."""

    dataset: xr.Dataset
    names: tuple[str, ...]
    which: str
    dims: Mapping[str, str]

    def candidates(self) -> dict[str, list[str]]:
        """For every role the variables that may have its values, the likeliest first."""
        dataset = self.dataset
        bare = dataset.drop_vars([n for n in dataset.variables if dataset[n].ndim > 2])
        # Files need not say that the latitudes of numbered rows are coordinates.
        loose = [n for n, v in bare.data_vars.items() if v.dims and not set(v.dims) & set(v.coords)]
        bare = bare.set_coords([n for n in loose if n not in self.names])
        guessed = bare.cf.guess_coord_axis()  # attributes where names and units give them away
        coordinates, axes = guessed.cf.coordinates, guessed.cf.axes
        candidates = {}
        for role, keys in CF_NAMES.items():
            given = self.dims.get(role)
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
            candidates[role] = list(dict.fromkeys(map(str, names)))
        return candidates

    @property
    def used(self) -> set[str]:
        """Dimensions of the variables of interest."""
        names = self.names or self.dataset.data_vars
        return {str(d) for name in names for d in self.dataset[name].dims}

    def lines(self, candidates: Sequence[str]) -> list[str]:
        """Candidates with one dimension, the likeliest first."""
        variables = {n: self.dataset[n] for n in candidates}
        lines = [n for n, v in variables.items() if v.ndim == 1 and v.dtype.kind in "fiu"]
        lines.sort(
            key=lambda n: (
                variables[n].dims[0] not in self.used,
                _bare(variables[n]),
                n != variables[n].dims[0],
            )
        )
        return lines

    def scattered(
        self, candidates: Mapping[str, Sequence[str]], globe: bool
    ) -> tuple[str, str] | None:
        """Coordinates that give every cell a place of its own; None where there are axes."""
        dataset = self.dataset
        # A variable made of a latitude may still have its attributes.
        free = {r: [n for n in candidates[r] if n not in self.names] for r in "yx"}
        surfaces = [[n for n in free[r] if dataset[n].ndim == 2] for r in "yx"]
        y, x = (sorted(names, key=lambda n: n in dataset.data_vars) for names in surfaces)
        pairs = [(a, b) for a in y for b in x if set(dataset[a].dims) == set(dataset[b].dims)]
        pairs = [p for p in pairs if set(map(str, dataset[p[0]].dims)) <= self.used]
        lines = [self.lines(candidates[role]) for role in "yx"]
        if pairs and (globe or any(not n or _counts(dataset[n[0]]) for n in lines)):
            return pairs[0]
        if all(lines) and lines[0][0] != lines[1][0]:
            pair = lines[0][0], lines[1][0]
            if dataset[pair[0]].dims == dataset[pair[1]].dims:
                return pair
        return None

    def coordinate(self, role: str, candidates: Sequence[str]) -> str:
        """The variable that has the values of an axis."""
        dataset, which = self.dataset, self.which
        lines = self.lines(candidates)
        if lines:
            return lines[0]
        given = self.dims.get(role)
        if given in dataset.dims:
            raise UsageError(
                f"{which} data: the dimension {given!r} has no coordinate, so the places of its "
                "cells are unknown; give it values."
            )
        words = {"y": "latitude (or y)", "x": "longitude (or x)"}[role]
        raise UsageError(
            f"{which} data: no {words} coordinate was found among "
            f"{', '.join(map(str, dataset.dims)) or 'no dimensions'}; give it a CF standard_name, "
            f"or name the dimension with dims={{'{role}': ...}} (--dims {role}=...)."
        )

    def mapping(self) -> str | None:
        """The name of the grid-mapping variable, if there is one."""
        for name in self.names or self.dataset.data_vars:
            about = self.dataset[name]
            # The long form of the attribute is "crs: x y".
            mapping = str(about.attrs.get("grid_mapping") or about.encoding.get("grid_mapping"))
            mapping = mapping.split(":")[0].strip()
            if mapping in self.dataset.variables:
                return mapping
        # The name that rioxarray gives it; arithmetic drops the attribute, and the variable stays.
        return "spatial_ref" if "spatial_ref" in self.dataset.coords else None

    def coordinates(self, pair: Sequence[str], about: Mapping[str, Any]) -> list[Coordinate]:
        """Two coordinates, what they measure found; raises where they are not of one kind."""
        y, x = pair
        if y == x:
            raise UsageError(
                f"{self.which} data: {y!r} cannot be both the y and the x axis; name two "
                "dimensions."
            )
        degrees = about.get("grid_mapping_name") == "latitude_longitude"
        kinds = [self.kind(self.dataset[n], r, degrees) for n, r in zip(pair, "yx", strict=True)]
        if (kinds[0][0] == "plane") != (kinds[1][0] == "plane"):
            raise UsageError(
                f"{self.which} data: {y!r} and {x!r} are not coordinates of one kind; both must be "
                "degrees, or both lengths. Correct their units."
            )
        named = zip(pair, kinds, strict=True)
        return [Coordinate(self.dataset, name, *kind, self.which) for name, kind in named]

    def lattice(self, pair: Sequence[str], mapping: str | None) -> Lattice:
        """The grid of two axes."""
        about = {} if mapping is None else self.dataset[mapping].attrs
        y, x = (coordinate.axis() for coordinate in self.coordinates(pair, about))
        turned = self.dataset[pair[0]].attrs.get("standard_name") == "grid_latitude"
        return Lattice(y, x, frame=Frame.of(about, y.kind != "plane", turned))

    def surface(self, pair: Sequence[str], mapping: str | None) -> Surface:
        """The grid of cells that each have a place."""
        about = {} if mapping is None else self.dataset[mapping].attrs
        y, x = self.coordinates(pair, about)
        frame = GEOGRAPHIC if y.kind == "latitude" else Frame.of(about, False, False)
        return placed_cells(y, x, self.names, frame)

    def kind(self, variable: xr.DataArray, role: str, degrees: bool) -> tuple[AxisKind, float]:
        """Latitude, longitude or plane, and the unit in degrees or metres.

        `degrees` says what it is where there is no unit.
        """
        which, name = self.which, str(variable.name)
        units = str(variable.attrs.get("units", "")).strip()
        plain = units.lower().replace(" ", "_")
        spherical: AxisKind = "latitude" if role == "y" else "longitude"
        named = _named_kind(variable)
        if named not in (None, spherical):
            raise UsageError(
                f"{which} data: {name!r} is a {named}, so it cannot be the {role} axis; name "
                f"another dimension with dims={{'{role}': ...}} (--dims {role}=...)."
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

    def time(
        self, candidates: Sequence[str], taken: set[str]
    ) -> tuple[str | None, np.ndarray | None]:
        """The dimension of time and its values; the coordinate may have another name."""
        dataset, which = self.dataset, self.which
        used = {str(d) for name in self.names for d in dataset[name].dims} - taken
        names, given = [*candidates, "time"], self.dims.get("time")
        lines = [n for n in names if n in dataset.variables and dataset[n].ndim == 1]
        lines = [n for n in lines if n in dataset.dims or n == given or _is_time(dataset[n])]
        lines.sort(key=lambda n: n not in dataset.dims)
        for name in lines:
            dimension, times = str(dataset[name].dims[0]), dataset[name].values
            if dimension in used:
                _check_times(times, name, which)
                return dimension, times
        for name in used & {*names, given}:
            if dataset.sizes[name] > 1:
                raise UsageError(
                    f"{which} data: the dimension {name!r} has no coordinate, so times cannot be "
                    "told apart; give it values."
                )
        return None, None

    def check_rest(self, known: set[str | None]) -> None:
        """Raise where a variable has a dimension besides position and time."""
        for name in self.names:
            for extra in self.dataset[name].dims:
                if extra not in known and self.dataset.sizes[extra] > 1:
                    raise UsageError(
                        f"{self.which} data: {name!r} has a dimension {str(extra)!r} of size "
                        f"{self.dataset.sizes[extra]} besides position and time; select one value "
                        f"of it first, as in ds.isel({extra}=0)."
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


def _check_times(times: np.ndarray, name: str, which: str) -> None:
    if not len(times):
        raise UsageError(f"{which} data: {name!r} has no times at all; check how it was cut.")
    if times.dtype.kind in "SU" or isinstance(times.flat[0], str):
        raise UsageError(
            f"{which} data: the times in {name!r} are texts, such as {str(times.flat[0])!r}; make "
            f"dates of them, as in ds.assign_coords({name}=pandas.to_datetime(ds[{name!r}]))."
        )
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


def laid_out(grid: Grid, array: xr.DataArray) -> xr.DataArray:
    """A variable as (time, y, x), time only if it has several; dates are days since 2000."""
    if array.dtype.kind == "M":
        array = (array - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "D")
    single = [d for d in array.dims if d == grid.time and array.sizes[d] == 1]
    extra = [d for d in array.dims if d not in grid.dims]
    array = array.squeeze([*single, *extra], drop=True)
    array = array.drop_vars([str(name) for name in array.coords])
    sizes = dict(zip(reversed(grid.spatial), reversed(grid.shape), strict=False))
    array = array.expand_dims({d: n for d, n in sizes.items() if d not in array.dims})
    return array.transpose(*(d for d in grid.dims if d in array.dims))


def values_on(grid: Grid, dataset: xr.Dataset, name: str) -> Floats:
    """A variable as (times, cells), one time where it has none; infinite values are missing."""
    values = np.asarray(laid_out(grid, dataset[name]).values, dtype=float)
    values = values.reshape(-1, grid.n_cells)
    return np.where(np.isfinite(values), values, np.nan)
