"""The loops over kernel tiles: sums over every pair of bags, and what their gradients need.

A sweep goes over tiles of rows and tiles of columns, reduces each tile to one number per pair of
chunks, and adds the chunks of a bag. :class:`ProductSweep` takes distances by matrix product,
:class:`DifferenceSweep` coordinate by coordinate; :mod:`deconditional.kernels.sweeps` says when.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from deconditional.kernels.layout import Layout
from deconditional.kernels.tiles import (
    Scaled,
    chunk_means,
    differences,
    input_gradient,
    left_operand,
    product_slopes,
    product_values,
    right_operand,
    rounding_of_squares,
    sum_of_squares,
    summed_squares,
    tile_derivatives,
    tile_slopes,
    tile_values,
    weighted_moments,
)

# --------------------------------------------------------------------------- chunks and bags


def _tall(values: Array, chunk: int) -> Array:
    """Rows of chunks repeated for their points."""
    chunks, cols = values.shape
    return jnp.broadcast_to(values[:, None, :], (chunks, chunk, cols)).reshape(-1, cols)


def _chunks_to_bags(strip: Array, cols: Layout) -> Array:
    """Sum the columns of a strip over the chunks of each bag."""
    if cols.one_chunk_per_bag:
        return strip[..., : cols.n_bags]
    first = jnp.moveaxis(strip, -1, 0)
    return jnp.moveaxis(jax.ops.segment_sum(first, cols.bag, cols.n_bags), 0, -1)


def zero_bags(rows: Layout, cols: Layout) -> Array:
    """Where rows of chunks are collected: those of bags, or one chunk each where that is a bag."""
    n_rows = rows.bag.shape[0] if rows.one_chunk_per_bag else rows.n_bags
    return jnp.zeros((n_rows, cols.n_bags), cols.points.dtype)


def add_rows(out: Array, start: Array, strip: Array, rows: Layout, cols: Layout) -> Array:
    """Add a strip of chunk values, from chunk `start` on, to the bags of its rows."""
    by_bag = _chunks_to_bags(strip.astype(out.dtype), cols)
    if rows.one_chunk_per_bag:
        return lax.dynamic_update_slice_in_dim(out, by_bag, start, -2)
    bags = _slice(rows.bag, start, strip.shape[-2])
    return out.at[..., bags, :].add(by_bag, mode="drop")


def _bags_to_chunks(values: Array, layout: Layout, axis: int) -> Array:
    if layout.one_chunk_per_bag:
        pad = [(0, 0)] * values.ndim
        pad[axis] = (0, layout.bag.shape[0] - layout.n_bags)
        return jnp.pad(values, pad)
    return jnp.take(values, layout.bag, axis=axis)


def _slice(x: Array, start: Array, size: int, axis: int = 0) -> Array:
    return lax.dynamic_slice_in_dim(x, start, size, axis)


def _update(x: Array, block: Array, start: Array) -> Array:
    """Write a block of columns."""
    return lax.dynamic_update_slice_in_dim(x, block, start, 1)


class _Sweep:
    """The loop over row tiles and column tiles; every `n_devices`-th row tile from `device` on.

    A symmetric sweep goes by blocks, the larger of the two tiles. Block b meets the blocks b, b+1,
    ... halfway round the circle of all blocks, so every pair meets once and every row tile has the
    same number of column tiles, give or take one block. A block meets itself whole; tiles there
    count half, and adding the transpose completes the matrix.
    """

    def __init__(
        self, terms: Sequence[Scaled], rows: Layout, cols: Layout, symmetric: bool = False
    ):
        self.terms, self.rows, self.cols, self.symmetric = terms, rows, cols, symmetric
        self.dtype = terms[0].left[0].dtype
        self.row_tile, self.col_tile = rows.row_tile, cols.tile
        self.n_rows = rows.n_row_tiles
        self.n_cols = cols.points.shape[0] // self.col_tile
        self.row_chunks = self.row_tile // rows.chunk
        self.col_chunks = self.col_tile // cols.chunk
        self.chunks = (rows.chunk, cols.chunk)
        self.row_weights = rows.weights.astype(self.dtype)
        self.col_weights = cols.weights.astype(self.dtype)

    def values(self, device: Any, n_devices: int) -> Array:
        """Sums of the kernel over every pair of bags (of a symmetric sweep the half), (N, N2)."""
        return self._reduced(self._chunk_means, (), device, n_devices)

    def _reduced(self, means: Any, kinds: tuple[int, ...], device: Any, n_devices: int) -> Array:
        """Sums over every pair of bags of what `means` makes of a tile, (*kinds, N, N2)."""

        def row(k: Array, out: Array) -> Array:
            i = device + k * n_devices
            here = self._row(i)

            def column(step: Array, strip: Array) -> Array:
                t = self._column_of(i, step)
                block = means(here, self._column(t)) * self._share(step)
                return lax.dynamic_update_slice_in_dim(strip, block, t * self.col_chunks, -1)

            strip = jnp.zeros((*kinds, self.row_chunks, self.cols.bag.shape[0]), self.dtype)
            strip = lax.fori_loop(0, self._n_columns(i), column, strip)
            return add_rows(out, i * self.row_chunks, strip, self.rows, self.cols)

        start = jnp.zeros((*kinds, *zero_bags(self.rows, self.cols).shape), self.cols.points.dtype)
        return lax.fori_loop(0, self._n_own_rows(device, n_devices), row, start)

    def _chunk_means(self, here: Any, there: Any) -> Array:
        raise NotImplementedError

    def _row(self, i: Array) -> Any:
        raise NotImplementedError

    def _column(self, t: Array) -> Any:
        raise NotImplementedError

    def _n_own_rows(self, device: Any, n_devices: int) -> Any:
        return (self.n_rows - device + n_devices - 1) // n_devices

    def _home(self, i: Array) -> Array:
        return i * self.row_tile // self.rows.block

    def _n_columns(self, i: Array) -> Any:
        """How many column tiles a row tile meets."""
        if not self.symmetric:
            return self.n_cols
        n_blocks = self.rows.points.shape[0] // self.rows.block
        tiles_per_block = self.n_cols // n_blocks
        if n_blocks % 2:
            return (n_blocks + 1) // 2 * tiles_per_block
        opposite = self._home(i) < n_blocks // 2  # of two blocks that face each other, one
        return (n_blocks // 2 + opposite) * tiles_per_block

    def _column_of(self, i: Array, step: Array) -> Array:
        if not self.symmetric:
            return step
        tiles_per_block = self.rows.block // self.col_tile
        return (self._home(i) * tiles_per_block + step) % self.n_cols

    def _share(self, step: Array) -> Array:
        if not self.symmetric:
            return jnp.ones((), self.dtype)
        own_block = step < self.rows.block // self.col_tile
        return jnp.where(own_block, 0.5, 1.0).astype(self.dtype)


class ProductSweep(_Sweep):
    """Distances by matrix product, and gradients by products with tiles of slopes."""

    def __init__(self, *of_sweep: Any):
        super().__init__(*of_sweep)
        self._lefts = [[left_operand(u) for u in term.left] for term in self.terms]
        self._rights = [[right_operand(u) for u in term.right] for term in self.terms]

    def _chunk_means(self, here: Any, there: Any) -> Array:
        (lefts, row_weights), (rights, col_weights) = here, there
        every = zip(self.terms, lefts, rights, strict=True)
        values = [t.variance * tile_values(t.profiles, u, v, t.shapes) for t, u, v in every]
        return chunk_means(reduce(jnp.add, values), row_weights, col_weights, self.chunks)

    def derivatives(
        self, sizes: Sequence[Sequence[int]], n: int, device: Any, n_devices: int
    ) -> Array:
        """Sums as of :meth:`values`, of the n :func:`tile_derivatives` of all terms in turn."""

        def means(here: Any, there: Any) -> Array:
            (lefts, row_weights), (rights, col_weights) = here, there
            found, weights = [], (row_weights, col_weights)
            for term, left, right, size in zip(self.terms, lefts, rights, sizes, strict=True):
                tiles = tile_derivatives(term.profiles, left, right, term.shapes, size)
                (values, _, _), *others = tiles
                mean, derivatives = None, []
                for tile, rate, f in others:
                    if f is None:
                        sums = [chunk_means(tile, *weights, self.chunks)]
                    else:
                        inputs = left[f][:, : size[f]], right[f][: size[f]]
                        own, *sums = summed_squares(tile, *inputs, *weights, self.chunks)
                        mean = own if tile is values else mean
                    derivatives += [rate * each for each in sums]
                mean = chunk_means(values, *weights, self.chunks) if mean is None else mean
                found += [mean, *derivatives]
            return jnp.stack(found)

        return self._reduced(means, (n,), device, n_devices)

    def gradients(
        self, cotangent: Array, device: Any, n_devices: int
    ) -> tuple[tuple, tuple, tuple]:
        """Gradients of the one term by row inputs, column inputs and shape parameters."""
        (term,) = self.terms
        by_row_chunk = _bags_to_chunks(cotangent.astype(self.dtype), self.rows, 0)
        row_moments = [weighted_moments(u, self.row_weights).T for u in term.left]
        col_moments = [weighted_moments(u, self.col_weights) for u in term.right]

        def row(k: Array, carry: tuple) -> tuple:
            i = device + k * n_devices
            every_row, *others = carry
            (lefts,), row_weights = self._row(i)
            here = [_slice(m, i * self.row_tile, self.row_tile, 1) for m in row_moments]
            chunk_rows = _slice(by_row_chunk, i * self.row_chunks, self.row_chunks)
            # Repeated here and not in every tile, whose loop then runs along its rows.
            wide = jnp.repeat(_bags_to_chunks(chunk_rows, self.cols, 1), self.cols.chunk, axis=1)

            def column(step: Array, inner: tuple) -> tuple:
                row_sums, col_sums, shape_sums = list(inner[0]), list(inner[1]), list(inner[2])
                t = self._column_of(i, step)
                (rights,), col_weights = self._column(t)
                g = _slice(wide, t * self.col_tile, self.col_tile, 1) * self._share(step)
                g = _tall(g, self.rows.chunk)
                slopes = tile_slopes(term.profiles, lefts, rights, term.shapes)
                for f, (slope, by_shape) in enumerate(slopes):
                    h = slope * g
                    there = _slice(col_moments[f], t * self.col_tile, self.col_tile)
                    row_sums[f] += _dot(h, there)
                    so_far = _slice(col_sums[f], t * self.col_tile, self.col_tile, 1)
                    col_sums[f] = _update(col_sums[f], so_far + _dot(here[f], h), t * self.col_tile)
                    if by_shape is not None:
                        shape_sums[f] += _dot(_dot(row_weights, by_shape * g), col_weights)
                return row_sums, col_sums, shape_sums

            start = [jnp.zeros((self.row_tile, m.shape[1]), self.dtype) for m in col_moments]
            sums: Any = lax.fori_loop(0, self._n_columns(i), column, (start, *others))
            every_row = [
                lax.dynamic_update_slice_in_dim(every, own, i * self.row_tile, 0)
                for every, own in zip(every_row, sums[0], strict=True)
            ]
            return every_row, *sums[1:]

        carry = (
            [jnp.zeros(m.shape[::-1], self.dtype) for m in row_moments],
            [jnp.zeros(m.shape[::-1], self.dtype) for m in col_moments],
            [jnp.zeros((), self.dtype) for _ in col_moments],
        )
        sums: Any = lax.fori_loop(0, self._n_own_rows(device, n_devices), row, carry)
        row_sums, col_sums, shape_sums = sums
        by_row = map(partial(input_gradient, weights=self.row_weights), term.left, row_sums)
        transposed = [total.T for total in col_sums]
        by_column = map(partial(input_gradient, weights=self.col_weights), term.right, transposed)
        return tuple(by_row), tuple(by_column), tuple(shape_sums)

    def _row(self, i: Array) -> tuple[list, Array]:
        start = i * self.row_tile
        lefts = [[_slice(u, start, self.row_tile) for u in left] for left in self._lefts]
        return lefts, _slice(self.row_weights, start, self.row_tile)

    def _column(self, t: Array) -> tuple[list, Array]:
        start = t * self.col_tile
        rights = [[_slice(u, start, self.col_tile, 1) for u in right] for right in self._rights]
        return rights, _slice(self.col_weights, start, self.col_tile)


class DifferenceSweep(_Sweep):
    """Distances by differences, summed in the loop that makes them.

    Values are one sum over each pair of chunks; sums of gradients run along rows. Columns are held
    by chunk, (d, chunks, points of a chunk), so that what belongs to a chunk is broadcast and not
    spread out.
    """

    def __init__(self, *of_sweep: Any):
        super().__init__(*of_sweep)
        self._least = [[rounding_of_squares(u) for u in term.left] for term in self.terms]

    def _row(self, i: Array) -> tuple[list, Array]:
        start = i * self.row_tile
        lefts = [[_slice(u, start, self.row_tile).T for u in t.left] for t in self.terms]
        return lefts, _slice(self.row_weights, start, self.row_tile)

    def _column(self, t: Array) -> tuple[list, Array]:
        start, shape = t * self.col_tile, (self.col_chunks, self.cols.chunk)
        rights = [
            [_slice(u, start, self.col_tile).T.reshape(-1, *shape) for u in t.right]
            for t in self.terms
        ]
        return rights, _slice(self.col_weights, start, self.col_tile).reshape(shape)

    def _chunk_means(self, here: Any, there: Any) -> Array:
        (lefts, row_weights), (rights, col_weights) = here, there
        shape = (self.row_chunks, self.rows.chunk)
        weights = row_weights.reshape(*shape, 1, 1) * col_weights
        values = jnp.zeros_like(weights)
        for term, *inputs in zip(self.terms, lefts, rights, self._least, strict=True):
            squares = [
                sum_of_squares(differences(u.reshape(-1, *shape), v), least)
                for u, v, least in zip(*inputs, strict=True)
            ]
            values += term.variance * product_values(term.profiles, squares, term.shapes)
        return jnp.sum(values * weights, (1, 3))

    def gradients(self, cotangent: Array, device: Any, n_devices: int) -> tuple[tuple, tuple]:
        """Gradients of the one term by row inputs and shape parameters."""
        (term,) = self.terms
        by_row_chunk = _bags_to_chunks(cotangent.astype(self.dtype), self.rows, 0)
        shaped = [f for f, p in enumerate(term.profiles) if p.shape_slope is not None]
        width = sum(u.shape[1] for u in term.left) + len(shaped)

        def row(k: Array, every: Array) -> Array:
            i = device + k * n_devices
            (lefts,), row_weights = self._row(i)
            chunk_rows = _slice(by_row_chunk, i * self.row_chunks, self.row_chunks)
            by_chunk = jnp.repeat(_bags_to_chunks(chunk_rows, self.cols, 1), self.rows.chunk, 0)

            def column(t: Array, sums: list) -> list:
                (rights,), col_weights = self._column(t)
                g = _slice(by_chunk, t * self.col_chunks, self.col_chunks, 1)[:, :, None]
                g = g * col_weights
                apart = [differences(u, v) for u, v in zip(lefts, rights, strict=True)]
                squares = list(map(sum_of_squares, apart, self._least[0]))
                slopes = product_slopes(term.profiles, squares, term.shapes)
                terms = [
                    slope * g * e for (slope, _), d in zip(slopes, apart, strict=True) for e in d
                ]
                terms += [by_shape * g for _, by_shape in slopes if by_shape is not None]
                return [so_far + new for so_far, new in zip(sums, _row_sums(terms), strict=True)]

            start = [jnp.zeros(self.row_tile, self.dtype) for _ in range(width)]
            sums = jnp.stack(lax.fori_loop(0, self.n_cols, column, start)) * row_weights
            return lax.dynamic_update_slice_in_dim(every, sums, i * self.row_tile, 1)

        every = jnp.zeros((width, self.rows.points.shape[0]), self.dtype)
        every = lax.fori_loop(0, self._n_own_rows(device, n_devices), row, every)
        by_row, start = [], 0
        for u in term.left:
            by_row.append(2.0 * every[start : start + u.shape[1]].T)
            start += u.shape[1]
        by_shape = [jnp.zeros((), self.dtype) for _ in term.left]
        for position, f in enumerate(shaped):
            by_shape[f] = jnp.sum(every[start + position])
        return tuple(by_row), tuple(by_shape)


def _row_sums(terms: list[Array]) -> list[Array]:
    """Sums over all axes but the first, of all terms in one loop."""
    zeros = [jnp.zeros((), term.dtype) for term in terms]

    def add(a: list, b: list) -> list:
        return [x + y for x, y in zip(a, b, strict=True)]

    return list(lax.reduce(terms, zeros, add, tuple(range(1, terms[0].ndim))))


def _dot(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
