r"""Cells with corners anywhere: how large they are, points within them, and which holds a point.

A side is the shorter arc of a great circle, or, where both ends have the same latitude, of that
parallel, so cells between two latitudes and two longitudes are what they are elsewhere. The area
between a side and the pole has a closed form: with :math:`t = \tan` of half the distance to the
pole at either end, :math:`2 \arctan(t_1 t_2 \sin\Delta\lambda / (1 + t_1 t_2 \cos\Delta\lambda))`
for an arc of a great circle, :math:`(1 - \sin\phi)\Delta\lambda` for one of a parallel. The area of
a cell is the sum over its sides, whether or not a pole is in it. On a plane, sides are straight.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree

from deconditional.fields.frames import Frame

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEVEL = 1e-9
"""Degrees of latitude between the ends of what counts as a part of a parallel."""

NEAREST = 16
"""Cells that are asked whether they hold a point, by the distance of their centres."""


class Polygons:
    """Cells by their corners, (n, k, 2), in the coordinates of a frame."""

    def __init__(self, corners: Floats, frame: Frame):
        self.frame = frame
        self.corners, self.ends = corners, np.roll(corners, -1, axis=1)
        self.signed = self._sphere_areas() if frame.spherical else self._plane_areas()
        self.areas: Floats = np.abs(self.signed)
        self.places = self._lifted(corners)
        middles = self.places.mean(1)
        self.centres = _unit(middles) if frame.spherical else middles

    def _plane_areas(self) -> Floats:
        a, b = (ends - self.corners[:, :1] for ends in (self.corners, self.ends))
        return 0.5 * (a[..., 1] * b[..., 0] - a[..., 0] * b[..., 1]).sum(1)

    def _sphere_areas(self) -> Floats:
        """Areas on the unit sphere, positive where corners go around against the clock."""
        side = np.where(self.corners[..., 0].mean(1, keepdims=True) < 0, -1.0, 1.0)
        first, second = (np.radians(ends[..., 0] * side) for ends in (self.corners, self.ends))
        turn = np.radians(shorter_steps(self.ends - self.corners)[..., 1])
        t = np.tan(0.25 * np.pi - 0.5 * first) * np.tan(0.25 * np.pi - 0.5 * second)
        arc = 2.0 * np.arctan2(t * np.sin(turn), 1.0 + t * np.cos(turn))
        return side[:, 0] * np.where(self._level, (1.0 - np.sin(first)) * turn, arc).sum(1)

    @property
    def _level(self) -> npt.NDArray[np.bool_]:
        """Which sides are parts of a parallel."""
        return np.abs(self.ends[..., 0] - self.corners[..., 0]) < LEVEL

    @property
    def middles(self) -> Floats:
        """Coordinates of the middles of the cells."""
        return self._coordinates(self.centres)

    def within(self, steps: int) -> tuple[Floats, Floats]:
        """Points of every cell, (n, p, 2), and the share of the cell that each stands for.

        The centre and every side make a triangle, which is cut into steps² equal ones.
        """
        a, b = self.places, np.roll(self.places, -1, axis=1)
        c = np.broadcast_to(self.centres[:, None], a.shape)
        size = np.linalg.norm(np.cross(a - c, b - c), axis=-1)
        share = size / np.maximum(size.sum(1, keepdims=True), 1e-300)
        mix = _cuts(steps)
        points = np.einsum("pm,mnkd->nkpd", mix, np.stack([a, b, c]))
        points = points.reshape(len(a), share.shape[1] * len(mix), 3)
        return self._coordinates(points), np.repeat(share / len(mix), len(mix), axis=1)

    def _coordinates(self, points: Floats) -> Floats:
        return _degrees(points) if self.frame.spherical else points[..., :2]

    def holding(self, yx: Floats, guess: Ints | None = None) -> Ints:
        """The cell that holds each of some points, (m, 2); -1 where none does.

        Cells that are guessed, (m, g), are asked first; -1 is none.
        """
        found, places = np.full(len(yx), -1), self._lifted(yx)
        somewhere = np.isfinite(yx).all(1)
        for asked in [] if guess is None else guess.T:
            rows = np.flatnonzero((found < 0) & (asked >= 0) & somewhere)
            self._ask(found, rows, asked, yx, places)
        left = np.flatnonzero((found < 0) & somewhere)
        k = min(NEAREST, len(self.corners))
        near = np.zeros((len(yx), k), dtype=np.int64)
        if len(left):
            near[left] = self._tree.query(places[left], k=k)[1].reshape(-1, k)
        for asked in near.T:
            self._ask(found, left[found[left] < 0], asked, yx, places)
        return found

    def _lifted(self, yx: Floats) -> Floats:
        """Places in space, where sides are planes through the origin; a plane lies at height 1."""
        places = self.frame.place(yx)
        if self.frame.spherical:
            return places
        return np.concatenate([places, np.ones((*places.shape[:-1], 1))], axis=-1)

    @cached_property
    def _tree(self) -> KDTree:
        return KDTree(self.centres)

    @cached_property
    def _normals(self) -> Floats:
        """Normals of the planes through the sides and the origin."""
        return np.cross(self.places, np.roll(self.places, -1, axis=1))

    @cached_property
    def _beyond(self) -> Ints:
        """Sides, eastward less westward, that lie north of a point outside: about a north pole."""
        if not self.frame.spherical:
            return np.zeros(len(self.corners), dtype=np.int64)
        turns = np.round(shorter_steps(self.ends - self.corners)[..., 1].sum(1) / 360.0)
        return np.where(self.corners[..., 0].mean(1) > 0, turns, 0).astype(np.int64)

    def _ask(self, found: Ints, rows: Ints, asked: Ints, yx: Floats, places: Floats) -> None:
        """Note which points are in the cells that are asked, by the sides that lie north of them.

        On the way north from a point, sides that are crossed eastward and westward are as many
        inside as outside but for one.
        """
        cells, here = asked[rows], yx[rows][:, None]
        first, second = self.corners[cells] - here, self.ends[cells] - here
        above = np.einsum("nkd,nd->nk", self._normals[cells], places[rows])
        if self.frame.spherical:
            first, second = shorter_steps(first), shorter_steps(second)
            eastward = second[..., 1] - first[..., 1]
            above = np.where(self._level[cells], -first[..., 0] * np.sign(eastward), above)
            near = np.abs(eastward) < 180.0
        else:  # places are y, x, 1, and a turn from x to y is against the clock
            above, near = -above, np.ones(above.shape, dtype=bool)
        west = (first[..., 1] < 0, second[..., 1] < 0)
        crossed = (near & west[0] & ~west[1] & (above < 0)).sum(1)
        crossed = crossed - (near & ~west[0] & west[1] & (above > 0)).sum(1)
        inside = (crossed != self._beyond[cells]) & (self.areas[cells] > 0)
        found[rows[inside]] = cells[inside]


def _degrees(vectors: Floats) -> Floats:
    """Latitude and longitude of vectors, of whatever length."""
    x, y, z = np.moveaxis(vectors, -1, 0)
    return np.degrees(np.stack([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)], axis=-1))


def _unit(vectors: Floats) -> Floats:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300)


def _cuts(steps: int) -> Floats:
    """Centres of steps² equal parts of a triangle, as mixtures of its three corners."""
    i, j = np.meshgrid(np.arange(steps), np.arange(steps), indexing="ij")
    upright, turned = i + j < steps, i + j < steps - 1
    first = np.concatenate([i[upright] + 1 / 3, i[turned] + 2 / 3]) / steps
    second = np.concatenate([j[upright] + 1 / 3, j[turned] + 2 / 3]) / steps
    return np.stack([first, second, 1.0 - first - second], axis=1)


def estimated_corners(centres: Floats, frame: Frame) -> Floats:
    """Corners, (y, x, 4, 2), half-way between the centres, (y, x, 2), of a grid of any shape.

    Beyond the outermost centres as far as they are from their neighbours. Around a pole, where four
    centres have longitudes all around, the corner is the middle of their places.
    """
    grid = _continued(centres, frame.spherical)
    four = np.stack([grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]])
    middle = four.mean(0)
    if frame.spherical:
        near = shorter_steps(four - four[0])[..., 1]
        middle[..., 1] = four[0, ..., 1] + near.mean(0)
        around = np.ptp(near, axis=0) > 90.0
        within = np.clip(four, [-90.0, -np.inf], [90.0, np.inf])
        middle = np.where(around[..., None], _degrees(frame.place(within).mean(0)), middle)
        middle[..., 0] = np.clip(middle[..., 0], -90.0, 90.0)
    return np.stack([middle[:-1, :-1], middle[:-1, 1:], middle[1:, 1:], middle[1:, :-1]], axis=2)


def _continued(centres: Floats, spherical: bool) -> Floats:
    """Centres with a row or column more on every side, and next to cells without a place."""
    grid = np.pad(centres, ((1, 1), (1, 1), (0, 0)), constant_values=np.nan)
    for axis, way in ((0, 1), (0, -1), (1, 1), (1, -1)):
        last, before = (np.roll(grid, steps * way, axis) for steps in (1, 2))
        step = shorter_steps(last - before) if spherical else last - before
        grid = np.where(np.isnan(grid), last + step, grid)
    return grid


def shorter_steps(steps: Floats) -> Floats:
    """Steps in latitude and longitude, the shorter way around."""
    return np.stack([steps[..., 0], np.mod(steps[..., 1] + 180.0, 360.0) - 180.0], axis=-1)
