"""Small dense linear algebra in float64."""

from __future__ import annotations

import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

import deconditional._double  # noqa: F401

__all__ = ["JITTER", "log_determinant", "stable_cholesky", "whiten"]

JITTER = 1e-12
"""Relative to the mean of the diagonal: far below any learnt noise, far above rounding."""


def stable_cholesky(a: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower Cholesky factor of a with a relative jitter on its diagonal."""
    n = a.shape[0]
    return jnp.linalg.cholesky(a + JITTER * (jnp.trace(a) / n) * jnp.eye(n, dtype=a.dtype))


def whiten(root: Float[Array, "n n"], b: Array) -> Array:
    """Solve root x = b for a lower triangular root."""
    return jsl.solve_triangular(root, b, lower=True)


def log_determinant(root: Float[Array, "n n"]) -> Float[Array, ""]:
    """Log det of the matrix whose Cholesky factor is root."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))
