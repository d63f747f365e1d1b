r"""The log posterior of the hyper-parameters, as one pytree.

:class:`BagProblem` has what every inference needs of the one equation: W and V from the observation
model (:mod:`deconditional.observations.kinds`), S from the noises.
:mod:`deconditional.inference.exact` adds the bag Gram matrix and conditions on z;
:mod:`deconditional.inference.variational` puts a basis of the field in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from deconditional.fitting.evaluation import evaluated
from deconditional.fitting.kernel_parameters import KernelTemplate
from deconditional.fitting.parameters import ParameterSet
from deconditional.inference.basis import FourierBasis
from deconditional.inference.basis_field import BasisField, least_noise, regress
from deconditional.inference.field import Field, Moments, Trend
from deconditional.inference.held_out import from_means, held_out
from deconditional.kernels.layout import Layout
from deconditional.kernels.linalg import NoiseRoot, add_covariances, as_matrix
from deconditional.observations.kinds import Matched, Mediated, Observation

SMALL = 1024
"""Points of a small problem: an evaluation takes a few milliseconds."""

LARGE = 10**8
"""Parameters, times pairs of points, of a large problem: a gradient takes a tenth of a second."""


class BagProblem(eqx.Module):
    """Data, kernels and parameters of a model."""

    layout: Layout
    # What unit high-resolution noise gives to bag means, if there is such noise; like `known_noise`
    # a matrix, or the vector of a diagonal one.
    overlap: Array | None
    z: Float[Array, " M"]
    known_noise: Array
    trend: Trend
    trend_means: Float[Array, "N q"]
    kernel: KernelTemplate
    mediation: Observation
    parameters: ParameterSet
    dtype: type = eqx.field(static=True)

    @property
    def is_small(self) -> bool:
        """Whether a hundred evaluations are made sooner than one is compiled."""
        return len(self.layout.points) <= SMALL

    @property
    def is_large(self) -> bool:
        """Whether a hundred gradients take longer than compiling what does without them."""
        return len(self.parameters.start()) * len(self.layout.points) ** 2 >= LARGE

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

    def evaluate(self, vector: Float[Array, " size"]) -> tuple[Float[Array, ""], Any]:
        """Log evidence, or its bound, plus log prior of the unconstrained parameters; the solution.

        The solution is what the posterior is made of, and the posterior: what has found the most
        probable parameters is not compiled again to solve the problem there.
        """
        raise NotImplementedError

    def solve(self, vector: Float[Array, " size"]) -> tuple[Any, Any]:
        """What the posterior is made of at one value of the hyper-parameters, and the posterior."""
        return evaluated(self, vector)[2]

    def observed_covariance(self, pieces: Any) -> Float[np.ndarray, "M M"]:
        """Prior covariance of the observations, trend and noise included."""
        raise NotImplementedError

    def held_out(self, pieces: Any, folds: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every observation, from those of the other folds."""
        return held_out(self.observed_covariance(pieces), np.asarray(self.z), folds)

    def from_means(self, pieces: Any, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every observation, from weighted means of all of them."""
        return from_means(np.asarray(self.observed_covariance(pieces)), np.asarray(self.z), shares)

    def told(self, pieces: Any, field: Any) -> dict[str, str]:
        """How the problem was solved, for a report: details by name."""
        raise NotImplementedError

    def rounding(self, vector: Array) -> float:
        """Nats by which single precision is known to put the objective off."""
        return 0.0

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

    @eqx.filter_jit
    def conditional_means(
        self, vector: Array, pieces: Any, field: Field, y: Float[Array, "m p"]
    ) -> Moments:
        """Joint posterior of the conditional mean process g at new mediators.

        With `uncertainty` it includes that of the estimated operator, which g has in common with
        the noise of the observations, as it has the noise of single fine values.
        """
        mediation = self.mediation
        assert isinstance(mediation, Mediated)
        operator = mediation.operator(self.parameters.unpack(vector))
        weights, own = operator.weights_and_covariance(y)
        shared = operator.cross_covariance(y, mediation.observed_mediator) * mediation.mediated
        scale = pieces.embedding_scale if mediation.uncertainty else 0.0
        overlap = jnp.zeros(self.layout.n_bags) if self.overlap is None else self.overlap
        noisy = weights.T @ (field.fine_noise_variance * as_matrix(overlap))
        return field.combined(
            pieces, weights, noisy @ pieces.weights + scale * shared, noisy @ weights + scale * own
        )
