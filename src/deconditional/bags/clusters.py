"""Points that lie together, by k-means, and points far apart, by the start that it is given.

The same seed gives what scikit-learn gives, rounding included, without the time of its import.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MOST_STEPS, SMALL_STEP = 300, 1e-4


def far_apart(points: np.ndarray, number: int, seed: int) -> npt.NDArray[np.int64]:
    """Rows of so many points that are far from one another, by k-means++, in order of choice.

    Each is the best of a few that are drawn with probabilities in proportion to the squares of
    their distances from those before.
    """
    rng, n, tries = np.random.RandomState(seed), len(points), 2 + int(np.log(number))
    norms = np.einsum("ij,ij->i", points, points)

    def squares(rows: npt.NDArray[np.int64]) -> np.ndarray:
        found = -2.0 * (points[rows] @ points.T) + norms[rows][:, None] + norms
        return np.maximum(found, 0.0)

    chosen = rng.choice(n, 1, p=np.full(n, 1.0 / n))
    nearest = squares(chosen)[0]
    while len(chosen) < number:
        drawn = np.searchsorted(np.cumsum(nearest), rng.uniform(size=tries) * nearest.sum())
        rows = drawn.clip(max=n - 1)
        left = np.minimum(nearest, squares(rows))
        best = int(left.sum(1).argmin())
        nearest, chosen = left[best], np.append(chosen, rows[best])
    return chosen


def clusters(points: np.ndarray, number: int, seed: int) -> npt.NDArray[np.int64]:
    """The cluster of every point, by k-means.

    Examples
    --------
    >>> found = clusters(np.array([[0.0], [0.1], [5.0], [5.1]]), 2, seed=0)
    >>> bool(found[0] == found[1] != found[2] == found[3])
    True
    """
    points = points - points.mean(0)
    centres, labels = points[far_apart(points, number, seed)], np.full(len(points), -1)
    for _ in range(MOST_STEPS):
        before, labels = labels, _nearest(points, centres)
        if np.array_equal(labels, before):
            return labels
        sizes, old = np.bincount(labels, minlength=number)[:, None], centres
        sums = np.stack([np.bincount(labels, x, number) for x in points.T], axis=1)
        centres = np.where(sizes > 0, sums / np.maximum(sizes, 1), old)
        if ((centres - old) ** 2).sum() <= SMALL_STEP * points.var(0).mean():
            break
    return _nearest(points, centres)


def _nearest(points: np.ndarray, centres: np.ndarray) -> npt.NDArray[np.int64]:
    return (np.einsum("ij,ij->i", centres, centres) - 2.0 * (points @ centres.T)).argmin(1)
