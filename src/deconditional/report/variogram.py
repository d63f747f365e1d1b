"""Semivariograms: how much a field changes over a distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deconditional.report.grids import Plane

__all__ = ["Semivariogram", "distance_bins", "semivariogram"]

MOST_PAIRS = 200_000
FEWEST_PAIRS = 10
"""Bins with fewer pairs are left out."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Semivariogram:
    """Mean distance, semivariance and number of the pairs in every bin that has enough of them."""

    distance: Floats
    semivariance: Floats
    pairs: npt.NDArray[np.int64]


def distance_bins(grid: Plane, n: int = 15) -> Floats:
    """Borders of `n` bins in equal ratio, from neighbouring cells to half way across the grid."""
    rows, columns = grid.values.shape
    middle = (rows // 2) * columns + columns // 2
    beside = [middle - 1] if columns > 1 else []
    below = [middle - columns] if rows > 1 else []
    if not beside + below:
        return np.array([0.5, 1.0])
    nearest = float(grid.distance(middle, beside + below).min())
    reach = 0.5 * float(grid.distance(0, np.arange(rows * columns)).max())
    return np.geomspace(0.9 * nearest, max(reach, 2.0 * nearest), n + 1)


def semivariogram(
    grid: Plane, bins: npt.ArrayLike, most: int = MOST_PAIRS, seed: int = 0
) -> Semivariogram:
    """Half the mean squared difference between two cells, by their distance in any direction.

    All pairs of cells are used where there are at most `most` of them, else that many random ones,
    whose distances are spread evenly over the orders of magnitude.
    """
    edges = np.asarray(bins, dtype=float)
    first, second = _pairs(np.isfinite(grid.values), np.random.default_rng(seed), most)
    distance = grid.distance(first, second)
    flat = grid.values.ravel()
    halved = 0.5 * (flat[first] - flat[second]) ** 2
    place = np.digitize(distance, edges) - 1
    inside = (place >= 0) & (place < len(edges) - 1)
    count = np.bincount(place[inside], minlength=len(edges) - 1)
    enough = count >= FEWEST_PAIRS
    means = [
        np.bincount(place[inside], weights=values[inside], minlength=len(edges) - 1)[enough]
        / count[enough]
        for values in (distance, halved)
    ]
    return Semivariogram(means[0], means[1], count[enough])


def _pairs(
    known: npt.NDArray[np.bool_], rng: np.random.Generator, most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Flat positions of the two cells of every pair, both with a value."""
    cells = np.flatnonzero(known)
    if len(cells) * (len(cells) - 1) // 2 <= most:
        one, other = np.triu_indices(len(cells), 1)
        return cells[one], cells[other]
    rows, columns = known.shape
    first = rng.choice(cells, most)
    # Ends drawn at random over the whole grid would leave hardly any pair of neighbours.
    length = np.exp(rng.uniform(0.0, np.log(np.hypot(rows, columns)), most))
    angle = rng.uniform(0.0, 2 * np.pi, most)
    row = first // columns + np.rint(length * np.sin(angle)).astype(int)
    column = first % columns + np.rint(length * np.cos(angle)).astype(int)
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    first, second = first[inside], (row * columns + column)[inside]
    kept = known.ravel()[second] & (first != second)
    return first[kept], second[kept]
