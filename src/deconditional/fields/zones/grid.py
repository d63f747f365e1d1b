"""Zones in the place of coarse cells: polygons, or points that stand for the cell they lie in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.fields.axes import FULL_CIRCLE, Flags, Floats, Grid, Ints, Lattice
from deconditional.fields.frames import Frame
from deconditional.fields.polygons import shorter_steps
from deconditional.fields.zones.coverage import Rings, coverage

DIM = "zone"
"""The dimension of zones."""


@dataclass(frozen=True)
class Zones(Grid):
    """Polygons and points in the frame of the fine cells that they are to be seen with.

    There are `n` zones; `rings` are the borders of polygons, and of points a ring each, of one
    vertex; `points` says which are points.
    """

    n: int
    rings: Rings
    points: Flags
    coordinates: tuple[str, str]
    frame: Frame
    time: str | None = None
    times: np.ndarray | None = None
    mapping: str | None = None
    seen: Frame | None = None

    @property
    def is_point(self) -> Flags:
        """Which zones are points."""
        return self.points

    @property
    def noun(self) -> str:
        """What the zones are called."""
        if self.points.any() and not self.points.all():
            return "polygons and points"
        return "points" if self.points.all() else "polygons"

    @property
    def spatial(self) -> tuple[str, ...]:  # type: ignore[override]
        """The dimension of zones."""
        return (DIM,)

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """One row."""
        return 1, self.n

    @cached_property
    def there(self) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        """Every zone has a place."""
        return np.ones(self.n, dtype=bool)

    @cached_property
    def centres(self) -> Floats:  # type: ignore[override]
        """Centroids on the map, y before x; of an area of nothing the mean of its corners."""
        rings, count = self.rings, np.bincount(self.rings.owner, self.rings.sizes, self.n)
        owner = np.repeat(rings.owner, rings.sizes)
        plain = [np.bincount(owner, line, self.n) / np.maximum(count, 1) for line in rings.xy.T]
        area, moment = rings.moments
        total = np.bincount(rings.owner, area, self.n)
        extent = np.abs(np.bincount(rings.owner, np.ptp(rings.ends, axis=0).prod(1), self.n))
        solid = total > 1e-9 * extent
        found = [
            np.where(solid, np.bincount(rings.owner, m, self.n) / np.where(solid, total, 1.0), p)
            for m, p in zip(moment.T, plain, strict=True)
        ]
        return np.stack(found[::-1], axis=1)

    @cached_property
    def areas(self) -> Floats:
        """Areas of polygons on the unit sphere or in square metres; of points, their number."""
        rings, view = self.rings, self.view
        number = np.bincount(rings.owner, minlength=self.n)
        if self.seen is not None:
            moved = self.frame.into(self.seen, rings.xy[:, ::-1])[:, ::-1]
            rings = replace(rings, xy=moved)
        each = rings.sphere_areas() if view.spherical else rings.moments[0]
        found = np.maximum(np.bincount(rings.owner, each, self.n), 0.0)
        return np.where(self.points, number, found).astype(float)

    def corners(self) -> None:
        """None: zones have borders of any form."""

    def shared_with(self, fine: Grid) -> csr_array:
        """Areas that fine cells (rows) and zones (columns) share; a point is an area of one."""
        points = self.rings.take(self.points[self.rings.owner])
        cell = fine.holding(points.xy[:, ::-1]) if len(points.xy) else np.zeros(0, dtype=np.int64)
        entries = np.ones((cell >= 0).sum()), (cell[cell >= 0], points.owner[cell >= 0])
        held = csr_array(entries, shape=(fine.n_cells, self.n))
        if self.points.all():
            return held
        if not isinstance(fine, Lattice):
            return csr_array(held + self._by_intersection(fine))
        share = coverage(self._borders, self.n, fine.y, fine.x)
        return csr_array(held + share.multiply(fine.areas[:, None]).tocsr())

    @property
    def _borders(self) -> Rings:
        """The rings of polygons."""
        return self.rings.take(~self.points[self.rings.owner])

    def _by_intersection(self, fine: Grid) -> csr_array:
        """Areas shared with cells of any form, by intersecting their outlines on the map."""
        import shapely

        there, zones = np.flatnonzero(fine.there), self.shapes()
        corners, centres = fine.corners(), fine.centres[there]
        ends = centres[:, None] if corners is None else corners[there]
        turns = np.zeros(1)
        if fine.frame.spherical:
            ends = centres[:, None] + shorter_steps(ends - centres[:, None])
            bounds = [self.rings.ends[0][:, 0].min(), self.rings.ends[1][:, 0].max()]
            first, last = np.array(bounds) - [ends[..., 1].max(), ends[..., 1].min()]
            turns = FULL_CIRCLE * np.arange(
                np.ceil(first / FULL_CIRCLE), np.floor(last / FULL_CIRCLE) + 1
            )
        found = [csr_array((fine.n_cells, self.n))]
        for turn in turns:
            xy = ends[..., ::-1] + [turn, 0.0]
            cells = shapely.points(xy[:, 0]) if corners is None else shapely.polygons(xy)
            cell, zone = shapely.STRtree(zones).query(cells, predicate="intersects")
            share = np.ones(len(cell))
            if corners is not None:
                both = shapely.area(shapely.intersection(cells[cell], zones[zone]))
                share = both / np.maximum(shapely.area(cells[cell]), 1e-300)
            entries = fine.areas[there[cell]] * share, (there[cell], zone)
            found.append(csr_array(entries, shape=(fine.n_cells, self.n)))
        return csr_array(sum(found[1:], found[0]))

    def shapes(self) -> npt.NDArray[Any]:
        """The zones as polygons of shapely, in the frame of the fine cells."""
        import shapely

        rings = self._borders
        area, _ = rings.moments
        each = np.split(rings.xy, rings.start[1:-1])
        solid = shapely.polygons([shapely.linearrings(xy) for xy in each])
        whole = np.empty(self.n, dtype=object)
        for zone in range(self.n):
            mine = rings.owner == zone
            outer, holes = solid[mine & (area > 0)], solid[mine & (area <= 0)]
            whole[zone] = shapely.difference(shapely.union_all(outer), shapely.union_all(holes))
        return whole

    def holding(self, yx: Floats, guess: Ints | None = None) -> Ints:
        """The first zone that holds each of some places; -1 where none does."""
        import shapely

        place, zone = shapely.STRtree(self.shapes()).query(
            shapely.points(np.nan_to_num(yx[:, ::-1], nan=1e30)), predicate="intersects"
        )
        found = np.full(len(yx), self.n)
        np.minimum.at(found, place, zone)
        return np.where(found < self.n, found, -1)

    def describe_cells(self) -> str:
        """The zones in words."""
        low, high = self.rings.ends[0].min(0), self.rings.ends[1].max(0)
        return f"{self.n} {self.noun} with {self.extent(low[::-1], high[::-1])}"
