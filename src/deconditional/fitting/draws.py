"""A few hyper-parameters that stand for their posterior: importance sampling about its mode.

A Student's t with the curvature of the log posterior proposes, and the log posterior weighs; then
another, with the mean and the covariance that were found. It takes as many evaluations as there are
proposals, where NUTS takes thousands, and is enough where a handful of draws has to stand for a
posterior of one mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2, norm, qmc

from deconditional.fitting.evaluation import Problem, loss_and_gradient
from deconditional.fitting.interrupts import current
from deconditional.fitting.progress import tell
from deconditional.kernels.devices import side_by_side

DRAWS = 8
"""Hyper-parameters that stand for their posterior unless another number is asked for."""

PROPOSALS = 128
"""Hyper-parameters that are weighed."""

DEGREES = 5.0
"""Of freedom of the t: its tails are heavier than those of posteriors."""

STEP = 0.05
"""Between gradients whose difference is a curvature, in unconstrained units."""

LEAST_CURVATURE = 0.1
"""In a direction the data say nothing of, proposals keep to a standard deviation of three."""


class WeightedDraws(NamedTuple):
    """Unconstrained vectors, (n, size), and their weights, (n,), that add up to one.

    They are in order along the direction that is known least, so that picks spread over it.
    """

    vectors: np.ndarray
    weights: np.ndarray

    @property
    def effective_size(self) -> float:
        """Number of equally weighted draws that are worth as much."""
        return float(1.0 / np.sum(self.weights**2))

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

    The first half of the proposals is about the mode; the second about the mean of the first, as
    the log posterior weighs them, with their covariance. `others` are problems of the same form:
    then the proposals are the same for all, and each has weights of its own. What they have in
    common is computed once. Where a stop is asked for (:mod:`deconditional.fitting.interrupts`),
    the mode is the answer.
    """
    mode = np.asarray(mode, dtype=float)
    alone = [WeightedDraws(mode[None], np.ones(1)) for _ in others or (problem,)]
    if len(mode) == 0 or current().reached():
        return alone
    ask = _Asked(problem, others)
    first = Proposal(mode, _proposal_root(_curvature(problem, mode)))
    vectors = first.draw(PROPOSALS // 2, seed)
    log_posterior = ask(vectors)
    if log_posterior is None or not np.isfinite(log_posterior).any():
        return alone
    weights = _truncated(log_posterior - first.log_density(vectors)).mean(0)
    second = first.adapted(vectors, weights)
    more = second.draw(PROPOSALS // 2, seed + 1)
    log_of_more = ask(more)
    if log_of_more is None:
        return alone
    vectors = np.concatenate([vectors, more])
    either = np.logaddexp(first.log_density(vectors), second.log_density(vectors))
    log_weights = np.concatenate([log_posterior, log_of_more], 1) - either
    order = np.argsort((vectors - mode) @ first.root[:, -1])
    return [WeightedDraws(vectors[order], each[order]) for each in _truncated(log_weights)]


class Proposal(NamedTuple):
    """A Student's t: its centre, and axes that have its scale, the longest last."""

    centre: np.ndarray
    root: np.ndarray

    def draw(self, n: int, seed: int) -> np.ndarray:
        """So many vectors, evenly spread, (n, size)."""
        d = len(self.centre)
        uniform = qmc.Sobol(d + 1, rng=np.random.default_rng(seed)).random(n)
        normal = norm.ppf(uniform[:, :d].clip(1e-9, 1.0 - 1e-9))
        steps = normal / np.sqrt(chi2.ppf(uniform[:, d:], DEGREES) / DEGREES)
        return self.centre + steps @ self.root.T

    def log_density(self, vectors: np.ndarray) -> np.ndarray:
        """But for a constant that all of one size have."""
        steps = np.linalg.solve(self.root, (vectors - self.centre).T)
        tail = np.log1p((steps**2).sum(0) / DEGREES)
        return -0.5 * (DEGREES + len(self.centre)) * tail - np.linalg.slogdet(self.root)[1]

    def adapted(self, vectors: np.ndarray, weights: np.ndarray) -> Proposal:
        """With mean and covariance of what was weighed, as far as it is known by now."""
        known = 1.0 / np.sum(weights**2)
        share = known / (known + len(self.centre) + 1)
        mean = weights @ vectors
        rest = vectors - mean
        covariance = share * (weights * rest.T) @ rest + (1.0 - share) * self.root @ self.root.T
        values, axes = np.linalg.eigh(covariance)
        return Proposal(share * mean + (1.0 - share) * self.centre, axes * np.sqrt(values))


class _Asked:
    """Log posteriors of problems at vectors; of several, all at once."""

    def __init__(self, problem: Problem, others: Sequence[Problem]):
        self.problem, self.done = problem, 0
        self.low, self.high = problem.parameters.bounds()
        self.together = _together(others) if others else None
        self.shape = (max(len(others), 1), PROPOSALS // 2)

    def __call__(self, vectors: np.ndarray) -> np.ndarray | None:
        """Of every problem at every vector, -∞ out of bounds; None where a stop was asked for."""
        found = np.full(self.shape, -np.inf)
        inside = np.flatnonzero(((vectors >= self.low) & (vectors <= self.high)).all(1))
        for k, value in zip(inside, self._at(vectors[inside]), strict=True):
            if current().reached():
                return None
            found[:, k] = np.asarray(value)
            self.done += 1
            tell("draws of parameters", self.done, PROPOSALS)
        return np.where(np.isfinite(found), found, -np.inf)

    def _at(self, vectors: np.ndarray) -> Iterator[Any]:
        if self.together is None:
            return (-loss for loss, _ in _evaluated(self.problem, vectors))
        return _side_by_side(
            self.problem, partial(_log_posteriors, *self.together, self.shape[0]), vectors
        )


def _together(problems: Sequence[Any]) -> tuple[Any, Any]:
    """Problems of one form as what is the same in all, and the rest, stacked."""
    alike = jax.tree.map(lambda *leaves: all(leaf is leaves[0] for leaf in leaves), *problems)
    stacked = jax.tree.map(
        lambda same, *leaves: leaves[0] if same else jnp.stack(leaves), alike, *problems
    )
    return eqx.partition(stacked, alike)


@eqx.filter_jit
def _log_posteriors(same: Any, stacked: Any, number: int, vector: Any) -> Any:
    """Of all problems at one vector, one after the other: K̄ is computed once.

    Not by `vmap`: batches of Cholesky factors wait for one another where two threads ask for them.
    """

    def one(k: Any) -> Any:
        return eqx.combine(same, jax.tree.map(lambda leaf: leaf[k], stacked))

    gram = one(0).gram_at(vector)
    return jax.lax.map(lambda k: one(k).evaluate(vector, gram)[0], jnp.arange(number))


def log_marginal(problem: Problem, mode: np.ndarray) -> float:
    """Log probability of the observations, hyper-parameters integrated out about their mode.

    Laplace's approximation: what the data say nothing of costs nothing, what they have to find
    costs as much as they narrow it. Of models with more and fewer parameters the evidence at the
    mode, which knows no such price, takes the richer one too often.
    """
    mode = np.asarray(mode, dtype=float)
    found = -float(loss_and_gradient(problem, jnp.asarray(mode))[0])
    if not len(mode):
        return found
    values = np.maximum(np.linalg.eigvalsh(_curvature(problem, mode)), LEAST_CURVATURE)
    return found + 0.5 * float(len(mode) * np.log(2.0 * np.pi) - np.log(values).sum())


def _evaluated(problem: Problem, vectors: np.ndarray) -> Iterator[tuple[Any, Any]]:
    """Loss and gradient at every vector in turn."""
    return _side_by_side(problem, partial(loss_and_gradient, problem), vectors)


def _side_by_side(
    problem: Problem, ask: Callable[[Any], Any], vectors: np.ndarray
) -> Iterator[Any]:
    """What is answered at every vector in turn, worked out side by side."""
    pool = ThreadPoolExecutor(side_by_side(problem, len(vectors)))
    try:
        yield from pool.map(lambda v: ask(jnp.asarray(v)), vectors)
    finally:
        pool.shutdown(cancel_futures=True)


def _curvature(problem: Problem, mode: np.ndarray) -> np.ndarray:
    """Curvature of the negative log posterior, by differences of its gradient."""
    steps = STEP * np.eye(len(mode))
    pairs = _evaluated(problem, np.concatenate([mode + steps, mode - steps]))
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
    highest = log_weights.max(1, keepdims=True)
    weights = np.exp(log_weights - np.where(np.isfinite(highest), highest, 0.0))
    weights = np.where(np.isfinite(highest), weights, 1.0)
    most = weights.mean(1, keepdims=True) * np.sqrt(weights.shape[1])
    weights = np.minimum(weights, most)
    return weights / weights.sum(1, keepdims=True)
