"""What the cells of two grids share.

The area of a cell between two latitudes and two longitudes is proportional to the difference in
longitude times the difference in sin(latitude), so the overlap of two cells is a product of two
one-dimensional overlaps, and all overlaps of two lattices are a Kronecker product. On a plane the
same holds with plain lengths. Cells of any other form are shared out by points within them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.sparse import csr_array, kron

from deconditional.errors import UsageError
from deconditional.fields.axes import FULL_CIRCLE, AxisKind, Floats, Grid, Ints, Lattice, measured
from deconditional.fields.io import check_room
from deconditional.fields.polygons import shorter_steps
from deconditional.fields.zones.grid import Zones

SUBDIVISION = 5
"""Cells that lie in several others are shared out by so many points squared for every side."""


def overlap(fine: Grid, coarse: Grid) -> csr_array:
    """Areas that fine cells (rows) and coarse cells (columns) share.

    Exact for two lattices in one frame, and for zones. Else a fine cell whose corners and centre
    lie in one coarse cell belongs to it, and others are shared out by points within them; a cell
    without corners belongs to where its centre is.
    """
    if isinstance(coarse, Zones):
        return coarse.shared_with(fine)
    if isinstance(fine, Lattice) and isinstance(coarse, Lattice) and _aligned(fine, coarse):
        return overlap_areas(*shared_lengths(fine, coarse))
    place = partial(_held, fine, coarse)
    at, corners, n = place(fine.centres), fine.corners(), fine.n_cells
    at[~fine.there] = -1
    shape = (n, coarse.n_cells)
    if corners is None:
        inside = np.flatnonzero(at >= 0)
        return csr_array((fine.areas[inside], (inside, at[inside])), shape=shape)
    to = corners - fine.centres[:, None]
    to = shorter_steps(to) if fine.frame.spherical else to
    # Corners themselves may lie on a border that both grids have; points within cells do not.
    ends = fine.centres[:, None] + (1.0 - 1.0 / (3 * SUBDIVISION)) * to
    guess = np.repeat(at, ends.shape[1])[:, None]
    around = np.column_stack([place(ends.reshape(-1, 2), guess).reshape(n, -1), at])
    around[~fine.there] = -1
    whole = (around == at[:, None]).all(1)
    inside, cut = np.flatnonzero(whole & (at >= 0)), np.flatnonzero(~whole)
    points, shares = fine.within(cut, SUBDIVISION)
    guess = np.repeat(around[cut], shares.shape[1], axis=0)
    held = place(points.reshape(-1, 2), guess).reshape(shares.shape)
    rows = np.broadcast_to(cut[:, None], held.shape)
    there = held >= 0
    return csr_array(
        (
            np.concatenate([fine.areas[inside], (shares * fine.areas[rows])[there]]),
            (
                np.concatenate([inside, rows[there]]),
                np.concatenate([at[inside], held[there]]),
            ),
        ),
        shape=shape,
    )


def _held(fine: Grid, coarse: Grid, yx: Floats, guess: Ints | None = None) -> Ints:
    """The coarse cells that hold places given in coordinates of the fine grid."""
    return coarse.holding(fine.frame.into(coarse.frame, yx), guess)


def _aligned(fine: Lattice, coarse: Lattice) -> bool:
    """Whether rows and columns of two lattices run along each other."""
    return fine.y.kind == coarse.y.kind and fine.frame.same_as(coarse.frame)


def shared_lengths(fine: Lattice, coarse: Lattice) -> tuple[Floats, Floats]:
    """What rows of the two grids share along y, and columns along x."""
    for a, b in ((fine.y, coarse.y), (fine.x, coarse.x)):
        what = f"the comparison of the fine {a.describe()} with the coarse {b.describe()}"
        check_room(48 * a.size * b.size, what, "cut both to the region that is needed")
    rows, columns = (
        overlap_lengths(a.bounds, b.bounds, a.kind, a.tolerance + b.tolerance)
        for a, b in ((fine.y, coarse.y), (fine.x, coarse.x))
    )
    return rows, columns


def check_cells(grid: Grid, n_values: int, which: str) -> None:
    """Raise where a grid has more cells than memory can hold so many values of, and positions."""
    n = grid.n_cells * grid.n_times
    what = f"what is made of the {n} cells of the {which} grid ({grid.describe_cells()})"
    remedy = "cut it to the region that is needed, or, of fine data, use chunks (--chunked yes)"
    check_room(8 * n * (n_values + 6), what, remedy)


def check_overlap(fine: Grid, coarse: Grid) -> None:
    """Raise where two grids have nothing in common."""
    if isinstance(fine, Lattice) and isinstance(coarse, Lattice) and _aligned(fine, coarse):
        they_meet = all(shared.any() for shared in shared_lengths(fine, coarse))
    else:
        they_meet = overlap(fine, coarse).nnz > 0
    if not they_meet:
        raise UsageError(
            f"the grids do not overlap: fine {fine.describe_cells()}, coarse "
            f"{coarse.describe_cells()}. Check the units of their coordinates, and their CRS."
        )


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
        shared = measured(upper, kind) - measured(lower, kind)
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
