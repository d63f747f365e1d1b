"""Minibatches of coarse observations, all of one shape.

Matched observations with independent noises see their own bag and no other: their minibatch brings
the chunks of those bags along, and the problem shrinks to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from deconditional.inference.residual import AllPairs, SampledPairs
from deconditional.inference.variational import VariationalProblem
from deconditional.kernels.layout import Layout


class Members(eqx.Module):
    """Rows of a table of chunks (or pairs of chunks), and the place in the batch of their bags.

    Rows whose place lies beyond the batch fill up the shape.
    """

    rows: Array
    place: Array


class Batch(eqx.Module):
    """Minibatch of observations and, where that is all they see, the chunks of their bags."""

    observations: Array
    chunks: Members | None = None
    pairs: Members | None = None


class Batches:
    """Draws minibatches, all of one shape."""

    def __init__(self, problem: VariationalProblem, size: int, seed: int = 0):
        self.n_observations = len(problem.z)
        self.size = min(size, self.n_observations)
        self._rng = np.random.default_rng(seed)
        self._local = problem.is_local
        if not self._local:
            return
        layout = problem.layout
        used = np.asarray(jnp.any(layout.weights.reshape(-1, layout.chunk) > 0, 1))
        self._chunks = _Table(np.asarray(layout.bag), used, layout.n_bags, self.size)
        self._pairs = None
        residual = getattr(problem, "residual", None)
        if isinstance(residual, AllPairs) and residual.pairs is not None:
            bag = np.asarray(residual.pairs.bag)
            self._pairs = _Table(bag, np.ones(len(bag), bool), layout.n_bags, self.size)

    def draw(self) -> Batch:
        """A uniform minibatch without replacement."""
        return self._batch(
            self._rng.choice(self.n_observations, self.size, replace=False, shuffle=False)
        )

    def epoch(self) -> Iterator[tuple[Batch, int]]:
        """All observations once; the last batch is filled up with others, which do not count."""
        order = self._rng.permutation(self.n_observations)
        for start in range(0, len(order), self.size):
            chosen = order[start : start + self.size]
            filled = np.concatenate([chosen, order[: self.size - len(chosen)]])
            yield self._batch(filled), len(chosen)

    def _batch(self, observations: np.ndarray) -> Batch:
        if not self._local:
            return Batch(jnp.asarray(observations))
        pairs = None if self._pairs is None else self._pairs.of(observations)
        return Batch(jnp.asarray(observations), self._chunks.of(observations), pairs)


class _Table:
    """Finds the chunks, or pairs of chunks, of any set of `size` bags, in one shape."""

    def __init__(self, bag: np.ndarray, used: np.ndarray, n_bags: int, size: int):
        rows = np.flatnonzero(used)
        rows = rows[np.argsort(bag[rows], kind="stable")]
        self._rows = rows
        self._counts = np.bincount(bag[rows], minlength=n_bags)
        self._starts = np.concatenate([[0], np.cumsum(self._counts)[:-1]])
        self._most = int(np.sort(self._counts)[::-1][:size].sum())

    def of(self, bags: np.ndarray) -> Members:
        """The rows of a set of bags, each with the place of its bag in the set."""
        counts = self._counts[bags]
        place = np.repeat(np.arange(len(bags)), counts)
        inside = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._rows[self._starts[bags][place] + inside]
        missing = self._most - len(rows)
        rows = np.concatenate([rows, np.zeros(missing, rows.dtype)])
        place = np.concatenate([place, np.full(missing, len(bags))])
        return Members(jnp.asarray(rows), jnp.asarray(place))


def part_of(layout: Layout, batch: Batch) -> Layout:
    """The bags of a batch."""
    assert batch.chunks is not None
    size = batch.observations.shape[0]
    points = layout.points.reshape(-1, layout.chunk, layout.points.shape[1])
    rows, place = batch.chunks.rows, batch.chunks.place
    inside = place < size
    weights = layout.weights.reshape(-1, layout.chunk)[rows]
    weights = jnp.where(inside[:, None], weights, 0.0)
    padding = (-(len(rows) * layout.chunk) % layout.block) // layout.chunk
    bag = jnp.pad(jnp.where(inside, place, 0), (0, padding))
    return replace(
        layout,
        points=points[jnp.pad(rows, (0, padding))].reshape(-1, points.shape[2]),
        weights=jnp.pad(weights, ((0, padding), (0, 0))).ravel(),
        bag=bag.astype(jnp.int32),
        n_bags=size,
        one_chunk_per_bag=False,
    )


def restricted(problem: VariationalProblem, batch: Batch) -> VariationalProblem:
    """The problem with the observations and bags of a batch alone."""
    size = batch.observations.shape[0]
    residual = problem.residual
    if isinstance(residual, SampledPairs):
        residual = replace(residual, sampler=residual.sampler.select(batch.observations))
    elif isinstance(residual, AllPairs) and residual.pairs is not None:
        assert batch.pairs is not None
        every, chosen = residual.pairs, batch.pairs.rows
        pairs = replace(
            every,
            rows=replace(every.rows, n_bags=size),
            cols=replace(every.cols, n_bags=size),
            first=every.first[chosen],
            second=every.second[chosen],
            bag=batch.pairs.place,
            count=every.count[chosen],
        )
        residual = AllPairs(pairs)
    return replace(
        problem,
        layout=part_of(problem.layout, batch),
        z=problem.z[batch.observations],
        known_noise=problem.known_noise[batch.observations],
        overlap=None if problem.overlap is None else problem.overlap[batch.observations],
        trend_means=problem.trend_means[batch.observations],
        residual=residual,
    )
