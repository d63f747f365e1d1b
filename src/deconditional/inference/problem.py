r"""The log posterior of the hyper-parameters, as one pytree.

:class:`BagProblem` has what every inference needs of the one equation: W and V from the mediation,
S from the noises. :class:`ExactProblem` adds the bag Gram matrix and conditions on z;
:mod:`deconditional.inference.variational` puts a basis of the field in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from deconditional.fitting.parameters import KernelTemplate, ParameterSet
from deconditional.inference.basis import FourierBasis
from deconditional.inference.collapsed import least_noise, regress
from deconditional.inference.exact import Conditioned, condition
from deconditional.inference.field import BasisField, ExactField
from deconditional.inference.held_out import held_out
from deconditional.inference.trend import Trend
from deconditional.kernels.layout import Layout
from deconditional.kernels.linalg import NoiseRoot, add_covariances, as_matrix
from deconditional.kernels.sweeps import bag_gram
from deconditional.observations.mediation import CMO

__all__ = [
    "BagProblem",
    "ExactProblem",
    "Matched",
    "Mediated",
    "Pieces",
    "SpreadPrior",
    "Weighted",
]

SPREAD_SLACK = 0.02
"""Variance of the log of a ratio of variances that no number of observations takes away."""


class Matched(eqx.Module):
    """Observation m is the mean over bag m: W = I."""

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


class Weighted(eqx.Module):
    """Observations are known combinations of bag means."""

    matrix: Float[Array, "N M"]

    def weights(self, values: Mapping[str, Any]) -> tuple[Array, None]:
        """W, and no V: nothing was estimated."""
        return self.matrix, None


class SpreadPrior(eqx.Module):
    r"""How much bag means vary is known from the observations, before any link between them.

    :math:`\log(v/\hat v) \sim N(0, s^2)`, with v the mean prior variance of bag means about
    their trend and :math:`\hat v` the variance of the observations about theirs. Where a mediator
    says little the likelihood leaves v open, and the field would shrink to its trend.

    Attributes
    ----------
    trend_basis : (N, q)
        Orthonormal columns that span the trend.
    variance, tolerance
        :math:`\hat v` and s.
    """

    trend_basis: Float[Array, "N q"]
    variance: Float[Array, ""]
    tolerance: Float[Array, ""]

    @classmethod
    def of(cls, trend_means: np.ndarray, z: np.ndarray, features: np.ndarray) -> SpreadPrior:
        """From observations and the trend functions of their mediators."""
        basis = np.linalg.qr(trend_means)[0]
        rest = z - features @ (np.linalg.pinv(features) @ z)
        degrees = max(len(z) - features.shape[1], 1)
        tolerance = np.sqrt(2.0 / len(z) + 2.0 / len(trend_means) + SPREAD_SLACK)
        variance = max(float(rest @ rest) / degrees, 1e-12 * float(np.mean(z**2)), 1e-300)
        return cls(jnp.asarray(basis), jnp.asarray(variance), jnp.asarray(tolerance))

    def log_density(self, gram: Float[Array, "N N"]) -> Float[Array, ""]:
        """At a prior covariance of bag means, up to a constant."""
        inside = jnp.sum(self.trend_basis * (gram @ self.trend_basis))
        degrees = max(len(gram) - self.trend_basis.shape[1], 1)
        variance = (jnp.trace(gram) - inside) / degrees
        return -0.5 * (jnp.log(variance / self.variance) / self.tolerance) ** 2


class BagProblem(eqx.Module):
    """Data, kernels and parameters of a model.

    Attributes
    ----------
    overlap
        What unit high-resolution noise gives to bag means, if there is such noise; like
        `known_noise` a matrix, or the vector of a diagonal one.
    """

    layout: Layout
    overlap: Array | None
    z: Float[Array, " M"]
    known_noise: Array
    trend: Trend
    trend_means: Float[Array, "N q"]
    kernel: KernelTemplate
    mediation: Matched | Mediated | Weighted
    parameters: ParameterSet
    dtype: Any = eqx.field(static=True)

    @property
    def is_local(self) -> bool:
        """Whether an observation sees its own bag alone, and its noise is its own."""
        overlap_is_diagonal = self.overlap is None or self.overlap.ndim == 1
        independent = self.known_noise.ndim == 1 and overlap_is_diagonal
        return isinstance(self.mediation, Matched) and independent

    def noise(
        self,
        values: Mapping[str, Any],
        weights: Float[Array, "N M"] | None,
        covariance: Float[Array, "M M"] | None,
        embedding_scale: Float[Array, ""],
    ) -> Array:
        r""":math:`S = \Sigma + \sigma^2 I + \varsigma^2 W^\top P^\top P W + \tau^2 V`.

        Σ is the noise the user knows and σ² what is learnt on top. The embedding's scale τ² is
        tied to the kernel, τ² = mean diag K̄: free, it would explain z without f.
        """
        noise = self.known_noise
        if "noise_std" in values:
            noise = add_covariances(noise, jnp.full(len(self.z), values["noise_std"] ** 2))
        if self.overlap is not None:
            overlap = self.overlap
            if weights is not None:
                overlap = weights.T @ (
                    overlap @ weights if overlap.ndim == 2 else overlap[:, None] * weights
                )
            noise = add_covariances(noise, values["fine_noise_std"] ** 2 * overlap)
        if covariance is not None:
            noise = add_covariances(noise, embedding_scale * covariance)
        return noise

    def fine_noise_variance(self, values: Mapping[str, Any]) -> Float[Array, ""]:
        """ς², zero where there is none."""
        return jnp.zeros(()) if self.overlap is None else values["fine_noise_std"] ** 2

    def with_trend(self, means: Float[Array, "d N"]) -> Float[Array, "D N"]:
        """Bag means of a basis, followed by those of the trend functions."""
        return jnp.concatenate([means, self.trend.whitened(self.trend_means).T])

    @eqx.filter_jit
    def fourier_field(
        self, vector: Array, weights: Array | None, noise: Array, n_features: int, key: Any
    ) -> BasisField:
        """The posterior in which random Fourier features take the place of k."""
        values = self.parameters.unpack(vector)
        kernel = self.kernel.with_values(values)
        basis = FourierBasis(kernel, key, n_features, self.layout.points.shape[1], self.dtype)
        means = self.with_trend(basis.bag_means(self.layout))
        mediated = means if weights is None else means @ weights
        root = NoiseRoot.of(least_noise(noise, mediated))
        log_evidence, coefficients = regress(mediated, root, self.z)
        return BasisField(
            basis, self.trend, coefficients, log_evidence, self.fine_noise_variance(values)
        )


class Pieces(eqx.Module):
    """K̄, W, S and what S was made of, at one value of the hyper-parameters."""

    gram: Float[Array, "N N"]
    weights: Float[Array, "N M"] | None
    noise: Float[Array, "M M"]
    embedding_scale: Float[Array, ""]
    """τ², the variance that one unit of embedding uncertainty gives a conditional mean."""


class ExactProblem(BagProblem):
    """A problem whose evidence is computed exactly."""

    spread: SpreadPrior | None = eqx.field(default=None, kw_only=True)

    def pieces(self, values: Mapping[str, Any]) -> Pieces:
        """K̄, W and S."""
        gram = bag_gram(self.kernel.with_values(values), self.layout, dtype=self.dtype)
        weights, covariance = self.mediation.weights(values)
        scale = jnp.mean(jnp.diagonal(gram))
        noise = self.noise(values, weights, covariance, scale)
        return Pieces(gram, weights, as_matrix(noise), scale)

    def observed_covariance(self, pieces: Pieces) -> Float[Array, "M M"]:
        """Prior covariance of the observations, trend and noise included."""
        mediated = self.trend.whitened(self.trend_means)
        smooth = pieces.gram
        if pieces.weights is not None:
            mediated = pieces.weights.T @ mediated
            smooth = pieces.weights.T @ smooth @ pieces.weights
        return smooth + mediated @ mediated.T + pieces.noise

    def held_out(self, pieces: Pieces, folds: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every observation, from those of the other folds."""
        return held_out(np.asarray(self.observed_covariance(pieces)), np.asarray(self.z), folds)

    def conditioned(self, pieces: Pieces) -> Conditioned:
        """Condition on z."""
        return condition(
            pieces.gram,
            pieces.weights,
            pieces.noise,
            self.z,
            self.trend_means,
            self.trend.prior_std,
        )

    def log_posterior(self, vector: Float[Array, " size"]) -> Float[Array, ""]:
        """Log evidence plus log prior of the unconstrained parameters."""
        pieces = self.pieces(self.parameters.unpack(vector))
        found = self.conditioned(pieces).log_evidence + self.parameters.log_prior(vector)
        return found if self.spread is None else found + self.spread.log_density(pieces.gram)

    @eqx.filter_jit
    def solve(self, vector: Float[Array, " size"]) -> tuple[Pieces, ExactField]:
        """The posterior of the field at one value of the hyper-parameters."""
        values = self.parameters.unpack(vector)
        pieces = self.pieces(values)
        return pieces, ExactField(
            kernel=self.kernel.with_values(values),
            layout=self.layout,
            weights=pieces.weights,
            noise=pieces.noise,
            z=self.z,
            conditioned=self.conditioned(pieces),
            trend=self.trend,
            trend_means=self.trend_means,
            fine_noise_variance=self.fine_noise_variance(values),
            dtype=self.dtype,
        )
