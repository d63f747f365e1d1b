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

from deconditional.inference.basis_field import Coefficients
from deconditional.inference.laplace import FamilyProblem
from deconditional.inference.minibatches import Batch, Batches, rate_batch, restricted
from deconditional.kernels.linalg import NoiseRoot, log_determinant, whiten

PASSES = (0.5, 0.5, 1.0, 1.0)
"""Steps of q(v) over all observations of a family, at given hyper-parameters."""


class Likelihood(eqx.Module):
    """What the expected log likelihood of a batch needs of the model."""

    white: Float[Array, "D B"]
    white_z: Float[Array, " B"]
    penalty: Float[Array, " B"]
    log_determinant: Float[Array, ""]
    n_observations: int = eqx.field(static=True)

    def terms(self, coefficients: Coefficients) -> Float[Array, " B"]:
        """What every observation adds to the bound."""
        error = self.white_z - self.white.T @ coefficients.mean
        return -0.5 * (error**2 + coefficients.variance(self.white.T) + self.penalty)

    @property
    def constant(self) -> Array:
        """What does not depend on the batch."""
        return -0.5 * (self.n_observations * jnp.log(2.0 * jnp.pi) + self.log_determinant)


def likelihood(
    problem: Any, values: Mapping[str, Any], batch: Batch, key: Any, q: Coefficients | None = None
) -> Any:
    """Whitened features, observations and penalties of a batch; log det S of all observations.

    Those of families are about `q`.
    """
    if isinstance(problem, FamilyProblem):
        return rate_batch(problem, values, batch, q)
    whole = batch.chunks is None
    part = problem if whole else restricted(problem, batch)
    chosen = batch.observations if whole else slice(None)
    pieces = part.pieces(values, key)
    root = NoiseRoot.of(pieces.noise)
    every = root if whole else NoiseRoot.of(problem.noise(values, None, None, jnp.zeros(())))
    return Likelihood(
        root.whiten(pieces.mediated().T)[chosen].T,
        root.whiten(part.z)[chosen],
        pieces.penalty(root)[chosen],
        every.log_determinant(),
        len(problem.z),
    )


def elbo(part: Any, coefficients: Coefficients) -> Float[Array, ""]:
    """The bound, estimated without bias from a batch."""
    share = part.n_observations / part.white_z.shape[0]
    expected = share * jnp.sum(part.terms(coefficients))
    return part.constant + expected - divergence(coefficients)


def divergence(coefficients: Coefficients) -> Float[Array, ""]:
    """KL(q(v) || N(0, I))."""
    root, m = coefficients.precision_root, coefficients.mean
    assert root is not None
    # The trace of a product of a matrix with its transpose needs no product.
    trace = jnp.sum(whiten(root, jnp.eye(len(m))) ** 2)
    return 0.5 * (trace + m @ m - len(m) + log_determinant(root))


# --------------------------------------------------------------------------- steps of q(v)


class Natural(eqx.Module):
    r"""q(v) by its natural parameters :math:`\Sigma^{-1}m` and :math:`\Sigma^{-1}`."""

    shift: Float[Array, " D"]
    precision: Float[Array, "D D"]

    def coefficients(self) -> Coefficients:
        """Distribution that the natural parameters stand for."""
        root = jnp.linalg.cholesky(self.precision)
        return Coefficients(jsl.cho_solve((root, True), self.shift), None, root)

    def step(self, part: Any, size: Array) -> Natural:
        """A convex step towards the optimum for this batch."""
        gain = part.n_observations / part.white_z.shape[0]
        shift = gain * (part.white @ part.white_z)
        return self.towards(shift, gain * (part.white @ part.white.T), size)

    def towards(self, shift: Array, gram: Array, size: Any) -> Natural:
        """A convex step towards what statistics of all observations add up to."""
        precision = jnp.eye(len(shift)) + gram
        return Natural(
            (1.0 - size) * self.shift + size * shift,
            (1.0 - size) * self.precision + size * precision,
        )


# --------------------------------------------------------------------------- all observations


def endless(key: Any) -> Iterator[Any]:
    """Random keys from a key, without end."""
    while True:
        key, used = jr.split(key)
        yield used


@eqx.filter_jit
def _statistics(
    problem: Any, vector: Array, batch: Batch, count: Array, key: Any, q: Coefficients | None
) -> tuple[Array, Array, Array, Array]:
    """What a batch adds to precision, shift and bound; the first `count` observations count."""
    part = likelihood(problem, problem.parameters.unpack(vector), batch, key, q)
    use = jnp.where(jnp.arange(part.white_z.shape[0]) < count, 1.0, 0.0)
    white = part.white * use
    bound = jnp.zeros(()) if q is None else use @ part.terms(q)
    return white @ part.white.T, white @ part.white_z, bound, part.constant


def _sums(
    problem: Any, vector: Array, batches: Batches, key: Any, q: Coefficients | None
) -> tuple[Array, Array, Array, Array]:
    """Statistics of all observations, a batch at a time."""
    total: Any = None
    for (batch, count), k in zip(batches.epoch(), endless(key), strict=False):
        *sums, constant = _statistics(problem, vector, batch, jnp.asarray(count), k, q)
        total = sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]
    return *total, constant


def full_bound(
    problem: Any, vector: Array, coefficients: Coefficients, batches: Batches, key: Any
) -> Array:
    """The ELBO of all observations, a batch at a time."""
    _, _, bound, constant = _sums(problem, vector, batches, key, coefficients)
    return constant + bound - divergence(coefficients)


def optimal(
    problem: Any, vector: Array, batches: Batches, key: Any, q: Natural | None = None
) -> Natural:
    """The best q(v) at given hyper-parameters, its statistics gathered a batch at a time.

    Of families that takes some passes, from `q` on or from crude rates.
    """
    if q is None or not isinstance(problem, FamilyProblem):
        gram, shift, *_ = _sums(problem, vector, batches, key, None)
        q = Natural(shift, jnp.eye(len(shift)) + gram)
    for size in PASSES if isinstance(problem, FamilyProblem) else ():
        gram, shift, *_ = _sums(problem, vector, batches, key, q.coefficients())
        q = q.towards(shift, gram, size)
    return q
