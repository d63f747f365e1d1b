r"""Values that a regression gave, observed as they are, and what the regression does not know.

The values t of bag means come with independent noise, and beside it with errors of the regression
itself, of covariance U, that look like the values do: both are functions of the mediators. Given U
as noise, the field would leave all of the values to it, since errors explain them as well as any
field and cost less. So the field does not learn from U, or not from most of it: it has its
posterior of the values as they are, averaged over the values that might have come instead,
:math:`N(t, U)`. With M the prior covariance of the values and their noise,

.. math:: m(x) = k_x^\top M^{-1} t, \qquad
          c(x, x') = k(x, x') - k_x^\top (M^{-1} - M^{-1} U M^{-1}) k_{x'}.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deconditional.inference.exact import ExactProblem
from deconditional.kernels.linalg import as_matrix, lifted_cholesky

__all__ = ["averaged_over_values"]

MOST_UNKNOWN = 0.99
"""Share of what values say in a direction that can be taken back: the prior is left there."""


def averaged_over_values(
    problem: ExactProblem, vector: Float[Array, " size"], uncertainty: np.ndarray
) -> ExactProblem:
    """A problem whose posterior is that of another one, averaged over its values: N(z, U).

    It has more noise and larger values: :math:`M' = M + D` and :math:`z' = M' M^{-1} z`, with D so
    that :math:`M'^{-1} = M^{-1} - M^{-1} U M^{-1}`.
    """
    pieces, _ = problem.solve(vector)
    covariance, z = np.asarray(problem.observed_covariance(pieces)), np.asarray(problem.z)
    root = lifted_cholesky(covariance)
    half = np.linalg.solve(root, uncertainty)
    shares, directions = np.linalg.eigh(np.linalg.solve(root, half.T))
    shares = np.clip(shares, 0.0, MOST_UNKNOWN)
    ways = root @ directions
    more = (ways * (shares / (1.0 - shares))) @ ways.T
    larger = z + more @ np.linalg.solve(root.T, np.linalg.solve(root, z))
    noise = np.asarray(as_matrix(problem.known_noise)) + 0.5 * (more + more.T)
    return replace(problem, z=jnp.asarray(larger), known_noise=jnp.asarray(noise))
