"""Results of ``deconditional downscale``, read from files and checked before anything is drawn."""

from __future__ import annotations

import json
import os
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

REMEDY = "name a file that deconditional downscale wrote."


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
    """What a result says about itself."""
    try:
        facts = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise UsageError(f"the attribute 'deconditional' of {shown} is damaged; {REMEDY}")
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
