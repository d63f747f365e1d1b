"""A few hyper-parameters that stand for their posterior: importance sampling about its mode.

A Student's t with the curvature of the log posterior proposes, and the log posterior weighs. It
takes as many evaluations as there are proposals, where NUTS takes thousands, and is enough where a
handful of draws has to stand for a posterior of one mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2, norm, qmc

from deconditional.fitting.interrupts import current
from deconditional.fitting.map import Problem, loss_and_gradient
from deconditional.fitting.progress import tell
from deconditional.kernels.devices import side_by_side

__all__ = [
    "DRAWS",
    "PROPOSALS",
    "WeightedDraws",
    "log_marginal",
    "paired_draws",
    "weighted_draws",
]

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
        """How many equally weighted draws are worth as much."""
        return float(1.0 / np.sum(self.weights**2))

    def pick(self, k: int) -> np.ndarray:
        """So many that have equal weights, (k, size), the middle one first.

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
    proposed = _proposals(problem, mode, seed)
    log_weights = None if proposed is None else _log_weights([problem] * PROPOSALS, proposed)
    if proposed is None or log_weights is None or not np.isfinite(log_weights).any():
        return alone
    order = np.argsort(proposed.along)
    return WeightedDraws(proposed.vectors[order], _truncated(log_weights)[order])


def paired_draws(
    problem: Problem, others: Sequence[Problem], mode: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Draw one unconstrained vector from each of several posteriors near the mode of a problem.

    They share the proposals, so that many posteriors take no more evaluations than one. Each picks
    among its own by weight, at levels that are spread over all of them.
    """
    found = np.tile(np.asarray(mode, dtype=float), (len(others), 1))
    proposed = _proposals(problem, mode, seed)
    blocks = np.array_split(np.arange(PROPOSALS), len(others))
    owners = [other for other, block in zip(others, blocks, strict=True) for _ in block]
    log_weights = None if proposed is None else _log_weights(owners, proposed)
    if proposed is None or log_weights is None:
        return found
    levels = (np.random.default_rng(seed).permutation(len(others)) + 0.5) / len(others)
    for k, (block, level) in enumerate(zip(blocks, levels, strict=True)):
        if np.isfinite(log_weights[block]).any():
            own = block[np.argsort(proposed.along[block])]
            weights = np.cumsum(_truncated(log_weights[own]))
            found[k] = proposed.vectors[own[min(np.searchsorted(weights, level), len(own) - 1)]]
    return found


class _Proposals(NamedTuple):
    """Proposed vectors, their log densities, and how far each is in the least known direction."""

    vectors: np.ndarray
    log_density: np.ndarray
    along: np.ndarray


def _proposals(problem: Problem, mode: np.ndarray, seed: int) -> _Proposals | None:
    """Proposals about a mode; None where there is nothing to draw, or a stop is asked for."""
    d = len(mode)
    if d == 0 or current().reached():
        return None
    root = _proposal_root(_curvature(problem, np.asarray(mode, dtype=float)))
    uniform = qmc.Sobol(d + 1, rng=np.random.default_rng(seed)).random(PROPOSALS)
    normal = norm.ppf(uniform[:, :d].clip(1e-9, 1.0 - 1e-9))
    steps = normal / np.sqrt(chi2.ppf(uniform[:, d:], DEGREES) / DEGREES)
    log_density = -0.5 * (DEGREES + d) * np.log1p((steps**2).sum(1) / DEGREES)
    return _Proposals(mode + steps @ root.T, log_density, steps[:, -1])


def _log_weights(owners: Sequence[Problem], proposed: _Proposals) -> np.ndarray | None:
    """Log weight of every proposal in the posterior of its owner; None after a stop."""
    vectors = proposed.vectors
    low, high = owners[0].parameters.bounds()
    log_posterior = np.full(len(vectors), -np.inf)
    inside = np.flatnonzero(((vectors >= low) & (vectors <= high)).all(1))
    losses = _evaluated([owners[k] for k in inside], vectors[inside])
    for k, (loss, _) in zip(inside, losses, strict=True):
        if current().reached():
            return None
        log_posterior[k] = -float(loss)
        tell("draws of parameters", int(k) + 1, PROPOSALS)
    return np.where(np.isfinite(log_posterior), log_posterior - proposed.log_density, -np.inf)


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


def _evaluated(owners: Sequence[Problem], vectors: np.ndarray) -> Iterator[tuple[Any, Any]]:
    """Loss and gradient of every problem at a vector of its own, worked out side by side."""
    if not owners:
        return
    pool = ThreadPoolExecutor(side_by_side(owners[0], len(vectors)))
    try:
        yield from pool.map(lambda p, v: loss_and_gradient(p, jnp.asarray(v)), owners, vectors)
    finally:
        pool.shutdown(cancel_futures=True)


def _curvature(problem: Problem, mode: np.ndarray) -> np.ndarray:
    """Of the negative log posterior, by differences of its gradient."""
    steps = STEP * np.eye(len(mode))
    both = np.concatenate([mode + steps, mode - steps])
    pairs = _evaluated([problem] * len(both), both)
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
