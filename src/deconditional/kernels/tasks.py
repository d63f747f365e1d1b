r"""A kernel of several targets: :math:`k((x, t), (x', t')) = B_{tt'}\,k(x, x') + c^2\delta_{tt'}`.

The last input is the index t of the target. :math:`B = AA^\top + \mathrm{diag}(\kappa)`, with A of
low rank, says how targets go together (coregionalisation); c gives every target a level of its own.
A bag belongs to one target, so that averages over bags are :math:`B \circ \bar K`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from gpjax.kernels.computations import DenseKernelComputation
from gpjax.parameters import PositiveReal, Real, val
from jaxtyping import Array, Float

import deconditional.kernels  # noqa: F401  before GPJax starts JAX


class TaskKernel(AbstractKernel):
    """The kernel of several targets whose index is the last input.

    Parameters
    ----------
    base
        k, of all inputs but the last.
    n_tasks, rank
        Number of targets, and of columns of A.
    level
        c, which is held.

    Examples
    --------
    >>> import gpjax.kernels as gk
    >>> kernel = TaskKernel(gk.RBF(), n_tasks=2, rank=1, level=0.0)
    >>> one, other = jnp.array([0.0, 0.0]), jnp.array([0.0, 1.0])
    >>> round(float(kernel(one, other)), 2)
    0.5
    """

    base: AbstractKernel
    loadings: Any
    own: Any
    level: float
    name: str = "tasks"

    def __init__(self, base: AbstractKernel, n_tasks: int, rank: int = 1, level: float = 1.0):
        super().__init__(n_dims=None, compute_engine=DenseKernelComputation())
        self.base = base
        # Columns differ, so that the fit can tell them apart.
        start = np.sqrt(0.5 / rank) * np.cos(np.outer(np.arange(n_tasks), np.arange(rank)))
        self.loadings = Real(jnp.asarray(start))
        self.own = PositiveReal(jnp.full(n_tasks, 0.5))
        self.level = float(level)

    def covariance_of_tasks(self) -> Float[Array, "T T"]:
        """B."""
        loadings = val(self.loadings)
        return loadings @ loadings.T + jnp.diag(val(self.own))

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Float[Array, ""]:
        """Covariance of two targets at two points."""
        t, s = x[-1].astype(int), y[-1].astype(int)
        together = self.covariance_of_tasks()[t, s] * self.base(x[:-1], y[:-1])
        return together + self.level**2 * (t == s)
