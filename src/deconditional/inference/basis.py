r"""Finite bases of the field: :math:`f(x) \approx \phi(x)^\top v`, with :math:`v \sim N(0, I)`.

Inducing points give :math:`\phi(x) = K_{ww}^{-1/2} k(w, x)`, the whitened inducing variables as
coefficients and :math:`k(x, x) - \lVert\phi(x)\rVert^2` as what is left over. Random Fourier
features give an approximation of k itself, with nothing left over.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
from gpjax.kernels.base import AbstractKernel
from jax import lax
from jaxtyping import Array, Float

from deconditional.bag_kernels import bag_cross, bag_gram
from deconditional.kernels import prior_variance, spectral_features
from deconditional.layout import Layout, layout_points
from deconditional.linalg import JITTER, escalating_cholesky, whiten

__all__ = ["Basis", "FourierBasis", "InducingBasis", "feature_means"]

FLOAT32_JITTER = 1e-6
"""Least jitter with float32 tiles: their rounding is divided by the root of the smallest
eigenvalue of K_ww."""


class InducingBasis(eqx.Module):
    """The projection of f on its values at inducing points w.

    Attributes
    ----------
    kernel, locations
        k and w.
    root, jitter
        Cholesky factor of K_ww, and the relative jitter it needed. With jitter the inducing
        variables are noisy values of f, so every bound stays one.
    """

    kernel: AbstractKernel
    locations: Float[Array, "d D"]
    root: Float[Array, "d d"]
    jitter: Float[Array, ""]
    dtype: Any = eqx.field(static=True)

    @classmethod
    def at(cls, kernel: AbstractKernel, locations: Array, dtype: Any) -> InducingBasis:
        """The basis of inducing points."""
        gram = bag_gram(kernel, layout_points(locations))
        least = FLOAT32_JITTER if dtype == jnp.float32 else JITTER
        root, jitter = escalating_cholesky(gram, least)
        return cls(kernel, locations, root, jitter, dtype)

    def values(self, x: Float[Array, "m D"]) -> Float[Array, "m d"]:
        """Covariances with the inducing points, of which φ is a linear function."""
        return bag_cross(self.kernel, x, layout_points(self.locations), dtype=self.dtype)

    def features(self, x: Float[Array, "m D"]) -> Float[Array, "m d"]:
        """φ at every row of x."""
        return whiten(self.root, self.values(x).T).T

    def of_values(self, coefficients: Float[Array, "d k"]) -> Float[Array, "d k"]:
        """Functions of φ as functions of the values."""
        return jsl.solve_triangular(self.root, coefficients, lower=True, trans=1)

    def prior_variance(self, x: Array, values: Array) -> Float[Array, " m"]:
        """Of f at every row of x."""
        return prior_variance(self.kernel, x)

    def bag_means(self, layout: Layout) -> Float[Array, "d N"]:
        r"""Means of φ over bags, :math:`K_{ww}^{-1/2}\bar k(w)`."""
        cross = bag_cross(self.kernel, self.locations, layout, dtype=self.dtype)
        return whiten(self.root, cross)

    def residual_variance(self, x: Array, features: Array) -> Float[Array, " m"]:
        """Prior variance that the basis leaves out."""
        return jnp.maximum(prior_variance(self.kernel, x) - jnp.sum(features**2, axis=1), 0.0)

    def residual_covariance(self, x: Array, features: Array) -> Float[Array, "m m"]:
        """Prior covariance that the basis leaves out."""
        return self.kernel.cross_covariance(x, x) - features @ features.T

    def residual_gram(self, layout: Layout, means: Array) -> Float[Array, "N N"]:
        """Prior covariance of bag means that the basis leaves out."""
        return bag_gram(self.kernel, layout, dtype=self.dtype) - means.T @ means

    def residual_cross(
        self, x: Array, features: Array, layout: Layout, means: Array
    ) -> Float[Array, "m N"]:
        """Prior covariance with bag means that the basis leaves out."""
        return bag_cross(self.kernel, x, layout, dtype=self.dtype) - features @ means

    def path(self, key: Any, coefficients: Array, n_features: int) -> Any:
        """Functions whose projections have these coefficients (d, S); the rest from the prior."""
        draw_key, weight_key = jr.split(key)
        prior = spectral_features(
            self.kernel, n_features, draw_key, self.locations.shape[1], self.dtype
        )
        at_inducing = prior(self.locations).astype(self.root.dtype)
        n_draws = coefficients.shape[1]
        loadings = jr.normal(weight_key, (at_inducing.shape[1], n_draws))
        missing = coefficients - whiten(self.root, at_inducing @ loadings)
        return lambda x: prior(x) @ loadings + self.features(x) @ missing


class FourierBasis(eqx.Module):
    """Random Fourier features of k, drawn with a key."""

    kernel: AbstractKernel
    key: Any
    n_features: int = eqx.field(static=True)
    n_inputs: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def _map(self) -> Any:
        return spectral_features(self.kernel, self.n_features, self.key, self.n_inputs, self.dtype)

    def features(self, x: Float[Array, "m D"]) -> Float[Array, "m F"]:
        """φ at every row of x."""
        return self._map()(x).astype(x.dtype)

    def values(self, x: Float[Array, "m D"]) -> Float[Array, "m F"]:
        """The features themselves."""
        return self.features(x)

    def of_values(self, coefficients: Float[Array, "F k"]) -> Float[Array, "F k"]:
        """Functions of φ as functions of the values: the same."""
        return coefficients

    def prior_variance(self, x: Array, values: Array) -> Float[Array, " m"]:
        """Of f at every row of x."""
        return jnp.sum(values**2, 1)

    def bag_means(self, layout: Layout) -> Float[Array, "F N"]:
        """Means of φ over bags."""
        return feature_means(self._map(), layout).T

    def residual_variance(self, x: Array, features: Array) -> Float[Array, " m"]:
        """Nothing: the features are the prior."""
        return jnp.zeros(len(x))

    def residual_covariance(self, x: Array, features: Array) -> Float[Array, "m m"]:
        """Nothing: the features are the prior."""
        return jnp.zeros((len(x), len(x)))

    def residual_gram(self, layout: Layout, means: Array) -> Float[Array, "N N"]:
        """Nothing: the features are the prior."""
        return jnp.zeros((layout.n_bags, layout.n_bags))

    def residual_cross(
        self, x: Array, features: Array, layout: Layout, means: Array
    ) -> Float[Array, "m N"]:
        """Nothing: the features are the prior."""
        return jnp.zeros((len(x), layout.n_bags))

    def path(self, key: Any, coefficients: Array, n_features: int) -> Any:
        """Functions with these coefficients (F, S)."""
        return lambda x: self.features(x) @ coefficients


Basis = InducingBasis | FourierBasis


def feature_means(features: Any, layout: Layout) -> Float[Array, "N F"]:
    """Pᵀφ(x), a tile of points at a time."""
    chunks = layout.tile // layout.chunk

    @jax.checkpoint
    def chunk_sums(points: Array, weights: Array) -> Array:
        values = features(points)
        weighted = values * weights[:, None].astype(values.dtype)
        return weighted.reshape(chunks, layout.chunk, -1).sum(1)

    def tile(out: Array, inputs: tuple) -> tuple[Array, None]:
        points, weights, bag = inputs
        sums = chunk_sums(points, weights)
        return out.at[bag].add(sums.astype(out.dtype), mode="drop"), None

    n_features = jax.eval_shape(features, layout.points[:1]).shape[1]
    tiles = (
        layout.points.reshape(-1, layout.tile, layout.points.shape[1]),
        layout.weights.reshape(-1, layout.tile),
        layout.bag.reshape(-1, chunks),
    )
    start = jnp.zeros((layout.n_bags, n_features), layout.points.dtype)
    return lax.scan(tile, start, tiles)[0]
