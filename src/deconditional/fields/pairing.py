"""From two datasets to bags and observations.

The unit is a coarse cell, or a coarse cell at a time. A unit with fine covariates is a bag; a unit
with a target is an observation; a unit with both is matched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.bags import Bags
from deconditional.fields.grids import Grid, find_grid, overlap, span, values_on
from deconditional.outputs import UsageError

__all__ = [
    "FinePoints",
    "Members",
    "Pairing",
    "Question",
    "counted_areas",
    "fine_points",
    "members",
    "pair",
    "time_places",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_OBSERVATIONS = 5

ROUNDING = 1e-3
"""Error allowed in shares of a cell: coordinates and masks are often stored in few digits."""

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
class Question:
    """What is asked: which variables play which part.

    Attributes
    ----------
    position
        Whether position is a covariate and a mediator too.
    mask
        A fine variable between 0 and 1, the share of a fine cell that counts (land, say).
    min_cover
        Least share of a coarse cell that fine cells with covariates must cover to make it a bag.
    """

    target: str
    covariates: tuple[str, ...]
    mediators: tuple[str, ...]
    position: bool = True
    mask: str | None = None
    min_cover: float = 0.5
    dims: Mapping[str, str] | None = None


@dataclass(frozen=True)
class FinePoints:
    """Fine cells at their times: positions and covariates where nothing is missing.

    Attributes
    ----------
    present : (times, cells) bool
        Where all covariates are known and the mask, if any, is positive.
    covariates : (times, cells, c)
        Their values.
    share : (cells,)
        The mask; one everywhere without.
    """

    grid: Grid
    present: npt.NDArray[np.bool_]
    covariates: Floats
    share: Floats

    def rows(self, position: bool) -> Floats:
        """Positions and covariates of the cells that are present, times in turn."""
        time, cell = np.nonzero(self.present)
        values = self.covariates[time, cell]
        return np.concatenate([self.grid.positions[cell], values], 1) if position else values


def fine_points(fine: xr.Dataset, question: Question) -> FinePoints:
    """The fine covariates of a dataset."""
    grid = find_grid(fine, question.covariates, "fine", question.dims)
    values = [values_on(grid, fine, name) for name in question.covariates]
    covariates = _stack(values, grid.n_times, grid.n_cells)
    for k, name in enumerate(question.covariates):
        if np.isnan(covariates[..., k]).all():
            raise UsageError(
                f"the covariate {name!r} is missing everywhere in the fine data; check the data, "
                "or leave it out."
            )
    share = _share(fine, grid, question.mask, question.dims)
    present = np.isfinite(covariates).all(-1) & (share > 0)
    if not present.any():
        raise UsageError(
            "no fine cell has all covariates: wherever one is known, another is missing. Check "
            "that they lie on the same cells."
        )
    return FinePoints(grid, present, covariates, share)


def _share(
    fine: xr.Dataset, grid: Grid, mask: str | None, dims: Mapping[str, str] | None
) -> Floats:
    if not mask:
        return np.ones(grid.n_cells)
    own = find_grid(fine, [mask], "fine", dims)
    if (own.y.name, own.x.name) != (grid.y.name, grid.x.name):
        raise UsageError(f"the mask {mask!r} and the covariates lie on different dimensions.")
    if own.n_times > 1:
        raise UsageError(
            f"the mask {mask!r} has {own.n_times} times; it is the same at all, so give one of "
            f"them, as in ds[{mask!r}].isel({own.time}=0)."
        )
    share = np.nan_to_num(values_on(own, fine, mask)[0])
    if share.min() < -ROUNDING or share.max() > 1 + ROUNDING:
        raise UsageError(
            f"the mask {mask!r} runs from {share.min():.4g} to {share.max():.4g}; it is a share of "
            "the cell, between 0 and 1 (divide percentages by 100)."
        )
    return np.clip(share, 0.0, 1.0)


@dataclass(frozen=True)
class Pairing:
    """Bags and observations, before any scaling.

    Attributes
    ----------
    bags
        Units with fine covariates; points are positions (if asked for) and covariates.
    bag_mediator : (N, p)
        Positions (if asked for) and mediators of the bags; NaN where a mediator is missing.
    z : (M,), mediator : (M, p)
        Observations and their mediators, NaN where missing.
    own_bag : (M,)
        The bag of every matched observation, else -1.
    observed_unit, bag_unit : (M,), (N,)
        Index of the unit, time by time and cell by cell.
    times
        Of the units; None where the unit is a cell.
    target : (units,)
        Target of every unit, NaN where missing.
    areas
        Areas shared by fine cells (rows) and coarse cells (columns), times the mask.
    cell_areas
        Of coarse cells; with a mask, of the part that counts.
    understood
        What was found, in words: pairs of label and text.
    """

    question: Question
    fine: Grid
    coarse: Grid
    bags: Bags
    bag_mediator: Floats
    z: Floats
    mediator: Floats
    own_bag: Ints
    observed_unit: Ints
    bag_unit: Ints
    times: np.ndarray | None
    target: Floats
    areas: Any
    cell_areas: Floats
    understood: tuple[tuple[str, str], ...]

    @property
    def n_position(self) -> int:
        """Columns of points and mediators that are position."""
        return self.coarse.positions.shape[1] if self.question.position else 0

    @property
    def matching(self) -> str:
        """``"matched"``, ``"partly matched"`` or ``"unmatched"``."""
        share = np.mean(self.own_bag >= 0)
        return "matched" if share == 1 else "unmatched" if share == 0 else "partly matched"


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
    points = fine_points(fine, question)
    names = [question.target, *question.mediators]
    grid = find_grid(coarse, names, "coarse", question.dims)
    _check_mappings(fine, points.grid, coarse, grid)
    target = values_on(grid, coarse, question.target)
    if np.isnan(target).all():
        raise UsageError(
            f"the target {question.target!r} is missing in every coarse cell; check the data."
        )
    mediators = [values_on(grid, coarse, name) for name in question.mediators]
    n_times = max(len(v) for v in (target, *mediators))
    target = np.broadcast_to(target, (n_times, grid.n_cells))
    mediator = _stack(mediators, n_times, grid.n_cells)
    for k, name in enumerate(question.mediators):
        if np.isnan(mediator[..., k]).all():
            raise UsageError(
                f"the mediator {name!r} is missing in every coarse cell; check the data, or leave "
                "it out."
            )
    lasting = [grid.time not in coarse[name].dims for name in names]
    coarse_times = None if lasting[0] else grid.times
    units = _units(points.grid.times, coarse_times, target, mediator, lasting[1:])
    areas, whole = counted_areas(points, grid)
    bags, bag_unit, too_small = _bags(points, units, areas, whole, question)
    bag_mediator = units.mediator[bag_unit].copy()
    _fill_from_fine(bag_mediator, fine, points, bags, question)
    with_position = units.positions(grid) if question.position else np.zeros((units.size, 0))
    bag_mediator = np.concatenate([with_position[bag_unit], bag_mediator], 1)
    observed = np.flatnonzero(np.isfinite(units.target))
    unit_bag = np.full(units.size, -1)
    unit_bag[bag_unit] = np.arange(len(bag_unit))
    own_bag = unit_bag[observed]
    seen_mediator = np.concatenate([with_position, units.mediator], 1)[observed]
    seen_mediator[own_bag >= 0] = bag_mediator[own_bag[own_bag >= 0]]
    understood = _understood(
        question,
        points,
        grid,
        units,
        bags,
        bag_mediator,
        observed,
        own_bag,
        seen_mediator,
        too_small,
    )
    pairing = Pairing(
        question=question,
        fine=points.grid,
        coarse=grid,
        bags=bags,
        bag_mediator=bag_mediator,
        z=units.target[observed],
        mediator=seen_mediator,
        own_bag=own_bag,
        observed_unit=observed,
        bag_unit=bag_unit,
        times=units.times,
        target=units.target,
        areas=areas,
        cell_areas=whole,
        understood=understood,
    )
    _check_link(pairing, points.grid.times, grid.times)
    return pairing


def counted_areas(points: FinePoints, coarse: Grid) -> tuple[Any, Floats]:
    """Areas shared by fine and coarse cells, and those of coarse cells, less what is masked out.

    What lies beyond the fine grid counts: nothing is known of a mask there.
    """
    shared = overlap(points.grid, coarse)
    counted = shared.multiply(points.share[:, None]).tocsr()
    masked = np.asarray(shared.sum(0) - counted.sum(0)).ravel()
    return counted, np.maximum(coarse.areas - masked, 0.0)


# ---------------------------------------------------------------------- units


@dataclass(frozen=True)
class Units:
    """Cells, or cells at times: all times of either side, the fine ones first.

    Attributes
    ----------
    fine_time : (times of the fine data,)
        The unit time each belongs to.
    how
        What was done about time, in words.
    """

    target: Floats
    mediator: Floats
    times: np.ndarray | None
    fine_time: Ints
    how: str | None

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.target)

    def positions(self, grid: Grid) -> Floats:
        """Cell centres of all units."""
        return np.tile(grid.positions, (self.size // grid.n_cells, 1))


def _units(
    fine_times: np.ndarray | None,
    coarse_times: np.ndarray | None,
    target: Floats,
    mediator: Floats,
    lasting: Sequence[bool],
) -> Units:
    """The units; `lasting` mediators have no time, so they belong to all times."""
    n_fine = 1 if fine_times is None else len(fine_times)
    if fine_times is None or coarse_times is None:
        how = None
        if coarse_times is not None and len(target) > 1:
            how = (
                f"the fine covariates have no time, so coarse values are averaged over "
                f"{len(target)} times into one field; choose a time to downscale that one alone"
            )
        elif n_fine > 1:
            how = (
                f"the coarse values have no time, so a bag holds its cell at all {n_fine} times "
                "of the fine covariates"
            )
        return Units(_mean(target), _mean(mediator), None, np.zeros(n_fine, dtype=np.int64), how)
    fine_times, coarse_times = _comparable(fine_times, coarse_times)
    later = coarse_times[~np.isin(coarse_times, fine_times)]
    times = np.concatenate([fine_times, later])
    place = {_key(t): k for k, t in enumerate(times)}
    n_cells = target.shape[1]
    all_target = np.full((len(times), n_cells), np.nan)
    all_mediator = np.full((len(times), n_cells, mediator.shape[-1]), np.nan)
    rows = [place[_key(t)] for t in coarse_times]
    all_target[rows], all_mediator[rows] = target, mediator
    all_mediator[..., lasting] = mediator[0][:, lasting]
    both = len(fine_times) + len(coarse_times) - len(times)
    how = (
        f"a unit is a cell at a time: {len(fine_times)} fine and {len(coarse_times)} coarse times, "
        f"{both} in common"
    )
    return Units(
        all_target.reshape(-1),
        all_mediator.reshape(len(times) * n_cells, mediator.shape[-1]),
        times,
        np.arange(len(fine_times), dtype=np.int64),
        how,
    )


def _comparable(fine: np.ndarray, coarse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times in one type, so that equal ones are found to be equal."""
    kinds = [_time_kind(times) for times in (fine, coarse)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"the times of the fine data are {kinds[0]}, those of the coarse data {kinds[1]}; "
            "convert one of them, as in ds.convert_calendar('standard', use_cftime=False)."
        )
    if fine.dtype.kind == "M":
        common = np.promote_types(fine.dtype, coarse.dtype)
        return fine.astype(common), coarse.astype(common)
    return fine, coarse


def _time_kind(times: np.ndarray) -> str:
    if times.dtype.kind == "M":
        return "dates of NumPy"
    calendar = getattr(times[0], "calendar", None)
    return "plain values" if calendar is None else f"dates of the calendar {calendar!r}"


def time_places(times: np.ndarray, among: np.ndarray) -> Ints:
    """The place of every time among others; -1 where it is not one of them."""
    times, among = _comparable(times, among)
    place = {_key(t): k for k, t in enumerate(among)}
    return np.array([place.get(_key(t), -1) for t in times], dtype=np.int64)


def _key(time: Any) -> Any:
    return time.item() if isinstance(time, np.generic) else time


def _mean(values: Floats) -> Floats:
    """Mean over times of what is there."""
    there = np.isfinite(values)
    total = np.where(there, values, 0.0).sum(0)
    count = there.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _stack(values: Sequence[Floats], n_times: int, n_cells: int) -> Floats:
    if not values:
        return np.zeros((n_times, n_cells, 0))
    return np.stack([np.broadcast_to(v, (n_times, n_cells)) for v in values], axis=-1)


# ---------------------------------------------------------------------- bags


class Members(NamedTuple):
    """Which fine points belong to which units.

    Attributes
    ----------
    unit, row, area
        For every membership the unit, the row of the fine points, and the area they share.
    cover
        The share of every unit that fine points cover.
    """

    unit: Ints
    row: Ints
    area: Floats
    cover: Floats

    def well_covered(self, least: float) -> Members:
        """Those of the units that are covered enough."""
        kept = (self.cover >= least - ROUNDING)[self.unit]
        return Members(self.unit[kept], self.row[kept], self.area[kept], self.cover)


def members(
    points: FinePoints, unit_time: Ints, n_unit_times: int, areas: Any, whole: Floats
) -> Members:
    """Memberships of fine points in units; `unit_time` is that of every fine time, or -1."""
    n_cells, n_coarse = areas.shape
    row_of = np.full(points.present.size, -1)
    row_of[points.present.ravel()] = np.arange(points.present.sum())
    pairs = areas.tocoo()
    units, rows, shared = [], [], []
    for t, time in enumerate(unit_time):
        row = row_of[t * n_cells + pairs.row]
        used = (row >= 0) & (pairs.data > 0) & (time >= 0)
        units.append(time * n_coarse + pairs.col[used])
        rows.append(row[used])
        shared.append(pairs.data[used])
    unit, area = np.concatenate(units), np.concatenate(shared)
    counts = np.bincount(unit_time[unit_time >= 0], minlength=n_unit_times)
    full = np.maximum(counts, 1)[:, None] * whole
    total = np.bincount(unit, area, minlength=n_unit_times * n_coarse)
    cover = total / np.where(full > 0, full, 1.0).ravel()
    return Members(unit.astype(np.int64), np.concatenate(rows).astype(np.int64), area, cover)


def _bags(
    points: FinePoints, units: Units, areas: Any, whole: Floats, question: Question
) -> tuple[Bags, Ints, int]:
    """Bags, their units, and how many cells were covered too little to make one."""
    every = members(points, units.fine_time, units.size // areas.shape[1], areas, whole)
    kept = every.well_covered(question.min_cover)
    too_small = len(np.unique(every.unit)) - len(np.unique(kept.unit))
    if not len(kept.unit):
        raise UsageError(
            f"no coarse cell has fine covariates over {question.min_cover:.0%} of its area (the "
            f"most is {every.cover.max():.0%}); lower min_cover, or check that the grids coincide."
        )
    bag_unit, index = np.unique(kept.unit, return_inverse=True)
    x = points.rows(question.position)[kept.row]
    if x.shape[1] == 0:
        raise UsageError("there is nothing to predict from: name covariates, or use position.")
    totals = np.bincount(index, kept.area)
    bags = Bags(
        points=x,
        bag=index.astype(np.int64),
        weights=kept.area / totals[index],
        ids=tuple(bag_unit.tolist()),
        mediator=None,
        point=kept.row,
    )
    return bags, bag_unit.astype(np.int64), too_small


def _fill_from_fine(
    mediator: Floats, fine: xr.Dataset, points: FinePoints, bags: Bags, question: Question
) -> None:
    """Where a bag's mediator is missing, take its mean over the fine data if it is there too."""
    for k, name in enumerate(question.mediators):
        missing = np.isnan(mediator[:, k])
        if not missing.any() or name not in fine.data_vars:
            continue
        if not {points.grid.y.name, points.grid.x.name} <= set(fine[name].dims):
            continue
        own = find_grid(fine, [name], "fine", question.dims)
        values = values_on(own, fine, name)
        if points.grid.times is None:
            values = _mean(values)[None]  # as coarse values are
        elif own.time not in (None, points.grid.time):
            continue
        values = np.broadcast_to(values, points.present.shape)[points.present][bags.point]
        known = bags.means(np.isfinite(values))
        means = bags.means(np.nan_to_num(values)) / np.where(known > 0, known, np.nan)
        mediator[missing, k] = means[missing]


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
        return bool(one == other)
    if np.shape(one) != np.shape(other):
        return False
    apart = np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float))
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
        column = p.bags.points[:, p.n_position + k]
        if np.ptp(column) == 0:
            raise UsageError(
                f"the covariate {covariate!r} is constant ({column[0]:.6g}) in all bags, so it "
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


def _understood(
    question: Question,
    points: FinePoints,
    coarse: Grid,
    units: Units,
    bags: Bags,
    bag_mediator: Floats,
    observed: Ints,
    own_bag: Ints,
    mediator: Floats,
    too_small: int,
) -> tuple[tuple[str, str], ...]:
    present = points.present
    matched = int((own_bag >= 0).sum())
    sizes = bags.sizes
    lines = [
        ("fine grid", points.grid.describe()),
        ("coarse grid", coarse.describe()),
        (
            "covariates",
            f"{_names(question.covariates, question.position)}, known in {present.mean():.1%} of "
            f"{present.size} fine cells",
        ),
        (
            "mediators",
            f"{_names(question.mediators, question.position)}, missing for "
            f"{int(np.isnan(bag_mediator).any(1).sum())} of {bags.n_bags} bags and "
            f"{int(np.isnan(mediator).any(1).sum())} of {len(observed)} observations",
        ),
        (
            "bags",
            f"{bags.n_bags} coarse cells with fine covariates, {_range(sizes)} fine cells in each",
        ),
        (
            "observations",
            f"{len(observed)} of {units.size} coarse cells have {question.target}",
        ),
        (
            "matching",
            f"{matched} observations have a bag of their own, {len(observed) - matched} are linked "
            "through the mediators",
        ),
    ]
    if too_small:
        lines.append(
            (
                "left out",
                f"{too_small} cells with covariates over less than {question.min_cover:.0%} of "
                "their area",
            )
        )
    if units.how:
        lines.append(("time", units.how))
    return tuple(lines)


def _range(sizes: Ints) -> str:
    low, high = sizes.min(), sizes.max()
    return f"{low}" if low == high else f"{low} to {high}"


def _names(names: Sequence[str], position: bool) -> str:
    return ", ".join([*(["position"] if position else []), *names]) or "none"
