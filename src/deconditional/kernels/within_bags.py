r"""The diagonal of :math:`\bar K`: means of a kernel over pairs of points of the same bag.

Where observations are matched and their noises independent, a variational bound needs no more of
:math:`\bar K` than this. Its cost is the sum of squared bag sizes. Bags are cut into chunks as in
:mod:`deconditional.kernels.sweeps`, every pair of chunks of a bag makes one small tile, and tiles
are worked through in batches, with the same hand-written gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.layout import CHUNK_SIZES, Layout, is_accelerator, layout_bags
from deconditional.kernels.radial import GenericTerm, sum_of_products
from deconditional.kernels.tiles import (
    Scaled,
    Term,
    input_gradient,
    left_operand,
    right_operand,
    tile_slopes,
    tile_values,
    weighted_moments,
)

VALUES_PER_BATCH = 1 << 17
"""Kernel values worked on at a time: what stays in cache."""

VALUES_ON_ACCELERATOR = 1 << 25
"""Kernel values worked on at a time by an accelerator: 128 MiB in float32."""


class BagPairs(eqx.Module):
    """Pairs of chunks, one from each of two layouts of the same bags."""

    rows: Layout
    cols: Layout
    first: Array
    second: Array
    bag: Array
    count: Array
    """How often a pair stands: twice for one that also stands for its mirror image."""


def own_pairs(bags: Any) -> BagPairs:
    """All pairs of points of every bag of Bags, mirror images counted rather than repeated."""
    sizes = np.bincount(bags.bag, minlength=bags.n_bags)
    layout, _ = layout_bags(bags.points, bags.bag, bags.weights, bags.n_bags, _best_chunk(sizes))
    n_chunks = -(-sizes // layout.chunk)
    starts = np.concatenate([[0], np.cumsum(n_chunks)[:-1]])
    firsts, seconds, owners = [], [], []
    for size in np.unique(n_chunks):
        low, high = np.triu_indices(size)
        which = np.flatnonzero(n_chunks == size)
        firsts.append((starts[which, None] + low).ravel())
        seconds.append((starts[which, None] + high).ravel())
        owners.append(np.repeat(which, len(low)))
    a, b, j = (np.concatenate(parts) for parts in (firsts, seconds, owners))
    count = np.where(a == b, 1.0, 2.0)
    return BagPairs(
        layout, layout, jnp.asarray(a), jnp.asarray(b), jnp.asarray(j), jnp.asarray(count)
    )


def sampled_pairs(rows: Layout, cols: Layout) -> BagPairs:
    """All pairs of a point from one sample of every bag and a point from the other."""
    own = jnp.arange(rows.n_bags)
    return BagPairs(rows, cols, own, own, own, jnp.ones(rows.n_bags))


def _best_chunk(sizes: np.ndarray) -> int:
    """Long chunks reduce faster, short ones pad less."""
    return min(
        CHUNK_SIZES,
        key=lambda c: float(((-(-sizes // c) * c).astype(float) ** 2).sum()) * (1.0 + 8.0 / c),
    )


def within_bags(
    kernel: AbstractKernel, pairs: BagPairs, *, dtype: Any = None
) -> Float[Array, " N"]:
    r"""Means of k over the pairs of every bag, :math:`\bar K_{jj}` for :func:`own_pairs`."""
    total = jnp.zeros(pairs.rows.n_bags, pairs.rows.points.dtype)
    for term in sum_of_products(kernel):
        if isinstance(term, GenericTerm):
            total = total + _generic(term.kernel, pairs)
        elif not term.factors:
            total = total + term.variance
        else:
            between = Term.of(term, pairs.rows.points, pairs.cols.points)
            scaled = between.scaled(dtype or pairs.rows.points.dtype)
            total = total + term.variance * _radial(scaled, pairs)
    return total


def _batches(pairs: BagPairs) -> tuple[Array, Array, Array, Array]:
    """Indices and counts in batches of one size; what is left over has no bag."""
    values = VALUES_ON_ACCELERATOR if is_accelerator() else VALUES_PER_BATCH
    size = max(1, values // (pairs.rows.chunk * pairs.cols.chunk))
    total = pairs.first.shape[0]
    size = min(size, total)
    padding = -total % size

    def cut(values: Array, fill: float) -> Array:
        return jnp.pad(values, (0, padding), constant_values=fill).reshape(-1, size)

    n_bags = pairs.rows.n_bags
    return cut(pairs.first, 0), cut(pairs.second, 0), cut(pairs.bag, n_bags), cut(pairs.count, 0.0)


def _chunks(values: Array, chunk: int) -> Array:
    return values.reshape(-1, chunk, *values.shape[1:])


@jax.custom_vjp
def _radial(term: Scaled, pairs: BagPairs) -> Array:
    """Bag means of a product of radial profiles; the variance of its term is left out."""
    return _Batched(term, pairs).values()


def _radial_forward(term: Scaled, pairs: BagPairs) -> tuple[Array, tuple]:
    return _radial(term, pairs), (term, pairs)


def _radial_backward(saved: tuple, cotangent: Array) -> tuple:
    term, pairs = saved
    left, right, shapes = _Batched(term, pairs).gradients(cotangent)
    nothing = jnp.zeros_like(term.variance)
    return replace(term, left=left, right=right, shapes=shapes, variance=nothing), None


_radial.defvjp(_radial_forward, _radial_backward)


class _Batched:
    """The loop over batches of chunk pairs, forward and backward."""

    def __init__(self, term: Scaled, pairs: BagPairs):
        self.profiles, self.shapes = term.profiles, term.shapes
        self.left, self.right = term.left, term.right
        self.pairs = pairs
        self.dtype = term.left[0].dtype
        rows, cols = pairs.rows, pairs.cols
        self.row_chunk, self.col_chunk = rows.chunk, cols.chunk
        self.row_weights, self.col_weights = (w.weights.astype(self.dtype) for w in (rows, cols))
        self._lefts = [_chunks(left_operand(u), rows.chunk) for u in self.left]
        self._rights = [_chunks(right_operand(u).T, cols.chunk) for u in self.right]

    def _tiles(self, first: Array, second: Array) -> tuple[list, list]:
        lefts = [left[first] for left in self._lefts]
        rights = [jnp.swapaxes(right[second], 1, 2) for right in self._rights]
        return lefts, rights

    def values(self) -> Array:
        row_weights = _chunks(self.row_weights, self.row_chunk)
        col_weights = _chunks(self.col_weights, self.col_chunk)

        def batch(total: Array, inputs: tuple) -> tuple[Array, None]:
            first, second, bag, count = inputs
            lefts, rights = self._tiles(first, second)
            tiles = jax.vmap(lambda a, b: tile_values(self.profiles, a, b, self.shapes))(
                lefts, rights
            )
            summed = jnp.einsum("bi,bij->bj", row_weights[first], tiles)
            means = jnp.sum(summed * col_weights[second], 1) * count.astype(self.dtype)
            return total.at[bag].add(means.astype(total.dtype), mode="drop"), None

        start = jnp.zeros(self.pairs.rows.n_bags, self.pairs.rows.points.dtype)
        return lax.scan(batch, start, _batches(self.pairs))[0]

    def gradients(self, cotangent: Array) -> tuple[tuple, tuple, tuple]:
        """Gradients with respect to row inputs, column inputs and shape parameters."""
        row_moments = [
            _chunks(weighted_moments(u, self.row_weights), self.row_chunk) for u in self.left
        ]
        col_moments = [
            _chunks(weighted_moments(u, self.col_weights), self.col_chunk) for u in self.right
        ]
        padded = jnp.append(cotangent, 0.0).astype(self.dtype)

        def batch(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
            row_sums, col_sums, shape_sums = (list(part) for part in carry)
            first, second, bag, count = inputs
            lefts, rights = self._tiles(first, second)
            slopes = jax.vmap(lambda a, b: tile_slopes(self.profiles, a, b, self.shapes))(
                lefts, rights
            )
            g = (padded[bag] * count.astype(self.dtype))[:, None, None]
            for f, (slope, by_shape) in enumerate(slopes):
                h = slope * g
                by_row = jnp.einsum("bij,bjd->bid", h, col_moments[f][second])
                by_col = jnp.einsum("bij,bid->bjd", h, row_moments[f][first])
                row_sums[f] = row_sums[f].at[first].add(by_row)
                col_sums[f] = col_sums[f].at[second].add(by_col)
                if by_shape is not None:
                    weighted = by_shape * g * row_moments[f][first][:, :, -1:]
                    shape_sums[f] += jnp.sum(weighted * col_moments[f][second][:, None, :, -1])
            return (row_sums, col_sums, shape_sums), None

        carry = (
            [jnp.zeros_like(m) for m in row_moments],
            [jnp.zeros_like(m) for m in col_moments],
            [jnp.zeros((), self.dtype) for _ in self.left],
        )
        sums: Any = lax.scan(batch, carry, _batches(self.pairs))[0]
        row_sums, col_sums, shape_sums = sums
        by_row, by_col = (
            tuple(
                input_gradient(u, total.reshape(-1, total.shape[-1]), weights)
                for u, total in zip(inputs, totals, strict=True)
            )
            for inputs, weights, totals in (
                (self.left, self.row_weights, row_sums),
                (self.right, self.col_weights, col_sums),
            )
        )
        return by_row, by_col, tuple(shape_sums)


def _generic(kernel: AbstractKernel, pairs: BagPairs) -> Array:
    """Sums within bags of a kernel known only point by point, differentiated by JAX."""
    rows = _chunks(pairs.rows.points, pairs.rows.chunk)
    cols = _chunks(pairs.cols.points, pairs.cols.chunk)
    row_weights = _chunks(pairs.rows.weights, pairs.rows.chunk)
    col_weights = _chunks(pairs.cols.weights, pairs.cols.chunk)

    @jax.checkpoint
    def means(first: Array, second: Array, count: Array) -> Array:
        tiles = jax.vmap(kernel.cross_covariance)(rows[first], cols[second])
        return count * jnp.einsum("bi,bij,bj->b", row_weights[first], tiles, col_weights[second])

    def batch(total: Array, inputs: tuple) -> tuple[Array, None]:
        first, second, bag, count = inputs
        return total.at[bag].add(means(first, second, count), mode="drop"), None

    start = jnp.zeros(pairs.rows.n_bags, pairs.rows.points.dtype)
    return lax.scan(batch, start, _batches(pairs))[0]
