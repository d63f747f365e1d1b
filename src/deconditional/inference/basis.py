r"""Finite bases of the field: :math:`f(x) \approx \phi(x)^\top v`, with :math:`v \sim N(0, I)`.

Inducing points give :math:`\phi(x) = K_{ww}^{-1/2} k(w, x)`, the whitened inducing variables as
coefficients and :math:`k(x, x) - \lVert\phi(x)\rVert^2` as what is left over. Random Fourier
features give an approximation of k itself, with nothing left over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.inference.paths import LEAST_VARIANCE, References, chosen_waves
from deconditional.inference.waves import Waves, feature_means
from deconditional.kernels.layout import Layout, layout_points
from deconditional.kernels.linalg import JITTER, escalating_cholesky, whiten
from deconditional.kernels.radial import prior_variance, spectral_features
from deconditional.kernels.sweeps import bag_cross, bag_gram

FLOAT32_JITTER = 1e-6
"""Least jitter with float32 tiles: their rounding is divided by the root of the smallest
eigenvalue of K_ww."""


Completed = tuple[Waves | None, tuple[Array, ...], Array, float]
"""Draws of the prior, their loadings, coefficients of a basis beside them, error of variances."""


class InducingBasis(eqx.Module):
    """The projection of f on its values at inducing points w."""

    # kernel, locations: k and w.
    kernel: AbstractKernel
    locations: Float[Array, "d D"]
    # root, jitter: Cholesky factor of K_ww, and the relative jitter it needed. With jitter the
    # inducing variables are noisy values of f, so every bound stays one.
    root: Float[Array, "d d"]
    jitter: Float[Array, ""]
    dtype: type = eqx.field(static=True)

    leaves_rest: ClassVar[bool] = True
    """Whether f has a part that the basis leaves out, which has its prior."""

    @classmethod
    def at(cls, kernel: AbstractKernel, locations: Array, dtype: Any) -> InducingBasis:
        """The basis of inducing points."""
        gram = bag_gram(kernel, layout_points(locations))
        least = FLOAT32_JITTER if dtype == jnp.float32 else JITTER
        root, jitter = escalating_cholesky(gram, least)
        return cls(kernel, locations, root, jitter, dtype)

    @property
    def size(self) -> int:
        """Number of basis functions."""
        return len(self.locations)

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
        """Prior variance of f at every row of x."""
        return prior_variance(self.kernel, x)

    def bag_means(self, layout: Layout) -> Float[Array, "d N"]:
        r"""Means of φ over bags, :math:`K_{ww}^{-1/2}\bar k(w)`."""
        cross = bag_cross(self.kernel, self.locations, layout, dtype=self.dtype)
        return whiten(self.root, cross)

    def features_of(self, values: Float[Array, "N d"]) -> Float[Array, "d N"]:
        """Means of φ from means of the values."""
        return whiten(self.root, values.T)

    def completed(
        self,
        key: Any,
        coefficients: Array,
        n_features: int | None,
        variance: Callable[[Array], Array] | None = None,
    ) -> Completed:
        """Draws of the prior, and coefficients with which they have these projections (d, S).

        The frequencies of draws are chosen by their part in `variance`, that of f; by default of
        what the basis leaves out alone.
        """

        def look(x: Array) -> References:
            return self._references(x, None if variance is None else variance(x))

        draw_key, weight_key = jr.split(key)
        d = self.locations.shape[1]
        points = np.asarray(self.locations)
        waves, error = chosen_waves(self.kernel, d, look, points, n_features, draw_key, self.dtype)
        loadings = waves.loadings(weight_key, coefficients.shape[1])
        at_inducing = waves.draws(loadings, self.locations)
        return waves, loadings, coefficients - whiten(self.root, at_inducing), error

    @eqx.filter_jit
    def _references(self, x: Array, variance: Array | None) -> References:
        features = self.features(x)
        shares = self.of_values(features.T).T
        # With jitter, inducing variables are noisy values of f; draws of f lack that noise.
        noise = self.jitter * jnp.mean(jnp.sum(self.root**2, 1)) / (1.0 + self.jitter)
        prior = prior_variance(self.kernel, x)
        residual = prior - jnp.sum(features**2, 1) - noise * jnp.sum(shares**2, 1)
        least = LEAST_VARIANCE * prior
        whole = jnp.maximum(residual if variance is None else variance, least)
        return References(layout_points(self.locations), x, shares, whole, residual)


class FourierBasis(eqx.Module):
    """Random Fourier features of k, drawn with a key."""

    kernel: AbstractKernel
    key: Any
    n_features: int = eqx.field(static=True)
    n_inputs: int = eqx.field(static=True)
    dtype: type = eqx.field(static=True)

    leaves_rest: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """Number of basis functions."""
        point = jax.ShapeDtypeStruct((1, self.n_inputs), float)
        return jax.eval_shape(self.features, point).shape[1]

    @property
    def jitter(self) -> Float[Array, ""]:
        """Jitter of a factorisation; there is none."""
        return jnp.zeros(())

    def _map(self) -> Any:
        return spectral_features(self.kernel, self.n_features, self.key, self.n_inputs, self.dtype)

    def features(self, x: Float[Array, "m D"]) -> Float[Array, "m F"]:
        """φ at every row of x."""
        return self._map()(x).astype(x.dtype)

    def values(self, x: Float[Array, "m D"]) -> Float[Array, "m F"]:
        """The Fourier features at every row of x."""
        return self.features(x)

    def of_values(self, coefficients: Float[Array, "F k"]) -> Float[Array, "F k"]:
        """Functions of φ as functions of the values: the same."""
        return coefficients

    def prior_variance(self, x: Array, values: Array) -> Float[Array, " m"]:
        """Prior variance of f at every row of x."""
        return jnp.sum(values**2, 1)

    def bag_means(self, layout: Layout) -> Float[Array, "F N"]:
        """Means of φ over bags."""
        return feature_means(self._map(), layout).T

    def features_of(self, values: Float[Array, "N F"]) -> Float[Array, "F N"]:
        """Means of φ from means of the values."""
        return values.T

    def completed(
        self, key: Any, coefficients: Array, n_features: int | None, variance: Any = None
    ) -> Completed:
        """The coefficients themselves: nothing is left to the prior."""
        return None, (), coefficients, 0.0


Basis = InducingBasis | FourierBasis
