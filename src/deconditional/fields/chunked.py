"""Bags of chunked fine data, by map and reduce over its parts.

A first pass over the chunks surveys the units: how much of each is covered, how many points it has,
their means and spread. A second one condenses every bag where its points are. A bag that lies
within one chunk is reduced there and then; of one that several chunks share, each sends its points,
or a sample of them where there are many, and the bag is condensed when they have met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from deconditional.bags import Bags
from deconditional.bags.condense import MOST_POINTS, representatives
from deconditional.errors import UsageError
from deconditional.fields.cluster import limit_threads
from deconditional.fields.estimators import WHOLE_BAGS
from deconditional.fields.fine_points import ROUNDING, check_mask_grid, weighted_count
from deconditional.fields.grids import Grid, check_overlap
from deconditional.fields.pairing import Fine, check_cover, mediator_on_fine
from deconditional.fields.parts import Part, Parts, Place, Reader, check_size, divided, reduced
from deconditional.fields.question import Question
from deconditional.fields.scaling import Spread
from deconditional.fields.units import Units

__all__ = ["ChunkedBags", "UnitTable", "survey"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_GATHERED = 4_000_000
"""Points of all bags together that may travel to one place."""


def survey(fine: xr.Dataset, grid: Grid, coarse: Grid, units: Units, question: Question) -> Fine:
    """What chunked fine data says of the units."""
    from dask.base import compute

    check_overlap(grid, coarse)
    arrays = {name: fine[name] for name in question.covariates}
    filled = []
    for k, name in enumerate(question.mediators):
        array = mediator_on_fine(fine, grid, name, question)
        if array is not None:
            filled.append(k)
            arrays[f"mediator {name}"] = array
    if question.mask:
        check_mask_grid(fine, grid, question.mask, question.dims)
        arrays["mask"] = fine[question.mask]
    parts = divided(arrays, grid)
    check_size(parts, len(arrays))
    reader = Reader(grid, coarse, question, units.fine_time, units.size // coarse.n_cells)
    limit_threads()
    (found,) = compute(reduced(parts.map(_surveyed, reader), _merged_surveys))
    for name, known in zip(question.covariates, found.known, strict=True):
        if not known:
            raise UsageError(
                f"the covariate {name!r} is missing everywhere in the fine data; check the data, "
                "or leave it out."
            )
    if not found.n_present:
        raise UsageError(
            "no fine cell has all covariates: wherever one is known, another is missing. Check "
            "that they lie on the same cells."
        )
    table = found.units
    area = np.zeros(units.size)
    area[table.unit] = table.area
    cover = reader.cover(area, found.masked)[table.unit]
    kept = table.select(cover >= question.min_cover - ROUNDING)
    check_cover(len(kept.unit), float(cover.max(initial=0.0)), question)
    means = np.full((len(kept.unit), len(question.mediators)), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        means[:, filled] = np.where(kept.other_area > 0, kept.other_sum / kept.other_area, np.nan)
    n_bags = len(kept.unit)
    centroids = Bags(
        points=kept.weighted / kept.area[:, None],
        bag=np.arange(n_bags),
        weights=np.ones(n_bags),
        ids=tuple(kept.unit.tolist()),
        mediator=None,
        point=np.arange(n_bags),
    )
    return Fine(
        grid=grid,
        bags=centroids,
        bag_unit=kept.unit,
        sizes=kept.count,
        too_small=len(table.unit) - n_bags,
        filled=means,
        known=found.n_present / found.n_cells,
        n_cells=found.n_cells,
        spread=kept.spread_of_all(),
        chunks=ChunkedBags(parts, reader, kept, centroids),
    )


# ---------------------------------------------------------------------- survey


@dataclass(frozen=True)
class UnitTable:
    """Sums over the points of units, in a form that can be merged.

    Attributes
    ----------
    unit : (u,)
        The units, in order.
    parts, count
        Parts that have points of them, and number of these points.
    area, weighted
        Sums of areas, and of areas times points.
    mean, squares, low, high
        Mean, sum of squares about it, least and greatest value of the points, unweighted.
    other_sum, other_area
        Sums of areas times further variables, and of areas, where these are known.
    """

    unit: Ints
    parts: Ints
    count: Ints
    area: Floats
    weighted: Floats
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats
    other_sum: Floats
    other_area: Floats

    @classmethod
    def of(cls, unit: Ints, area: Floats, points: Floats, others: Floats) -> UnitTable:
        """From memberships: the unit, area, point and further variables of each."""
        units, index = np.unique(unit, return_inverse=True)
        n = len(units)
        count = np.bincount(index, minlength=n)
        mean = _summed(index, points, n) / count[:, None]
        known = np.isfinite(others)
        return cls(
            unit=units.astype(np.int64),
            parts=np.ones(n, dtype=np.int64),
            count=count,
            area=weighted_count(index, area, n),
            weighted=_summed(index, area[:, None] * points, n),
            mean=mean,
            squares=_summed(index, (points - mean[index]) ** 2, n),
            low=_extreme(np.minimum, index, points, n),
            high=_extreme(np.maximum, index, points, n),
            other_sum=_summed(index, area[:, None] * np.where(known, others, 0.0), n),
            other_area=_summed(index, area[:, None] * known, n),
        )

    @classmethod
    def merged(cls, tables: Sequence[UnitTable]) -> UnitTable:
        """One table of all points.

        Examples
        --------
        >>> x = np.arange(6.0)[:, None]
        >>> unit, area = np.array([3, 1, 1, 3, 3, 1]), np.ones(6)
        >>> ends = [UnitTable.of(unit[s], area[s], x[s], x[s]) for s in (slice(2), slice(2, 6))]
        >>> both = UnitTable.merged(ends)
        >>> both.unit.tolist(), both.mean.ravel().round(3).tolist(), both.parts.tolist()
        ([1, 3], [2.667, 2.333], [2, 2])
        """
        every = {
            name: np.concatenate([getattr(t, name) for t in tables])
            for name in cls.__dataclass_fields__
        }
        units, index = np.unique(every["unit"], return_inverse=True)
        n = len(units)
        count = np.bincount(index, every["count"], minlength=n).astype(np.int64)
        each = every["count"][:, None].astype(float)
        mean = _summed(index, each * every["mean"], n) / count[:, None]
        apart = each * (every["mean"] - mean[index]) ** 2
        return cls(
            unit=units.astype(np.int64),
            parts=np.bincount(index, every["parts"], minlength=n).astype(np.int64),
            count=count,
            area=weighted_count(index, every["area"], n),
            weighted=_summed(index, every["weighted"], n),
            mean=mean,
            squares=_summed(index, every["squares"] + apart, n),
            low=_extreme(np.minimum, index, every["low"], n),
            high=_extreme(np.maximum, index, every["high"], n),
            other_sum=_summed(index, every["other_sum"], n),
            other_area=_summed(index, every["other_area"], n),
        )

    def select(self, which: npt.NDArray[np.bool_]) -> UnitTable:
        """Some of the units."""
        return UnitTable(**{name: getattr(self, name)[which] for name in self.__dataclass_fields__})

    def spread_of_all(self) -> Spread:
        """Of the points of all units together."""
        each = self.count[:, None].astype(float)
        mean = (each * self.mean).sum(0) / each.sum()
        variance = (self.squares + each * (self.mean - mean) ** 2).sum(0) / each.sum()
        return Spread(mean, np.sqrt(variance), self.low.min(0), self.high.max(0))


class Survey(NamedTuple):
    """What is known of some parts."""

    units: UnitTable
    n_present: int
    n_cells: int
    known: Ints
    masked: Floats


def _surveyed(reader: Reader, place: Place, blocks: Sequence[np.ndarray]) -> Survey:
    part = reader.part(place, blocks)
    found, masked = reader.members(part)
    rows = part.points.rows(reader.question.position)
    others = part.others[part.points.present]
    return Survey(
        UnitTable.of(found.unit, found.area, rows[found.row], others[found.row]),
        int(part.points.present.sum()),
        part.points.present.size,
        np.isfinite(part.points.covariates).sum((0, 1)),
        masked,
    )


def _merged_surveys(found: list[Survey]) -> Survey:
    return Survey(
        UnitTable.merged([s.units for s in found]),
        sum(s.n_present for s in found),
        sum(s.n_cells for s in found),
        np.sum([s.known for s in found], axis=0),
        np.sum([s.masked for s in found], axis=0),
    )


def _summed(index: Ints, values: Floats, n: int) -> Floats:
    out = np.zeros((n, values.shape[1]))
    for k in range(values.shape[1]):
        out[:, k] = weighted_count(index, values[:, k], n)
    return out


def _extreme(which: Any, index: Ints, values: Floats, n: int) -> Floats:
    out = np.full((n, values.shape[1]), np.inf if which is np.minimum else -np.inf)
    which.at(out, index, values)
    return out


# ---------------------------------------------------------------------- reduced bags


class Pieces(NamedTuple):
    """Points of bags on their way: the unit, place in the fine data, coordinates and area of each.

    `whole` says which are all that will come of their bag, condensed already.
    """

    unit: Ints
    cell: Ints
    points: Floats
    area: Floats
    whole: npt.NDArray[np.bool_]

    def take(self, rows: npt.NDArray[Any]) -> Pieces:
        """Some of the points."""
        return Pieces(*(column[rows] for column in self))

    @classmethod
    def joined(cls, pieces: Sequence[Pieces]) -> Pieces:
        """All points, by unit and place."""
        every = cls(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
        return every.take(np.lexsort((every.cell, every.unit)))


@dataclass(frozen=True)
class Reduction:
    """How bags are reduced: the same for all parts."""

    wanted: Ints
    shared: npt.NDArray[np.bool_]
    points_per_bag: int | None
    most: int
    seed: int

    def reduce(self, found: Pieces) -> Pieces:
        """Condense bags that are complete, sample the others where they have many points."""
        starts = np.flatnonzero(np.diff(found.unit, prepend=-1))
        kept = []
        for rows in np.split(np.arange(len(found.unit)), starts[1:]):
            if not len(rows):
                continue
            bag = found.take(rows)
            shared = self.shared[np.searchsorted(self.wanted, bag.unit[0])]
            kept.append(self._sampled(bag) if shared else self.condensed(bag))
        return Pieces.joined(kept) if kept else found

    def condensed(self, bag: Pieces) -> Pieces:
        """One bag, complete, as the few points that stand for it."""
        whole = bag._replace(whole=np.ones(len(bag.unit), dtype=bool))
        if self.points_per_bag is None or len(bag.unit) <= self.points_per_bag:
            return whole
        rng = np.random.default_rng([self.seed, int(bag.unit[0])])
        weights = bag.area / bag.area.sum()
        rows, fitted = representatives(bag.points, weights, self.points_per_bag, rng)
        return whole.take(rows)._replace(area=fitted * bag.area.sum())

    def _sampled(self, bag: Pieces) -> Pieces:
        """At most so many points, drawn in proportion to area, the same however chunks lie."""
        if len(bag.unit) <= self.most:
            return bag
        # Largest of log(u) / area: a sample of a sample is one of the whole.
        lot = np.log(_uniform(bag.cell, self.seed)) / bag.area
        return bag.take(np.sort(np.argpartition(-lot, self.most)[: self.most]))


@dataclass(frozen=True)
class ChunkedBags:
    """Bags of chunked data, made when they are asked for."""

    parts: Parts
    reader: Reader
    table: UnitTable
    centroids: Bags

    def bags(self, units: Ints, points_per_bag: int | None, seed: int) -> Bags:
        """The bags of some units, each of at most so many points."""
        from dask.base import compute

        place = np.searchsorted(self.table.unit, units)
        sizes = self.table.count[place]
        if points_per_bag == WHOLE_BAGS:
            return self.centroids.select(place)
        self._check(units, sizes, points_per_bag)
        order = np.argsort(units)
        shared = self.table.parts[place][order] > 1
        most = MOST_POINTS
        if points_per_bag is not None and shared.any():
            most = int(np.clip(MOST_GATHERED // shared.sum(), points_per_bag, MOST_POINTS))
        elif points_per_bag is None:
            most = int(sizes.max())
        plan = Reduction(units[order], shared, points_per_bag, most, seed)
        tasks = self.parts.map(_reduced, self.reader, plan)
        limit_threads()
        (found,) = compute(reduced(tasks, partial(_merged_pieces, plan)))
        met = found.take(~found.whole)
        sampled = (sizes[order] > most)[np.searchsorted(plan.wanted, met.unit)]
        met = met._replace(area=np.where(sampled, 1.0, met.area))  # drawn by area: now all equal
        done = replace(plan, shared=np.zeros(len(units), dtype=bool))
        found = Pieces.joined([found.take(found.whole), done.reduce(met)])
        index = order[np.searchsorted(plan.wanted, found.unit)]
        total = np.bincount(index, found.area, minlength=len(units))
        by_bag = np.argsort(index, kind="stable")
        return Bags(
            points=found.points[by_bag],
            bag=index[by_bag].astype(np.int64),
            weights=(found.area / total[index])[by_bag],
            ids=tuple(units.tolist()),
            mediator=None,
            point=np.unique(found.cell, return_inverse=True)[1][by_bag].astype(np.int64),
        )

    @staticmethod
    def _check(units: Ints, sizes: Ints, points_per_bag: int | None) -> None:
        size = int(sizes.max()) if points_per_bag is None else points_per_bag
        total = int(np.minimum(sizes, size).sum())
        if total > MOST_GATHERED:
            raise UsageError(
                f"{len(units)} bags would bring {total:,} points into one place; use a smaller "
                f"points_per_bag (at most {max(MOST_GATHERED // len(units), 1)})."
            )


def _reduced(reader: Reader, plan: Reduction, place: Place, blocks: Sequence[np.ndarray]) -> Pieces:
    part: Part = reader.part(place, blocks)
    found, _ = reader.members(part)
    wanted = np.isin(found.unit, plan.wanted)
    unit, row, area = found.unit[wanted], found.row[wanted], found.area[wanted]
    pieces = Pieces(
        unit,
        reader.cells(part)[row],
        part.points.rows(reader.question.position)[row],
        area,
        np.zeros(len(unit), dtype=bool),
    )
    return plan.reduce(Pieces.joined([pieces]))


def _merged_pieces(plan: Reduction, found: list[Pieces]) -> Pieces:
    every = Pieces.joined(found)
    open_ones = every.take(~every.whole)
    return Pieces.joined([every.take(every.whole), plan.reduce(open_ones)])


def _uniform(cells: Ints, seed: int) -> Floats:
    """Numbers between 0 and 1 that belong to cells: a hash, so that order does not matter."""
    start = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64
    x = cells.astype(np.uint64) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(11)).astype(float) + 0.5) / 2**53
