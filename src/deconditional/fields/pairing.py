"""From two datasets to bags and observations.

The unit is a coarse cell, or a coarse cell at a time. A unit with fine covariates is a bag; a unit
with a target is an observation; a unit with both is matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.bags import Bags
from deconditional.errors import UsageError
from deconditional.fields.fine_points import counted_areas, fine_points, members, stacked
from deconditional.fields.grids import Grid, check_cells, find_grid, span, values_on
from deconditional.fields.question import Question
from deconditional.fields.scaling import Spread
from deconditional.fields.units import Units, make_units

__all__ = ["Fine", "Pairing", "check_cover", "is_chunked", "mediator_on_fine", "pair"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_OBSERVATIONS = 5

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


@dataclass(frozen=True)
class Fine:
    """What the fine data says of the units: in memory or, through Dask, part by part.

    Attributes
    ----------
    bags
        Units with fine covariates: whole, or their centroids where the data is chunked.
    bag_unit : (N,)
        The unit of every bag.
    sizes : (N,)
        Fine cells in every bag.
    too_small
        Units that fine cells cover too little of to make a bag.
    filled : (N, p)
        Means of mediators that the fine data has; NaN where it does not.
    known, n_cells
        Share of the fine cells with all covariates, and number of fine cells.
    spread
        Of all points of the bags.
    chunks
        Makes smaller bags of chunked data; None where `bags` are whole.
    """

    grid: Grid
    bags: Bags
    bag_unit: Ints
    sizes: Ints
    too_small: int
    filled: Floats
    known: float
    n_cells: int
    spread: Spread
    chunks: Any = field(default=None, metadata={"left_behind": "the chunked fine data of the fit"})


@dataclass(frozen=True)
class Pairing:
    """Bags and observations, before any scaling.

    Attributes
    ----------
    fine
        The bags; points are positions (if asked for) and covariates.
    bag_mediator : (N, p)
        Positions (if asked for) and mediators of the bags; NaN where a mediator is missing.
    z : (M,), mediator : (M, p)
        Observations and their mediators, NaN where missing.
    own_bag : (M,)
        The bag of every matched observation, else -1.
    observed_unit : (M,)
        Index of the unit, time by time and cell by cell.
    times
        Of the units; None where the unit is a cell.
    target : (units,)
        Target of every unit, NaN where missing.
    understood
        What was found, in words: pairs of label and text.
    """

    question: Question
    fine: Fine
    coarse: Grid
    bag_mediator: Floats
    z: Floats
    mediator: Floats
    own_bag: Ints
    observed_unit: Ints
    times: np.ndarray | None
    target: Floats
    understood: tuple[tuple[str, str], ...]

    @property
    def n_position(self) -> int:
        """Columns of points and mediators that are position."""
        return self.coarse.positions.shape[1] if self.question.position else 0

    @property
    def bags(self) -> Bags:
        """All bags: whole, or their centroids where the data is chunked."""
        return self.fine.bags

    @property
    def n_bags(self) -> int:
        """Number of bags."""
        return self.fine.bags.n_bags

    @property
    def bag_unit(self) -> Ints:
        """The unit of every bag."""
        return self.fine.bag_unit

    @property
    def matching(self) -> str:
        """``"matched"``, ``"partly matched"`` or ``"unmatched"``."""
        share = np.mean(self.own_bag >= 0)
        return "matched" if share == 1 else "unmatched" if share == 0 else "partly matched"

    def reduced_bags(self, which: Ints, points_per_bag: int | None, seed: int) -> Bags:
        """Some of the bags, each condensed to so many points; all points if None."""
        if self.fine.chunks is not None:
            return self.fine.chunks.bags(self.bag_unit[which], points_per_bag, seed)
        bags = self.fine.bags.select(which)
        return bags if points_per_bag is None else bags.condense(points_per_bag, seed)


def pair(fine: xr.Dataset, coarse: xr.Dataset, question: Question) -> Pairing:
    """Make bags and observations, or say in the user's words why not.

    Examples
    --------
    >>> from deconditional.datasets import split_cells, synthetic_fields
    >>> roles = ("tas", ["altitude", "cloud"], ["water_vapour"])
    >>> data = split_cells(synthetic_fields(12, 24), *roles, block=(3, 4), matched=0.5)
    >>> found = pair(data.fine, data.coarse, Question("tas", ("altitude",), ("water_vapour",)))
    >>> found.matching, found.bags
    ('partly matched', Bags(18 bags, 216 points, 4 covariates, 12-12 points per bag))
    """
    _check_question(fine, coarse, question)
    names = [question.target, *question.mediators]
    fine_grid = find_grid(fine, question.covariates, "fine", question.dims)
    grid = find_grid(coarse, names, "coarse", question.dims)
    _check_mappings(fine, fine_grid, coarse, grid)
    units = _coarse_units(coarse, grid, fine_grid.times, question)
    if is_chunked(fine, question):
        from deconditional.fields.chunked import survey

        found = survey(fine, fine_grid, grid, units, question)
    else:
        found = _gathered(fine, grid, units, question)
    bag_unit = found.bag_unit
    bag_mediator = units.mediator[bag_unit]
    bag_mediator = np.where(np.isnan(bag_mediator), found.filled, bag_mediator)
    with_position = units.positions(grid) if question.position else np.zeros((units.size, 0))
    bag_mediator = np.concatenate([with_position[bag_unit], bag_mediator], 1)
    observed = np.flatnonzero(np.isfinite(units.target))
    unit_bag = np.full(units.size, -1)
    unit_bag[bag_unit] = np.arange(len(bag_unit))
    own_bag = unit_bag[observed]
    seen_mediator = np.concatenate([with_position, units.mediator], 1)[observed]
    seen_mediator[own_bag >= 0] = bag_mediator[own_bag[own_bag >= 0]]
    pairing = Pairing(
        question=question,
        fine=found,
        coarse=grid,
        bag_mediator=bag_mediator,
        z=units.target[observed],
        mediator=seen_mediator,
        own_bag=own_bag,
        observed_unit=observed,
        times=units.times,
        target=units.target,
        understood=(),
    )
    _check_link(pairing, fine_grid.times, grid.times)
    return replace(pairing, understood=_understood(pairing, units.how))


def is_chunked(fine: xr.Dataset, question: Question) -> bool:
    """Whether a covariate is a Dask array."""
    return any(fine[n].chunks is not None for n in question.covariates if n in fine.variables)


def _coarse_units(
    coarse: xr.Dataset, grid: Grid, fine_times: np.ndarray | None, question: Question
) -> Units:
    check_cells(grid, 1 + len(question.mediators), "coarse")
    target = values_on(grid, coarse, question.target)
    if np.isnan(target).all():
        raise UsageError(
            f"the target {question.target!r} is missing in every coarse cell; check the data."
        )
    mediators = [values_on(grid, coarse, name) for name in question.mediators]
    n_times = max(len(v) for v in (target, *mediators))
    target = np.broadcast_to(target, (n_times, grid.n_cells))
    mediator = stacked(mediators, n_times, grid.n_cells)
    for k, name in enumerate(question.mediators):
        if np.isnan(mediator[..., k]).all():
            raise UsageError(
                f"the mediator {name!r} is missing in every coarse cell; check the data, or leave "
                "it out."
            )
    names = [question.target, *question.mediators]
    lasting = [grid.time not in coarse[name].dims for name in names]
    coarse_times = None if lasting[0] else grid.times
    return make_units(fine_times, coarse_times, target, mediator, lasting[1:])


# ---------------------------------------------------------------------- bags


def _gathered(fine: xr.Dataset, coarse: Grid, units: Units, question: Question) -> Fine:
    """Bags of data in memory."""
    points = fine_points(fine, question)
    areas, whole = counted_areas(points, coarse)
    every = members(points, units.fine_time, units.size // coarse.n_cells, areas, whole)
    kept = every.well_covered(question.min_cover)
    check_cover(len(kept.unit), float(every.cover.max()), question)
    bag_unit, index = np.unique(kept.unit, return_inverse=True)
    totals = np.bincount(index, kept.area)
    bags = Bags(
        points=points.rows(question.position)[kept.row],
        bag=index.astype(np.int64),
        weights=kept.area / totals[index],
        ids=tuple(bag_unit.tolist()),
        mediator=None,
        point=kept.row,
    )
    filled = np.full((len(bag_unit), len(question.mediators)), np.nan)
    for k, name in enumerate(question.mediators):
        array = mediator_on_fine(fine, points.grid, name, question)
        if array is None:
            continue
        own = find_grid(array.to_dataset(name=name), [name], "fine", question.dims)
        values = values_on(own, array.to_dataset(name=name), name)
        values = np.broadcast_to(values, points.present.shape)[points.present][bags.point]
        known = bags.means(np.isfinite(values))
        filled[:, k] = bags.means(np.nan_to_num(values)) / np.where(known > 0, known, np.nan)
    return Fine(
        grid=points.grid,
        bags=bags,
        bag_unit=bag_unit.astype(np.int64),
        sizes=bags.sizes,
        too_small=len(np.unique(every.unit)) - len(bag_unit),
        filled=filled,
        known=float(points.present.mean()),
        n_cells=points.present.size,
        spread=Spread.of(bags.points),
    )


def check_cover(n_kept: int, most: float, question: Question) -> None:
    """Raise where no unit is covered enough to make a bag, or bags have nothing in them."""
    if not n_kept:
        raise UsageError(
            f"no coarse cell has fine covariates over {question.min_cover:.0%} of its area (the "
            f"most is {most:.0%}); lower min_cover, or check that the grids coincide."
        )
    if not question.covariates and not question.position:
        raise UsageError("there is nothing to predict from: name covariates, or use position.")


def mediator_on_fine(
    fine: xr.Dataset, grid: Grid, name: str, question: Question
) -> xr.DataArray | None:
    """A mediator as the fine data has it, or None: bags that lack it take its mean from there."""
    if name not in fine.data_vars or not {grid.y.name, grid.x.name} <= set(fine[name].dims):
        return None
    own = find_grid(fine, [name], "fine", question.dims)
    array = fine[name]
    if grid.times is None and own.time is not None:
        array = array.where(np.isfinite(array))
        return array.mean(own.time, keep_attrs=True)  # as coarse values are
    return None if own.time not in (None, grid.time) else array


# ---------------------------------------------------------------------- checks and words


def _check_question(fine: xr.Dataset, coarse: xr.Dataset, question: Question) -> None:
    if question.target in question.covariates:
        raise UsageError(
            f"{question.target!r} is both the target and a covariate; leave one of the two out."
        )
    if not 0 <= question.min_cover <= 1:
        raise UsageError(
            f"min_cover is a share of a coarse cell, between 0 and 1, not {question.min_cover!r}."
        )
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


def _check_mappings(fine: xr.Dataset, a: Grid, coarse: xr.Dataset, b: Grid) -> None:
    one, other = _projection(fine, a), _projection(coarse, b)
    if NAME not in one or NAME not in other or a.spherical != b.spherical:
        return
    for key in (key for key in PROJECTION if key in one and key in other):
        if not _same(key, one[key], other[key]):
            which = "" if key == NAME else f"{key} "
            raise UsageError(
                f"the grids have different projections: {which}{one[key]!r} in the fine data, "
                f"{other[key]!r} in the coarse data; regrid one of them first."
            )


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


def _projection(dataset: xr.Dataset, grid: Grid) -> dict[str, Any]:
    """What is known of the projection of a grid, without the figure of the Earth."""
    about = {} if grid.mapping is None else dict(dataset[grid.mapping].attrs)
    if NAME not in about and grid.spherical:
        turned = dataset[grid.y.coordinate].attrs.get("standard_name") == "grid_latitude"
        about[NAME] = "rotated_latitude_longitude" if turned else "latitude_longitude"
    return {k: v for k, v in about.items() if k in PROJECTION}


def _check_link(p: Pairing, fine_times: Any, coarse_times: Any) -> None:
    """Raise where no observation reaches a bag, or there is too little to learn from."""
    name = p.question.target
    if len(p.z) < LEAST_OBSERVATIONS:
        raise UsageError(
            f"the target {name!r} is known in {len(p.z)} coarse cell(s); at least "
            f"{LEAST_OBSERVATIONS} are needed to learn from."
        )
    if np.ptp(p.z) == 0:
        raise UsageError(
            f"the target {name!r} has the same value, {p.z[0]:.6g}, in every cell; check the data."
        )
    columns = list(p.question.covariates)
    for k, covariate in enumerate(columns):
        low, high = (end[p.n_position + k] for end in (p.fine.spread.low, p.fine.spread.high))
        if low == high:
            raise UsageError(
                f"the covariate {covariate!r} is constant ({low:.6g}) in all bags, so it "
                "says nothing; leave it out."
            )
    if p.matching == "matched":
        return
    if p.mediator.shape[1] == 0:
        raise UsageError(
            f"some observations of {name!r} have no bag of their own, and nothing links them to "
            "the covariates; name mediators, or use position."
        )
    usable = np.isfinite(p.bag_mediator).all(1)
    if not usable.any():
        when = ""
        if p.times is not None:
            when = (
                f" The fine covariates are at {span(fine_times)}, the coarse data at "
                f"{span(coarse_times)}; give the mediators at the times of the covariates too."
            )
        raise UsageError(
            "no bag has mediators, so nothing links the covariates to the target." + when
        )
    reach = np.isfinite(p.mediator).all(1) | (p.own_bag >= 0)
    if reach.sum() < LEAST_OBSERVATIONS:
        raise UsageError(
            f"{reach.sum()} observations of {name!r} have mediators or a bag of their own; at "
            f"least {LEAST_OBSERVATIONS} are needed."
        )


def _understood(p: Pairing, about_time: str | None) -> tuple[tuple[str, str], ...]:
    question, fine = p.question, p.fine
    matched = int((p.own_bag >= 0).sum())
    lines = [
        ("fine grid", fine.grid.describe()),
        ("coarse grid", p.coarse.describe()),
        (
            "covariates",
            f"{_names(question.covariates, question.position)}, known in {fine.known:.1%} of "
            f"{fine.n_cells} fine cells",
        ),
        (
            "mediators",
            f"{_names(question.mediators, question.position)}, missing for "
            f"{int(np.isnan(p.bag_mediator).any(1).sum())} of {p.n_bags} bags and "
            f"{int(np.isnan(p.mediator).any(1).sum())} of {len(p.z)} observations",
        ),
        (
            "bags",
            f"{p.n_bags} coarse cells with fine covariates, {_range(fine.sizes)} fine cells in "
            "each",
        ),
        (
            "observations",
            f"{len(p.z)} of {len(p.target)} coarse cells have {question.target}",
        ),
        (
            "matching",
            f"{matched} observations have a bag of their own, {len(p.z) - matched} are linked "
            "through the mediators",
        ),
    ]
    if fine.too_small:
        lines.append(
            (
                "left out",
                f"{fine.too_small} cells with covariates over less than {question.min_cover:.0%} "
                "of their area",
            )
        )
    if about_time:
        lines.append(("time", about_time))
    return tuple(lines)


def _range(sizes: Ints) -> str:
    low, high = sizes.min(), sizes.max()
    return f"{low}" if low == high else f"{low} to {high}"


def _names(names: Sequence[str], position: bool) -> str:
    return ", ".join([*(["position"] if position else []), *names]) or "none"
