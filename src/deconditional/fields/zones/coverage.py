r"""How much of every cell each zone covers: exact, in double precision, for all zones at once.

Go along the border of a polygon against the clock. A piece of it within one cell that rises by
:math:`\delta` of the height of its row takes :math:`\delta` from the covered share of every cell to
its right, and from its own cell the part that lies to its right; a piece that falls adds as much.
So the share of a cell is a sum along its row from left to right. Borders are closed, so nothing is
left behind the last piece. Holes run with the clock and need nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.errors import UsageError
from deconditional.fields.axes import FULL_CIRCLE, Axis, Floats, Ints

NOTHING = 1e-12
"""Shares of a cell that are no more than rounding."""


@dataclass(frozen=True)
class Rings:
    """Closed borders of zones: outer ones against the clock, holes with it.

    Vertices `xy`, (v, 2), ring after ring, the last of a ring its first; where each ring begins,
    `start`, and the end of all; and the zone of every ring, `owner`.
    """

    xy: Floats
    start: Ints
    owner: Ints

    @property
    def sizes(self) -> Ints:
        """Number of vertices of every ring."""
        return np.diff(self.start)

    @cached_property
    def sides(self) -> tuple[Floats, Floats, Ints]:
        """First and last points of all sides, and the ring of each."""
        is_first = np.ones(len(self.xy), dtype=bool)
        is_first[self.start[1:] - 1] = False
        first = np.flatnonzero(is_first)
        ring = np.repeat(np.arange(len(self.owner)), self.sizes)[first]
        return self.xy[first], self.xy[first + 1], ring

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """Least and greatest coordinates of every ring, (r, 2) each."""
        begin = self.start[:-1]
        low, high = np.minimum.reduceat(self.xy, begin), np.maximum.reduceat(self.xy, begin)
        return low.astype(float), high.astype(float)

    def take(self, which: npt.NDArray[np.bool_], shift: float = 0.0) -> Rings:
        """Some of the rings, moved along x."""
        kept = np.repeat(which, self.sizes)
        start = np.concatenate([[0], np.cumsum(self.sizes[which])])
        return Rings(self.xy[kept] + [shift, 0.0], start, self.owner[which])

    def oriented(self, is_hole: npt.NDArray[np.bool_]) -> Rings:
        """The same borders, each in the direction that it should have."""
        wrong = (self.moments[0] > 0) == is_hole
        last = np.repeat(self.start[1:] - 1, self.sizes)
        place = np.arange(len(self.xy))
        turned = last - (place - np.repeat(self.start[:-1], self.sizes))
        return Rings(
            self.xy[np.where(np.repeat(wrong, self.sizes), turned, place)], self.start, self.owner
        )

    @cached_property
    def moments(self) -> tuple[Floats, Floats]:
        """Signed area of every ring on the map, (r,), and area times centroid, (r, 2)."""
        a, b, ring = self.sides
        origin = self.xy[self.start[:-1]]
        a, b, n = a - origin[ring], b - origin[ring], len(self.owner)
        cross = 0.5 * (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
        area = np.bincount(ring, cross, n).astype(float)
        sums = [np.bincount(ring, cross * (a + b)[:, k] / 3.0, n) for k in range(2)]
        return area, np.stack(sums, axis=1) + area[:, None] * origin

    def sphere_areas(self) -> Floats:
        r"""Signed area of every ring on the unit sphere, sides straight on the map.

        By Stokes :math:`-\oint \sin\phi\,d\lambda`; along a side this has a closed form.
        """
        a, b, ring = self.sides
        (x, y), (x1, y1) = np.radians(a).T, np.radians(b).T
        half = 0.5 * (y1 - y)
        middle = np.sin(0.5 * (y + y1)) * np.sinc(half / np.pi)
        return np.asarray(-np.bincount(ring, middle * (x1 - x), len(self.owner)), dtype=float)


def coverage(rings: Rings, n_zones: int, y: Axis, x: Axis) -> csr_array:
    """The share of every cell (rows, y by y) that each zone (columns) covers.

    Longitudes go round. Of a zone whose rings lie upon each other the shares add up.
    """
    y_edges, y_cell = _edges(y)
    x_edges, x_cell = _edges(x)
    low, high = rings.ends
    near = (high[:, 1] > y_edges[0]) & (low[:, 1] < y_edges[-1])
    found = []
    for shift in _turns(low[:, 0], high[:, 0], x_edges, x.kind == "longitude"):
        here = near & (high[:, 0] + shift > x_edges[0]) & (low[:, 0] + shift < x_edges[-1])
        if here.any():
            found.append(_shares(rings.take(here, shift), y_edges, x_edges))
    columns = zip(*found, strict=True) if found else [[np.zeros(0, dtype=np.int64)]] * 4
    zone, row, column, share = (np.concatenate(each) for each in columns)
    row, column = y_cell[row], x_cell[column]
    there = (row >= 0) & (column >= 0)
    cell = (row * x.size + column)[there]
    shape = (y.size * x.size, n_zones)
    return csr_array((share[there].astype(float), (cell, zone[there])), shape=shape)


def _turns(low: Floats, high: Floats, edges: Floats, around: bool) -> Floats:
    """Whole turns by which zones are moved to lie where the cells are."""
    if not around or not len(low):
        return np.zeros(1)
    first = np.floor((edges[0] - high.max()) / FULL_CIRCLE)
    last = np.ceil((edges[-1] - low.min()) / FULL_CIRCLE)
    return FULL_CIRCLE * np.arange(first, last + 1)


def _edges(axis: Axis) -> tuple[Floats, Ints]:
    """Edges in order, and the cell between every two of them; -1 where there is a gap."""
    order = np.argsort(axis.bounds[:, 0], kind="stable")
    low, high = axis.bounds[order].T
    slack = max(4 * axis.tolerance, 1e-9 * float(np.abs(high - low).max()))
    gap = low[1:] - high[:-1]
    if (gap < -slack).any():
        raise UsageError(
            f"cells along {axis.coordinate!r} overlap each other, so polygons cannot be shared out "
            "among them; correct their bounds, or drop these."
        )
    is_gap = gap > slack
    place = np.concatenate([[0], np.cumsum(1 + is_gap)])
    edges, cell = np.empty(place[-1] + 2), np.full(place[-1] + 1, -1)
    edges[place + 1], edges[place], cell[place] = high, low, order
    return edges, cell


def _shares(rings: Rings, y_edges: Floats, x_edges: Floats) -> tuple[Ints, Ints, Ints, Floats]:
    """Zone, row, column and share of all cells that zones cover."""
    n_rows, n_columns = len(y_edges) - 1, len(x_edges) - 1
    a, b, zone = _pieces(rings, y_edges, x_edges)
    middle = 0.5 * (a + b)
    row = np.searchsorted(y_edges, middle[:, 1], side="right") - 1
    column = np.searchsorted(x_edges, middle[:, 0], side="right") - 1
    kept = (row >= 0) & (row < n_rows) & (column < n_columns)
    row, column, zone, middle = row[kept], column[kept], zone[kept], middle[kept]
    rise = (b - a)[kept, 1] / (y_edges[row + 1] - y_edges[row])
    beyond, column = column < 0, np.maximum(column, 0)
    width = x_edges[column + 1] - x_edges[column]
    left = np.where(beyond, 0.0, (middle[:, 0] - x_edges[column]) / width)
    line = (zone * n_rows + row) * (n_columns + 1) + column
    key = np.concatenate([line, line + 1])
    change = np.concatenate([-rise * (1.0 - left), -rise * left])
    key, index = np.unique(key, return_inverse=True)
    change = np.bincount(index, change, len(key))
    # Sums along a row end at zero, or at the right end of the cells, where the next row begins.
    line, column = np.divmod(key, n_columns + 1)
    starts = np.flatnonzero(np.diff(line, prepend=-1))
    total = np.cumsum(change)
    before = np.repeat(total[starts] - change[starts], np.diff([*starts, len(line)]))
    share = total - before
    end = np.append(column[1:], n_columns)
    end[np.append(starts[1:] - 1, len(line) - 1)] = n_columns
    length = np.where(np.abs(share) > NOTHING, end - column, 0)
    first = np.cumsum(length) - length
    along = np.arange(length.sum()) - np.repeat(first - column, length)
    zone, row = np.divmod(np.repeat(line, length), n_rows)
    return zone, row, along, np.repeat(share, length)


def _pieces(rings: Rings, y_edges: Floats, x_edges: Floats) -> tuple[Floats, Floats, Ints]:
    """Sides cut where they cross edges of cells: first and last points, and the zone of each."""
    a, b, ring = rings.sides
    low, high = np.minimum(a[:, 1], b[:, 1]), np.maximum(a[:, 1], b[:, 1])
    used = (high > y_edges[0]) & (low < y_edges[-1]) & (high > low)
    used &= np.minimum(a[:, 0], b[:, 0]) < x_edges[-1]
    a, b, ring = a[used], b[used], ring[used]
    step, sides = b - a, np.arange(len(a))
    side, at = [sides, sides], [np.zeros(len(a)), np.ones(len(a))]
    for k, edges in ((0, x_edges), (1, y_edges)):
        ends = np.sort(np.stack([a[:, k], b[:, k]]), axis=0)
        first = np.searchsorted(edges, ends[0], side="right")
        count = np.maximum(np.searchsorted(edges, ends[1], side="left") - first, 0)
        crossing = np.repeat(sides, count)
        number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - first, count)
        side.append(crossing)
        at.append((edges[number] - a[crossing, k]) / step[crossing, k])
    every, t = np.concatenate(side), np.clip(np.concatenate(at), 0.0, 1.0)
    order = np.lexsort((t, every))
    every, t = every[order], t[order]
    same = every[1:] == every[:-1]
    one, t0, t1 = every[1:][same], t[:-1][same, None], t[1:][same, None]
    # Both ends as they are, not a + step: borders that two zones share are cut alike.
    start, stop = (a[one] * (1.0 - s) + b[one] * s for s in (t0, t1))
    return start, stop, rings.owner[ring[one]]
