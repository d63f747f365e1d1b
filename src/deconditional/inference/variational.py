r"""The collapsed variational bound as a function of the hyper-parameters.

A basis of the field (inducing points, or random Fourier features) takes the place of K̄. The bound
of :mod:`deconditional.inference.collapsed` is at most the log evidence of
:class:`~deconditional.inference.exact.ExactProblem`, whatever the inducing points, and equal to
it where they span all fine points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from deconditional.fitting.evaluation import loss_and_gradient
from deconditional.inference.basis import FLOAT32_JITTER, Basis, FourierBasis, InducingBasis
from deconditional.inference.basis_field import BasisField
from deconditional.inference.collapsed import least_noise, regress
from deconditional.inference.held_out import left_over
from deconditional.inference.problem import BagProblem
from deconditional.inference.residual import Residual, ResidualRule, penalty
from deconditional.kernels.linalg import JITTER, NoiseRoot, as_matrix


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
