"""Results of ``deconditional downscale``, read from files and checked before anything is drawn.

A file may come from anywhere: whatever a page shows is looked at here, and only here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Lattice
from deconditional.fields.io import UnreadableError, open_fields
from deconditional.report.grids import grid_of
from deconditional.report.result import Result, floats
from deconditional.scores.marginals import KINDS

CELLS = ("mean", "std", "latent_mean", "latent_std")
DRAWN = (*CELLS, "samples", "coarse_observed", "coarse_mean", "coarse_residual", "coarse_role")
"""Variables that pages are made of, the first of them on the fine grid."""

DEEPEST = 30
"""Lists and objects within each other in the facts."""

REMEDY = "name a file that deconditional downscale wrote."

PLAIN = (str, int, float, type(None))
"""What lists and objects of JSON are made of in the end."""


Fits = Callable[[Any], bool]


def _anything(value: Any) -> bool:
    return True


def _number(value: Any) -> bool:
    """A number that arrays can hold, or none at all."""
    return (
        value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    )


def _listed(fits: Fits = _anything, least: int = 0, most: float = np.inf) -> Fits:
    """A test for lists of so many values that each fit."""
    return lambda value: (
        isinstance(value, list) and least <= len(value) <= most and all(map(fits, value))
    )


def _object(fits: Fits = _anything, **parts: Fits) -> Fits:
    """A test for objects whose values all fit, and named ones in a way of their own."""
    return lambda value: (
        isinstance(value, dict)
        and all(map(fits, value.values()))
        and all(part(value[name]) for name, part in parts.items() if value.get(name))
    )


FACTS: dict[str, tuple[str, Fits]] = {
    "options": ("an object", _object()),
    "timings": ("an object", _object()),
    "versions": ("an object", _object()),
    "bounds": ("two numbers", _listed(_number, 2, 2)),
    "understood": ("a list of pairs", _listed(_listed(least=2, most=2))),
    "parameters": ("a list of objects", _listed(_object())),
    "fit": ("an object with lists of notes", _object(notes=_listed(), details=_object())),
    "comparison": (
        "an object with rows and columns",
        _object(rows=_listed(_listed(least=1)), columns=_listed(), pit=_listed(_number)),
    ),
    "residuals": ("an object of numbers", _object(_number)),
}
"""What each of the facts must be, where it is there."""


def _depth(value: Any) -> int:
    """How deep lists and objects lie within each other."""
    depth, level = 0, [value]
    while level and depth <= DEEPEST:
        parts = [v.values() if isinstance(v, dict) else v for v in level]
        level = [v for part in parts if not isinstance(part, PLAIN) for v in part]
        depth += 1
    return depth


def load_result(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a result of ``deconditional downscale``.

    Raises
    ------
    UsageError
        Where the file cannot be read, or is something else.
    """
    shown = repr(str(path))
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {shown}; name one that deconditional downscale wrote.")
    try:
        data = open_fields(os.fspath(path), "result")
    except UnreadableError as error:
        raise UsageError(
            f"{shown} cannot be read as netCDF ({error.reason}); name one that deconditional "
            "downscale wrote."
        ) from None
    read_result(data, shown)
    return data


def read_result(data: xr.Dataset, shown: str = "the dataset") -> Result:
    """A dataset as a result, once it is known to be one."""
    absent = [f"no variable {name!r}" for name in ("mean", "std") if name not in data]
    if "deconditional" not in data.attrs:
        absent.append("no attribute 'deconditional'")
    if absent:
        listed = " and ".join([", ".join(absent[:-1])] * (len(absent) > 1) + absent[-1:])
        raise UsageError(
            f"{shown} is no result of deconditional downscale: it has {listed}; {REMEDY}"
        )
    result = Result(data, _facts(data.attrs["deconditional"], shown))
    for name in (name for name in DRAWN if name in result.data):
        _check_field(result, name, shown)
    _check_distribution(result, shown)
    return result


def _facts(text: Any, shown: str) -> dict[str, Any]:
    """What a result says about itself, checked."""
    try:
        facts = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        facts = None
    wrong = "" if isinstance(facts, dict) else "it is no object"
    for name, (what, fits) in FACTS.items():
        if not wrong and facts.get(name) and not fits(facts[name]):
            wrong = f"{name!r} must be {what}"
    if wrong or _depth(facts) > DEEPEST:
        raise UsageError(
            f"the attribute 'deconditional' of {shown} is damaged ({wrong or 'too deep'}); {REMEDY}"
        )
    return facts


def _check_field(result: Result, name: str, shown: str) -> None:
    """Raise unless a map can be drawn of a variable."""
    field = result.data[name]
    try:
        grid = grid_of(field)
    except UsageError as error:
        raise UsageError(f"no map can be drawn of {name!r} in {shown}: {error}") from None
    lines = grid.coordinates if isinstance(grid, Lattice) else ()
    axes = [field[line] for line in lines if line in field.coords]
    odd = next((each for each in (field, *axes) if each.dtype.kind not in "fiub"), None)
    if odd is not None:
        raise UsageError(
            f"{str(odd.name)!r} in {shown} holds {odd.dtype} values, not numbers; run "
            "deconditional downscale again."
        )
    if not field.size or not all(np.isfinite(floats(axis)).all() for axis in axes):
        raise UsageError(
            f"no map can be drawn of {name!r} in {shown}: it has no cells, or cells that are "
            "nowhere; run deconditional downscale again."
        )
    if name in CELLS and set(field.dims) != set(result.mean.dims):
        raise UsageError(f"'mean' and {name!r} of {shown} lie on different dimensions.")


def _check_distribution(result: Result, shown: str) -> None:
    kind = result.distribution
    if kind not in KINDS:
        raise UsageError(
            f"{shown} has marginals of the kind {kind!r}; this version knows {', '.join(KINDS)}. "
            "Read it with the version that wrote it."
        )
    if kind == "rectified normal":
        absent = [name for name in ("latent_mean", "latent_std") if name not in result.data]
        if absent:
            raise UsageError(
                f"{shown} has rectified normal marginals, but no variable "
                f"{' and '.join(map(repr, absent))}; run deconditional downscale again."
            )
