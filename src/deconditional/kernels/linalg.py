"""Small dense linear algebra in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from threadpoolctl import threadpool_limits

import deconditional.kernels.jax_setup  # noqa: F401

JITTER = 1e-12
"""Relative to the mean of the diagonal: far below any learnt noise, far above rounding."""

THREADED_FROM = 512
"""Rows of a matrix from which libraries may use all their threads: below, waking costs more."""

ESCALATION = 10.0
LARGEST_JITTER = 1e-3


@contextmanager
def suitable_threads(n: int, spread: bool = False) -> Iterator[None]:
    """Keep BLAS and OpenMP to one thread where they have no use for more.

    That is for n rows that are few, or where several devices compute.
    """
    alone = spread or n < THREADED_FROM
    with threadpool_limits(1 if alone else None):
        yield


def stable_cholesky(a: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower Cholesky factor of a with the least relative jitter on its diagonal."""
    return escalating_cholesky(a)[0]


def escalating_cholesky(
    a: Float[Array, "n n"], jitter: float | Array = JITTER
) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """Lower Cholesky factor with the least jitter, from `jitter` up in tens, that makes it exist.

    Returns the factor and the relative jitter; the factor is not finite where 1e-3 is not enough.
    Gradients see the jitter as a constant. Where the first try succeeds, it is the only one.

    Examples
    --------
    >>> root, level = escalating_cholesky(jnp.array([[1.0, 1.0 + 1e-8], [1.0 + 1e-8, 1.0]]))
    >>> bool(jnp.isfinite(root).all()), f"{float(level):.0e}"
    (True, '1e-07')
    """
    return _escalated(a, jnp.asarray(jitter, dtype=a.dtype))


@jax.custom_jvp
def _escalated(a: Array, jitter: Array) -> tuple[Array, Array]:
    if a.shape == (1, 1):  # a constant trend: nothing to compile a loop for
        return jnp.sqrt(_with_jitter(a, jitter)), jitter

    def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        _, _, level = state
        return jnp.linalg.cholesky(_with_jitter(a, level)), level, ESCALATION * level

    def fails(state: tuple[Array, Array, Array]) -> Array:
        root, level, _ = state
        return ~jnp.isfinite(root).all() & (level < 0.5 * LARGEST_JITTER)

    # One attempt in the loop, and none before it, is compiled once.
    nothing = jnp.full_like(a, jnp.nan)
    root, level, _ = lax.while_loop(fails, attempt, (nothing, jnp.zeros_like(jitter), jitter))
    return root, level


@_escalated.defjvp
def _escalated_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    r"""Derivative of a Cholesky factor, :math:`dL = L\,\Phi(L^{-1} dA\, L^{-\top})`.

    Φ takes the lower triangle and half of the diagonal.
    """
    root, level = _escalated(*primals)
    moved = _with_jitter(tangents[0], level)
    white = whiten(root, whiten(root, 0.5 * (moved + moved.T)).T)
    half = jnp.tril(white) - 0.5 * jnp.diag(jnp.diagonal(white))
    return (root, level), (root @ half, jnp.zeros_like(level))


def lifted_cholesky(a: np.ndarray) -> np.ndarray:
    """Cholesky factor in NumPy, for answers after a fit; with jitter only where it is needed.

    Examples
    --------
    >>> bool(np.isfinite(lifted_cholesky(np.ones((3, 3)))).all())
    True
    """
    scale, n = float(np.trace(a)) / len(a), len(a)
    for level in (0.0, *10.0 ** np.arange(np.log10(JITTER), np.log10(LARGEST_JITTER) + 0.5)):
        try:
            return np.linalg.cholesky(a + level * scale * np.eye(n))
        except np.linalg.LinAlgError:
            continue
    raise ValueError(
        "the covariance of the observations is not positive definite, whatever is added to its "
        "diagonal; give the observations more noise."
    )


def _with_jitter(a: Array, relative: float | Array) -> Array:
    n = a.shape[0]
    return a + relative * (jnp.trace(a) / n) * jnp.eye(n, dtype=a.dtype)


def whiten(root: Float[Array, "n n"], b: Array) -> Array:
    """Solve root x = b for a lower triangular root."""
    return jsl.solve_triangular(root, b, lower=True)


def log_determinant(root: Float[Array, "n n"]) -> Float[Array, ""]:
    """Log det of the matrix whose Cholesky factor is root."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))


# --------------------------------------------------------------------------- covariances of noise
# A vector stands for a diagonal covariance, so that independent noise never becomes a matrix.


def add_covariances(a: Array, b: Array) -> Array:
    """The sum of two covariances, each a matrix or the vector of its diagonal."""
    if a.ndim == b.ndim:
        return a + b
    return as_matrix(a) + as_matrix(b)


def as_matrix(a: Array) -> Float[Array, "n n"]:
    """A covariance as a matrix."""
    return jnp.diag(a) if a.ndim == 1 else a


class NoiseRoot(eqx.Module):
    """A square root of a covariance S that is a matrix or the vector of its diagonal."""

    root: Array

    @classmethod
    def of(cls, noise: Array) -> NoiseRoot:
        """The root of a covariance S."""
        return cls(jnp.sqrt(noise) if noise.ndim == 1 else stable_cholesky(noise))

    def whiten(self, b: Array) -> Array:
        """The root of S solved for b, S^(-1/2) b."""
        if self.root.ndim == 2:
            return whiten(self.root, b)
        return b / (self.root if b.ndim == 1 else self.root[:, None])

    def log_determinant(self) -> Float[Array, ""]:
        """Log determinant of S."""
        if self.root.ndim == 2:
            return log_determinant(self.root)
        return 2.0 * jnp.sum(jnp.log(self.root))
