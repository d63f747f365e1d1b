r"""The posterior of a basis: all that is known of the field is q(v), its coefficients.

:class:`BasisField` needs no bags any more. With :math:`\gamma` the basis functions :math:`\phi`
and the trend functions, linear functionals g of the field have rows :math:`\gamma_g` and a residual
that the basis leaves out, which has its prior:

.. math:: \mathrm{E}[g \mid z] = \gamma_g^\top \mathrm{E}v, \qquad
          \mathrm{Cov}(g, g' \mid z) = R_{gg'} + \gamma_g^\top \mathrm{Cov}(v)\,\gamma_{g'} ,

for values of f with :math:`R(x, x') = k(x, x') - \phi(x)^\top\phi(x')`.

*The coefficients.* With :math:`f(x) = \phi(x)^\top v + r(x)` and :math:`v \sim N(0, I)` the one
equation becomes :math:`z = \Gamma^\top v + (\text{residual}) + e`, where :math:`\Gamma` has the
mediated bag means of all basis functions (trend functions included, scaled to unit prior variance)
as rows. For Gaussian noise the optimal q(v) is the posterior of that regression, and the bound is
its evidence less the penalty of :mod:`deconditional.inference.variational`:

.. math:: \log N(z; 0, \Gamma^\top\Gamma + S)
          - \tfrac12 \mathrm{tr}\bigl(S^{-1} W^\top(\bar K - \tilde K)W\bigr),
          \qquad \tilde K = \bar k(w)^\top K_{ww}^{-1} \bar k(w).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jax import lax
from jaxtyping import Array, Float

from deconditional.inference.basis import Basis
from deconditional.inference.field import Field, Moments, Path, PointMoments, Trend
from deconditional.inference.moments import Functionals
from deconditional.kernels.layout import Layout
from deconditional.kernels.linalg import (
    JITTER,
    NoiseRoot,
    add_covariances,
    escalating_cholesky,
    log_determinant,
    whiten,
)

LEAST_EXPLAINED = 1e-9
"""Share of the prior variance of a direction that counts as none."""

LEAST_JITTER = 1e-16
"""Jitter of the precision of coefficients, no more than its rounding; higher where it must be."""

ROUNDING = 1e-3
"""Below zero, such a share is the rounding of a precision that spans ten orders of magnitude."""


class Coefficients(eqx.Module):
    r"""q(v), the Gaussian distribution of the coefficients of a basis.

    Its covariance is kept in the smaller of two forms: :math:`I - EE^\top` with one column of E
    for each observation, or :math:`(RR^\top)^{-1}` with R of the size of the basis.
    """

    mean: Float[Array, " D"]
    explained: Float[Array, "D M"] | None
    precision_root: Float[Array, "D D"] | None

    def explained_part(self) -> Float[Array, "D k"] | None:
        r"""E with :math:`\mathrm{Cov}(v) = I - EE^\top`; None where data made v less certain.

        Directions of which nothing is explained are zero. Most of them are left out, so that a
        prediction costs less; how many depends on the data, so they go by quarters of them all,
        and few shapes are compiled for.
        """
        if self.explained is not None:
            return self.explained
        assert self.precision_root is not None
        shares, directions = _explained_directions(self.precision_root)
        values = np.asarray(shares)
        if values[0] < -ROUNDING:
            return None
        quarter = -(-len(values) // 4)
        kept = min(
            len(values), -(-max(int(np.sum(values > LEAST_EXPLAINED)), 1) // quarter) * quarter
        )
        return directions[:, len(values) - kept :]

    def apart(self, features: Float[Array, "m D"]) -> tuple[Array, Array]:
        r"""A and B of linear functions of v, whose covariance is :math:`BB^\top - AA^\top`."""
        if self.explained is not None:
            return features @ self.explained, features
        assert self.precision_root is not None
        return jnp.zeros((len(features), 0)), whiten(self.precision_root, features.T).T

    def variance(self, features: Float[Array, "m D"]) -> Float[Array, " m"]:
        """Variances of linear functions of v, one for each row."""
        less, more = self.apart(features)
        return jnp.sum(more**2, 1) - jnp.sum(less**2, 1)

    def covariance(self, features: Float[Array, "m D"]) -> Float[Array, "m m"]:
        """Covariance of linear functions of v."""
        less, more = self.apart(features)
        return more @ more.T - less @ less.T

    def sample(self, key: Any, n: int) -> Float[Array, "D n"]:
        """Draws of the coefficients v."""
        draws = jr.normal(key, (len(self.mean), n))
        if self.precision_root is not None:
            spread = jsl.solve_triangular(self.precision_root, draws, lower=True, trans=1)
            return self.mean[:, None] + spread
        assert self.explained is not None
        # I - E U g Uᵀ Eᵀ, with EᵀE = U diag(s) Uᵀ, is the symmetric root for g = (1 - √(1-s)) / s.
        s, u = jnp.linalg.eigh(self.explained.T @ self.explained)
        s = jnp.clip(s, 0.0, 1.0)
        gain = jnp.where(s > 1e-12, (1.0 - jnp.sqrt(1.0 - s)) / jnp.maximum(s, 1e-12), 0.5)
        along = self.explained @ u
        return self.mean[:, None] + draws - along @ (gain[:, None] * (along.T @ draws))


@eqx.filter_jit
def _explained_directions(precision_root: Float[Array, "D D"]) -> tuple[Array, Array]:
    """Shares of the prior variance that are explained, least first, and scaled directions."""
    inverse = whiten(precision_root, jnp.eye(len(precision_root)))
    values, vectors = jnp.linalg.eigh(jnp.eye(len(inverse)) - inverse.T @ inverse)
    return values, vectors * jnp.sqrt(jnp.where(values > LEAST_EXPLAINED, values, 0.0))


def least_noise(noise: Array, features: Float[Array, "D M"]) -> Array:
    r"""Noise with a share of :data:`JITTER` of the signal added, as exact inference has it.

    The precision of the coefficients, :math:`I + \Gamma S^{-1}\Gamma^\top`, loses its first term to
    rounding where S is smaller than that, and with it what is not determined by observations.
    """
    signal = lax.stop_gradient(jnp.mean(jnp.sum(features**2, 0)))
    return add_covariances(noise, jnp.full(features.shape[1], JITTER * signal))


def regress(
    features: Float[Array, "D M"], noise: NoiseRoot, z: Float[Array, " M"]
) -> tuple[Float[Array, ""], Coefficients]:
    r"""Evidence :math:`\log N(z; 0, \Gamma^\top\Gamma + S)` and posterior of the coefficients."""
    white = noise.whiten(features.T).T
    white_z = noise.whiten(z)
    size, m = white.shape
    constant = noise.log_determinant() + m * jnp.log(2.0 * jnp.pi)
    # On the smaller side, which also keeps digits: with fewer observations than functions most
    # directions of v have their prior, and I - EEᵀ says so exactly.
    if m <= size:
        root, _ = escalating_cholesky(jnp.eye(m) + white.T @ white, LEAST_JITTER)
        solved = whiten(root, white_z)
        log_evidence = -0.5 * (solved @ solved + log_determinant(root) + constant)
        explained = whiten(root, white.T).T
        return log_evidence, Coefficients(explained @ solved, explained, None)
    root, _ = escalating_cholesky(jnp.eye(size) + white @ white.T, LEAST_JITTER)
    solved = whiten(root, white @ white_z)
    quadratic = white_z @ white_z - solved @ solved
    log_evidence = -0.5 * (quadratic + log_determinant(root) + constant)
    mean = jsl.solve_triangular(root, solved, lower=True, trans=1)
    return log_evidence, Coefficients(mean, None, root)


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
