r"""What a basis leaves out of the bag means, and the penalty a variational bound pays for it.

The penalty is :math:`\tfrac12\mathrm{tr}(S^{-1}W^\top \bar R W)` with
:math:`\bar R = \bar K - \tilde K`. Independent noise on matched observations needs the diagonal of
:math:`\bar R`, everything else all of it. Two ways to have it:

- ``exact``: all pairs of points, or all pairs within bags;
- ``subsample``: two independent samples of every bag, :math:`\bar R` estimated between the one and
  the other. Both of its terms are estimated on the same points, so the error is in proportion to
  the residual and not to the kernel, and is
  unbiased over the draw of points.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.inference.basis import InducingBasis
from deconditional.kernels.layout import BagSampler, Layout
from deconditional.kernels.linalg import NoiseRoot
from deconditional.kernels.sweeps import bag_gram, between_bags
from deconditional.kernels.within_bags import BagPairs, sampled_pairs, within_bags


class Residual(eqx.Module):
    r""":math:`\bar R`, whole or its diagonal, and the mean of the diagonal of :math:`\bar K`."""

    covariance: Array
    mean_variance: Float[Array, ""]
    estimated: bool = eqx.field(static=True, default=True)


class AllPairs(eqx.Module):
    """Residual from every pair of points (``pairs`` is None), or every pair within a bag."""

    pairs: BagPairs | None

    def __call__(
        self, kernel: AbstractKernel, basis: InducingBasis, layout: Layout, means: Array, key: Any
    ) -> Residual:
        """The residual, exactly."""
        if self.pairs is None:
            gram = bag_gram(kernel, layout, dtype=basis.dtype)
            return Residual(gram - means.T @ means, jnp.mean(jnp.diagonal(gram)), False)
        diagonal = within_bags(kernel, self.pairs, dtype=basis.dtype)
        return Residual(diagonal - jnp.sum(means**2, 0), jnp.mean(diagonal), False)


class SampledPairs(eqx.Module):
    """Residual estimated from pairs of points of two independent samples of a bag."""

    sampler: BagSampler
    points_per_bag: int = eqx.field(static=True)
    diagonal: bool = eqx.field(static=True)

    def __call__(
        self, kernel: AbstractKernel, basis: InducingBasis, layout: Layout, means: Array, key: Any
    ) -> Residual:
        """An unbiased estimate of the residual."""
        first, second = (self.sampler.draw(k, self.points_per_bag) for k in jr.split(key))
        phi, psi = basis.bag_means(first), basis.bag_means(second)
        if self.diagonal:
            between = within_bags(kernel, sampled_pairs(first, second), dtype=basis.dtype)
            return Residual(between - jnp.sum(phi * psi, 0), jnp.mean(between))
        gram = between_bags(kernel, first, second, dtype=basis.dtype)
        residual = gram - phi.T @ psi
        return Residual(0.5 * (residual + residual.T), jnp.mean(jnp.diagonal(gram)))


ResidualRule = AllPairs | SampledPairs
"""How what a basis leaves out is found."""


def penalty(
    residual: Residual, weights: Float[Array, "N M"] | None, noise: NoiseRoot
) -> Float[Array, " M"]:
    r"""Diagonal of :math:`S^{-1/2} W^\top \bar R W S^{-T/2}`: the penalty of each observation.

    It cannot be negative but by rounding, which small noise would magnify; an estimate can.
    """
    covariance = residual.covariance
    if covariance.ndim == 1:
        each = noise.whiten(noise.whiten(covariance))
    else:
        mediated = jnp.eye(len(covariance)) if weights is None else weights
        white = noise.whiten(mediated.T)
        each = jnp.sum((white @ covariance) * white, 1)
    return each if residual.estimated else jnp.maximum(each, 0.0)
