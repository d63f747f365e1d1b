r"""The Gaussian posterior of the field at one value of the hyper-parameters.

:class:`ExactField` is the deconditional posterior itself,

.. math:: m_d(x) = \bar k(x)\,a + h(x)^\top\hat\beta, \qquad
          v_d(x) = k(x, x) - \lVert \bar k(x) F\rVert^2 + \lVert \Lambda^{-1/2} r(x)\rVert^2

with :math:`a = WA^{-1}(z - B\hat\beta)`, :math:`F = WA^{-1/2}` and
:math:`r(x) = h(x) - B^\top A^{-1} W^\top \bar k(x)^\top`. :class:`BasisField` is a posterior of the
coefficients of a basis, which needs no bags any more:

.. math:: m(x) = \gamma(x)^\top \mathrm{E}v, \qquad
          v(x) = k(x, x) - \lVert\phi(x)\rVert^2 + \gamma(x)^\top \mathrm{Cov}(v)\,\gamma(x),

with :math:`\gamma` the basis functions :math:`\phi` and the trend functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array, Float

from deconditional.bags import Bags
from deconditional.inference.basis import Basis, FourierPath, InducingPath
from deconditional.inference.collapsed import Coefficients
from deconditional.inference.exact import Conditioned
from deconditional.inference.feature_means import feature_means
from deconditional.inference.paths import LEAST_VARIANCE, Seen, Waves, chosen_waves
from deconditional.inference.trend import Trend
from deconditional.kernels.layout import Layout, layout_bags
from deconditional.kernels.linalg import whiten
from deconditional.kernels.radial import prior_variance
from deconditional.kernels.sweeps import bag_cross, bag_gram, between_bags

__all__ = ["BasisField", "ExactField", "Field", "square_root"]


class Marginals(Protocol):
    """Means and variances of f."""

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
    """A Gaussian posterior of f."""

    fine_noise_variance: Float[Array, ""]

    @property
    def log_evidence(self) -> Array:
        """Log p(z), or a bound of it."""

    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""

    def quick(self) -> Marginals:
        """The same moments in the form that is quickest for many points."""

    def covariance(self, x: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Covariance of f between all rows of x."""

    def path(self, key: Any, n_paths: int, n_features: int | None) -> Path:
        """Functions drawn from the posterior, from so many features or as many as it takes."""

    def bag_moments(self, bags: Bags, new: Bags) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the means of f over new bags; `bags` are those of the fit."""

    def covariance_with(self, new: Bags) -> Callable[[Array], Array]:
        """A function of x: covariance of f(x) with the means of f over new bags, (m, N)."""


class ExactField(eqx.Module):
    """The deconditional posterior of f."""

    kernel: AbstractKernel
    layout: Layout
    weights: Float[Array, "N M"] | None
    noise: Float[Array, "M M"]
    z: Float[Array, " M"]
    conditioned: Conditioned
    trend: Trend
    trend_means: Float[Array, "N q"]
    fine_noise_variance: Float[Array, ""]
    dtype: Any = eqx.field(static=True)

    @property
    def log_evidence(self) -> Array:
        """Log p(z)."""
        return self.conditioned.log_evidence

    def _cross(self, x: Array) -> tuple[Array, Array, Array]:
        """k̄(x), k̄(x)F and r(x)."""
        cross = bag_cross(self.kernel, x, self.layout, dtype=self.dtype)
        explained = cross @ self.conditioned.projection
        residual = self.trend.features(x) - explained @ self.conditioned.whitened_trend
        return cross, explained, residual

    def _mean(self, x: Array, cross: Array) -> Array:
        return cross @ self.conditioned.coefficients + (
            self.trend.features(x) @ self.conditioned.trend
        )

    @eqx.filter_jit
    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""
        cross, explained, residual = self._cross(x)
        white = whiten(self.conditioned.trend_root, residual.T)
        variance = prior_variance(self.kernel, x) - jnp.sum(explained**2, 1) + jnp.sum(white**2, 0)
        return self._mean(x, cross), jnp.maximum(variance, 0.0)

    def quick(self) -> Marginals:
        """The field itself."""
        return self

    @eqx.filter_jit
    def covariance(self, x: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Covariance of f between all rows of x."""
        _, explained, residual = self._cross(x)
        white = whiten(self.conditioned.trend_root, residual.T)
        return self.kernel.cross_covariance(x, x) - explained @ explained.T + white.T @ white

    def path(self, key: Any, n_paths: int, n_features: int | None) -> ExactPath:
        r"""Draw functions from the posterior, to be evaluated anywhere.

        Matheron's rule: a prior draw from random frequencies, corrected by the cross-
        covariance times the misfit of its own observations. Trend coefficients are drawn from
        their posterior first, so that their vague prior never enters.
        """
        keys = jr.split(key, 4)
        points = np.asarray(self.layout.points)[np.asarray(self.layout.weights) > 0]
        waves, error = chosen_waves(
            self.kernel, points.shape[1], self._seen, points, n_features, keys[0]
        )
        loadings = waves.loadings(keys[1], n_paths)
        conditioned = self.conditioned
        deviation = jsl.solve_triangular(
            conditioned.trend_root,
            jr.normal(keys[2], (conditioned.trend.shape[0], n_paths)),
            lower=True,
            trans=1,
        )
        beta = conditioned.trend[:, None] + deviation
        noise = square_root(self.noise) @ jr.normal(keys[3], (len(self.z), n_paths))
        bag_means = _bag_draws(waves, loadings, self.layout) + self.trend_means @ beta
        predicted = (bag_means if self.weights is None else self.weights.T @ bag_means) + noise
        misfit = whiten(conditioned.root, self.z[:, None] - predicted)
        correction = conditioned.projection @ misfit
        return ExactPath(self, waves, loadings, beta, correction, jnp.asarray(error))

    @eqx.filter_jit
    def _seen(self, x: Array) -> Seen:
        """What paths are corrected by at x: t(x) = k̄(x) W A⁻¹ Wᵀ."""
        c = self.conditioned
        _, explained, residual = self._cross(x)
        prior = prior_variance(self.kernel, x)
        rest = prior - jnp.sum(explained**2, 1)
        gain = jsl.solve_triangular(c.root, explained.T, lower=True, trans=1)
        white = whiten(c.trend_root, residual.T)
        variance = jnp.maximum(rest + jnp.sum(white**2, 0), LEAST_VARIANCE * prior)
        without_noise = rest - jnp.sum(gain * (self.noise @ gain), 0)
        return Seen(self.layout, x, explained @ c.projection.T, variance, without_noise)

    def bag_moments(self, bags: Bags, new: Bags) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of bag means, from one Gram matrix over old and new bags."""
        n_old = bags.n_bags
        points = np.concatenate([bags.points, new.points])
        layout, _ = layout_bags(
            points,
            np.concatenate([bags.bag, new.bag + n_old]),
            np.concatenate([bags.weights, new.weights]),
            n_old + new.n_bags,
        )
        gram = np.asarray(_gram(self.kernel, layout, self.dtype))
        cross = gram[n_old:, :n_old]
        h = new.means(np.asarray(self.trend.features(jnp.asarray(new.points))))
        c = self.conditioned
        explained = cross @ np.asarray(c.projection)
        residual = h - explained @ np.asarray(c.whitened_trend)
        white = np.linalg.solve(np.asarray(c.trend_root), residual.T)
        mean = cross @ np.asarray(c.coefficients) + h @ np.asarray(c.trend)
        return mean, gram[n_old:, n_old:] - explained @ explained.T + white.T @ white

    def covariance_with(self, new: Bags) -> Callable[[Array], Array]:
        """A function of x: covariance of f(x) with the means of f over new bags."""
        h = jnp.asarray(new.means(np.asarray(self.trend.features(jnp.asarray(new.points)))))
        return partial(self._covariance_with, new.layout, *self._seen_by(new.layout, h))

    @eqx.filter_jit
    def _seen_by(self, layout: Layout, h: Array) -> tuple[Array, Array]:
        """What the observations explain of new bag means, and of the trend in them."""
        c = self.conditioned
        gram = between_bags(self.kernel, layout, self.layout, dtype=self.dtype)
        explained = gram @ c.projection
        return explained, whiten(c.trend_root, (h - explained @ c.whitened_trend).T)

    @eqx.filter_jit
    def _covariance_with(
        self, layout: Layout, explained_new: Array, white_new: Array, x: Array
    ) -> Array:
        _, explained, residual = self._cross(x)
        white = whiten(self.conditioned.trend_root, residual.T)
        prior = bag_cross(self.kernel, x, layout, dtype=self.dtype)
        return prior - explained @ explained_new.T + white.T @ white_new


class ExactPath(eqx.Module):
    """Functions drawn from an :class:`ExactField`."""

    field: ExactField
    waves: Waves
    loadings: tuple[Array, ...]
    beta: Float[Array, "q S"]
    correction: Float[Array, "N S"]
    error: Float[Array, ""]

    @eqx.filter_jit
    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m S"]:
        """The functions at every row of x."""
        cross = bag_cross(self.field.kernel, x, self.field.layout, dtype=self.field.dtype)
        trend = self.field.trend.features(x) @ self.beta
        return self.waves.draws(self.loadings, x) + trend + cross @ self.correction


@eqx.filter_jit
def _bag_draws(waves: Waves, loadings: tuple[Array, ...], layout: Layout) -> Float[Array, "N S"]:
    """Bag means of draws of the prior."""
    return feature_means(lambda x: waves.draws(loadings, x), layout)


class BasisField(eqx.Module):
    """A posterior of the coefficients of a basis."""

    basis: Basis
    trend: Trend
    coefficients: Coefficients
    log_evidence: Float[Array, ""]
    fine_noise_variance: Float[Array, ""]

    def _features(self, x: Array) -> tuple[Array, Array]:
        """φ(x), and γ(x) with the trend."""
        features = self.basis.features(x)
        trend = self.trend.whitened(self.trend.features(x))
        return features, jnp.concatenate([features, trend], axis=1)

    @eqx.filter_jit
    def moments(self, x: Float[Array, "m d"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Mean and variance of f at every row of x."""
        features, every = self._features(x)
        variance = self.basis.residual_variance(x, features) + self.coefficients.variance(every)
        return every @ self.coefficients.mean, jnp.maximum(variance, 0.0)

    def quick(self) -> Marginals:
        r"""The moments by one matrix product.

        With :math:`I - \mathrm{Cov}(v) = EE^\top` the variance is the prior's less
        :math:`\lVert E^\top\gamma(x)\rVert^2`. The whitening of φ goes into E, once for all points.
        """
        explained = self.coefficients.explained_part()
        if explained is None:
            return self
        return self._quick(explained)

    @eqx.filter_jit
    def _quick(self, explained: Array) -> QuickField:
        every = jnp.concatenate([self.coefficients.mean[:, None], explained], axis=1)
        size = len(every) - self.trend.prior_std.shape[0]
        return QuickField(self.basis, self.trend, self.basis.of_values(every[:size]), every[size:])

    @eqx.filter_jit
    def covariance(self, x: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Covariance of f between all rows of x."""
        features, every = self._features(x)
        return self.basis.residual_covariance(x, features) + self.coefficients.covariance(every)

    def path(self, key: Any, n_paths: int, n_features: int | None) -> BasisPath:
        """Draw functions from the posterior: coefficients first, what the basis lacks second."""
        draw_key, path_key = jr.split(key)
        draws = self.coefficients.sample(draw_key, n_paths)
        size = len(draws) - self.trend.prior_std.shape[0]

        def variance(x: Array) -> Array:
            return self.moments(x)[1]

        path = self.basis.path(path_key, draws[:size], n_features, variance)
        return BasisPath(path, self.trend, draws[size:], path.error)

    def bag_moments(self, bags: Bags, new: Bags) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of bag means."""
        h = self.trend.whitened(
            jnp.asarray(new.means(np.asarray(self.trend.features(jnp.asarray(new.points)))))
        )
        mean, covariance = self._bag_moments(new.layout, h)
        return np.asarray(mean), np.asarray(covariance)

    def covariance_with(self, new: Bags) -> Callable[[Array], Array]:
        """A function of x: covariance of f(x) with the means of f over new bags."""
        h = self.trend.whitened(
            jnp.asarray(new.means(np.asarray(self.trend.features(jnp.asarray(new.points)))))
        )
        means = self.basis.bag_means(new.layout)
        every = jnp.concatenate([means.T, h], axis=1)
        return partial(self._covariance_with, new.layout, means, every)

    @eqx.filter_jit
    def _covariance_with(self, layout: Layout, means: Array, every_new: Array, x: Array) -> Array:
        features, every = self._features(x)
        known = self.coefficients.cross_covariance(every, every_new)
        return self.basis.residual_cross(x, features, layout, means) + known

    @eqx.filter_jit
    def _bag_moments(self, layout: Layout, trend: Array) -> tuple[Array, Array]:
        means = self.basis.bag_means(layout)
        every = jnp.concatenate([means.T, trend], axis=1)
        residual = self.basis.residual_gram(layout, means)
        return every @ self.coefficients.mean, residual + self.coefficients.covariance(every)


class BasisPath(eqx.Module):
    """Functions drawn from a :class:`BasisField`."""

    path: InducingPath | FourierPath
    trend: Trend
    trend_draws: Float[Array, "q S"]
    error: Float[Array, ""]

    @eqx.filter_jit
    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m S"]:
        """The functions at every row of x."""
        return self.path(x) + self.trend.whitened(self.trend.features(x)) @ self.trend_draws


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


def square_root(covariance: Array) -> Array:
    """The symmetric root of a covariance that may be singular, or zero.

    Unlike a root made of eigenvectors, which equal eigenvalues leave undetermined, it changes
    little when the covariance does: so do samples made with it.
    """
    values, vectors = jnp.linalg.eigh(covariance)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T


@eqx.filter_jit
def _gram(kernel: AbstractKernel, layout: Layout, dtype: Any) -> Array:
    return bag_gram(kernel, layout, dtype=dtype)
