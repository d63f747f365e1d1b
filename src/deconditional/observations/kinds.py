r"""Observation models: W of :math:`z = W^\top\bar f + e`, and V where W is estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from deconditional.fitting.kernel_parameters import KernelTemplate
from deconditional.fitting.parameters import Parameter, positive
from deconditional.observations.mediation import CMO


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
