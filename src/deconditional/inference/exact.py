r"""Exact Gaussian conditioning on :math:`z = W^\top(\bar f + \bar H\beta) + e`, e ~ N(0, S).

With :math:`Q = W^\top\bar K W` and :math:`A = Q + S`, the deconditional posterior of the paper
(its Proposition on the deconditional posterior) is

.. math:: m_d(x) = \bar k(x) W A^{-1} z, \qquad
          k_d(x, x') = k(x, x') - \bar k(x) W A^{-1} W^\top \bar k(x')^\top.

A trend :math:`h(x)^\top\beta` with :math:`\beta\sim N(0, \mathrm{diag}(b)^2)` is integrated out in
closed form: with :math:`B = W^\top\bar H` and
:math:`\Lambda = \mathrm{diag}(b)^{-2} + B^\top A^{-1} B`, the evidence is that of
:math:`N(z; 0, A + B\,\mathrm{diag}(b)^2 B^\top)` and the posterior of :math:`\beta` is
:math:`N(\Lambda^{-1}B^\top A^{-1}z, \Lambda^{-1})`. The limit of large b is generalised least
squares; b stays finite, so collinear or too many trend terms are harmless.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from deconditional.kernels.linalg import (
    escalating_cholesky,
    log_determinant,
    stable_cholesky,
    whiten,
)

__all__ = ["Conditioned", "condition"]

LEAST_JITTER = 1e-16
"""Of the precision of trend coefficients: as it were none; more only where rounding demands it."""


class Conditioned(NamedTuple):
    r"""The Gaussian conditioned on z, in the form that evidence and predictions need.

    Attributes
    ----------
    log_evidence
        log p(z).
    root
        Cholesky factor of A.
    projection
        :math:`W A^{-1/2}`, (N, M): what turns cross-covariances into explained variance.
    coefficients
        :math:`W A^{-1}(z - B\hat\beta)`, (N,): the mean is :math:`\bar k(x)` times these.
    trend, trend_root
        :math:`\hat\beta` and the Cholesky factor of Λ.
    whitened_trend
        :math:`A^{-1/2}B`, (M, q).
    """

    log_evidence: Float[Array, ""]
    root: Float[Array, "M M"]
    projection: Float[Array, "N M"]
    coefficients: Float[Array, " N"]
    trend: Float[Array, " q"]
    trend_root: Float[Array, "q q"]
    whitened_trend: Float[Array, "M q"]


def condition(
    gram: Float[Array, "N N"],
    weights: Float[Array, "N M"] | None,
    noise: Float[Array, "M M"],
    z: Float[Array, " M"],
    trend_means: Float[Array, "N q"],
    trend_scale: Float[Array, " q"],
) -> Conditioned:
    r"""Condition on z.

    Parameters
    ----------
    gram
        :math:`\bar K`, without high-resolution noise (which belongs to `noise`).
    weights
        W; the identity if None.
    noise
        S.
    z
        Observations.
    trend_means
        :math:`\bar H = P^\top h(x)`, with zero columns when there is no trend.
    trend_scale
        b, the prior standard deviation of each trend coefficient.
    """
    weights = jnp.eye(len(gram)) if weights is None else weights
    root = stable_cholesky(weights.T @ gram @ weights + noise)
    white_z = whiten(root, z)
    white_trend = whiten(root, weights.T @ trend_means)
    precision = jnp.diag(1.0 / trend_scale**2) + white_trend.T @ white_trend
    trend_root, _ = escalating_cholesky(precision, LEAST_JITTER)
    projected = white_trend.T @ white_z
    trend = jsl.cho_solve((trend_root, True), projected)
    quadratic = white_z @ white_z - projected @ trend
    log_evidence = -0.5 * (
        quadratic
        + log_determinant(root)
        + log_determinant(trend_root)
        + 2.0 * jnp.sum(jnp.log(trend_scale))
        + len(z) * jnp.log(2.0 * jnp.pi)
    )
    projection = whiten(root, weights.T).T
    return Conditioned(
        log_evidence=log_evidence,
        root=root,
        projection=projection,
        coefficients=projection @ (white_z - white_trend @ trend),
        trend=trend,
        trend_root=trend_root,
        whitened_trend=white_trend,
    )
