"""From a posterior to a dataset that says where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import VERSION
from deconditional.fields.axes import Floats, Grid
from deconditional.fields.predict import NOT_PREDICTED
from deconditional.fields.problem import Problem
from deconditional.fields.sides import FineSide
from deconditional.fields.zones.grid import DIM, Zones

ROLES = "nothing covariates_only target_only both"
EXTRAPOLATION_VALUES = np.arange(NOT_PREDICTED, 4, dtype=np.int8)
EXTRAPOLATION_FLAGS = "not_predicted inside outside_range prior_only outside_range_and_prior_only"
PACKAGES = ("jax", "gpjax", "numpy", "scipy", "xarray")


def history_line(command: str) -> str:
    """Line that a command adds to a CF history."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} deconditional {VERSION}: {command}"


def fine_part(side: FineSide, named: Mapping[str, tuple[tuple[str, ...], Any]]) -> xr.Dataset:
    """Fields on the fine grid, with all coordinates of the fine data there.

    Parameters
    ----------
    named
        For each name its leading dimensions, if any, and its array (..., time, y, x).
    """
    grid, out = side.grid, xr.Dataset()
    for name, (leading, values) in named.items():
        out[name] = ((*leading, *grid.dims), grid.bare(values))
    return out.assign_coords(_coordinates(side.dataset, grid))


def _coordinates(fine: xr.Dataset, grid: Grid) -> dict[str, xr.DataArray]:
    """All coordinates of the fine data on a grid, their bounds and the grid mapping."""
    kept: dict[str, xr.DataArray] = {}
    wanted = [n for n in fine.variables if n in fine.coords and set(fine[n].dims) <= set(grid.dims)]
    bounds = [fine[n].attrs.get("bounds") or fine[n].encoding.get("bounds") for n in wanted]
    bounds += [f"{name}_bnds" for name in grid.coordinates]
    for name in [*wanted, *bounds, grid.mapping]:
        if name is not None and name in fine.variables:
            kept[str(name)] = fine[name].reset_coords(drop=True)
    return kept


def coarse_part(problem: Problem, means: Any) -> xr.Dataset:
    """Observed values, area means, their difference and the role of every unit."""
    pairing, grid = problem.pairing, problem.pairing.coarse
    dims = [f"coarse_{name}" for name in grid.spatial]
    coords: dict[str, Any] = {}
    for coordinate in grid.coordinates:
        given = problem.coarse[coordinate]
        on = [f"coarse_{name}" for name in given.dims]
        attributes = {k: v for k, v in given.attrs.items() if k != "bounds"}
        name = on[0] if len(on) == 1 and len(dims) == 2 else f"coarse_{coordinate}"
        coords[name] = (on, given.values, attributes)
    if DIM in problem.coarse.coords:
        coords[f"coarse_{DIM}"] = problem.coarse[DIM].values
    shape: tuple[int, ...] = grid.shape[-len(dims) :]
    if pairing.times is not None:
        dims.insert(0, "coarse_time")
        coords["coarse_time"] = ("coarse_time", pairing.times, {"standard_name": "time"})
        shape = (len(pairing.times), *shape)
    role = 2 * np.isfinite(pairing.target).astype(np.int8)
    if pairing.bag_unit.size:
        role[pairing.bag_unit] += 1
    elif isinstance(means, np.ndarray):  # of a series, whose bags are made window by window
        role += np.isfinite(means)
    out = xr.Dataset(coords=coords)
    if isinstance(grid, Zones):
        out = out.assign(_zone_facts(problem, grid, dims, shape))
    out["coarse_observed"] = (dims, pairing.target.reshape(shape))
    out["coarse_mean"] = (dims, means.reshape(shape))
    out["coarse_residual"] = out["coarse_observed"] - out["coarse_mean"]
    out["coarse_role"] = (dims, role.reshape(shape))
    out["coarse_role"].attrs = {
        "long_name": "what a coarse cell gives",
        "flag_values": np.arange(4, dtype=np.int8),
        "flag_meanings": ROLES,
    }
    return out


def _zone_facts(
    problem: Problem, grid: Zones, dims: Sequence[str], shape: tuple[int, ...]
) -> dict[str, Any]:
    """How much of each zone is covered, what is in it, and its borders in the fine coordinates."""
    pairing, rings, on = problem.pairing, grid.rings, f"coarse_{DIM}"
    amount = np.full(pairing.target.size, np.nan)
    if pairing.amount is not None and pairing.bag_unit.size:
        amount[pairing.bag_unit] = pairing.amount
    said = {"long_name": "what is in a zone", "units": pairing.question.exposure or "km2"}
    variables: dict[str, Any] = {
        "coarse_amount": (dims, amount.reshape(shape), said),
        "coarse_node_x": ("coarse_node", rings.xy[:, 0]),
        "coarse_node_y": ("coarse_node", rings.xy[:, 1]),
        "coarse_ring_nodes": ("coarse_ring", rings.sizes),
        "coarse_ring_zone": ("coarse_ring", rings.owner),
    }
    if pairing.cover is not None:
        cover = pairing.cover.reshape(-1, grid.n)[0]
        variables["coarse_cover"] = (on, cover, {"long_name": "share of a zone with covariates"})
    return variables


def with_area_means(coarse: xr.Dataset, values: Floats) -> xr.Dataset:
    """The coarse part of a result, once its area means are known."""
    means = values.reshape(coarse["coarse_mean"].shape)
    left = coarse["coarse_observed"].values - means
    return coarse.assign(
        coarse_mean=coarse["coarse_mean"].copy(data=means),
        coarse_residual=coarse["coarse_residual"].copy(data=left),
    )


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
