r"""Exact inference: the evidence, and the deconditional posterior itself.

:class:`ExactField` is, with the covariances of :mod:`~deconditional.inference.moments`,

.. math:: m_d(x) = \bar k(x) W A^{-1} (z - B\hat\beta) + h(x)^\top\hat\beta, \qquad
          v_d(x) = k(x, x) - \lVert \bar k(x) W A^{-\top/2}\rVert^2
                   + \lVert \Lambda^{-1/2} r(x)\rVert^2 .
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
import numpy as np
import scipy.linalg as sl
from gpjax.kernels.base import AbstractKernel
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from deconditional.inference.field import Field, Moments, Path, Trend, square_root
from deconditional.inference.moments import Conditioned, Functionals, condition
from deconditional.inference.paths import LEAST_VARIANCE, References, chosen_waves
from deconditional.inference.problem import BagProblem
from deconditional.inference.waves import Waves, feature_means
from deconditional.kernels.devices import settled
from deconditional.kernels.layout import Layout
from deconditional.kernels.linalg import as_matrix, stable_cholesky, whiten
from deconditional.kernels.radial import prior_variance
from deconditional.kernels.repeats import Repeats
from deconditional.kernels.sweeps import bag_cross, bag_gram, between_bags

MANY = 2**32
"""Kernel values of predictions from which on it is worth compiling it once more: seconds."""

CHECKED = 256
"""Points that are predicted in both precisions."""

AS_GOOD = 1e-3
"""Most that mean and standard deviation may differ there, in standard deviations."""


class SpreadPrior(eqx.Module):
    r"""How much bag means vary is known from the observations, before any link between them.

    The observations are means of other bags of the same kind. What bags are measured by leaves
    their means with :math:`N(m, C)`, about their level, so that the sample variance of the
    observations is nearly

    .. math:: \hat v \sim v\,\chi^2_\nu / \nu, \quad v = \langle C_{ii} \rangle + s_m^2, \quad
              \frac{v^2}{\nu} = \frac{v^2}M + \frac{s_m^4}{N - 1} + \Bigl(1 - \frac1M\Bigr)
              \langle C_{ij}^2 + 2 m_i C_{ij} m_j \rangle_{i \ne j},

    with :math:`s_m^2` the variance of m: mean and variance are as they should be (Satterthwaite).
    Where mediators say little it is all that is known of v, and the field would shrink to its
    trend without it. Where they say much they have told it already, and it says little more.
    """

    # variance, degrees: the sample variance, and M, less one for a level.
    variance: Float[Array, ""]
    degrees: Float[Array, ""]
    has_level: bool = eqx.field(static=True)  # whether bag means have a level of their own

    @classmethod
    def of(cls, z: np.ndarray, has_level: bool) -> SpreadPrior:
        """From observations."""
        rest, degrees = z - z.mean() * has_level, max(len(z) - has_level, 1)
        variance = max(float(rest @ rest) / degrees, 1e-12 * float(np.mean(z**2)), 1e-300)
        return cls(jnp.asarray(variance), jnp.asarray(float(degrees)), has_level)

    def log_density(self, mean: Float[Array, " N"], covariance: Float[Array, "N N"]) -> Array:
        """Log density of the sample variance, by what is known of bag means."""
        degrees = max(len(mean) - self.has_level, 1)
        if self.has_level:
            mean, row = mean - mean.mean(), covariance.mean(0)
            covariance = covariance - row - row[:, None] + row.mean()
        own, between = jnp.diagonal(covariance), mean @ mean / degrees
        variance = between + own.sum() / degrees
        alike = jnp.sum(covariance**2) - own @ own
        alike = alike + 2.0 * (mean @ covariance @ mean - mean**2 @ own)
        alike = (1.0 - 1.0 / self.degrees) * alike / max(degrees * (degrees - 1), 1)
        alike = jnp.maximum(alike, 0.0) + between**2 / degrees
        half = 0.5 / (1.0 / self.degrees + alike / variance**2)
        ratio = self.variance / variance
        return half * (jnp.log(half * ratio) - ratio) - gammaln(half)


class Pieces(eqx.Module):
    """K̄, W, S and what S was made of, at one value of the hyper-parameters."""

    gram: Float[Array, "N N"]
    weights: Float[Array, "N M"] | None
    noise: Float[Array, "M M"]
    embedding_scale: Float[Array, ""]
    """τ², the variance that one unit of embedding uncertainty gives a conditional mean."""

    def gram_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some rows of K̄, and its diagonal."""
        gram = np.asarray(self.gram)
        return gram[rows], np.diag(gram)


class ExactProblem(BagProblem):
    """A problem whose evidence is computed exactly."""

    spread: SpreadPrior | None = eqx.field(default=None, kw_only=True)
    # The bags as a few of them that come again at other times, where they do.
    repeats: Repeats | None = eqx.field(default=None, kw_only=True)

    def gram(self, kernel: AbstractKernel) -> Float[Array, "N N"]:
        """Gram matrix K̄ of the bags under a kernel."""
        if self.repeats is None:
            return bag_gram(kernel, self.layout, dtype=self.dtype)
        return self.repeats.gram(kernel, self.dtype)

    def gram_at(self, vector: Float[Array, " size"]) -> Float[Array, "N N"]:
        """K̄, which problems that differ in z and its noise have in common."""
        return self.gram(self.kernel.with_values(self.parameters.unpack(vector)))

    def pieces(self, values: Mapping[str, Any], gram: Array | None = None) -> Pieces:
        """Compute K̄, where it is not known, W and S at given hyper-parameters."""
        gram = self.gram(self.kernel.with_values(values)) if gram is None else gram
        weights, covariance = self.mediation.weights(values)
        scale = jnp.mean(jnp.diagonal(gram))
        noise = self.noise(values, weights, covariance, scale)
        return Pieces(gram, weights, as_matrix(noise), scale)

    def observed_covariance(self, pieces: Pieces) -> Float[np.ndarray, "M M"]:
        """Prior covariance of the observations, trend and noise included."""
        gram, noise = np.asarray(pieces.gram), np.asarray(pieces.noise)
        trend = np.asarray(self.trend_means) * np.asarray(self.trend.prior_std)
        if pieces.weights is not None:
            weights = np.asarray(pieces.weights)
            trend, gram = weights.T @ trend, weights.T @ gram @ weights
        return gram + trend @ trend.T + noise

    def evaluate(
        self, vector: Float[Array, " size"], gram: Array | None = None
    ) -> tuple[Float[Array, ""], tuple[Pieces, ExactField]]:
        """Log evidence plus log prior of the unconstrained parameters, and the posterior there."""
        values = self.parameters.unpack(vector)
        pieces = self.pieces(values, gram)
        field = self.field(values, pieces)
        found = field.log_evidence + self.parameters.log_prior(vector)
        if self.spread is not None:
            found = found + self.spread.log_density(*self.bag_means(pieces))
        return found, (pieces, field)

    def bag_means(self, pieces: Pieces) -> tuple[Array, Array]:
        """Posterior mean and covariance of bag means that were all observed, with gradients."""
        root = stable_cholesky(pieces.gram + pieces.noise)
        told, z, trend = (whiten(root, each) for each in (pieces.gram, self.z, self.trend_means))
        precision = jnp.diag(self.trend.prior_std**-2.0) + trend.T @ trend
        unknown = self.trend_means - told.T @ trend
        slopes = jnp.linalg.solve(precision, jnp.column_stack([trend.T @ z, unknown.T]))
        mean = told.T @ z + unknown @ slopes[:, 0]
        return mean, pieces.gram - told.T @ told + unknown @ slopes[:, 1:]

    def told(self, pieces: Pieces, field: Field) -> dict[str, str]:
        """How the problem was solved, for a report."""
        tiles = jnp.dtype(self.dtype).name
        return {"tiles": tiles, "jitter": f"{field.jitter(pieces):.0e} of the variance"}

    def field(self, values: Mapping[str, Any], pieces: Pieces) -> ExactField:
        """The field, conditioned on the observations z."""
        seen = pieces.gram, pieces.weights, pieces.noise, self.z
        return ExactField(
            kernel=self.kernel.with_values(values),
            layout=self.layout,
            weights=pieces.weights,
            noise=pieces.noise,
            z=self.z,
            conditioned=condition(*seen, self.trend_means, self.trend.prior_std),
            trend=self.trend,
            trend_means=self.trend_means,
            fine_noise_variance=self.fine_noise_variance(values),
            dtype=self.dtype,
            repeats=self.repeats,
        )


class ExactField(Field):
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
    dtype: type = eqx.field(static=True)
    repeats: Repeats | None = eqx.field(default=None, kw_only=True)

    def __loaded__(self) -> ExactField:
        """The field, its bags laid out for the devices of this machine."""
        if self.weights is None and len(self.z) != self.layout.n_bags:
            raise ValueError("its observations are not those of its bags")
        return replace(self, layout=settled(self.layout))

    @property
    def log_evidence(self) -> Array:
        """Log evidence, log p(z)."""
        return self.conditioned.log_evidence

    def at(self, x: Array) -> Functionals:
        """The values of f at every row of x."""
        explained = self.regressors(x) @ self.conditioned.projection
        return self.conditioned.known(explained, self.trend.features(x))

    def regressors(self, x: Array) -> Array:
        """Prior covariance of f with the bag means."""
        if self.repeats is None:
            return bag_cross(self.kernel, x, self.layout, dtype=self.dtype)
        return self.repeats.cross(self.kernel, x, self.dtype)

    def over(self, new: Layout, h: Array) -> Functionals:
        """The means of f over new bags, those of the trend functions being h."""
        cross = between_bags(self.kernel, new, self.layout, dtype=self.dtype)
        return self.conditioned.known(cross @ self.conditioned.projection, h)

    def quick(self, x: np.ndarray, rounded: int) -> Field:
        """The posterior in float32 tiles, where x are many points and a check finds that as good.

        A tile takes two fifths of the time then. What it costs depends on how much the weights of
        bags magnify rounding: hardly anything by most posteriors, all digits where observations
        have next to no noise.
        """
        layout = self.layout if self.repeats is None else self.repeats.base
        few = rounded * len(x) * len(layout.points) < MANY
        if few or not rounded or self.dtype == jnp.float32:
            return self
        some = jnp.asarray(x[np.linspace(0, len(x) - 1, min(CHECKED, len(x))).astype(int)])
        single = replace(self, dtype=jnp.float32)
        (mean, variance), (quick_mean, quick_variance) = self.moments(some), single.moments(some)
        std = jnp.sqrt(variance)
        off = jnp.maximum(jnp.abs(quick_mean - mean), jnp.abs(jnp.sqrt(quick_variance) - std))
        return single if bool((off <= AS_GOOD * std).all()) else self

    def combined(self, pieces: Pieces, weights: Array, shared: Array, own: Array) -> Moments:
        """Mean and covariance of combinations of the bag means, with noise of their own."""
        with_bags = weights.T @ pieces.gram
        cross = with_bags if pieces.weights is None else with_bags @ pieces.weights
        explained = whiten(self.conditioned.root, (cross + shared).T).T
        g = self.conditioned.known(explained, weights.T @ self.trend_means)
        return g.mean, g.covariance(with_bags @ weights + own)

    def left_over(self, pieces: Pieces) -> Float[np.ndarray, " M"]:
        r"""What the posterior mean leaves of z, :math:`S A^{-1}(z - B\hat\beta)`."""
        root, misfit = np.asarray(self.conditioned.root), np.asarray(self.conditioned.misfit)
        return np.asarray(pieces.noise) @ sl.solve_triangular(root, misfit, lower=True, trans=1)

    def jitter(self, pieces: Pieces) -> float:
        """Jitter that the covariance of the observations needed, relative to its diagonal."""
        return float(self.conditioned.jitter)

    # ------------------------------------------------------------------ paths

    def path(self, key: Any, n_paths: int, n_features: int | None) -> Path:
        r"""Draw functions from the posterior, to be evaluated anywhere.

        Matheron's rule: a prior draw from random frequencies, corrected by the cross-
        covariance times the misfit of its own observations. Trend coefficients are drawn from
        their posterior first, so that their vague prior never enters.
        """
        keys = jr.split(key, 4)
        points = np.asarray(self.layout.points)[np.asarray(self.layout.weights) > 0]
        waves, error = chosen_waves(
            self.kernel, points.shape[1], self._references, points, n_features, keys[0]
        )
        loadings = waves.loadings(keys[1], n_paths)
        c = self.conditioned
        steps = jr.normal(keys[2], (len(c.trend), n_paths))
        deviation = jsl.solve_triangular(c.trend_root, steps, lower=True, trans=1)
        beta = c.trend[:, None] + deviation
        noise = square_root(self.noise) @ jr.normal(keys[3], (len(self.z), n_paths))
        bag_means = _bag_draws(waves, loadings, self.layout) + self.trend_means @ beta
        predicted = (bag_means if self.weights is None else self.weights.T @ bag_means) + noise
        correction = c.projection @ whiten(c.root, self.z[:, None] - predicted)
        return Path(self, waves, loadings, beta, correction, jnp.asarray(error))

    @eqx.filter_jit
    def _references(self, x: Array) -> References:
        """What paths are corrected by at x: t(x) = k̄(x) W A⁻¹ Wᵀ."""
        c, at = self.conditioned, self.at(x)
        prior = prior_variance(self.kernel, x)
        gain = jsl.solve_triangular(c.root, at.less.T, lower=True, trans=1)
        variance = jnp.maximum(at.variance(prior), LEAST_VARIANCE * prior)
        rest = prior - jnp.sum(at.less**2, 1) - jnp.sum(gain * (self.noise @ gain), 0)
        return References(self.layout, x, at.less @ c.projection.T, variance, rest)


@eqx.filter_jit
def _bag_draws(waves: Waves, loadings: tuple[Array, ...], layout: Layout) -> Float[Array, "N S"]:
    """Bag means of draws of the prior."""
    return feature_means(lambda x: waves.draws(loadings, x), layout)
