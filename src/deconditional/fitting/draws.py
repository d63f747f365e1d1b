"""A few hyper-parameters that stand for their posterior: importance sampling about its mode.

A Student's t with the curvature of the log posterior proposes, and the log posterior weighs. It
takes as many evaluations as there are proposals, where NUTS takes thousands, and is enough where a
handful of draws has to stand for a posterior of one mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2, norm, qmc

from deconditional.fitting.evaluation import Problem, loss_and_gradient
from deconditional.fitting.interrupts import current
from deconditional.fitting.progress import tell
from deconditional.kernels.devices import side_by_side

DRAWS = 8
"""Hyper-parameters that stand for their posterior unless another number is asked for."""

PROPOSALS = 64
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

    def pick(self, k: int) -> np.ndarray:
        """Draws of equal weight, (k, size), the one nearest the median first.

        Where there is but one vector, it is the only one.
        """
        if len(self.vectors) == 1:
            return self.vectors
        levels = (np.arange(k) + 0.5) / k
        found = np.searchsorted(np.cumsum(self.weights), levels).clip(max=len(self.weights) - 1)
        return self.vectors[found[np.argsort(np.abs(levels - 0.5), kind="stable")]]


def weighted_draws(problem: Problem, mode: np.ndarray, seed: int = 0) -> WeightedDraws:
    """Draw from the posterior of the unconstrained vector, given where it is highest.

    Where a stop is asked for (:mod:`deconditional.fitting.interrupts`), the mode is the answer.
    """
    alone = WeightedDraws(np.asarray(mode, dtype=float)[None], np.ones(1))
    d = len(mode)
    if d == 0 or current().reached():
        return alone
    root = _proposal_root(_curvature(problem, alone.vectors[0]))
    uniform = qmc.Sobol(d + 1, rng=np.random.default_rng(seed)).random(PROPOSALS)
    normal = norm.ppf(uniform[:, :d].clip(1e-9, 1.0 - 1e-9))
    steps = normal / np.sqrt(chi2.ppf(uniform[:, d:], DEGREES) / DEGREES)
    vectors = mode + steps @ root.T
    log_proposal = -0.5 * (DEGREES + d) * np.log1p((steps**2).sum(1) / DEGREES)
    low, high = problem.parameters.bounds()
    log_posterior = np.full(PROPOSALS, -np.inf)
    inside = np.flatnonzero(((vectors >= low) & (vectors <= high)).all(1))
    for k, (loss, _) in zip(inside, _evaluated(problem, vectors[inside]), strict=True):
        if current().reached():
            return alone
        log_posterior[k] = -float(loss)
        tell("draws of parameters", int(k) + 1, PROPOSALS)
    log_weights = np.where(np.isfinite(log_posterior), log_posterior - log_proposal, -np.inf)
    if not np.isfinite(log_weights).any():
        return alone
    order = np.argsort(steps[:, -1])
    return WeightedDraws(vectors[order], _truncated(log_weights)[order])


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
    """Loss and gradient at every vector in turn, worked out side by side."""
    pool = ThreadPoolExecutor(side_by_side(problem, len(vectors)))
    try:
        yield from pool.map(lambda v: loss_and_gradient(problem, jnp.asarray(v)), vectors)
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
    """Weights, none more than √n times their mean: some bias for much less variance."""
    weights = np.exp(log_weights - log_weights.max())
    weights = np.minimum(weights, weights.mean() * np.sqrt(len(weights)))
    return weights / weights.sum()
