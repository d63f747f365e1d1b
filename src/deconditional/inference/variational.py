r"""The collapsed variational bound as a function of the hyper-parameters.

A basis of the field (inducing points, or random Fourier features) takes the place of K̄. The bound
of :mod:`deconditional.inference.basis_field` is at most the log evidence of
:class:`~deconditional.inference.exact.ExactProblem`, whatever the inducing points, and equal to
it where they span all fine points.

*What the basis leaves out* of the bag means costs a penalty,
:math:`\tfrac12\mathrm{tr}(S^{-1}W^\top \bar R W)` with :math:`\bar R = \bar K - \tilde K`.
Independent noise on matched observations needs the diagonal of :math:`\bar R`, everything else all
of it. Two ways to have it:

- ``exact``: all pairs of points, or all pairs within bags;
- ``subsample``: two independent samples of every bag, :math:`\bar R` estimated between the one and
  the other. Both of its terms are estimated on the same points, so the error is in proportion to
  the residual and not to the kernel, and is unbiased over the draw of points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.fitting.evaluation import loss_and_gradient
from deconditional.inference.basis import FLOAT32_JITTER, Basis, FourierBasis, InducingBasis
from deconditional.inference.basis_field import BasisField, least_noise, regress
from deconditional.inference.held_out import left_over
from deconditional.inference.problem import BagProblem
from deconditional.kernels.layout import BagSampler, Layout
from deconditional.kernels.linalg import JITTER, NoiseRoot, as_matrix
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


class BasisPieces(eqx.Module):
    """The basis, its bag means, W and S at one value of the hyper-parameters."""

    basis: Basis
    means: Float[Array, "D N"]  # bag means of the basis functions and of the trend functions
    residual: Residual | None  # what the basis leaves out of K̄; None where it leaves out nothing
    weights: Float[Array, "N M"] | None
    noise: Array
    embedding_scale: Float[Array, ""]
    z: Float[Array, " M"]  # the observations

    def mediated(self) -> Float[Array, "D M"]:
        """Γ: the basis as the observations see it."""
        return self.means if self.weights is None else self.means @ self.weights

    def penalty(self, root: NoiseRoot) -> Float[Array, " M"]:
        """What each (whitened) observation pays for what the basis leaves out."""
        if self.residual is None:
            return jnp.zeros(self.noise.shape[0])
        return penalty(self.residual, self.weights, root)

    def gram_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some rows of K̄, as far as it is known, and its diagonal."""
        basis = np.asarray(self.means)[: self.basis.size]
        gram, variance = basis[:, rows].T @ basis, np.einsum("ij,ij->j", basis, basis)
        if self.residual is None:
            return gram, variance
        residual = np.asarray(self.residual.covariance)
        if residual.ndim == 2:
            return gram + residual[rows], variance + np.diag(residual)
        gram[np.arange(len(rows)), rows] += residual[rows]
        return gram, variance + residual


class VariationalProblem(BagProblem):
    """A problem whose field is written in a basis."""

    # Inducing points, standardised as the trend's covariates are, unless they are learnt.
    locations: Float[Array, "d D"] | None
    # How what the basis leaves out is found; None for random Fourier features, of which
    # `n_features` are used.
    residual: ResidualRule | None
    key: Any  # of sampled points and frequencies: one objective, not a new one at every evaluation
    n_features: int | None = eqx.field(static=True)

    def inducing(self, values: Mapping[str, Any]) -> Float[Array, "d D"]:
        """Inducing points in the units of the covariates."""
        standardised = values.get("inducing", self.locations)
        return self.trend.centre + self.trend.scale * standardised

    def basis(self, values: Mapping[str, Any]) -> Basis:
        """The basis at given hyper-parameters."""
        kernel = self.kernel.with_values(values)
        if self.n_features is not None:
            d = self.layout.points.shape[1]
            return FourierBasis(kernel, self.key, self.n_features, d, self.dtype)
        return InducingBasis.at(kernel, self.inducing(values), self.dtype)

    def pieces(self, values: Mapping[str, Any], key: Any = None) -> BasisPieces:
        """Everything the bound is made of; `key` replaces the problem's own in estimates."""
        basis = self.basis(values)
        means = basis.bag_means(self.layout)
        residual = None
        scale = jnp.mean(jnp.sum(means**2, 0))
        if self.residual is not None:
            assert isinstance(basis, InducingBasis)
            key = self.key if key is None else key
            residual = self.residual(basis.kernel, basis, self.layout, means, key)
            scale = residual.mean_variance
        weights, covariance = self.mediation.weights(values)
        noise = self.noise(values, weights, covariance, scale)
        means = self.with_trend(means)
        noise = least_noise(noise, means if weights is None else means @ weights)
        return BasisPieces(basis, means, residual, weights, noise, scale, self.z)

    def observed_covariance(self, pieces: BasisPieces) -> Float[np.ndarray, "M M"]:
        """Prior covariance of the observations in the basis, trend and noise included."""
        mediated = np.asarray(pieces.mediated())
        return mediated.T @ mediated + np.asarray(as_matrix(pieces.noise))

    def held_out(self, pieces: BasisPieces, folds: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every observation, from those of the other folds."""
        mean, variance = super().held_out(pieces, folds)
        if pieces.residual is None:
            return mean, variance
        residual = np.asarray(as_matrix(pieces.residual.covariance))
        weights = np.eye(len(residual)) if pieces.weights is None else np.asarray(pieces.weights)
        rest = left_over(np.asarray(as_matrix(pieces.noise)), weights, residual, folds)
        return mean, variance + np.maximum(rest, 0.0)  # an estimate may be negative

    def told(self, pieces: BasisPieces, field: BasisField) -> dict[str, str]:
        """How the problem was solved, for a report."""
        tiles, basis = {"tiles": jnp.dtype(self.dtype).name}, pieces.basis
        if not isinstance(basis, InducingBasis):
            return {**tiles, "features": str(self.n_features)}
        jitter, least = float(basis.jitter), FLOAT32_JITTER if self.dtype == jnp.float32 else JITTER
        raised = f", raised from {least:.0e}" if jitter > 2 * least else ""
        together = basis.size - len(np.unique(np.asarray(basis.locations), axis=0))
        coincide = f" ({together} coincide)" if together else ""
        number = f"{basis.size}{coincide}{', learnt' if self.locations is None else ''}"
        return {
            **tiles,
            "inducing points": number,
            "jitter": f"{jitter:.0e} of the variance{raised}",
        }

    def field(self, values: Mapping[str, Any], pieces: BasisPieces) -> BasisField:
        """The optimal posterior and its bound."""
        root = NoiseRoot.of(pieces.noise)
        log_evidence, coefficients = regress(pieces.mediated(), root, self.z)
        # An estimate below zero, divided by ever smaller noise, would make the bound unbounded.
        bound = log_evidence - 0.5 * jnp.maximum(jnp.sum(pieces.penalty(root)), 0.0)
        return BasisField(
            pieces.basis, self.trend, coefficients, bound, self.fine_noise_variance(values)
        )

    def evaluate(
        self, vector: Float[Array, " size"]
    ) -> tuple[Float[Array, ""], tuple[BasisPieces, BasisField]]:
        """The bound plus the log prior of the unconstrained parameters, and the posterior there."""
        values = self.parameters.unpack(vector)
        pieces = self.pieces(values)
        field = self.field(values, pieces)
        return field.log_evidence + self.parameters.log_prior(vector), (pieces, field)

    @eqx.filter_jit
    def solved_with(
        self, vector: Array, pieces: BasisPieces, values: Float[Array, "N d"]
    ) -> tuple[BasisPieces, BasisField]:
        """The posterior with other means of the basis over the bags: of its `values`."""
        means = self.with_trend(pieces.basis.features_of(values))
        pieces = replace(pieces, means=means)
        return pieces, self.field(self.parameters.unpack(vector), pieces)

    def rounding(self, vector: Array) -> float:
        """Nats by which the bound in single precision differs from that in double."""
        if self.dtype != jnp.float32:
            return 0.0
        precise = replace(self, dtype=jnp.float64)
        return abs(
            float(loss_and_gradient(self, vector)[0]) - float(loss_and_gradient(precise, vector)[0])
        )
