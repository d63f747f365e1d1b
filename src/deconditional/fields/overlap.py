r"""Areas that cells of two rectilinear grids share.

The area of a cell between two latitudes and two longitudes is proportional to the difference in
longitude times the difference in sin(latitude), so the overlap of two cells is a product of two
one-dimensional overlaps, and all overlaps of two grids are a Kronecker product. On a plane the same
holds with plain lengths.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, kron

__all__ = [
    "AxisKind",
    "inferred_bounds",
    "lengths",
    "overlap_areas",
    "overlap_lengths",
    "unit_vectors",
    "unwrapped",
]

AxisKind = Literal["latitude", "longitude", "plane"]
Floats = npt.NDArray[np.float64]

FULL_CIRCLE = 360.0


def unwrapped(longitude: npt.ArrayLike) -> Floats:
    """Longitudes as a monotonic sequence, wherever the seam is.

    Raises ValueError where they go around the globe more than once, as unsorted ones do.

    Examples
    --------
    >>> unwrapped([350.0, 355.0, 0.0, 5.0]).tolist()
    [350.0, 355.0, 360.0, 365.0]
    >>> unwrapped([0.0, -90.0, 180.0]).tolist()
    [0.0, -90.0, -180.0]
    """
    lon = np.asarray(longitude, dtype=float)
    if len(lon) < 2:
        return lon
    eastward = np.mod(np.diff(lon), FULL_CIRCLE)
    steps = eastward if eastward.sum() < FULL_CIRCLE else eastward - FULL_CIRCLE
    if len(steps) == 1 and steps[0] > FULL_CIRCLE / 2:
        steps = steps - FULL_CIRCLE  # both ways are possible; this one is shorter
    if not (np.all(steps != 0) and np.abs(steps).sum() < FULL_CIRCLE):
        raise ValueError("longitudes go around the globe more than once")
    straight = lon[0] + np.concatenate([[0.0], np.cumsum(steps)])
    # Whole turns leave the values themselves free of the rounding of a long sum.
    return lon + FULL_CIRCLE * np.round((straight - lon) / FULL_CIRCLE)


def inferred_bounds(centres: npt.ArrayLike, kind: AxisKind) -> Floats:
    """Cell bounds half-way between centres, (n, 2); the outermost cells are symmetric.

    Latitudes end at the poles. Longitudes must be unwrapped; they have no first and no last, so the
    seam of the data does not matter: cells meet all around the globe, except across a gap at least
    twice as wide as the steps beside it, where they are symmetric.

    Examples
    --------
    >>> inferred_bounds([90.0, 60.0, 30.0], "latitude").tolist()
    [[75.0, 90.0], [45.0, 75.0], [15.0, 45.0]]
    >>> inferred_bounds([0.0, 10.0, 350.0], "longitude").tolist()
    [[-5.0, 5.0], [5.0, 15.0], [345.0, 355.0]]
    """
    c = np.asarray(centres, dtype=float)
    if len(c) < 2:
        raise ValueError("the bounds of a single cell cannot be inferred")
    if c[0] > c[-1]:
        return inferred_bounds(c[::-1], kind)[::-1]
    if kind == "longitude":
        return _around_the_globe(c)
    middle = 0.5 * (c[1:] + c[:-1])
    edges = np.concatenate([[2 * c[0] - middle[0]], middle, [2 * c[-1] - middle[-1]]])
    if kind == "latitude":
        edges = np.clip(edges, -90.0, 90.0)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _around_the_globe(c: Floats) -> Floats:
    """Bounds of ascending longitudes."""
    gaps = np.diff(c, append=c[0] + FULL_CIRCLE)
    before = np.roll(gaps, 1)
    apart = gaps >= 2 * np.maximum(before, np.roll(gaps, -1))
    east = c + 0.5 * np.where(apart, before, gaps)
    west = np.roll(east, 1)
    west[0] -= FULL_CIRCLE
    west = np.where(np.roll(apart, 1), c - 0.5 * gaps, west)
    return np.stack([west, east], axis=1)


def _measured(bounds: Floats, kind: AxisKind) -> Floats:
    """Bounds in the coordinate in which area is length."""
    if kind == "plane":
        return bounds
    if kind == "latitude":
        return np.sin(np.radians(bounds))
    return np.radians(bounds)


def lengths(bounds: Floats, kind: AxisKind) -> Floats:
    """The factor of a cell's area that belongs to one axis: unit sphere, or plane."""
    return np.diff(_measured(bounds, kind), axis=1)[:, 0]


def overlap_lengths(
    first: Floats, second: Floats, kind: AxisKind, tolerance: float = 0.0
) -> Floats:
    """What the intervals of two axes share, (n, m); longitudes wrap.

    Pieces that are no longer than `tolerance`, in the unit of the bounds, count as nothing: they
    come from rounding of edges that are meant to coincide.

    Examples
    --------
    >>> west = np.array([[-10.0, 10.0]])
    >>> overlap_lengths(west, np.array([[350.0, 355.0]]), "longitude") / np.pi * 180
    array([[5.]])
    """
    turns: tuple[float, ...] = (0.0,)
    if kind == "longitude":
        first, second = (
            b - FULL_CIRCLE * np.floor(b[:, :1] / FULL_CIRCLE) for b in (first, second)
        )
        turns = (-FULL_CIRCLE, 0.0, FULL_CIRCLE)
    largest = max(np.abs(first).max(), np.abs(second).max())
    tolerance = max(tolerance, 64 * np.finfo(float).eps * largest)
    total = np.zeros((len(first), len(second)))
    for turn in turns:
        lower = np.maximum(first[:, None, 0], second[None, :, 0] + turn)
        upper = np.minimum(first[:, None, 1], second[None, :, 1] + turn)
        shared = _measured(upper, kind) - _measured(lower, kind)
        total += np.where(upper - lower > tolerance, shared, 0.0)
    return total


def overlap_areas(rows: Floats, columns: Floats) -> csr_array:
    """Areas shared by the cells of two grids, from the overlaps along each axis.

    Cells are counted row by row: entry (i * n_x + j, I * N_x + J) is what fine cell (i, j) and
    coarse cell (I, J) share.

    Examples
    --------
    >>> overlap_areas(np.array([[1.0], [0.5]]), np.array([[2.0, 0.0]])).toarray().tolist()
    [[2.0, 0.0], [1.0, 0.0]]
    """
    return csr_array(kron(csr_array(rows), csr_array(columns), format="csr"))


def unit_vectors(latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> Floats:
    """Places on the unit sphere, (..., 3), from degrees.

    Examples
    --------
    >>> unit_vectors([0.0, 90.0], [90.0, 0.0]).round(12).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    y, x = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(y) * np.cos(x), np.cos(y) * np.sin(x), np.sin(y)], axis=-1)
