r"""The posterior of a basis: all that is known of the field is q(v), its coefficients.

:class:`BasisField` needs no bags any more. With :math:`\gamma` the basis functions :math:`\phi`
and the trend functions, linear functionals g of the field have rows :math:`\gamma_g` and a residual
that the basis leaves out, which has its prior:

.. math:: \mathrm{E}[g \mid z] = \gamma_g^\top \mathrm{E}v, \qquad
          \mathrm{Cov}(g, g' \mid z) = R_{gg'} + \gamma_g^\top \mathrm{Cov}(v)\,\gamma_{g'} ,

for values of f with :math:`R(x, x') = k(x, x') - \phi(x)^\top\phi(x')`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.inference.basis import Basis
from deconditional.inference.collapsed import Coefficients
from deconditional.inference.field import Field, Moments, Path, PointMoments
from deconditional.inference.moments import Functionals
from deconditional.inference.trend import Trend
from deconditional.kernels.layout import Layout
from deconditional.kernels.linalg import NoiseRoot


class BasisField(Field):
    """A posterior of the coefficients of a basis."""

    # basis, trend: φ and h.
    basis: Basis
    trend: Trend
    coefficients: Coefficients  # q(v), of the coefficients of both
    log_evidence: Float[Array, ""]  # the bound
    fine_noise_variance: Float[Array, ""]  # ς²

    @property
    def kernel(self) -> AbstractKernel:
        """The kernel of the prior."""
        return self.basis.kernel

    @property
    def dtype(self) -> Any:
        """The type of kernel tiles."""
        return self.basis.dtype

    def at(self, x: Array) -> Functionals:
        """The values of f at every row of x."""
        return self._known(self.basis.features(x), self.trend.features(x))

    def over(self, new: Layout, h: Array) -> Functionals:
        """The means of f over new bags, those of the trend functions being h."""
        return self._known(self.basis.bag_means(new).T, h)

    def _known(self, features: Array, trend: Array) -> Functionals:
        every = jnp.concatenate([features, self.trend.whitened(trend)], axis=1)
        less, more = self.coefficients.apart(every)
        has_prior = self.basis.leaves_rest
        less = jnp.concatenate([features, less], axis=1) if has_prior else less
        return Functionals(every @ self.coefficients.mean, less, more, has_prior)

    def quick(self, x: np.ndarray, rounded: int) -> PointMoments:
        r"""The moments by one matrix product.

        With :math:`I - \mathrm{Cov}(v) = EE^\top` the variance is the prior's less
        :math:`\lVert E^\top\gamma(x)\rVert^2`. The whitening of φ goes into E, once for all points.
        """
        explained = self.coefficients.explained_part()
        return self if explained is None else self._quick(explained)

    @eqx.filter_jit
    def _quick(self, explained: Array) -> QuickField:
        every = jnp.concatenate([self.coefficients.mean[:, None], explained], axis=1)
        size = len(every) - len(self.trend.prior_std)
        return QuickField(self.basis, self.trend, self.basis.of_values(every[:size]), every[size:])

    def regressors(self, x: Array) -> Array:
        """The basis functions."""
        return self.basis.features(x)

    def path(self, key: Any, n_paths: int, n_features: int | None) -> Path:
        """Draw functions from the posterior: coefficients first, what the basis lacks second."""
        draw_key, path_key = jr.split(key)
        draws = self.coefficients.sample(draw_key, n_paths)
        size = len(draws) - len(self.trend.prior_std)

        def variance(x: Array) -> Array:
            return self.moments(x)[1]

        waves, loadings, own, error = self.basis.completed(
            path_key, draws[:size], n_features, variance
        )
        of_trend = self.trend.prior_std[:, None] * draws[size:]
        return Path(self, waves, loadings, of_trend, own, jnp.asarray(error))

    def combined(self, pieces: Any, weights: Array, shared: Array, own: Array) -> Moments:
        r"""Mean and covariance of combinations of the bag means, with noise of their own.

        What they share with the noise of z is told by what q(v) leaves of z: with the gain
        :math:`G = \mathrm{Cov}(g, e)\,S^{-1}` it is :math:`G(z - \Gamma^\top v)`.
        """
        root, q = NoiseRoot.of(pieces.noise), self.coefficients
        at_new = (pieces.means @ weights).T
        observed = root.whiten(pieces.mediated().T)
        gain = root.whiten(shared.T).T
        mean = at_new @ q.mean + gain @ (root.whiten(pieces.z) - observed @ q.mean)
        covariance = q.covariance(at_new - gain @ observed) + own - gain @ gain.T
        if pieces.residual is not None:
            rest = weights.T - gain @ root.whiten(pieces.weights.T)
            covariance = covariance + rest @ pieces.residual.covariance @ rest.T
        return mean, covariance

    def left_over(self, pieces: Any) -> Float[np.ndarray, " M"]:
        """Observations less their posterior means."""
        mediated, mean = np.asarray(pieces.mediated()), np.asarray(self.coefficients.mean)
        return np.asarray(pieces.z) - mediated.T @ mean

    def jitter(self, pieces: Any) -> float:
        """Jitter of the covariance of the inducing points."""
        return float(self.basis.jitter)


class QuickField(eqx.Module):
    r"""Moments of a :class:`BasisField`; the first column is the mean, the others E."""

    basis: Basis
    trend: Trend
    projection: Float[Array, "d k"]
    trend_projection: Float[Array, "q k"]

    @eqx.filter_jit
    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""
        values = self.basis.values(x)
        trend = self.trend.whitened(self.trend.features(x))
        both = values @ self.projection + trend @ self.trend_projection
        prior = self.basis.prior_variance(x, values) + jnp.sum(trend**2, 1)
        return both[:, 0], jnp.maximum(prior - jnp.sum(both[:, 1:] ** 2, 1), 0.0)
