"""The answer of a fit: a dataset that says where it came from, in memory or lazy, or written."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from deconditional.errors import Caution, tell_of
from deconditional.fields.axes import Grid
from deconditional.fields.bounds import bounds_names
from deconditional.fields.description import (
    as_json,
    described,
    extrapolation_summary,
    residual_summary,
)
from deconditional.fields.io import write_fields
from deconditional.fields.io.writing import GEOTIFF
from deconditional.fields.predict import EXTRAPOLATION, Together, Wanted
from deconditional.fields.problem import Problem
from deconditional.fields.series import Windows
from deconditional.fields.sides import FineSide
from deconditional.fields.streaming import stream
from deconditional.fields.zones.grid import DIM, Zones
from deconditional.fitting.progress import show
from deconditional.models.cautions import extrapolated

ROLES = "nothing covariates_only target_only both"


def fine_part(side: FineSide, named: Mapping[str, tuple[tuple[str, ...], Any]]) -> xr.Dataset:
    """Fields on the fine grid, with all coordinates of the fine data there.

    `named` has for each name its leading dimensions, if any, and its array (..., time, y, x).
    """
    grid, out = side.grid, xr.Dataset()
    for name, (leading, values) in named.items():
        out[name] = ((*leading, *grid.dims), grid.bare(values))
    return out.assign_coords(_coordinates(side.dataset, grid))


def _coordinates(fine: xr.Dataset, grid: Grid) -> dict[str, xr.DataArray]:
    """All coordinates of the fine data on a grid, their bounds and the grid mapping."""
    kept: dict[str, xr.DataArray] = {}
    wanted = [n for n in fine.variables if n in fine.coords and set(fine[n].dims) <= set(grid.dims)]
    for name in [*wanted, *bounds_names(fine, wanted), grid.mapping]:
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


@dataclass(frozen=True)
class Answer:
    """The posterior on fine data, and what a result says of it."""

    # side, source: where to predict, and what predicts there.
    side: FineSide
    source: Together | Windows
    wanted: Wanted  # what is asked of the posterior
    # fit, problem: the fitted downscaler, and its problem, at all times of a series.
    fit: Any
    problem: Problem
    command: str  # what the history says

    def dataset(self) -> xr.Dataset:
        """The result: Dask arrays where the fine data has them."""
        began, wanted, problem = time.perf_counter(), self.wanted, self.problem
        with show(self.fit.progress) as stage:
            stage("predicting")
            named, means = self.source.predicted(wanted, stage)
        out = fine_part(self.side, named)
        for name, levels in (("quantile", wanted.levels), ("above", wanted.above)):
            if levels:
                out = out.assign_coords({name: (name, np.asarray(levels))})
        if problem.pairing.question.family is not None:
            out["rate"] = out["mean"]
        out = out.merge(coarse_part(problem, means))
        timings = {**self.fit.timings_, "predicting": time.perf_counter() - began}
        result = described(out, self.side.grid, self.fit, problem, timings, self.command)
        if result[EXTRAPOLATION].chunks is None:
            tell_of(extrapolated(**extrapolation_summary(result[EXTRAPOLATION].values)))
        return result

    def write(self, out: Path) -> Path:
        """Write the result; where it is lazy, region by region, in the memory of a few chunks."""
        result = self.dataset()
        if result["mean"].chunks is None or out.suffix in GEOTIFF:
            return write_fields(result.compute(), out)
        fields = [name for name in result.data_vars if not str(name).startswith("coarse_")]
        cautions: list[Caution] = []

        def finish(written: xr.Dataset) -> xr.Dataset:
            """What cannot be known before all fields are written."""
            rest = result.drop_vars(fields)
            if rest["coarse_mean"].chunks is not None:
                means = self.source.area_means(written["mean"])
                means = means.reshape(rest["coarse_mean"].shape)
                left = rest["coarse_observed"].values - means
                rest["coarse_mean"] = rest["coarse_mean"].copy(data=means)
                rest["coarse_residual"] = rest["coarse_residual"].copy(data=left)
            rest = rest.drop_vars([n for n in rest.coords if n in written.variables]).compute()
            facts = json.loads(result.attrs["deconditional"])
            facts["residuals"] = residual_summary(rest["coarse_residual"].values)
            facts["extrapolation"] = extrapolation_summary(written[EXTRAPOLATION])
            cautions.extend(extrapolated(**facts["extrapolation"]))
            return rest.assign_attrs(result.attrs, deconditional=as_json(facts))

        with show(self.fit.progress) as stage:
            stage("predicting and writing")
            place = stream(result[fields], out, finish)
        tell_of(cautions)
        return place
