r"""How observations see the bags: W of :math:`z = W^\top\bar f + e`, and V where W is estimated.

A conditional mean operator (CMO) estimated from the bags predicts the mean of the field at a
mediator value :math:`\tilde y` as a weighted sum of bag means,

.. math:: W = (L + R)^{-1} L_{y\tilde y}, \qquad L = \ell(y, y),

with a diagonal ridge R. The paper's estimator replicates :math:`y_j` to every point and inverts an
n x n matrix; the push-through identity shows that it equals the N x N form above with
:math:`R = n\lambda D^{-1}`, D = diag(n_j). Its shrinkage estimator is :math:`R = N\lambda I`.
With weights inside bags, n_j becomes the effective size :math:`1/\sum_i w_i^2`: this is the
replicated estimator in which bag j has a share :math:`n_j/n` of the sample and its points divide
that share by their weights.

The *centred* variants regress deviations from a mean embedding that is not shrunk. Their weights
are those of ordinary kriging, so columns of W sum to one and constants are preserved.

The estimate is uncertain away from the :math:`y_j`. Seen as a Gaussian process in y with kernel
:math:`\ell`, its covariance at the observations is
:math:`V = L_{\tilde y\tilde y} - L_{\tilde y y}(L + R)^{-1}L_{y\tilde y}` (plus the kriging
correction where centred).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float, Int

from deconditional.fitting.kernel_parameters import KernelTemplate
from deconditional.fitting.parameters import Parameter, positive
from deconditional.kernels.layout import layout_points
from deconditional.kernels.linalg import stable_cholesky
from deconditional.kernels.sweeps import bag_cross, bag_gram


def ridge_shape(kind: str, effective_sizes: np.ndarray) -> np.ndarray:
    r"""R / λ: :math:`n/n_j` for the standard CMO, N for the shrinkage CMO."""
    if kind == "standard":
        return effective_sizes.sum() / effective_sizes
    if kind == "shrinkage":
        return np.full(len(effective_sizes), float(len(effective_sizes)))
    raise ValueError(f"cmo must be 'standard' or 'shrinkage', not {kind!r}.")


@dataclass(frozen=True)
class CMO:
    """A conditional mean operator fitted to the mediators of the bags.

    Its Gram matrices come from the bag kernels, whose gradients are right at distance zero: that of
    a compiled Matérn-1/2 by automatic differentiation is not, where rounding makes x - x nonzero.

    Examples
    --------
    With a negligible ridge, a bag's own mediator picks out that bag:

    >>> import gpjax as gpx, numpy as np, jax.numpy as jnp
    >>> y = jnp.array([[0.0], [1.0], [2.0]])
    >>> cmo = CMO(gpx.kernels.RBF(), y, ridge=jnp.full(3, 1e-9))
    >>> np.abs(np.round(cmo.weights(y[1:2]), 4)).T.tolist()
    [[0.0, 1.0, 0.0]]
    """

    kernel: AbstractKernel  # ℓ
    mediator: Float[Array, "N p"]  # y, of the bags
    ridge: Float[Array, " N"]  # the diagonal of R
    centred: bool = False  # whether constants are preserved

    def _solved(self, y: Float[Array, "M p"]) -> tuple[Array, Array, Array]:
        """Covariances with the bags, and L + R solved for these and for ones."""
        bags = layout_points(self.mediator)
        cross = bag_cross(self.kernel, y, bags).T
        gram = bag_gram(self.kernel, bags)
        root = stable_cholesky(gram + jnp.diag(self.ridge))
        both = jnp.concatenate([cross, jnp.ones((len(root), 1), root.dtype)], axis=1)
        solved = jsl.cho_solve((root, True), both)
        return cross, solved[:, :-1], solved[:, -1]

    def weights(self, y: Float[Array, "M p"]) -> Float[Array, "N M"]:
        """W: the weight of every bag mean in the conditional mean at every y."""
        _, weights, ones = self._solved(y)
        if not self.centred:
            return weights
        # What the weights miss of one is shared out as ordinary kriging does it.
        return weights + jnp.outer(ones, (1.0 - weights.sum(0)) / ones.sum())

    def weights_and_covariance(
        self, y: Float[Array, "M p"]
    ) -> tuple[Float[Array, "N M"], Float[Array, "M M"]]:
        """W and V at the same mediators."""
        cross, weights, ones = self._solved(y)
        prior = bag_gram(self.kernel, layout_points(y))
        covariance = prior - cross.T @ weights
        if not self.centred:
            return weights, covariance
        missing = 1.0 - weights.sum(0)
        centred = weights + jnp.outer(ones, missing / ones.sum())
        return centred, covariance + jnp.outer(missing, missing) / ones.sum()

    def cross_covariance(
        self, y: Float[Array, "A p"], other: Float[Array, "B p"]
    ) -> Float[Array, "A B"]:
        """V between two sets of mediators."""
        both = jnp.concatenate([y, other])
        _, covariance = self.weights_and_covariance(both)
        return covariance[: len(y), len(y) :]


class Matched(eqx.Module):
    """Observation m is the mean over bag m: W = I."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the observation model: it has none."""
        return ()

    def weights(self, values: Mapping[str, Any]) -> tuple[None, None]:
        """No W, which stands for the identity, and no V: nothing was estimated."""
        return None, None


class Mediated(eqx.Module):
    """Observations reach the bags through a conditional mean operator.

    Those that are known to be the mean of a bag do without: their column of W picks out that bag,
    and their rows of V are zero. `own_bag` is its index, or -1; None where there are none of these.
    """

    kernel: KernelTemplate
    bag_mediator: Float[Array, "N p"]
    observed_mediator: Float[Array, "M p"]
    ridge_shape: Float[Array, " N"]
    own_bag: Int[Array, " M"] | None
    centred: bool = eqx.field(static=True)
    uncertainty: bool = eqx.field(static=True)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the mediator kernel, and the ridge λ."""
        ridge = positive("ridge", 0.1 / len(self.bag_mediator), 2.0, reach=14.0)
        return (*self.kernel.parameters, ridge)

    def operator(self, values: Mapping[str, Any]) -> CMO:
        """The operator at given hyper-parameters."""
        return CMO(
            kernel=self.kernel.with_values(values),
            mediator=self.bag_mediator,
            ridge=values["ridge"] * self.ridge_shape,
            centred=self.centred,
        )

    def weights(self, values: Mapping[str, Any]) -> tuple[Array, Array | None]:
        """W, and V where its uncertainty is asked for."""
        operator = self.operator(values)
        if not self.uncertainty:
            return self._with_own_bags(operator.weights(self.observed_mediator)), None
        weights, covariance = operator.weights_and_covariance(self.observed_mediator)
        mediated = self.mediated
        return self._with_own_bags(weights), covariance * mediated[:, None] * mediated

    @property
    def mediated(self) -> Float[Array, " M"]:
        """One for observations that need the operator, zero for those of a bag of their own."""
        if self.own_bag is None:
            return jnp.ones(len(self.observed_mediator))
        return (self.own_bag < 0).astype(float)

    def _with_own_bags(self, weights: Float[Array, "N M"]) -> Float[Array, "N M"]:
        if self.own_bag is None:
            return weights
        picks = jnp.arange(len(weights))[:, None] == self.own_bag
        return jnp.where(self.own_bag < 0, weights, picks)


Observation = Matched | Mediated
