"""From a posterior to a dataset that says where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import VERSION
from deconditional.fields.fine_points import FinePoints
from deconditional.fields.grids import Grid
from deconditional.fields.pairing import Pairing
from deconditional.fields.prediction import EXTRAPOLATION, NOT_PREDICTED

__all__ = ["as_dataset", "chunked_dataset", "coarse_part", "history_line", "versions"]

Floats = npt.NDArray[np.float64]

ROLES = "nothing covariates_only target_only both"
EXTRAPOLATION_VALUES = np.arange(NOT_PREDICTED, 4, dtype=np.int8)
EXTRAPOLATION_FLAGS = "not_predicted inside outside_range prior_only outside_range_and_prior_only"
PACKAGES = ("jax", "gpjax", "numpy", "scipy", "xarray")


def versions() -> dict[str, str]:
    """Of this package and of what it computes with."""
    return {"deconditional": VERSION, **{name: metadata.version(name) for name in PACKAGES}}


def history_line(command: str) -> str:
    """One line of a CF history."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} deconditional {VERSION}: {command}"


def as_dataset(
    fine: xr.Dataset, points: FinePoints, fields: Mapping[str, tuple[tuple[str, ...], Floats]]
) -> xr.Dataset:
    """Fields on the fine grid; NaN, or -1 for flags, where nothing was predicted.

    Parameters
    ----------
    fine
        The dataset the points came from: gives coordinates, bounds and grid mapping.
    points
        The points that were predicted.
    fields
        For each name its leading dimensions, if any, and values (..., points).
    """
    grid = points.grid
    dims = [d for d in (grid.time, grid.y.name, grid.x.name) if d is not None]
    if grid.time is not None and len(points.present) == 1 and grid.n_times > 1:
        dims = dims[1:]
    shape = (len(points.present), *grid.shape)[-len(dims) :]
    out = xr.Dataset()
    for name, (leading, values) in fields.items():
        missing = NOT_PREDICTED if values.dtype.kind == "i" else np.nan
        whole = np.full((*values.shape[:-1], points.present.size), missing, dtype=values.dtype)
        whole[..., points.present.ravel()] = values
        out[name] = ((*leading, *dims), whole.reshape(*values.shape[:-1], *shape))
    return out.assign_coords(_coordinates(fine, grid, dims))


def chunked_dataset(
    fine: xr.Dataset, grid: Grid, layers: Mapping[str, tuple[tuple[str, ...], Any]]
) -> xr.Dataset:
    """The same of Dask arrays, (..., time, y, x)."""
    dims = [d for d in (grid.time, grid.y.name, grid.x.name) if d is not None]
    out = xr.Dataset()
    for name, (leading, values) in layers.items():
        values = values.astype(np.int8) if name == EXTRAPOLATION else values
        flat = values if grid.time is not None else values[..., 0, :, :]
        out[name] = ((*leading, *dims), flat)
    return out.assign_coords(_coordinates(fine, grid, dims))


def _coordinates(fine: xr.Dataset, grid: Grid, dims: Sequence[str]) -> dict[str, xr.DataArray]:
    """All coordinates of the fine data on these dimensions, their bounds and the grid mapping."""
    kept: dict[str, xr.DataArray] = {}
    wanted = [n for n in fine.variables if n in fine.coords and set(fine[n].dims) <= set(dims)]
    bounds = [fine[n].attrs.get("bounds") or fine[n].encoding.get("bounds") for n in wanted]
    bounds += [f"{axis.coordinate}_bnds" for axis in (grid.y, grid.x)]
    for name in [*wanted, *bounds, grid.mapping]:
        if name is not None and name in fine.variables:
            kept[str(name)] = fine[name].reset_coords(drop=True)
    return kept


def coarse_part(
    coarse: xr.Dataset, pairing: Pairing, means: Any, has_covariates: npt.NDArray[np.bool_]
) -> xr.Dataset:
    """Observed values, area means, their difference and the role of every unit."""
    grid = pairing.coarse
    dims, coords = [], {}
    for axis in (grid.y, grid.x):
        name = f"coarse_{axis.name}"
        dims.append(name)
        variable = coarse[axis.coordinate]
        attrs = {k: v for k, v in variable.attrs.items() if k != "bounds"}
        coords[name] = (name, variable.values, attrs)
    shape: tuple[int, ...] = grid.shape
    if pairing.times is not None:
        dims.insert(0, "coarse_time")
        coords["coarse_time"] = ("coarse_time", pairing.times, {"standard_name": "time"})
        shape = (len(pairing.times), *shape)
    observed = np.isfinite(pairing.target)
    role = has_covariates.astype(np.int8) + 2 * observed.astype(np.int8)
    out = xr.Dataset(coords=coords)
    out["coarse_observed"] = (dims, pairing.target.reshape(shape))
    out["coarse_mean"] = (dims, means.reshape(shape))
    out["coarse_residual"] = out["coarse_observed"] - out["coarse_mean"]
    out["coarse_role"] = (dims, role.reshape(shape).astype(np.int8))
    out["coarse_role"].attrs = {
        "long_name": "what a coarse cell gives",
        "flag_values": np.arange(4, dtype=np.int8),
        "flag_meanings": ROLES,
    }
    return out


def extrapolation_attributes() -> dict[str, Any]:
    """What the flags of cells far from the data mean."""
    return {
        "long_name": "how far a cell is from the data",
        "flag_values": EXTRAPOLATION_VALUES,
        "flag_meanings": EXTRAPOLATION_FLAGS,
        "comment": (
            "outside_range: an input beyond the range of the bags by over a tenth of it; "
            "prior_only: a variance of at least 95 % of that of the prior"
        ),
    }


def extrapolation_summary(flags: Any) -> dict[str, Any]:
    """Number of predicted cells, and the share of them that is flagged."""
    n, flagged = int((flags >= 0).sum()), int((flags > 0).sum())
    return {"n": n, "share": flagged / n if n else None}


def residual_summary(residual: Floats) -> dict[str, Any]:
    """Number, mean, root mean square and largest of what is left."""
    left = residual[np.isfinite(residual)]
    if not left.size:
        return {"n": 0, "mean": None, "rmse": None, "largest": None}
    return {
        "n": int(left.size),
        "mean": float(left.mean()),
        "rmse": float(np.sqrt(np.mean(left**2))),
        "largest": float(left[np.abs(left).argmax()]),
    }


def as_json(facts: Mapping[str, Any]) -> str:
    """Facts as one line of JSON; NumPy values become plain ones, what is not finite null."""
    return json.dumps(_plain(facts), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)
