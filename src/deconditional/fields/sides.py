"""The two datasets of one call, each read once: its grid, and its variables as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.errors import UsageError
from deconditional.fields.axes import Grid, check_cells
from deconditional.fields.clock import Clock
from deconditional.fields.grids import find_grid, values_on
from deconditional.fields.part import Reader, check_marks
from deconditional.fields.parts import Parts
from deconditional.fields.question import Question
from deconditional.fields.units import Units, make_units

__all__ = ["CoarseSide", "FineSide", "two_sides"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NAME = "grid_mapping_name"
PROJECTION = (
    NAME,
    "grid_north_pole_latitude",
    "grid_north_pole_longitude",
    "north_pole_grid_longitude",
    "standard_parallel",
    "longitude_of_central_meridian",
    "longitude_of_projection_origin",
    "latitude_of_projection_origin",
    "straight_vertical_longitude_from_pole",
)
"""Attributes of a grid mapping that say where it is put on the globe, the last ones in degrees."""


# ---------------------------------------------------------------------- fine


@dataclass(frozen=True)
class FineSide:
    """A dataset with covariates, and its grid."""

    dataset: xr.Dataset
    question: Question
    grid: Grid

    @classmethod
    def of(cls, dataset: xr.Dataset, question: Question) -> FineSide:
        """The side of a dataset; raises where its covariates lie on no grid."""
        return cls(
            dataset, question, find_grid(dataset, question.covariates, "fine", question.dims)
        )

    @property
    def chunked(self) -> bool:
        """Whether a covariate is a Dask array."""
        return any(self.dataset[name].chunks is not None for name in self.question.covariates)

    def repeated(self, coarse: Grid) -> FineSide:
        """Covariates without times, the same at all times of a coarse grid; others as they are."""
        if self.grid.times is not None or coarse.times is None or len(coarse.times) < 2:
            return self
        name, times = coarse.time, coarse.times
        data = self.dataset.drop_vars(str(name), errors="ignore")
        values = {
            covariate: data[covariate].expand_dims({name: times})
            for covariate in self.question.covariates
        }
        data = data.assign(values).assign_coords({name: (name, times, {"standard_name": "time"})})
        return replace(self, dataset=data, grid=replace(self.grid, time=name, times=times))

    def check_size(self) -> None:
        """Raise where the data is in memory and there is no room for what is made of it."""
        if not self.chunked:
            check_cells(self.grid, len(self.question.covariates), "fine")

    def parts(
        self,
        coarse: Grid,
        unit_time: Ints,
        n_unit_times: int,
        clock: Clock,
        more: Mapping[str, xr.DataArray],
    ) -> Parts:
        """Covariates, more variables and the mask, to be worked on beside a coarse grid.

        Parameters
        ----------
        unit_time : (times of the fine data,)
            The unit time that each belongs to, or -1.
        """
        self.check_size()
        question = self.question
        variables = {name: self.dataset[name] for name in question.covariates} | dict(more)
        if question.mask:
            self._check_mask(question.mask)
            variables["mask"] = self.dataset[question.mask]
        reader = Reader(self.grid, coarse, question, unit_time, n_unit_times, clock)
        return Parts.of(variables, reader, self.chunked)

    def mediators(self) -> dict[str, xr.DataArray]:
        """The mediators that the fine data has: bags that lack one take its mean from there."""
        found = {}
        for name in self.question.mediators:
            array = self._mediator(name)
            if array is not None:
                found[f"mediator {name}"] = array
        return found

    def _mediator(self, name: str) -> xr.DataArray | None:
        grid, data = self.grid, self.dataset
        if name not in data.data_vars or not {grid.y.name, grid.x.name} <= set(data[name].dims):
            return None
        own = find_grid(data, [name], "fine", self.question.dims)
        array = data[name]
        if grid.times is None and own.time is not None:
            return array.where(np.isfinite(array)).mean(own.time)  # as coarse values are
        return None if own.time not in (None, grid.time) else array

    def _check_mask(self, mask: str) -> None:
        """Raise where the mask lies on another grid, or has times."""
        own, grid = find_grid(self.dataset, [mask], "fine", self.question.dims), self.grid
        if (own.y.name, own.x.name) != (grid.y.name, grid.x.name):
            raise UsageError(f"the mask {mask!r} and the covariates lie on different dimensions.")
        if own.n_times > 1:
            raise UsageError(
                f"the mask {mask!r} has {own.n_times} times; it is the same at all, so give one of "
                f"them, as in ds[{mask!r}].isel({own.time}=0)."
            )


# ---------------------------------------------------------------------- coarse


@dataclass(frozen=True)
class CoarseSide:
    """A dataset with target and mediators, and its grid."""

    dataset: xr.Dataset
    question: Question
    grid: Grid

    @classmethod
    def of(cls, dataset: xr.Dataset, question: Question) -> CoarseSide:
        """The side of a dataset; raises where its variables lie on no grid."""
        return cls(
            dataset, question, find_grid(dataset, question.coarse_names, "coarse", question.dims)
        )

    @property
    def times(self) -> np.ndarray | None:
        """Times of the target; None where it has none."""
        return (
            self.grid.times if self.grid.time in self.dataset[self.question.target].dims else None
        )

    def units(self, fine_times: np.ndarray | None) -> Units:
        """Target and mediators of all cells, or all cells at times."""
        question, grid = self.question, self.grid
        check_cells(grid, len(question.coarse_names), "coarse")
        values = [values_on(grid, self.dataset, name) for name in question.coarse_names]
        for name, array in zip(question.coarse_names, values, strict=True):
            self._check_values(name, array)
        n_times = max(len(array) for array in values)
        shape = (n_times, grid.n_cells)
        mediator = np.zeros((*shape, len(question.mediators)))
        for k, array in enumerate(values[1:]):
            mediator[..., k] = array
        lasting = [grid.time not in self.dataset[name].dims for name in question.coarse_names]
        target = np.broadcast_to(values[0], shape)
        return make_units(fine_times, self.times, target, mediator, lasting[1:], question.time)

    def _check_values(self, name: str, values: Floats) -> None:
        check_marks(values, name)
        if not np.isnan(values).all():
            return
        if name == self.question.target:
            raise UsageError(
                f"the target {name!r} is missing in every coarse cell; check the data."
            )
        raise UsageError(
            f"the mediator {name!r} is missing in every coarse cell; check the data, or leave it "
            "out."
        )


# ---------------------------------------------------------------------- both


def two_sides(fine: Any, coarse: Any, question: Question) -> tuple[FineSide, CoarseSide]:
    """Both sides; raises where a dataset lacks what is asked for, or they are of two worlds."""
    there = {
        name
        for data in (fine, coarse)
        if isinstance(data, xr.Dataset)
        for name in (*data.variables, *data.dims)
    }
    for role, name in (question.dims or {}).items():
        if name not in there:
            raise UsageError(
                f"dims names {name!r} as {role}, but neither dataset has it; correct it (--dims "
                f"{role}=...), or leave it out."
            )
    sides = FineSide.of(fine, question), CoarseSide.of(coarse, question)
    _check_projections(*sides)
    if question.time == "ignore" or sides[1].times is None:
        return sides
    return sides[0].repeated(sides[1].grid), sides[1]


def _check_projections(fine: FineSide, coarse: CoarseSide) -> None:
    """Raise where two grids are put on the globe in different ways."""
    one, other = _projection(fine.dataset, fine.grid), _projection(coarse.dataset, coarse.grid)
    if NAME not in one or NAME not in other or fine.grid.spherical != coarse.grid.spherical:
        return
    for key in (key for key in PROJECTION if key in one and key in other):
        if not _same(key, one[key], other[key]):
            which = "" if key == NAME else f"{key} "
            raise UsageError(
                f"the grids have different projections: {which}{one[key]!r} in the fine data, "
                f"{other[key]!r} in the coarse data; regrid one of them first."
            )


def _projection(dataset: xr.Dataset, grid: Grid) -> dict[str, Any]:
    """What is known of the projection of a grid, without the figure of the Earth."""
    about = {} if grid.mapping is None else dict(dataset[grid.mapping].attrs)
    if NAME not in about and grid.spherical:
        turned = dataset[grid.y.coordinate].attrs.get("standard_name") == "grid_latitude"
        about[NAME] = "rotated_latitude_longitude" if turned else "latitude_longitude"
    return {k: v for k, v in about.items() if k in PROJECTION}


def _same(key: str, one: Any, other: Any) -> bool:
    if key == NAME:
        return str(one) == str(other)
    try:
        first, second = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    except (TypeError, ValueError):  # an angle in words
        return str(one) == str(other)
    if first.shape != second.shape:
        return False
    apart = np.abs(first - second)
    turned = np.minimum(apart % 360.0, -apart % 360.0)
    return bool(np.all(turned < 1e-4))
