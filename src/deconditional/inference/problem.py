r"""The log posterior of the hyper-parameters of an exact model, as one pytree.

:class:`ExactProblem` puts the pieces of the one equation together: the bag Gram matrix from the
kernel, W and V from the mediation, S from the noises, and conditions on z.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from deconditional.bag_kernels import bag_gram
from deconditional.inference.exact import Conditioned, condition
from deconditional.layout import Layout
from deconditional.mediation import CMO
from deconditional.parameters import KernelTemplate, ParameterSet
from deconditional.posterior import Field, Trend

__all__ = ["ExactProblem", "Matched", "Mediated", "Pieces"]


class Matched(eqx.Module):
    """Observation m is the mean over bag m: W = I."""

    def weights(self, values: Mapping[str, Any], n_bags: int) -> tuple[Array, Array | None]:
        """W and V (none: nothing was estimated)."""
        return jnp.eye(n_bags), None


class Mediated(eqx.Module):
    """Observations reach the bags through a conditional mean operator."""

    kernel: KernelTemplate
    bag_mediator: Float[Array, "N p"]
    observed_mediator: Float[Array, "M p"]
    ridge_shape: Float[Array, " N"]
    centred: bool = eqx.field(static=True)
    uncertainty: bool = eqx.field(static=True)

    def operator(self, values: Mapping[str, Any]) -> CMO:
        """The operator at given hyper-parameters."""
        return CMO(
            kernel=self.kernel.with_values(values),
            mediator=self.bag_mediator,
            ridge=values["ridge"] * self.ridge_shape,
            centred=self.centred,
        )

    def weights(self, values: Mapping[str, Any], n_bags: int) -> tuple[Array, Array | None]:
        """W, and V where its uncertainty is asked for."""
        operator = self.operator(values)
        if not self.uncertainty:
            return operator.weights(self.observed_mediator), None
        return operator.weights_and_covariance(self.observed_mediator)


class Pieces(eqx.Module):
    """K̄, W, S and what S was made of, at one value of the hyper-parameters."""

    gram: Float[Array, "N N"]
    weights: Float[Array, "N M"]
    noise: Float[Array, "M M"]
    embedding_scale: Float[Array, ""]
    """τ², the variance that one unit of embedding uncertainty gives a conditional mean."""


class ExactProblem(eqx.Module):
    """Data, kernels and parameters of an exact model."""

    layout: Layout
    overlap: Float[Array, "N N"] | None
    z: Float[Array, " M"]
    known_noise: Float[Array, "M M"]
    trend: Trend
    trend_means: Float[Array, "N q"]
    trend_scale: Float[Array, " q"]
    kernel: KernelTemplate
    mediation: Matched | Mediated
    parameters: ParameterSet
    dtype: Any = eqx.field(static=True)

    def pieces(self, values: Mapping[str, Any]) -> Pieces:
        r"""K̄, W and :math:`S = \Sigma + \sigma^2 I + \varsigma^2 W^\top P^\top P W + \tau^2 V`.

        Σ is the noise the user knows and σ² what is learnt on top. The embedding's scale τ² is
        tied to the kernel, τ² = mean diag K̄: free, it would explain z without f.
        """
        kernel = self.kernel.with_values(values)
        gram = bag_gram(kernel, self.layout, dtype=self.dtype)
        weights, covariance = self.mediation.weights(values, self.layout.n_bags)
        noise = self.known_noise
        scale = jnp.mean(jnp.diagonal(gram))
        if "noise_std" in values:
            noise = noise + values["noise_std"] ** 2 * jnp.eye(len(self.z))
        if self.overlap is not None:
            noise = noise + values["fine_noise_std"] ** 2 * (weights.T @ self.overlap @ weights)
        if covariance is not None:
            noise = noise + scale * covariance
        return Pieces(gram, weights, noise, scale)

    def conditioned(self, pieces: Pieces) -> Conditioned:
        """Condition on z."""
        return condition(
            pieces.gram, pieces.weights, pieces.noise, self.z, self.trend_means, self.trend_scale
        )

    def log_posterior(self, vector: Float[Array, " size"]) -> Float[Array, ""]:
        """Log evidence plus log prior of the unconstrained parameters."""
        pieces = self.pieces(self.parameters.unpack(vector))
        return self.conditioned(pieces).log_evidence + self.parameters.log_prior(vector)

    @eqx.filter_jit
    def solve(self, vector: Float[Array, " size"]) -> tuple[Pieces, Field]:
        """The posterior of the field at one value of the hyper-parameters."""
        values = self.parameters.unpack(vector)
        pieces = self.pieces(values)
        fine = values["fine_noise_std"] ** 2 if self.overlap is not None else jnp.zeros(())
        return pieces, Field(
            kernel=self.kernel.with_values(values),
            layout=self.layout,
            weights=pieces.weights,
            noise=pieces.noise,
            z=self.z,
            conditioned=self.conditioned(pieces),
            trend=self.trend,
            trend_means=self.trend_means,
            fine_noise_variance=fine,
            dtype=self.dtype,
        )
