"""What fine data says of the units: how much of each it covers, with how many points, and which.

Sums over the points of a part, in a form in which those of several parts can be merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deconditional.fields.axes import Floats, Ints
from deconditional.fields.part import Memberships, Part
from deconditional.fields.scaling import Spread


@dataclass(frozen=True)
class UnitTable:
    """Sums over the points of units."""

    unit: Ints  # (u,): the units, in order
    # parts, count: parts that have points of them, and number of these points.
    parts: Ints
    count: Ints
    # area, amount, weighted: sums of areas, of amounts, and of amounts times points.
    area: Floats
    amount: Floats
    weighted: Floats
    # mean, squares, low, high: mean, sum of squares about it, least and greatest value of the
    # points, unweighted.
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats
    # other_sum, other_area: sums of areas times further variables, and of areas, where these are
    # known.
    other_sum: Floats
    other_area: Floats

    @classmethod
    def of(cls, members: Memberships, points: Floats, others: Floats) -> UnitTable:
        """The table of memberships, with the point and further variables of each."""
        one, weight, known = np.ones(len(points), int), members.area[:, None], np.isfinite(others)
        seen = (weight * np.where(known, others, 0.0), weight * known)
        sums = (members.area, members.amount, members.amount[:, None] * points)
        spread = (points, np.zeros_like(points), points, points)
        table = cls(members.unit, one, one, *sums, *spread, *seen).merged()
        return replace(table, parts=np.ones_like(table.unit))

    @classmethod
    def joined(cls, tables: Sequence[UnitTable]) -> UnitTable:
        """One table of all points.

        Examples
        --------
        >>> x = np.arange(6.0)[:, None]
        >>> unit, area = np.array([3, 1, 1, 3, 3, 1]), np.ones(6)
        >>> every = Memberships(unit, np.arange(6), area, area)
        >>> ends = [UnitTable.of(every.take(s), x[s], x[s]) for s in (slice(2), slice(2, 6))]
        >>> both = UnitTable.joined(ends)
        >>> both.unit.tolist(), both.mean.ravel().round(3).tolist(), both.parts.tolist()
        ([1, 3], [2.667, 2.333], [2, 2])
        """
        columns = ([getattr(t, f.name) for t in tables] for f in fields(cls))
        return cls(*(np.concatenate(column) for column in columns)).merged()

    def merged(self) -> UnitTable:
        """One row for every unit, of all rows that are about it."""
        every = self.select(np.argsort(self.unit, kind="stable"))
        starts = np.flatnonzero(np.diff(every.unit, prepend=-1))
        each, count = every.count[:, None], np.add.reduceat(every.count, starts)
        mean = np.add.reduceat(each * every.mean, starts) / count[:, None]
        apart = each * (every.mean - np.repeat(mean, np.diff([*starts, len(each)]), axis=0)) ** 2
        sums = ("parts", "area", "amount", "weighted", "other_sum", "other_area")
        return replace(
            every,
            unit=every.unit[starts],
            count=count,
            mean=mean,
            squares=np.add.reduceat(every.squares + apart, starts),
            low=np.minimum.reduceat(every.low, starts),
            high=np.maximum.reduceat(every.high, starts),
            **{name: np.add.reduceat(getattr(every, name), starts) for name in sums},
        )

    def select(self, which: npt.NDArray[Any]) -> UnitTable:
        """Some of the units."""
        return UnitTable(*(getattr(self, f.name)[which] for f in fields(self)))

    def spread(self) -> Spread:
        """The spread of the points of all units together."""
        each = self.count[:, None].astype(float)
        mean = (each * self.mean).sum(0) / each.sum()
        variance = (self.squares + each * (self.mean - mean) ** 2).sum(0) / each.sum()
        return Spread(mean, np.sqrt(variance), self.low.min(0), self.high.max(0))

    def other_means(self) -> Floats:
        """Area means of the further variables over every unit, NaN where they are missing."""
        known = self.other_area > 0
        return np.where(known, self.other_sum, np.nan) / np.where(known, self.other_area, 1.0)


class Survey(NamedTuple):
    """How much of the units some parts cover, and how much of it is known."""

    units: UnitTable
    # n_cells, n_counted, n_present, known: fine cells at their times; cells that the mask leaves;
    # those of them with all covariates; and for each covariate those in which it is known.
    n_cells: int
    n_counted: int
    n_present: int
    known: Ints
    amount: float  # the exposure of all cells together
    masked: Floats  # what the mask takes of every coarse cell


def surveyed(part: Part) -> Survey:
    """The survey of one part."""
    members = part.memberships
    others = part.others[part.present]
    return Survey(
        UnitTable.of(members, part.points[members.row], others[members.row]),
        part.present.size,
        int((part.share > 0).sum()),
        int(part.present.sum()),
        part.known,
        part.amount,
        part.masked,
    )


def joined_surveys(surveys: list[Survey]) -> Survey:
    """The survey of several parts together."""
    units, *rest = zip(*surveys, strict=True)
    return Survey(UnitTable.joined(units), *(np.sum(column, axis=0) for column in rest))
