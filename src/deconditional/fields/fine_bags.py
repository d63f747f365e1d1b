r"""Bags of the fine data, made when they are asked for: condensed, or their means alone.

A bag that lies within one part is condensed where its points are. Of one that several chunks share,
each sends its points, or some that stand for them where there are many, and the bag is condensed
when they have met.

Models with inducing points learn from bags of a few points each. Their posterior needs the bags
only through the means of as many functions as there are inducing points, :math:`\bar k(w)`, and
these can be had of every point, however many there are: sums over parts, added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import csr_array

from deconditional.bags import Bags
from deconditional.bags.condense import MOST_POINTS, representatives, thinned
from deconditional.errors import UsageError
from deconditional.fields.axes import Flags, Floats, Ints
from deconditional.fields.overlap import check_overlap
from deconditional.fields.part import Part, check_known
from deconditional.fields.parts import Parts
from deconditional.fields.recipes import WHOLE_BAGS
from deconditional.fields.scaling import InputScaling, Spread
from deconditional.fields.survey import Survey, UnitTable, joined_surveys, surveyed
from deconditional.inference.posterior import blocks

Functions = Callable[[Any], Any]

MOST_GATHERED = 4_000_000
"""Points of all bags together that may travel to one place."""


@dataclass(frozen=True)
class FineBags:
    """The units with enough fine covariates, as bags."""

    parts: Parts
    table: UnitTable  # sums over the points of every bag, units in order
    survey: Survey  # what all parts say of all units
    cover: Floats  # (units,): the share of every unit that points cover

    @classmethod
    def of(cls, parts: Parts, what: str, remedy: str) -> FineBags:
        """The bags of parts: units of which these cover as much as was asked for.

        Raises where there are none: `what` is not there then, and `remedy` says what to do.
        """
        reader, survey = parts.reader, parts.gather(surveyed, joined_surveys)
        question, noun, table = reader.question, reader.coarse.noun, survey.units
        check_known(question, survey.known, survey.n_counted, survey.n_present)
        area = np.zeros(reader.n_units)
        area[table.unit] = table.area
        cover = reader.cover(area, survey.masked)
        enough = reader.enough(area, survey.masked)[table.unit]
        if not enough.any():
            check_overlap(reader.grid, reader.coarse)
            raise UsageError(
                f"no {noun[:-1]} has {what} over {question.min_cover:.0%} of its area (the most is "
                f"{cover.max():.0%}); {remedy}."
            )
        enough &= table.amount > 0
        if not enough.any():
            raise UsageError(
                f"the exposure {question.exposure!r} is zero or missing in all {noun}; check that "
                "it lies where they do, and its units."
            )
        return cls(parts, table.select(enough), survey, cover)

    def make(
        self,
        which: Ints | None = None,
        points_per_bag: int | None = None,
        seed: int = 0,
        placed: int | None = None,
    ) -> Bags:
        """Some of the bags, each of at most so many points; without a number, of all.

        Of models that take all but the first inputs, `placed` of them, linearly, points stand for a
        bag by these, and have the bag's means of the rest: a cell has the same points at all times.
        """
        place = np.arange(len(self.table.unit)) if which is None else which
        rows, index = self.means[place], np.arange(len(place))
        number, weights = index, np.ones(len(place))
        # All points of chunked data would be too many to gather: bags are their means then.
        if points_per_bag != WHOLE_BAGS or not self.parts.lazy:
            plan = self._plan(np.sort(place), points_per_bag, seed, placed)
            met = self.parts.gather(_reduced, plan.joined, plan)
            points = replace(plan, shared=np.zeros_like(plan.shared)).reduced(met)
            index = np.argsort(place)[np.searchsorted(plan.wanted, points.unit)]
            by_bag = np.argsort(index, kind="stable")
            index, number = index[by_bag], points.number[by_bag]
            weights = points.amount[by_bag] / np.bincount(index, points.amount[by_bag])[index]
            means, rows = rows[index], points.points[by_bag]
            if placed is not None:
                rows[:, placed:] = means[:, placed:]
        return Bags(
            points=rows,
            bag=index.astype(np.int64),
            weights=weights,
            ids=tuple(self.table.unit[place].tolist()),
            mediator=None,
            point=np.unique(number, return_inverse=True)[1].astype(np.int64),
            exposure=self.table.amount[place] if self.parts.reader.question.exposure else None,
        )

    @property
    def means(self) -> Floats:
        """Mean of the points of every bag."""
        return self.table.weighted / self.table.amount[:, None]

    def _plan(
        self, place: Ints, points_per_bag: int | None, seed: int, placed: int | None
    ) -> Reduction:
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
        return Reduction(self.table.unit[place], shared, points_per_bag, most, seed, placed)

    def spread(self) -> Spread:
        """The spread of all points of the bags; in memory from the points, to the last digit."""
        if self.parts.lazy:
            return self.table.spread()
        part = self.parts.only
        members = part.memberships
        return Spread.of(part.points[members.row[np.isin(members.unit, self.table.unit)]])

    def averages(self, which: Ints, scaling: InputScaling, functions: Functions) -> Floats:
        """Means of functions of standardised points over all points of some bags, (N, D)."""
        units = self.table.unit[which]
        sums = self.parts.gather(_function_sums, sum, units, scaling, functions).toarray()
        return np.asarray(sums[:, :-1] / sums[:, -1:])

    def cells(self) -> pd.DataFrame:
        """Which fine cells make up each bag, a row for each pair: the weights that means have.

        ``unit`` is the number of the coarse cell or zone, all of one time before those of the next,
        and ``cell`` that of the fine cell; `y` and `x` are its coordinates by their names;
        ``amount`` is what lies in both, area or exposure, and ``weight`` its share of the bag.
        """
        place, number, amount = self.parts.gather(_listed, _joined_lists, self.table.unit)
        grid, order = self.parts.reader.grid, np.lexsort((number, place))
        place, number, amount = place[order], number[order], amount[order]
        centres = grid.centres[number % grid.n_cells].T
        columns = {"unit": self.table.unit[place], "cell": number}
        columns |= dict(zip(grid.coordinates, centres, strict=True))
        weight = amount / self.table.amount[place]
        return pd.DataFrame({**columns, "amount": amount, "weight": weight})

    def sharing(self, which: Ints) -> csr_array:
        """Number of fine cells that every two of some bags share."""
        units = self.table.unit[which]
        return self.parts.gather(_shared_cells, sum, units)


# ---------------------------------------------------------------------- smaller bags


class BagPoints(NamedTuple):
    """Points of bags on their way: unit, number in the fine data, coordinates, amount of each."""

    unit: Ints
    number: Ints
    points: Floats
    amount: Floats

    def take(self, rows: npt.NDArray[Any]) -> BagPoints:
        """Some of the points."""
        return BagPoints(*(column[rows] for column in self))


@dataclass(frozen=True)
class Reduction:
    """How bags are reduced, the same for all parts."""

    wanted: Ints  # (N,): units of the bags, in order
    shared: Flags  # (N,): which wait for points of further parts
    # points_per_bag, most: points that stand for a bag, and at most so many of one that waits.
    points_per_bag: int | None
    most: int
    seed: int
    # How many inputs, the first ones, points stand for a bag by; None for all of them.
    placed: int | None = None

    def joined(self, pieces: Sequence[BagPoints]) -> BagPoints:
        """The points of several parts, by unit and number, reduced."""
        every = BagPoints(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
        return self.reduced(every.take(np.lexsort((every.number, every.unit))))

    def reduced(self, points: BagPoints) -> BagPoints:
        """Every bag, by unit, with no more points than it needs; their amounts add up as before."""
        starts = np.flatnonzero(np.diff(points.unit, prepend=-1))
        bags = np.split(np.arange(len(points.unit)), starts)[1:]
        smaller = [self._smaller(points.take(rows)) for rows in bags]
        return BagPoints(*map(np.concatenate, zip(*smaller, strict=True))) if smaller else points

    def _smaller(self, bag: BagPoints) -> BagPoints:
        waits = self.shared[np.searchsorted(self.wanted, bag.unit[0])]
        size = self.most if waits else self.points_per_bag
        if size is None or len(bag.unit) <= size:
            return bag
        rng = np.random.default_rng([self.seed, len(bag.unit)])  # the same at all times
        total = bag.amount.sum()
        if waits:
            rows, weights = thinned(bag.amount, size, rng)
        else:
            rows, weights = representatives(
                bag.points[:, : self.placed], bag.amount / total, size, rng
            )
        return bag.take(rows)._replace(amount=weights * total)


def _reduced(part: Part, plan: Reduction) -> BagPoints:
    members = part.memberships
    members = members.take(np.isin(members.unit, plan.wanted) & (members.amount > 0))
    numbers = part.numbers[members.row]
    return plan.joined([BagPoints(members.unit, numbers, part.points[members.row], members.amount)])


# ---------------------------------------------------------------------- sums over all points


def _members(part: Part, units: Ints) -> tuple[Ints, Ints, Floats]:
    """Places among some units, points, and the amounts they share, for all points in them."""
    members = part.memberships
    members = members.take(np.isin(members.unit, units))
    order = np.argsort(units)
    return order[np.searchsorted(units[order], members.unit)], members.row, members.amount


def _function_sums(
    part: Part, units: Ints, scaling: InputScaling, functions: Functions
) -> csr_array:
    """Sums over the points of units of amounts times functions, and of amounts, the last column."""
    place, row, amount = _members(part, units)
    shares = csr_array((amount, (place, row)), shape=(len(units), len(part.points)))
    needed, total = np.unique(row), np.zeros((len(units), 1))
    points = part.points[needed] if len(needed) else np.zeros((1, part.points.shape[1]))
    for rows, block in blocks(scaling(points)):
        values = np.asarray(_evaluated(functions, block), float)[: rows.stop - rows.start]
        total = total + shares[:, needed[rows]] @ values[: len(needed)]
    return csr_array(np.concatenate([total, np.asarray(shares.sum(1))[:, None]], 1))


def _listed(part: Part, units: Ints) -> tuple[Ints, Ints, Floats]:
    """Bags, numbers of fine cells, and what lies in both."""
    place, row, amount = _members(part, units)
    return place, part.numbers[row], amount


def _joined_lists(lists: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(np.concatenate(columns) for columns in zip(*lists, strict=True))


@eqx.filter_jit
def _evaluated(functions: Functions, x: Any) -> Any:
    return functions(x)


def _shared_cells(part: Part, units: Ints) -> csr_array:
    """Numbers of fine cells of a part that every two units share."""
    place, row, _ = _members(part, units)
    ones = np.ones(len(place), dtype=np.int32)
    inside = csr_array((ones, (place, row)), shape=(len(units), len(part.points)))
    return inside @ inside.T
