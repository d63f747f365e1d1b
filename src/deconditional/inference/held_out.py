r"""What the observations say about each other, with the parameters held.

For :math:`z \sim N(0, C)` and a block B of observations, the others predict z_B with mean
:math:`z_B - (C^{-1})_{BB}^{-1}(C^{-1}z)_B` and covariance :math:`(C^{-1})_{BB}^{-1}`: blocked
cross-validation without a single new fit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.linalg as sl

__all__ = ["held_out"]

Floats = npt.NDArray[np.float64]


def held_out(covariance: Floats, z: Floats, folds: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Mean and variance of every observation, from the observations of the other folds.

    Examples
    --------
    >>> mean, variance = held_out(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1.0, 4.0]), [0, 1])
    >>> mean.round(6).tolist(), variance.round(6).tolist()
    ([2.0, 0.5], [1.5, 1.5])
    """
    labels = np.asarray(folds)
    precision = sl.cho_solve(sl.cho_factor(covariance, lower=True), np.eye(len(z)))
    pull = precision @ z
    mean, variance = np.empty(len(z)), np.empty(len(z))
    for fold in np.unique(labels):
        block = np.flatnonzero(labels == fold)
        within = np.linalg.inv(precision[np.ix_(block, block)])
        mean[block] = z[block] - within @ pull[block]
        variance[block] = np.diag(within)
    return mean, variance
