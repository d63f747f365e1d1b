"""What a posterior of the field can be asked for, whatever made it.

:class:`~deconditional.inference.exact.ExactField` and
:class:`~deconditional.inference.basis_field.BasisField` are the two that there are. Everything
above (predictions, samples, areas, cautions) knows a posterior by these protocols alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.bags import Bags
from deconditional.inference.trend import Trend

Moments = tuple[Array, Array]
"""A mean, (m,), and a covariance, (m, m)."""


class PointMoments(Protocol):
    """Means and variances of f at points."""

    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""


class Path(Protocol):
    """Functions drawn from a posterior.

    Attributes
    ----------
    error
        Root mean square of the relative error of their variances, near the bags.
    """

    error: Array

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m n"]:
        """The functions at every row of x."""


class Field(Protocol):
    """A Gaussian posterior of f.

    Attributes
    ----------
    fine_noise_variance
        ς², the variance of single fine values about f.
    """

    fine_noise_variance: Float[Array, ""]

    @property
    def kernel(self) -> AbstractKernel:
        """The kernel of the prior, at the hyper-parameters of this posterior."""

    @property
    def log_evidence(self) -> Array:
        """Log p(z), or a bound of it."""

    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""

    def quick(self) -> PointMoments:
        """Means and variances at points, in the form that is quickest for many of them."""

    def covariance(self, x: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Covariance of f between all rows of x."""

    def path(self, key: Any, n_paths: int, n_features: int | None) -> Path:
        """Functions drawn from the posterior, from `n_features` features or as many as it takes."""

    def bag_moments(self, new: Bags) -> Moments:
        """Mean and covariance of the means of f over new bags."""

    def covariance_with(self, new: Bags) -> Callable[[Array], Array]:
        """A function of x: covariance of f(x) with the means of f over new bags, (m, N)."""

    def combined(self, pieces: Any, weights: Array, shared: Array, own: Array) -> Moments:
        """Mean and covariance of combinations of the bag means of the fit, with noise of their own.

        Parameters
        ----------
        pieces
            What the posterior was made of.
        weights : (N, m)
            The combinations.
        shared : (m, M), own : (m, m)
            Covariance of their noise with that of the observations, and with itself.
        """

    def left_over(self, pieces: Any) -> Float[np.ndarray, " M"]:
        """Observations less their posterior means."""

    def jitter(self, pieces: Any) -> float:
        """Jitter that a factorisation needed, relative to the mean of the diagonal."""


def square_root(covariance: Array) -> Array:
    """The symmetric root of a covariance that may be singular, or zero.

    Unlike a root made of eigenvectors, which equal eigenvalues leave undetermined, it changes
    little when the covariance does: so do samples made with it.
    """
    values, vectors = jnp.linalg.eigh(covariance)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T


def trend_means(trend: Trend, bags: Bags) -> Float[Array, "N q"]:
    """Means of the trend functions over bags."""
    return jnp.asarray(bags.means(trend.features(bags.points)))
