r"""A kernel of several targets, with a matrix between targets for every term of a kernel.

.. math:: k((x, t), (x', t')) = \sum_q B^q_{tt'}\,k_q(x, x') + c^2\delta_{tt'}

The last input is the index t of the target. :math:`B^q = A_qA_q^\top + \mathrm{diag}(\kappa_q)`,
with :math:`A_q` of low rank, says how targets go together in a term of the kernel
(coregionalisation): a rough part may be each target's own where a smooth one is common to all. c
gives every target a level. A bag belongs to one target, so that averages over bags are
:math:`B^q \circ \bar K_q`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel, SumKernel
from gpjax.kernels.computations import DenseKernelComputation
from gpjax.parameters import PositiveReal, Real, val
from jaxtyping import Array, Float

import deconditional.kernels  # noqa: F401  before GPJax starts JAX


class TaskKernel(AbstractKernel):
    """The kernel of several targets whose index is the last input.

    Parameters
    ----------
    base
        k, of all inputs but the last; the terms of a sum are taken apart.
    n_tasks, rank
        Number of targets, and of columns of each A.
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
        several = (len(self.terms),) * isinstance(base, SumKernel)
        self.loadings = Real(jnp.broadcast_to(start, (*several, *start.shape)))
        self.own = PositiveReal(jnp.full((*several, n_tasks), 0.5))
        self.level = float(level)

    @property
    def terms(self) -> tuple[AbstractKernel, ...]:
        """The terms of k."""
        return tuple(self.base.kernels) if isinstance(self.base, SumKernel) else (self.base,)

    def covariance_of_tasks(self) -> Float[Array, "*Q T T"]:
        """B; one for every term, if k is a sum."""
        loadings, own = val(self.loadings), val(self.own)
        return loadings @ jnp.swapaxes(loadings, -1, -2) + own[..., None] * jnp.eye(own.shape[-1])

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Float[Array, ""]:
        """Covariance of two targets at two points."""
        t, s = x[-1].astype(int), y[-1].astype(int)
        shares = jnp.atleast_1d(self.covariance_of_tasks()[..., t, s])
        each = zip(shares, self.terms, strict=True)
        together = sum(share * term(x[:-1], y[:-1]) for share, term in each)
        return together + self.level**2 * (t == s)
