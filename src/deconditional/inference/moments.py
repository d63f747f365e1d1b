r"""One algebra: the joint posterior of linear functionals of the field, given the observations.

Observations are :math:`z = W^\top(\bar f + \bar H\beta) + e` with :math:`e\sim N(0, S)`. With
:math:`Q = W^\top\bar K W` and :math:`A = Q + S`, the deconditional posterior of the paper (its
Proposition on the deconditional posterior) is

.. math:: m_d(x) = \bar k(x) W A^{-1} z, \qquad
          k_d(x, x') = k(x, x') - \bar k(x) W A^{-1} W^\top \bar k(x')^\top.

A trend :math:`h(x)^\top\beta` with :math:`\beta\sim N(0, \mathrm{diag}(b)^2)` is integrated out in
closed form: with :math:`B = W^\top\bar H` and
:math:`\Lambda = \mathrm{diag}(b)^{-2} + B^\top A^{-1} B`, the evidence is that of
:math:`N(z; 0, A + B\,\mathrm{diag}(b)^2 B^\top)` and the posterior of :math:`\beta` is
:math:`N(\Lambda^{-1}B^\top A^{-1}z, \Lambda^{-1})`. The limit of large b is generalised least
squares; b stays finite, so collinear or too many trend terms are harmless.

Nothing in this is about points. Take any linear functionals g of the field: its values, means over
bags, conditional means at mediators, observations that were not made. Three things are asked of
them: the prior covariance :math:`P_g` of their smooth part, its covariance :math:`C_g` with the
observations, and the trend functions in them, :math:`H_g`. With
:math:`E_g = C_g A^{-\top/2}` and :math:`R_g = H_g - E_g A^{-1/2} B`,

.. math:: \mathrm{E}[g \mid z] = E_g A^{-1/2}(z - B\hat\beta) + H_g\hat\beta, \qquad
          \mathrm{Cov}(g, g' \mid z)
            = P_{gg'} - E_g E_{g'}^\top + R_g\Lambda^{-1}R_{g'}^\top.

That is :class:`Conditioned`: every posterior of an exact model is one call of its methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from deconditional.kernels.linalg import (
    escalating_cholesky,
    log_determinant,
    whiten,
)

LEAST_JITTER = 1e-16
"""Jitter of the precision of trend coefficients: none, as it were, unless rounding demands it."""


class Functionals(NamedTuple):
    r"""Linear functionals g of the field, as a posterior knows them."""

    mean: Float[Array, " m"]  # posterior means
    # less, more: A and B of Cov(g, g' | z) = P - A Aᵀ + B Bᵀ.
    less: Float[Array, "m a"]
    more: Float[Array, "m b"]
    has_prior: bool = True  # whether P counts: not where B is of all that the field is made of

    def variance(self, prior: Float[Array, " m"]) -> Float[Array, " m"]:
        """Posterior variances, from those of the prior."""
        return self.has_prior * prior - jnp.sum(self.less**2, 1) + jnp.sum(self.more**2, 1)

    def covariance(
        self, prior: Float[Array, "m k"], other: Functionals | None = None
    ) -> Float[Array, "m k"]:
        """Posterior covariance with others, or with themselves, from that of the prior."""
        other = self if other is None else other
        return self.has_prior * prior - self.less @ other.less.T + self.more @ other.more.T


class Conditioned(NamedTuple):
    r"""The Gaussian conditioned on z."""

    log_evidence: Float[Array, ""]  # log p(z)
    root: Float[Array, "M M"]  # Cholesky factor of A
    # W A^(-T/2): what turns covariances with bag means into E.
    projection: Float[Array, "N M"]
    misfit: Float[Array, " M"]  # A^(-1/2) (z - Bβ)
    # trend, trend_root: the posterior mean of β, and the Cholesky factor of Λ.
    trend: Float[Array, " q"]
    trend_root: Float[Array, "q q"]
    whitened_trend: Float[Array, "M q"]  # A^(-1/2) B
    jitter: Float[Array, ""]  # that A needed, relative to the mean of its diagonal

    def known(self, explained: Float[Array, "m M"], trend: Float[Array, "m q"]) -> Functionals:
        r"""Functionals by E and H; what is not known of the trend is :math:`R\Lambda^{-\top/2}`.

        E is the covariance with bag means times the projection, or with observations, whitened.
        """
        mean = explained @ self.misfit + trend @ self.trend
        of_trend = whiten(self.trend_root, (trend - explained @ self.whitened_trend).T)
        return Functionals(mean, explained, of_trend.T)


def condition(
    gram: Float[Array, "N N"],  # K̄, without high-resolution noise, which belongs to `noise`
    weights: Float[Array, "N M"] | None,  # W; the identity if None
    noise: Float[Array, "M M"],  # S
    z: Float[Array, " M"],
    trend_means: Float[Array, "N q"],  # Pᵀh(x), without columns where there is no trend
    trend_scale: Float[Array, " q"],  # b, the prior standard deviation of each coefficient
) -> Conditioned:
    """Condition the field on the observations z."""
    if weights is None:
        weights, covariance, means = jnp.eye(len(gram)), gram + noise, trend_means
    else:
        covariance, means = weights.T @ gram @ weights + noise, weights.T @ trend_means
    log_evidence, trend, *held = _solved(covariance, means, z, trend_scale)
    root, misfit, *rest = jax.lax.stop_gradient(held)
    return Conditioned(log_evidence, root, whiten(root, weights.T).T, misfit, trend, *rest)


@jax.custom_vjp
def _solved(covariance: Array, means: Array, z: Array, scale: Array) -> tuple[Array, ...]:
    r"""All of :class:`Conditioned` but the projection, from A, B, z and b.

    Gradients of the evidence and of the trend are written by hand, which halves what is compiled
    for them. The rest is held: it has none. With :math:`\alpha = A^{-1}(z - B\hat\beta)`, that of
    the evidence is

    .. math:: \partial_A = \tfrac12(\alpha\alpha^\top - A^{-1} + A^{-1}B\Lambda^{-1}B^\top A^{-1}),
              \qquad \partial_B = \alpha\hat\beta^\top - A^{-1}B\Lambda^{-1},

    and that of :math:`c^\top\hat\beta`, with :math:`m = A^{-1}B\Lambda^{-1}c`,

    .. math:: \partial_A = -\tfrac12(m\alpha^\top + \alpha m^\top), \qquad
              \partial_B = \alpha (\Lambda^{-1}c)^\top - m\hat\beta^\top, \qquad \partial_z = m.
    """
    root, jitter = escalating_cholesky(covariance)
    white_z, white_trend = whiten(root, z), whiten(root, means)
    precision = jnp.diag(1.0 / scale**2) + white_trend.T @ white_trend
    trend_root, _ = escalating_cholesky(precision, LEAST_JITTER)
    projected = white_trend.T @ white_z
    trend = jsl.cho_solve((trend_root, True), projected)
    quadratic = white_z @ white_z - projected @ trend
    log_evidence = -0.5 * (
        quadratic
        + log_determinant(root)
        + log_determinant(trend_root)
        + 2.0 * jnp.sum(jnp.log(scale))
        + len(z) * jnp.log(2.0 * jnp.pi)
    )
    misfit = white_z - white_trend @ trend
    return log_evidence, trend, root, misfit, trend_root, white_trend, jitter


def _solved_forward(*given: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    solved = _solved(*given)
    return solved, solved[1:]


def _solved_backward(solved: tuple[Array, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    trend, root, misfit, trend_root, white_trend, _ = solved
    slope, of_trend, *_ = cotangents
    inverse = whiten(root, jnp.eye(len(root)))
    seen = whiten(trend_root, white_trend.T) @ inverse
    alpha = inverse.T @ misfit
    by_covariance = 0.5 * (jnp.outer(alpha, alpha) - inverse.T @ inverse + seen.T @ seen)
    backwards = jsl.solve_triangular(trend_root, seen, lower=True, trans=1).T
    by_means = jnp.outer(alpha, trend) - backwards
    moved = backwards @ of_trend
    both = jnp.outer(moved, alpha)
    scaled = jsl.cho_solve((trend_root, True), of_trend)
    return (
        slope * by_covariance - 0.5 * (both + both.T),
        slope * by_means + jnp.outer(alpha, scaled) - jnp.outer(moved, trend),
        moved - slope * alpha,
        None,
    )


_solved.defvjp(_solved_forward, _solved_backward)
