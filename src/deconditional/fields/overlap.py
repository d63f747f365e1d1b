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
    if not (np.all(steps != 0) and np.abs(steps).sum() < FULL_CIRCLE):
        raise ValueError("longitudes go around the globe more than once")
    return lon[0] + np.concatenate([[0.0], np.cumsum(steps)])


def inferred_bounds(centres: npt.ArrayLike, kind: AxisKind) -> Floats:
    """Cell bounds half-way between centres, (n, 2); the outermost cells are symmetric.

    Latitudes end at the poles. Longitudes must be unwrapped.

    Examples
    --------
    >>> inferred_bounds([90.0, 60.0, 30.0], "latitude").tolist()
    [[75.0, 90.0], [45.0, 75.0], [15.0, 45.0]]
    """
    c = np.asarray(centres, dtype=float)
    if len(c) < 2:
        raise ValueError("the bounds of a single cell cannot be inferred")
    middle = 0.5 * (c[1:] + c[:-1])
    edges = np.concatenate([[2 * c[0] - middle[0]], middle, [2 * c[-1] - middle[-1]]])
    if kind == "latitude":
        edges = np.clip(edges, -90.0, 90.0)
    if kind == "longitude" and abs(edges[-1] - edges[0]) > FULL_CIRCLE:
        # Unequal steps: the two outermost cells share what is left of the circle.
        gap = 0.5 * (abs(edges[-1] - edges[0]) - FULL_CIRCLE) * np.sign(edges[-1] - edges[0])
        edges[0], edges[-1] = edges[0] + gap, edges[-1] - gap
    return np.sort(np.stack([edges[:-1], edges[1:]], axis=1), axis=1)


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


def overlap_lengths(first: Floats, second: Floats, kind: AxisKind) -> Floats:
    """What the intervals of two axes share, (n, m); longitudes wrap.

    Examples
    --------
    >>> west = np.array([[-10.0, 10.0]])
    >>> overlap_lengths(west, np.array([[350.0, 355.0]]), "longitude") / np.pi * 180
    array([[5.]])
    """
    if kind != "longitude":
        return _shared(_measured(first, kind), _measured(second, kind))
    turn = 2 * np.pi
    a, b = _measured(first, kind), _measured(second, kind)
    a = a - turn * np.floor(a[:, :1] / turn)
    b = b - turn * np.floor(b[:, :1] / turn)
    return sum((_shared(a, b + k * turn) for k in (-1, 0, 1)), np.zeros((len(a), len(b))))


def _shared(a: Floats, b: Floats) -> Floats:
    upper = np.minimum(a[:, None, 1], b[None, :, 1])
    lower = np.maximum(a[:, None, 0], b[None, :, 0])
    return np.maximum(upper - lower, 0.0)


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
