r"""A few points of every bag that stand for all of it.

What a model needs of a bag is the mean of smooth functions over it. Random points give that mean
with an error of one over the square root of their number. Two steps do far better:

1. *kernel herding* chooses points one after the other, each where the bag's mean embedding
   :math:`\bar k(x) = \sum_i w^{(i)} \kappa(x, x^{(i)})` is represented least;
2. weights :math:`v \ge 0`, summing to one, minimise the distance
   :math:`v^\top K v - 2 v^\top \bar k` between the embeddings, with a linear kernel
   added so that the means of the covariates themselves are kept almost exactly.

The kernel κ is a Matérn-3/2 in the bag's own standardised coordinates.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_POINTS = 1500
"""Points of a bag that are looked at; a random sample where there are more."""

LINEAR = 10.0
"""How much the means of the covariates count beside the means of other smooth functions."""


def representatives(
    x: Floats, weights: Floats, n: int, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Indices of at most n points of one bag, and weights that sum to one.

    Examples
    --------
    >>> x = np.linspace(0.0, 1.0, 101)[:, None]
    >>> rows, w = representatives(x, np.full(101, 1 / 101), 4, np.random.default_rng(0))
    >>> len(rows), bool(abs(w @ np.exp(x[rows, 0]) - np.exp(x).mean()) < 0.01)
    (4, True)
    """
    rows, w = thinned(weights, MOST_POINTS, rng)
    if len(rows) <= n:
        return rows, w
    u = _standardised(x[rows], w)
    kernel = _matern(u)
    chosen = _herd(kernel, kernel @ w, n)
    return rows[chosen], _weights(kernel + LINEAR / max(u.shape[1], 1) * u @ u.T, w, chosen)


def thinned(weights: Floats, n: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Indices of at most n points that stand for all by their weights, which sum to one."""
    rows = np.flatnonzero(weights > 0)
    if len(rows) <= n:
        return rows, weights[rows] / weights[rows].sum()
    # Even steps through the cumulated weights: a point that outweighs a step is met again.
    rows = rng.permutation(rows)
    ends = np.cumsum(weights[rows])
    steps = (np.arange(n) + rng.uniform()) / n * ends[-1]
    rows, counts = np.unique(rows[np.searchsorted(ends, steps)], return_counts=True)
    return rows, counts / n


def drawn(x: Floats, weights: Floats, n: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Indices of at most n points of one bag, drawn by their weight, and equal weights."""
    rows = np.flatnonzero(weights > 0)
    if len(rows) <= n:
        return rows, weights[rows]
    p = weights[rows] / weights[rows].sum()
    return np.sort(rng.choice(rows, n, replace=False, p=p)), np.full(n, 1.0 / n)


def _standardised(x: Floats, w: Floats) -> Floats:
    """Coordinates that vary within the bag, with mean zero and unit variance."""
    centred = x - w @ x
    spread = np.sqrt(w @ centred**2)
    varies = spread > 1e-9 * np.maximum(np.abs(x).max(0), 1e-300)
    return centred[:, varies] / spread[varies]


def _matern(u: Floats) -> Floats:
    squares = (u**2).sum(1)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * u @ u.T, 0.0))
    scaled = np.sqrt(3.0 / max(u.shape[1], 1)) * distance
    return (1.0 + scaled) * np.exp(-scaled)


def _weights(kernel: Floats, w: Floats, chosen: Ints) -> Floats:
    n = len(chosen)
    total = 1e3  # the weight of the sum of v being one, beside a kernel of order one
    root = np.linalg.cholesky(kernel[np.ix_(chosen, chosen)] + 1e-6 * np.eye(n) + total)
    fitted, _ = nnls(root.T, np.linalg.solve(root, (kernel @ w)[chosen] + total))
    return fitted / fitted.sum()


def _herd(kernel: Floats, embedding: Floats, n: int) -> Ints:
    chosen: list[int] = []
    covered = np.zeros(len(kernel))
    free = np.ones(len(kernel), dtype=bool)
    for step in range(n):
        gain = np.where(free, embedding - covered / (step + 1), -np.inf)
        best = int(np.argmax(gain))
        chosen.append(best)
        free[best] = False
        covered += kernel[:, best]
    return np.sort(np.array(chosen))
