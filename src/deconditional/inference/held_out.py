r"""What the observations say about each other, with the parameters held.

For :math:`z \sim N(0, C)` and a block B of observations, the others predict z_B with mean
:math:`z_B - (C^{-1})_{BB}^{-1}(C^{-1}z)_B` and covariance :math:`(C^{-1})_{BB}^{-1}`: blocked
cross-validation without a single new fit.

A basis leaves a part r of the bag means out, of covariance :math:`\bar R`. With
:math:`z = \Gamma^\top v + W^\top r + e` the others tell of e_B through its correlation with their
own, which their r disturbs; r then adds the covariance :math:`D\bar R D^\top`, where
:math:`D = W_B^\top - S_{BA}S_{AA}^{-1}W_A^\top = (S^{-1})_{BB}^{-1}(S^{-1}W^\top)_B` and A are the
others.

Means over groups of observations, :math:`Az`, predict each of them with mean
:math:`CA^\top(ACA^\top)^{-1}Az`: downscaling itself, one scale up, where the truth is known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy.linalg as sl

from deconditional.kernels.linalg import lifted_cholesky

Floats = npt.NDArray[np.float64]


def held_out(covariance: Floats, z: Floats, folds: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Mean and variance of every observation, from the observations of the other folds.

    Examples
    --------
    >>> mean, variance = held_out(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1.0, 4.0]), [0, 1])
    >>> mean.round(6).tolist(), variance.round(6).tolist()
    ([2.0, 0.5], [1.5, 1.5])
    """
    precision = _inverse(covariance)
    pull = precision @ z
    mean, variance = np.empty(len(z)), np.empty(len(z))
    for block in _blocks(folds):
        within = np.linalg.inv(precision[np.ix_(block, block)])
        mean[block] = z[block] - within @ pull[block]
        variance[block] = np.diag(within)
    return mean, variance


def from_means(covariance: Floats, z: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of every observation, from weighted means of all: `shares` @ z.

    Examples
    --------
    >>> mean, variance = from_means(np.eye(2), np.array([1.0, 3.0]), np.array([[0.5, 0.5]]))
    >>> mean.round(6).tolist(), variance.round(6).tolist()
    ([2.0, 2.0], [0.5, 0.5])
    """
    across = shares @ covariance
    root = lifted_cholesky(across @ shares.T)
    seen = sl.solve_triangular(root, across, lower=True)
    known = sl.solve_triangular(root, shares @ z, lower=True)
    variance = np.diag(covariance) - (seen**2).sum(0)
    return known @ seen, np.maximum(variance, 0.0)


def left_over(noise: Floats, weights: Floats, residual: Floats, folds: npt.ArrayLike) -> Floats:
    """Variance of every observation that a basis leaves out: the diagonal of every D R̄ Dᵀ."""
    precision = _inverse(noise)
    pull = precision @ weights.T
    variance = np.empty(len(noise))
    for block in _blocks(folds):
        seen = np.linalg.solve(precision[np.ix_(block, block)], pull[block])
        variance[block] = ((seen @ residual) * seen).sum(1)
    return variance


def _inverse(covariance: Floats) -> Floats:
    return sl.cho_solve((lifted_cholesky(covariance), True), np.eye(len(covariance)))


def _blocks(folds: npt.ArrayLike) -> Iterator[npt.NDArray[np.intp]]:
    names, fold = np.unique(np.asarray(folds), return_inverse=True)
    for number in range(len(names)):
        yield np.flatnonzero(fold == number)
