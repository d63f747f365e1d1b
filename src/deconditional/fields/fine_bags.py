r"""Bags of the fine data, made when they are asked for: condensed, or their means alone.

A bag that lies within one part is condensed where its points are. Of one that several chunks share,
each sends its points, or a sample of them where there are many, and the bag is condensed when they
have met.

Models with inducing points learn from bags of a few points each. Their posterior needs the bags
only through the means of as many functions as there are inducing points, :math:`\bar k(w)`, and
these can be had of every point, however many there are: sums over parts, added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.bags import Bags
from deconditional.bags.condense import MOST_POINTS, representatives
from deconditional.errors import UsageError
from deconditional.fields.part import Part
from deconditional.fields.parts import Parts
from deconditional.fields.recipes import WHOLE_BAGS
from deconditional.fields.scaling import InputScaling, Spread
from deconditional.fields.survey import UnitTable

__all__ = ["FineBags"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Functions = Callable[[Any], Any]

MOST_GATHERED = 4_000_000
"""Points of all bags together that may travel to one place."""

BLOCK = 8192
"""Points whose functions are evaluated at a time."""


@dataclass(frozen=True)
class FineBags:
    """The units with enough fine covariates, as bags.

    Attributes
    ----------
    table
        Sums over the points of every bag, units in order.
    """

    parts: Parts
    table: UnitTable

    def make(
        self, which: Ints | None = None, points_per_bag: int | None = None, seed: int = 0
    ) -> Bags:
        """Some of the bags, each of at most so many points; without a number, of all."""
        place = np.arange(len(self.table.unit)) if which is None else which
        if points_per_bag == WHOLE_BAGS and self.parts.lazy:
            return self._centroids(place)
        order = np.argsort(self.table.unit[place])
        plan = self._plan(place[order], points_per_bag, seed)
        found = self.parts.gather(_reduced, partial(_joined_pieces, plan), plan)
        found = plan.finished(found)
        index = order[np.searchsorted(plan.wanted, found.unit)]
        total = np.bincount(index, found.area, minlength=len(place))
        by_bag = np.argsort(index, kind="stable")
        return Bags(
            points=found.points[by_bag],
            bag=index[by_bag].astype(np.int64),
            weights=(found.area / total[index])[by_bag],
            ids=tuple(self.table.unit[place].tolist()),
            mediator=None,
            point=np.unique(found.number, return_inverse=True)[1][by_bag].astype(np.int64),
        )

    def _centroids(self, place: Ints) -> Bags:
        """For models that take the centroid of a bag: all points would be too many to gather."""
        n = len(place)
        return Bags(
            points=(self.table.weighted / self.table.area[:, None])[place],
            bag=np.arange(n),
            weights=np.ones(n),
            ids=tuple(self.table.unit[place].tolist()),
            mediator=None,
            point=np.arange(n),
        )

    def _plan(self, place: Ints, points_per_bag: int | None, seed: int) -> Reduction:
        """How to reduce some bags, in the order of their units; raises where too much is left."""
        sizes = self.table.count[place]
        size = int(sizes.max()) if points_per_bag is None else points_per_bag
        total = int(np.minimum(sizes, size).sum())
        if total > MOST_GATHERED and self.parts.lazy:
            raise UsageError(
                f"{len(place)} bags would bring {total:,} points into one place; use a smaller "
                f"points_per_bag (at most {max(MOST_GATHERED // len(place), 1)})."
            )
        shared = self.table.parts[place] > 1
        most = MOST_POINTS if points_per_bag is not None else int(sizes.max())
        if points_per_bag is not None and shared.any():
            most = int(np.clip(MOST_GATHERED // shared.sum(), points_per_bag, MOST_POINTS))
        return Reduction(self.table.unit[place], shared, sizes > most, points_per_bag, most, seed)

    def spread(self) -> Spread:
        """The spread of all points of the bags; in memory from the points, to the last digit."""
        if self.parts.lazy:
            return self.table.spread()
        part = self.parts.only
        found = part.cells.memberships
        return Spread.of(part.points[found.row[np.isin(found.unit, self.table.unit)]])

    def averages(self, which: Ints, scaling: InputScaling, functions: Functions) -> Floats:
        """Means of functions of standardised points over all points of some bags, (N, D)."""
        units = self.table.unit[which]
        found = self.parts.gather(_function_sums, Sums.joined, units, scaling, functions)
        place = np.searchsorted(found.unit, units)
        return found.total[place] / found.area[place, None]

    def sharing(self, which: Ints) -> csr_array:
        """Number of fine cells that every two of some bags share."""
        units = self.table.unit[which]
        return self.parts.gather(_shared_cells, sum, units)


# ---------------------------------------------------------------------- smaller bags


class Pieces(NamedTuple):
    """Points of bags on their way: the unit, number in the fine data, coordinates, area of each.

    `complete` says which are all that will come of their bag, condensed already.
    """

    unit: Ints
    number: Ints
    points: Floats
    area: Floats
    complete: Flags

    def take(self, rows: npt.NDArray[Any]) -> Pieces:
        """Some of the points."""
        return Pieces(*(column[rows] for column in self))

    @classmethod
    def joined(cls, pieces: Sequence[Pieces]) -> Pieces:
        """All points, by unit and number."""
        every = cls(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
        return every.take(np.lexsort((every.number, every.unit)))


@dataclass(frozen=True)
class Reduction:
    """How bags are reduced, the same for all parts.

    Attributes
    ----------
    wanted : (N,)
        Units of the bags, in order.
    shared, sampled : (N,)
        Which lie in several parts, and which have more points than can be looked at.
    points_per_bag, most
        Points that stand for a bag, and points of one that are looked at.
    """

    wanted: Ints
    shared: Flags
    sampled: Flags
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
            kept.append(self._sample(bag) if shared else self._condense(bag))
        return Pieces.joined(kept) if kept else found

    def finished(self, found: Pieces) -> Pieces:
        """All bags condensed, once their points have met."""
        if found.complete.all():
            return found
        met = found.take(~found.complete)
        sampled = self.sampled[np.searchsorted(self.wanted, met.unit)]
        met = met._replace(area=np.where(sampled, 1.0, met.area))  # drawn by area: now all equal
        last = replace(self, shared=np.zeros(len(self.wanted), dtype=bool))
        return Pieces.joined([found.take(found.complete), last.reduce(met)])

    def _condense(self, bag: Pieces) -> Pieces:
        """One bag, complete, as the few points that stand for it."""
        bag = bag._replace(complete=np.ones(len(bag.unit), dtype=bool))
        if self.points_per_bag is None or len(bag.unit) <= self.points_per_bag:
            return bag
        rng = np.random.default_rng([self.seed, int(bag.unit[0])])
        weights = bag.area / bag.area.sum()
        rows, fitted = representatives(bag.points, weights, self.points_per_bag, rng)
        return bag.take(rows)._replace(area=fitted * bag.area.sum())

    def _sample(self, bag: Pieces) -> Pieces:
        """At most so many points, drawn in proportion to area, the same however chunks lie."""
        if len(bag.unit) <= self.most:
            return bag
        # Largest of log(u) / area: a sample of a sample is one of all.
        lot = np.log(_uniform(bag.number, self.seed)) / bag.area
        return bag.take(np.sort(np.argpartition(-lot, self.most)[: self.most]))


def _reduced(part: Part, plan: Reduction) -> Pieces:
    found = part.cells.memberships
    found = found.take(np.isin(found.unit, plan.wanted))
    n = len(found.unit)
    pieces = Pieces(
        found.unit,
        part.cells.numbers[found.row],
        part.points[found.row],
        found.area,
        np.zeros(n, dtype=bool),
    )
    return plan.reduce(Pieces.joined([pieces]))


def _joined_pieces(plan: Reduction, found: list[Pieces]) -> Pieces:
    every = Pieces.joined(found)
    unfinished = plan.reduce(every.take(~every.complete))
    return Pieces.joined([every.take(every.complete), unfinished])


def _uniform(numbers: Ints, seed: int) -> Floats:
    """Values between 0 and 1 that belong to cells: a hash, so that order does not matter."""
    start = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64
    x = numbers.astype(np.uint64) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(11)).astype(float) + 0.5) / 2**53


# ---------------------------------------------------------------------- sums over all points


class Sums(NamedTuple):
    """Sums of area times functions, and of area, over the points of units."""

    unit: Ints
    total: Floats
    area: Floats

    @classmethod
    def joined(cls, found: Sequence[Sums]) -> Sums:
        """The sums over all points."""
        units, index = np.unique(np.concatenate([s.unit for s in found]), return_inverse=True)
        add = csr_array((np.ones(len(index)), (index, np.arange(len(index)))))
        total, area = (np.concatenate([getattr(s, n) for s in found]) for n in ("total", "area"))
        return cls(units, add @ total, add @ area)


def _function_sums(part: Part, units: Ints, scaling: InputScaling, functions: Functions) -> Sums:
    found = part.cells.memberships
    found = found.take(np.isin(found.unit, units))
    here, index = np.unique(found.unit, return_inverse=True)
    shape = (len(here), len(part.points))
    shares = csr_array((found.area, (index, found.row)), shape=shape)
    needed = np.unique(found.row)
    total: Any = 0.0
    for rows, values in _values(part.points, scaling, functions, needed):
        total = total + shares[:, rows] @ values
    if not len(here):
        total = np.zeros((0, _evaluated(functions, scaling(part.points[:0])).shape[1]))
    return Sums(here, total, np.bincount(index, found.area, minlength=len(here)).astype(float))


def _values(
    points: Floats, scaling: InputScaling, functions: Functions, needed: Ints
) -> Iterator[tuple[Ints, Floats]]:
    """Functions at the points that are needed, a block of one size after the other."""
    for start in range(0, len(needed), BLOCK):
        rows = needed[start : start + BLOCK]
        padded = np.resize(rows, BLOCK) if len(needed) > BLOCK else rows
        values = np.asarray(_evaluated(functions, jnp.asarray(scaling(points[padded]))), float)
        yield rows, values[: len(rows)]


@eqx.filter_jit
def _evaluated(functions: Functions, x: Any) -> Any:
    return functions(x)


def _shared_cells(part: Part, units: Ints) -> csr_array:
    """Numbers of fine cells of a part that every two units share."""
    found = part.cells.memberships
    found = found.take(np.isin(found.unit, units))
    order = np.argsort(units)
    place = order[np.searchsorted(units[order], found.unit)]
    shape = (len(units), len(part.points))
    inside = csr_array((np.ones(len(place), dtype=np.int32), (place, found.row)), shape=shape)
    return inside @ inside.T
