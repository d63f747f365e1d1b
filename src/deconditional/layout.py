"""Ragged bags in arrays of fixed shape: chunks that never cross a bag, tiles of whole chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

import deconditional._double  # noqa: F401

__all__ = ["BagSampler", "Layout", "layout_bags", "layout_points"]

CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["points", "weights", "bag"],
    meta_fields=["n_bags", "chunk", "row_tile", "tile", "one_chunk_per_bag"],
)
@dataclass(frozen=True)
class Layout:
    """Points of ragged bags, cut into chunks that never cross a bag.

    Attributes
    ----------
    points : (n_pad, d)
        Points in order of their chunk; padding repeats a real point.
    weights : (n_pad,)
        Within-bag weights, zero where padded.
    bag : (n_chunks,)
        The bag of every chunk.
    n_bags, chunk
        Number of bags, points per chunk.
    row_tile, tile
        Points per tile when the bags are the rows of a matrix, and when they are its columns.
    one_chunk_per_bag
        True where chunk j is bag j, so that chunk values are bag values.
    """

    points: Float[Array, "n d"]
    weights: Float[Array, " n"]
    bag: Array
    n_bags: int
    chunk: int
    row_tile: int
    tile: int
    one_chunk_per_bag: bool

    def with_points(self, points: Float[Array, "n d"]) -> Layout:
        """The same bags over other points, in the layout's order."""
        return replace(self, points=points)


def layout_bags(
    points: np.ndarray,
    bag: np.ndarray,
    weights: np.ndarray,
    n_bags: int,
    chunk: int | None = None,
) -> tuple[Layout, np.ndarray]:
    """Lay out bags for :func:`bag_gram`; also returns the row of `points` behind every slot."""
    order = np.argsort(bag, kind="stable")
    sizes = np.bincount(bag, minlength=n_bags)
    chunk = _best_chunk(sizes) if chunk is None else chunk
    n_chunks = -(-sizes // chunk)
    tile = _column_tile(int(n_chunks.sum()) * chunk)
    total = -(-int(n_chunks.sum()) * chunk // tile) * tile
    first_slot = np.concatenate([[0], np.cumsum(n_chunks[:-1])]) * chunk
    first_point = np.concatenate([[0], np.cumsum(sizes[:-1])])
    slot = np.arange(len(bag)) - np.repeat(first_point, sizes) + np.repeat(first_slot, sizes)
    source = np.zeros(total, dtype=np.int64)
    source[slot] = order
    slot_weights = np.zeros(total)
    slot_weights[slot] = weights[order]
    chunk_bag = np.zeros(total // chunk, dtype=np.int32)
    chunk_bag[: n_chunks.sum()] = np.repeat(np.arange(n_bags), n_chunks)
    # Bags keep their layout: arrays made while another function is traced must not be tracers.
    with jax.ensure_compile_time_eval():
        layout = Layout(
            points=jnp.asarray(points[source]),
            weights=jnp.asarray(slot_weights),
            bag=jnp.asarray(chunk_bag),
            n_bags=n_bags,
            chunk=chunk,
            row_tile=tile // 2,
            tile=tile,
            one_chunk_per_bag=bool(np.all(n_chunks == 1)),
        )
    return layout, source


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["points", "cumulative", "bag", "first", "last"],
    meta_fields=[],
)
@dataclass(frozen=True)
class BagSampler:
    """Draws points of bags with replacement, in proportion to their weights.

    Attributes
    ----------
    points : (n, d)
        Points in order of their bag.
    cumulative : (n,)
        Running sum of their weights; it grows by one over each bag.
    bag, first, last : (N,)
        The bags to draw from, and the first and last point of each.
    """

    points: Float[Array, "n d"]
    cumulative: Float[Array, " n"]
    bag: Array
    first: Array
    last: Array

    @classmethod
    def of(cls, points: np.ndarray, bag: np.ndarray, weights: np.ndarray, n_bags: int) -> Self:
        """A sampler of bags."""
        order = np.argsort(bag, kind="stable")
        ends = np.cumsum(np.bincount(bag, minlength=n_bags))
        first = np.concatenate([[0], ends[:-1]])
        cumulative = np.cumsum(weights[order])
        arrays = points[order], cumulative, np.arange(n_bags), first, ends - 1
        return cls(*map(jnp.asarray, arrays))

    def select(self, bags: Array) -> BagSampler:
        """A sampler of some of the bags."""
        return replace(self, bag=self.bag[bags], first=self.first[bags], last=self.last[bags])

    def draw(self, key: Any, points_per_bag: int) -> Layout:
        """So many points of every bag, a power of two up to 128, that count equally."""
        n_bags = self.bag.shape[0]
        level = self.bag[:, None] + jr.uniform(key, (n_bags, points_per_bag))
        found = jnp.searchsorted(self.cumulative, level, side="right")
        rows = jnp.clip(found, self.first[:, None], self.last[:, None]).ravel()
        tile = _column_tile(n_bags * points_per_bag)
        padding = -len(rows) % tile
        n_chunks = (len(rows) + padding) // points_per_bag
        weights = jnp.full(len(rows), 1.0 / points_per_bag)
        return Layout(
            points=self.points[jnp.pad(rows, (0, padding))],
            weights=jnp.pad(weights, (0, padding)),
            bag=jnp.arange(n_chunks, dtype=jnp.int32),
            n_bags=n_bags,
            chunk=points_per_bag,
            row_tile=tile // 2,
            tile=tile,
            one_chunk_per_bag=True,
        )


def layout_points(x: Float[Array, "m d"]) -> Layout:
    """Every row of x a bag of its own, padded to a whole number of tiles."""
    m = x.shape[0]
    tile = _column_tile(m)
    total = -(-m // tile) * tile
    padded = jnp.concatenate([x, jnp.broadcast_to(x[:1], (total - m, x.shape[1]))])
    return Layout(
        points=padded,
        weights=jnp.where(jnp.arange(total) < m, 1.0, 0.0),
        bag=jnp.arange(total, dtype=jnp.int32),
        n_bags=m,
        chunk=1,
        row_tile=tile // 2,
        tile=tile,
        one_chunk_per_bag=True,
    )


def _best_chunk(sizes: np.ndarray) -> int:
    """Long chunks reduce faster, short ones pad less."""

    def cost(chunk: int) -> float:
        padded = float((-(-sizes // chunk) * chunk).sum())
        return padded**2 * (1.0 + 3.0 / chunk)

    return min(CHUNK_SIZES, key=cost)


def _column_tile(n: int) -> int:
    """A tile and its neighbours should stay in cache, and end and diagonal waste little.

    Measured on two cores: 256 x 512 is best around 5000 points, 512 x 1024 around 20 000.
    """
    if n <= 256:
        return 256
    return 512 if n <= 8192 else 1024
