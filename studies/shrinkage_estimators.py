"""Estimators of the shrinkage study: conditional mean embeddings from bags and from a dense system.

With c on the diagonal of the n x n system of repeated mediators, the standard operator is the
shrinkage operator with a ridge c / n_j for bag j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gpjax.kernels as gk
import jax
import numpy as np
from scipy.linalg import cholesky, solve_triangular

from deconditional import bag_cross
from deconditional.observations.kinds import CMO, ridge_shape
from studies.data import ShrinkageToy

__all__ = [
    "KINDS",
    "Embeddings",
    "bag_means",
    "dense_coefficients",
    "embeddings",
    "median_distance",
    "operator_weights",
    "rms",
    "smallest",
]

GRID = 41
FIXED_GRID = ((-4.0, 3.0), (-4.0, 4.0))
"""Ends in x and in y of the grid that does not follow the data."""

DENSE_BLOCK = 2048
KINDS = ("standard", "shrinkage")


def median_distance(values: np.ndarray) -> float:
    """Median distance between pairs of numbers, the lower one of two, without holding the pairs.

    Examples
    --------
    >>> median_distance(np.array([0.0, 1.0, 3.0]))
    2.0
    >>> median_distance(np.array([0.0, 0.0, 1.0, 5.0]))
    1.0
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    if n < 2:
        raise ValueError(f"values must hold at least two numbers, not {n}.")
    middle = (n * (n - 1) // 2 + 1) // 2
    place = np.arange(1, n + 1)

    def within(distance: float) -> int:
        return int((np.searchsorted(ordered, ordered + distance, side="right") - place).sum())

    if within(0.0) >= middle:
        return 0.0
    found = smallest(lambda d: within(d) >= middle, float(ordered[-1] - ordered[0]), steps=60)
    return float(f"{found:.12g}")


def smallest(enough: Callable[[float], bool], high: float, steps: int) -> float:
    """The smallest number between 0 and `high` that is enough, by bisection."""
    low = 0.0
    for _ in range(steps):
        half = 0.5 * (low + high)
        low, high = (low, half) if enough(half) else (half, high)
    return high


def dense_coefficients(
    mediators: np.ndarray, at: np.ndarray, lengthscale: float, diagonal: float
) -> np.ndarray:
    """A of the paper's standard operator: the n x n system of repeated mediators, solved.

    Parameters
    ----------
    mediators : (n,)
        The mediator of every point.
    at : (m,)
        Where the conditional mean is wanted.
    lengthscale
        Of the Gaussian mediator kernel.
    diagonal
        What is added to the diagonal.

    Returns
    -------
    (n, m) array

    Examples
    --------
    Two points of one bag share its weight:

    >>> dense_coefficients(np.array([0.0, 0.0]), np.array([0.0]), 1.0, 0.5).round(4).tolist()
    [[0.4], [0.4]]
    """
    n = len(mediators)
    gram = np.empty((n, n))
    np.subtract.outer(mediators, mediators, out=gram)
    gram *= gram
    gram *= -0.5 / lengthscale**2
    np.exp(gram, out=gram)
    gram.flat[:: n + 1] += diagonal
    cross = np.exp(-0.5 * (np.subtract.outer(mediators, at) / lengthscale) ** 2)
    return _solve_in_place(gram, cross)


def _solve_in_place(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve a x = b for a positive definite a by Cholesky; both are overwritten.

    In blocks of rows, with LAPACK for blocks and matrix products for the rest: LAPACK's own
    factorisation, as SciPy 1.17 brings it with OpenBLAS, crashed at 25 000 rows.
    """
    n = len(a)
    blocks = [slice(k, min(k + DENSE_BLOCK, n)) for k in range(0, n, DENSE_BLOCK)]
    for here in blocks:
        first, last = here.start, here.stop
        if first:
            a[first:, here] -= a[first:, :first] @ a[here, :first].T
            b[here] -= a[here, :first] @ b[:first]
        root = cholesky(a[here, here], lower=True, check_finite=False)
        a[here, here] = root
        b[here] = solve_triangular(root, b[here], lower=True, check_finite=False)
        if last < n:
            below = solve_triangular(root, a[last:, here].T, lower=True, check_finite=False)
            a[last:, here] = below.T
    for here in reversed(blocks):
        if here.stop < n:
            b[here] -= a[here.stop :, here].T @ b[here.stop :]
        b[here] = solve_triangular(a[here, here].T, b[here], lower=False, check_finite=False)
    return b


@dataclass(frozen=True)
class Embeddings:
    """Conditional mean embeddings of one draw, evaluated on a grid.

    Attributes
    ----------
    toy
        The draw.
    x, y
        The grid: points and mediators.
    k_scale, l_scale
        Length scales of the Gaussian kernels on points and mediators.
    """

    toy: ShrinkageToy
    x: np.ndarray
    y: np.ndarray
    k_scale: float
    l_scale: float

    @property
    def mediator(self) -> np.ndarray:
        """Of every bag."""
        assert self.toy.bags.mediator is not None
        return self.toy.bags.mediator[:, 0]

    @property
    def repeated(self) -> np.ndarray:
        """The mediator of every point."""
        return self.mediator[self.toy.bags.bag]

    @cached_property
    def bag_means(self) -> np.ndarray:
        """The empirical embedding of every bag, (grid in x, N)."""
        return np.asarray(bag_means(self.k_scale, self.x, self.toy.bags.layout))

    @cached_property
    def truth(self) -> np.ndarray:
        """The true embedding, (grid in x, grid in y)."""
        return self.toy.embedding(self.x, self.y, self.k_scale)

    def from_bags(self, ridge: np.ndarray, l_scale: float | None = None) -> np.ndarray:
        """The estimate with a ridge for every bag, from an N x N system."""
        scale = self.l_scale if l_scale is None else l_scale
        return self.bag_means @ np.asarray(operator_weights(scale, self.mediator, ridge, self.y))

    def dense(self, diagonal: float) -> np.ndarray:
        """The standard estimate from the n x n system, with something on its diagonal."""
        return self.from_points(dense_coefficients(self.repeated, self.y, self.l_scale, diagonal))

    def from_points(self, coefficients: np.ndarray) -> np.ndarray:
        """The embedding with coefficients for every point."""
        away = np.subtract.outer(self.x, self.toy.bags.points[:, 0]) / self.k_scale
        return np.exp(-0.5 * away**2) @ coefficients

    def standard_ridge(self, diagonal: float) -> np.ndarray:
        """What a diagonal of the n x n system is to the bags: c / n_j."""
        return diagonal / self.toy.bags.sizes

    def shrinkage_ridge(self, diagonal: float) -> np.ndarray:
        """The same number for every bag."""
        return np.full(self.toy.bags.n_bags, float(diagonal))

    def with_diagonal(self, diagonal: float) -> tuple[np.ndarray, np.ndarray]:
        """The standard and the shrinkage estimate with the same on both diagonals."""
        return (
            self.from_bags(self.standard_ridge(diagonal)),
            self.from_bags(self.shrinkage_ridge(diagonal)),
        )

    def with_lambda(self, value: float) -> tuple[np.ndarray, np.ndarray]:
        """Both estimates by the paper's formulas: λn and λN on the diagonals."""
        sizes = self.toy.bags.effective_sizes
        standard, shrinkage = (self.from_bags(value * ridge_shape(kind, sizes)) for kind in KINDS)
        return standard, shrinkage


def embeddings(toy: ShrinkageToy, grid: str = "data", scale: float = 1.0) -> Embeddings:
    """Length scales by the median heuristic, and a grid of 41 x 41.

    Parameters
    ----------
    toy
        The draw.
    grid
        ``"data"``: the ranges of points and mediators; ``"fixed"``: the same for all draws.
    scale
        Length scales are this times the median distance.

    Examples
    --------
    >>> from studies.data import shrinkage_toy
    >>> problem = embeddings(shrinkage_toy(4, 5, seed=0))
    >>> same = problem.from_bags(problem.shrinkage_ridge(0.1 * 4))
    >>> bool(np.abs(problem.dense(0.1 * 20) - same).max() < 1e-12)
    True
    """
    points, mediator = toy.bags.points[:, 0], toy.bags.mediator
    assert mediator is not None
    if grid == "data":
        ends = [(v.min(), v.max()) for v in (points, mediator[:, 0])]
    elif grid == "fixed":
        ends = list(FIXED_GRID)
    else:
        raise ValueError(f"grid must be 'data' or 'fixed', not {grid!r}.")
    x, y = (np.linspace(*end, GRID) for end in ends)
    scales = (scale * median_distance(v) for v in (points, mediator[:, 0]))
    return Embeddings(toy, x, y, *scales)


@jax.jit
def bag_means(k_scale: Any, x: Any, layout: Any) -> Any:
    """Averages of a Gaussian kernel between places and bags, compiled once for all scales."""
    return bag_cross(gk.RBF(lengthscale=k_scale), x[:, None], layout)


@jax.jit
def operator_weights(l_scale: Any, mediator: Any, ridge: Any, y: Any) -> Any:
    """Weights of the bags at y, by the package's operator with a ridge for every bag."""
    kernel = gk.RBF(lengthscale=l_scale)
    return CMO(kernel, mediator[:, None], ridge).weights(y[:, None])


def rms(difference: np.ndarray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(difference**2)))
