"""A few hyper-parameters that stand for their posterior: importance sampling about its mode.

A Student's t with the curvature of the log posterior proposes, and a wider one in turn; the log
posterior weighs. It takes as many evaluations as there are proposals, where NUTS takes thousands,
and is enough where a handful of draws has to stand for a posterior of one mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaincinv, ndtri

from deconditional.fitting.evaluation import Problem, loss_and_gradient
from deconditional.fitting.interrupts import current
from deconditional.fitting.progress import tell
from deconditional.fitting.sobol import sobol
from deconditional.kernels.devices import answers

# How much is computed: draws that stand for a posterior unless another number is asked for, and
# proposals that are weighed; a small problem is evaluated at a batch of them at a time.
DRAWS, PROPOSALS, BATCH = 16, 128, 16

DEGREES = 5.0  # of freedom of the t: its tails are heavier than those of posteriors
WIDER = 1.4  # scale of every other proposal: the posterior need not have the mode's curvature
STEP = 0.05  # between gradients whose difference is a curvature, in unconstrained units
LEAST_CURVATURE = 0.1  # where the data say nothing, proposals keep to a standard deviation of 3


class WeightedDraws(NamedTuple):
    """Unconstrained vectors, (n, size), and their weights, (n,), that add up to one.

    They are in order along the direction that is known least, so that picks spread over it.
    """

    vectors: np.ndarray
    weights: np.ndarray

    def at(self, levels: np.ndarray) -> np.ndarray:
        """The vectors up to which there is so much of the weight, (levels, size)."""
        found = np.searchsorted(np.cumsum(self.weights), levels).clip(max=len(self.weights) - 1)
        return self.vectors[found]

    def pick(self, k: int) -> np.ndarray:
        """Draws of equal weight, (k, size), the one nearest the median first.

        Where there is but one vector, it is the only one.
        """
        if len(self.vectors) == 1:
            return self.vectors
        levels = (np.arange(k) + 0.5) / k
        return self.at(levels[np.argsort(np.abs(levels - 0.5), kind="stable")])


def weighted_draws(
    problem: Problem, mode: np.ndarray, seed: int = 0, others: Sequence[Problem] = ()
) -> list[WeightedDraws]:
    """Draw from the posterior of the unconstrained vector, given where it is highest.

    `others` are problems that differ from this one in z and its noise: proposals are the same for
    all, each has weights of its own, and K̄ is computed once. Where a stop is asked for
    (:mod:`deconditional.fitting.interrupts`), the mode is the answer.
    """
    mode = np.asarray(mode, dtype=float)
    alone = [WeightedDraws(mode[None], np.ones(1)) for _ in others or (problem,)]
    d = len(mode)
    if d == 0 or current().reached():
        return alone
    root = _proposal_root(_curvature(problem, mode))
    uniform = sobol(d + 1, PROPOSALS, seed)
    normal = ndtri(uniform[:, :d].clip(1e-9, 1.0 - 1e-9))
    steps = normal / np.sqrt(2.0 * gammaincinv(0.5 * DEGREES, uniform[:, d:]) / DEGREES)
    steps[1::2] *= WIDER
    vectors = mode + steps @ root.T
    log_posterior = _log_posteriors(problem, others, vectors)
    if log_posterior is None or not np.isfinite(log_posterior).any(1).all():
        return alone
    squared = (steps**2).sum(1) / DEGREES
    narrow, wide = (
        -0.5 * (DEGREES + d) * np.log1p(squared / scale**2) - d * np.log(scale)
        for scale in (1.0, WIDER)
    )
    weights = _truncated(log_posterior - np.logaddexp(narrow, wide))
    order = np.argsort(steps[:, -1])
    return [WeightedDraws(vectors[order], each[order]) for each in weights]


def _log_posteriors(
    problem: Problem, others: Sequence[Any], vectors: np.ndarray
) -> np.ndarray | None:
    """Log posteriors of a problem, or of all others, at every vector; None if stopped."""
    low, high = problem.parameters.bounds()
    inside = np.flatnonzero(((vectors >= low) & (vectors <= high)).all(1))
    found = np.full((max(len(others), 1), len(vectors)), -np.inf)
    ask, size = _asked(problem, others)
    batches = [inside[k : k + size] for k in range(0, len(inside), size)]
    padded = [np.resize(vectors[batch], (size, vectors.shape[1])) for batch in batches]
    for batch, losses in zip(batches, answers(problem, ask, map(jnp.asarray, padded)), strict=True):
        if current().reached():
            return None
        found[:, batch] = -np.asarray(losses).reshape(size, -1)[: len(batch)].T
        tell("draws of parameters", int(batch[-1]) + 1, len(vectors))
    return np.where(np.isfinite(found), found, -np.inf)


def _asked(problem: Any, others: Sequence[Any]) -> tuple[Callable[[Any], Any], int]:
    """What evaluates a batch of vectors, and how many: to ask costs as much as a small answer."""
    if not others:
        if getattr(problem, "is_large", False):
            return lambda vectors: _loss(problem, vectors[0]), 1
        return lambda vectors: loss_and_gradient(problem, vectors[0])[0], 1
    alike = jax.tree.map(lambda *leaves: all(leaf is leaves[0] for leaf in leaves), *others)
    own = [eqx.filter(each, alike, inverse=True) for each in others]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *own)
    ask = partial(_losses, eqx.filter(others[0], alike), stacked, len(others))
    return ask, BATCH if getattr(problem, "is_small", False) else 1


@eqx.filter_jit
def _loss(problem: Problem, vector: Any) -> Any:
    """The negative log posterior by itself."""
    return -problem.evaluate(vector)[0]


@eqx.filter_jit
def _losses(same: Any, own: Any, number: int, vectors: Any) -> Any:
    """Of problems that differ in z and its noise, (vectors, number): K̄ is computed once for all.

    One after the other, not by `vmap`: batches of Cholesky factors wait for one another where two
    threads ask for them.
    """

    def one(k: Any) -> Any:
        return eqx.combine(same, jax.tree.map(lambda leaf: leaf[k], own))

    def at(vector: Any) -> Any:
        gram = one(0).gram_at(vector)
        return jax.lax.map(lambda k: one(k).evaluate(vector, gram)[0], jnp.arange(number))

    return -jax.lax.map(at, vectors)


def _curvature(problem: Problem, mode: np.ndarray) -> np.ndarray:
    """Curvature of the negative log posterior, by differences of its gradient."""
    steps = STEP * np.eye(len(mode))
    both = np.concatenate([mode + steps, mode - steps])
    pairs = answers(problem, partial(loss_and_gradient, problem), map(jnp.asarray, both))
    up, down = np.split(np.array([np.asarray(gradient) for _, gradient in pairs]), 2)
    found = (up - down) / (2.0 * STEP)
    found = np.where(np.isfinite(found), found, 0.0)
    return 0.5 * (found + found.T)


def _proposal_root(curvature: np.ndarray) -> np.ndarray:
    """Principal axes of the proposal, scaled, the longest last."""
    values, axes = np.linalg.eigh(curvature)
    values, axes = values[::-1], axes[:, ::-1]
    axes = axes * np.where(axes.sum(0) < 0, -1.0, 1.0)  # the sign does not hang on the solver
    return axes / np.sqrt(np.maximum(values, LEAST_CURVATURE))


def _truncated(log_weights: np.ndarray) -> np.ndarray:
    """Weights by rows, none more than √n times their mean: some bias for much less variance."""
    weights = np.exp(log_weights - log_weights.max(1, keepdims=True))
    most = weights.mean(1, keepdims=True) * np.sqrt(weights.shape[1])
    weights = np.minimum(weights, most)
    return weights / weights.sum(1, keepdims=True)
