r"""The uncollapsed bound of a batch of observations, and steps of q(v) that raise it.

With q(v) = N(m, Σ) the paper's ELBO (its appendix on the variational formulation, with and without
high-resolution noise) is, for whitened observations :math:`\tilde z = S^{-1/2}z` and
:math:`\tilde\Gamma = \Gamma S^{-T/2}`,

.. math:: -\tfrac12\Bigl[M\log 2\pi + \log\det S + \sum_i (\tilde z_i - \tilde\gamma_i^\top m)^2
          + \tilde\gamma_i^\top\Sigma\tilde\gamma_i + \tilde r_i\Bigr] - \mathrm{KL}(q\|p).

The sum is over observations even where their noises are correlated, since whitening comes first, so
a uniform minibatch, scaled up, estimates it and its gradients without bias. Matched data with
independent noises needs the bags of the minibatch alone; elsewhere every observation sees all bags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from deconditional.inference.collapsed import Coefficients
from deconditional.inference.minibatches import Batch, Batches, restricted
from deconditional.inference.variational import VariationalProblem
from deconditional.kernels.linalg import NoiseRoot, log_determinant, whiten


class Likelihood(eqx.Module):
    """What the expected log likelihood of a batch needs of the model."""

    white: Float[Array, "D B"]
    white_z: Float[Array, " B"]
    penalty: Float[Array, " B"]
    log_determinant: Float[Array, ""]
    n_observations: int = eqx.field(static=True)


def likelihood(
    problem: VariationalProblem, values: Mapping[str, Any], batch: Batch, key: Any
) -> Likelihood:
    """Whitened features, observations and penalties of a batch; log det S of all observations."""
    m = len(problem.z)
    if batch.chunks is None:
        pieces = problem.pieces(values, key)
        root = NoiseRoot.of(pieces.noise)
        chosen = batch.observations
        return Likelihood(
            root.whiten(pieces.mediated().T)[chosen].T,
            root.whiten(problem.z)[chosen],
            pieces.penalty(root)[chosen],
            root.log_determinant(),
            m,
        )
    part = restricted(problem, batch)
    pieces = part.pieces(values, key)
    root = NoiseRoot.of(pieces.noise)
    every = problem.noise(values, None, None, jnp.zeros(()))
    return Likelihood(
        root.whiten(pieces.mediated().T).T,
        root.whiten(part.z),
        pieces.penalty(root),
        NoiseRoot.of(every).log_determinant(),
        m,
    )


def elbo(part: Likelihood, coefficients: Coefficients) -> Float[Array, ""]:
    """The bound, estimated without bias from a batch."""
    share = part.n_observations / part.white_z.shape[0]
    error = part.white_z - part.white.T @ coefficients.mean
    spread = coefficients.variance(part.white.T)
    constant = part.n_observations * jnp.log(2.0 * jnp.pi) + part.log_determinant
    expected = -0.5 * (constant + share * jnp.sum(error**2 + spread + part.penalty))
    return expected - divergence(coefficients)


def divergence(coefficients: Coefficients) -> Float[Array, ""]:
    """KL(q(v) || N(0, I))."""
    root, m = coefficients.precision_root, coefficients.mean
    assert root is not None
    return 0.5 * (jnp.trace(_covariance(root)) + m @ m - len(m) + log_determinant(root))


def _covariance(precision_root: Float[Array, "D D"]) -> Float[Array, "D D"]:
    inverse = whiten(precision_root, jnp.eye(len(precision_root)))
    return inverse.T @ inverse


# --------------------------------------------------------------------------- steps of q(v)


class Natural(eqx.Module):
    r"""q(v) by its natural parameters :math:`\Sigma^{-1}m` and :math:`\Sigma^{-1}`."""

    shift: Float[Array, " D"]
    precision: Float[Array, "D D"]

    def coefficients(self) -> Coefficients:
        """Distribution that the natural parameters stand for."""
        root = jnp.linalg.cholesky(self.precision)
        return Coefficients(jsl.cho_solve((root, True), self.shift), None, root)

    def step(self, part: Likelihood, size: Array) -> Natural:
        """A convex step towards the optimum for this batch."""
        gain = part.n_observations / part.white_z.shape[0]
        shift = gain * (part.white @ part.white_z)
        precision = jnp.eye(len(shift)) + gain * (part.white @ part.white.T)
        return Natural(
            (1.0 - size) * self.shift + size * shift,
            (1.0 - size) * self.precision + size * precision,
        )


# --------------------------------------------------------------------------- all observations


class Keys:
    """Endless random keys; `key` is what the next ones come from."""

    def __init__(self, key: Any):
        self.key = key

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.key, used = jr.split(self.key)
        return used


@eqx.filter_jit
def _statistics(
    problem: VariationalProblem, vector: Array, batch: Batch, count: Array, key: Any
) -> tuple[Array, Array, Array, Array]:
    """What a batch adds to precision, shift and bound; the first `count` observations count."""
    part = likelihood(problem, problem.parameters.unpack(vector), batch, key)
    use = jnp.where(jnp.arange(part.white_z.shape[0]) < count, 1.0, 0.0)
    white = part.white * use
    residual = jnp.sum(use * (part.white_z**2 + part.penalty))
    return white @ part.white.T, white @ part.white_z, residual, part.log_determinant


def _sums(
    problem: VariationalProblem, vector: Array, batches: Batches, key: Any
) -> tuple[Array, Array, Array, Array]:
    """Statistics of all observations, a batch at a time."""
    total: Any = None
    for (batch, count), k in zip(batches.epoch(), Keys(key), strict=False):
        *sums, log_determinant_ = _statistics(problem, vector, batch, jnp.asarray(count), k)
        total = sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]
    return *total, log_determinant_


def full_bound(
    problem: VariationalProblem,
    vector: Array,
    coefficients: Coefficients,
    batches: Batches,
    key: Any,
) -> Array:
    """The ELBO of all observations, a batch at a time."""
    gram, shift, residual, log_det = _sums(problem, vector, batches, key)
    m, root = coefficients.mean, coefficients.precision_root
    assert root is not None
    spread = jnp.sum(gram * _covariance(root))
    quadratic = residual - 2.0 * shift @ m + m @ gram @ m + spread
    constant = len(problem.z) * jnp.log(2.0 * jnp.pi) + log_det
    return -0.5 * (constant + quadratic) - divergence(coefficients)


def optimal(problem: VariationalProblem, vector: Array, batches: Batches, key: Any) -> Natural:
    """The best q(v) at given hyper-parameters, its statistics gathered a batch at a time."""
    gram, shift, _, _ = _sums(problem, vector, batches, key)
    return Natural(shift, jnp.eye(len(shift)) + gram)
