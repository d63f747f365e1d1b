r"""Bag averages of a kernel, :math:`\bar K = P^\top K P` and :math:`\bar k(x) = k(x, \cdot) P`.

Nothing of size n x n is ever held. Bags are cut into chunks of equal length
(:class:`~deconditional.layout.Layout`), a tile of kernel values is made from two runs of chunks,
and each tile is reduced at once to one number per pair of chunks. The gradient is written by hand:
with H the tile of :math:`G_{b(i)b(j)}\,\varphi'(s_{ij})`, everything it needs are the sums
:math:`\sum_j H_{ij} w_j (u_i - u_j)`, so the backward pass costs one more sweep over the tiles.
Gradients reach kernel parameters, the weights of a network and the points through the scaled
inputs u.

A sweep has two forms (:mod:`deconditional.kernels.tiles`). By products, a tile is multiplied with
:math:`[w, wu]` from both sides. By differences, it is summed along its rows as it is made, so that
an accelerator writes no tile; columns get their sums from a sweep with the roles exchanged, and a
symmetric matrix needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from gpjax.kernels.base import AbstractKernel
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.devices import summed
from deconditional.kernels.layout import Layout, layout_points
from deconditional.kernels.radial import GenericTerm, sum_of_products
from deconditional.kernels.tiles import (
    differences,
    input_gradient,
    left_operand,
    product_slopes,
    product_values,
    right_operand,
    scaled_inputs,
    scaled_pair,
    sum_of_squares,
    tile_slopes,
    tile_values,
    weighted_moments,
)

__all__ = ["bag_cross", "bag_gram", "between_bags"]

# --------------------------------------------------------------------------- public functions


def bag_gram(
    kernel: AbstractKernel,
    bags: Any,
    *,
    points: Float[Array, "n d"] | None = None,
    dtype: Any = None,
) -> Float[Array, "N N"]:
    r"""Bag Gram matrix :math:`\bar K_{jj'} = \sum_{ii'} w_j^{(i)} w_{j'}^{(i')} k(x, x')`.

    Parameters
    ----------
    kernel
        Any GPJax kernel. Sums and products of Gaussian, Matérn and rational quadratic kernels,
        also behind a :class:`~deconditional.DeepKernel`, take the fused path.
    bags : Bags or Layout
        The bags. Weights are data: no gradient flows to them.
    points
        Replaces the bags' own points, in their order, to differentiate with respect to them.
    dtype
        Type of the kernel tiles, ``float32`` or ``float64``; the reduction over chunks and the
        result are in the type of the points. By default the points' own type.

    Examples
    --------
    >>> import numpy as np, gpjax as gpx
    >>> from deconditional import Bags, bag_gram
    >>> bags = Bags.from_list([np.zeros((2, 1)), np.ones((3, 1))])
    >>> bag_gram(gpx.kernels.RBF(), bags).round(4).tolist()
    [[1.0, 0.6065], [0.6065, 1.0]]
    """
    layout = _as_layout(bags, points)
    total = jnp.zeros((layout.n_bags, layout.n_bags), layout.points.dtype)
    for term in sum_of_products(kernel):
        if isinstance(term, GenericTerm):
            total = total + _generic_gram(term.kernel, layout)
        elif not term.factors:
            total = total + term.variance
        else:
            scaled, shapes, statics = scaled_inputs(term.factors, layout.points, dtype)
            total = total + term.variance * _radial_gram(statics, scaled, shapes, layout)
    return total


def bag_cross(
    kernel: AbstractKernel,
    x: Float[Array, "m d"],
    bags: Any,
    *,
    points: Float[Array, "n d"] | None = None,
    dtype: Any = None,
) -> Float[Array, "m N"]:
    r"""Covariance of f(x) with bag means, :math:`\bar k(x)_j = \sum_i w_j^{(i)} k(x, x_j^{(i)})`.

    Takes the same arguments as :func:`bag_gram`, and the query points `x`. Gradients flow to
    the kernel's parameters, to `x` and to `points`.

    Examples
    --------
    >>> import numpy as np, gpjax as gpx
    >>> from deconditional import Bags, bag_cross
    >>> bags = Bags.from_list([np.zeros((2, 1)), np.ones((3, 1))])
    >>> bag_cross(gpx.kernels.RBF(), np.array([[1.0]]), bags).round(4).tolist()
    [[0.6065, 1.0]]
    """
    layout = _as_layout(bags, points)
    x = jnp.asarray(x, layout.points.dtype)
    if layout.form == "differences":  # sums run along rows, over the points of bags
        n_devices = 1 if layout.mesh is None else layout.mesh.size
        queries = layout_points(x, row_tiles=n_devices, form=layout.form)
        return between_bags(kernel, queries, layout, dtype=dtype)
    # Bags are the rows of the sweep: tiles reduce over rows first, which keeps vectors long.
    return between_bags(kernel, layout, layout_points(x), dtype=dtype).T


def between_bags(
    kernel: AbstractKernel, rows: Layout, cols: Layout, *, dtype: Any = None
) -> Float[Array, "N N2"]:
    """Covariance of the means of one set of bags with those of another."""
    total = jnp.zeros((rows.n_bags, cols.n_bags), rows.points.dtype)
    for term in sum_of_products(kernel):
        if isinstance(term, GenericTerm):
            total = total + _generic_cross(term.kernel, rows, cols)
        elif not term.factors:
            total = total + term.variance
        else:
            left, right, shapes, statics = scaled_pair(term.factors, rows, cols, dtype)
            total = total + term.variance * _radial_cross(statics, left, right, shapes, rows, cols)
    return total


def _as_layout(bags: Any, points: Float[Array, "n d"] | None) -> Layout:
    if isinstance(bags, Layout):
        return bags if points is None else bags.with_points(points)
    if points is None:
        return bags.layout
    return bags.layout.with_points(jnp.asarray(points)[bags.slot_points])


# --------------------------------------------------------------------------- chunks and bags


def _chunk_means(values: Array, row_weights: Array, col_weights: Array, chunks: tuple) -> Array:
    """Weighted sums of a tile over every pair of chunks; rows first, which keeps vectors long."""
    row_chunk, col_chunk = chunks
    rows, cols = values.shape
    by_row = row_weights.reshape(-1, row_chunk)
    summed = jnp.einsum("rc,rct->rt", by_row, values.reshape(rows // row_chunk, row_chunk, cols))
    return (summed * col_weights).reshape(summed.shape[0], cols // col_chunk, col_chunk).sum(-1)


def _spread(cotangent: Array, chunks: tuple, shape: tuple) -> Array:
    """The chunk-pair cotangent repeated over the points of a tile."""
    row_chunk, col_chunk = chunks
    rows, cols = shape
    wide = jnp.repeat(cotangent, col_chunk, axis=1)
    tall = jnp.broadcast_to(wide[:, None, :], (rows // row_chunk, row_chunk, cols))
    return tall.reshape(rows, cols)


def _chunks_to_bags(strip: Array, cols: Layout) -> Array:
    """Sum the columns of a strip over the chunks of each bag."""
    if cols.one_chunk_per_bag:
        return strip[:, : cols.n_bags]
    return jax.ops.segment_sum(strip.T, cols.bag, cols.n_bags).T


def _zero_bags(rows: Layout, cols: Layout) -> Array:
    """Where rows of chunks are collected: those of bags, or one chunk each where that is a bag."""
    n_rows = rows.bag.shape[0] if rows.one_chunk_per_bag else rows.n_bags
    return jnp.zeros((n_rows, cols.n_bags), cols.points.dtype)


def _add_rows(out: Array, start: Array, strip: Array, rows: Layout, cols: Layout) -> Array:
    """Add a strip of chunk values, from chunk `start` on, to the bags of its rows."""
    by_bag = _chunks_to_bags(strip.astype(out.dtype), cols)
    if rows.one_chunk_per_bag:
        return lax.dynamic_update_slice_in_dim(out, by_bag, start, 0)
    return out.at[_slice(rows.bag, start, strip.shape[0])].add(by_bag, mode="drop")


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


# --------------------------------------------------------------------------- radial sweeps


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _radial_gram(profiles: tuple, scaled: tuple, shapes: tuple, layout: Layout) -> Array:
    """Bag means of a product of radial profiles with unit variance."""
    half = _values(profiles, scaled, scaled, shapes, layout, layout, symmetric=True)
    return half + half.T


def _radial_gram_forward(
    profiles: tuple, scaled: tuple, shapes: tuple, layout: Layout
) -> tuple[Array, tuple]:
    return _radial_gram(profiles, scaled, shapes, layout), (scaled, shapes, layout)


def _radial_gram_backward(profiles: tuple, saved: tuple, cotangent: Array) -> tuple:
    scaled, shapes, layout = saved
    operands = (scaled, scaled, shapes, layout, layout, cotangent + cotangent.T)
    if layout.form == "differences":
        both, by_shape = _row_gradients(profiles, *operands)
        return both, tuple(0.5 * total for total in by_shape), None
    by_row, by_column, by_shape = _both_gradients(profiles, *operands, symmetric=True)
    both = tuple(rows + columns for rows, columns in zip(by_row, by_column, strict=True))
    return both, by_shape, None


_radial_gram.defvjp(_radial_gram_forward, _radial_gram_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _radial_cross(
    profiles: tuple, left: tuple, right: tuple, shapes: tuple, rows: Layout, cols: Layout
) -> Array:
    """Means of a product of radial profiles over pairs of row and column bags."""
    return _values(profiles, left, right, shapes, rows, cols)


def _radial_cross_forward(
    profiles: tuple, left: tuple, right: tuple, shapes: tuple, rows: Layout, cols: Layout
) -> tuple[Array, tuple]:
    saved = (left, right, shapes, rows, cols)
    return _radial_cross(profiles, *saved), saved


def _radial_cross_backward(profiles: tuple, saved: tuple, cotangent: Array) -> tuple:
    left, right, shapes, rows, cols = saved
    if rows.form == "differences":
        by_row, by_shape = _row_gradients(profiles, left, right, shapes, rows, cols, cotangent)
        by_column, _ = _row_gradients(profiles, right, left, shapes, cols, rows, cotangent.T)
        return by_row, by_column, by_shape, None, None
    both = _both_gradients(profiles, left, right, shapes, rows, cols, cotangent)
    return *both, None, None


_radial_cross.defvjp(_radial_cross_forward, _radial_cross_backward)


def _values(
    profiles: tuple,
    left: tuple,
    right: tuple,
    shapes: tuple,
    rows: Layout,
    cols: Layout,
    symmetric: bool = False,
) -> Array:
    """Weighted sums over every pair of bags (for a symmetric sweep, the half to complete)."""
    sweep = _DifferenceSweep if rows.form == "differences" else _ProductSweep

    def share(device: Any, n_devices: int, *operands: Any) -> Array:
        return sweep(profiles, operands, symmetric).values(device, n_devices)

    collected = summed(rows.mesh or cols.mesh, share, left, right, shapes, rows, cols)
    return collected[: rows.n_bags]


def _row_gradients(
    profiles: tuple,
    left: tuple,
    right: tuple,
    shapes: tuple,
    rows: Layout,
    cols: Layout,
    cotangent: Array,
) -> tuple[tuple, tuple]:
    """Gradients with respect to row inputs and shape parameters, by differences."""

    def share(device: Any, n_devices: int, *operands: Any) -> tuple[tuple, tuple]:
        *parts, cotangent = operands
        return _DifferenceSweep(profiles, parts).gradients(cotangent, device, n_devices)

    operands = (left, right, shapes, rows, cols, cotangent)
    return summed(rows.mesh or cols.mesh, share, *operands)


def _both_gradients(
    profiles: tuple,
    left: tuple,
    right: tuple,
    shapes: tuple,
    rows: Layout,
    cols: Layout,
    cotangent: Array,
    symmetric: bool = False,
) -> tuple[tuple, tuple, tuple]:
    """Gradients with respect to row inputs, column inputs and shape parameters, by products."""

    def share(device: Any, n_devices: int, *operands: Any) -> tuple[tuple, tuple, tuple]:
        *parts, cotangent = operands
        return _ProductSweep(profiles, parts, symmetric).gradients(cotangent, device, n_devices)

    operands = (left, right, shapes, rows, cols, cotangent)
    return summed(rows.mesh or cols.mesh, share, *operands)


class _Sweep:
    """The loop over row tiles and column tiles; every `n_devices`-th row tile from `device` on.

    A symmetric sweep goes by blocks, the larger of the two tiles. Block b meets the blocks b, b+1,
    ... halfway round the circle of all blocks, so every pair meets once and every row tile has the
    same number of column tiles, give or take one block. A block meets itself whole; tiles there
    count half, and adding the transpose completes the matrix.
    """

    def __init__(self, profiles: tuple, operands: Sequence[Any], symmetric: bool = False):
        left, right, shapes, rows, cols = operands
        self.profiles, self.left, self.right, self.shapes = profiles, left, right, shapes
        self.rows, self.cols, self.symmetric = rows, cols, symmetric
        self.dtype = left[0].dtype
        self.row_tile, self.col_tile = rows.row_tile, cols.tile
        self.n_rows = rows.n_row_tiles
        self.n_cols = cols.points.shape[0] // self.col_tile
        self.row_chunks = self.row_tile // rows.chunk
        self.col_chunks = self.col_tile // cols.chunk
        self.chunks = (rows.chunk, cols.chunk)
        self.row_weights = rows.weights.astype(self.dtype)
        self.col_weights = cols.weights.astype(self.dtype)

    def values(self, device: Any, n_devices: int) -> Array:
        """Weighted sums over every pair of bags (for a symmetric sweep, the half to complete)."""

        def row(k: Array, out: Array) -> Array:
            i = device + k * n_devices
            here = self._row(i)

            def column(step: Array, strip: Array) -> Array:
                t = self._column_of(i, step)
                means = self._chunk_means(here, self._column(t))
                return _update(strip, means * self._share(step), t * self.col_chunks)

            strip = jnp.zeros((self.row_chunks, self.cols.bag.shape[0]), self.dtype)
            strip = lax.fori_loop(0, self._n_columns(i), column, strip)
            return _add_rows(out, i * self.row_chunks, strip, self.rows, self.cols)

        start = _zero_bags(self.rows, self.cols)
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


class _ProductSweep(_Sweep):
    """Distances by matrix product, and gradients by products with tiles of slopes."""

    def __init__(self, profiles: tuple, operands: Sequence[Any], symmetric: bool = False):
        super().__init__(profiles, operands, symmetric)
        self._lefts = [left_operand(u) for u in self.left]
        self._rights = [right_operand(u) for u in self.right]

    def _chunk_means(self, here: Any, there: Any) -> Array:
        (lefts, row_weights), (rights, col_weights) = here, there
        values = tile_values(self.profiles, lefts, rights, self.shapes)
        return _chunk_means(values, row_weights, col_weights, self.chunks)

    def gradients(
        self, cotangent: Array, device: Any, n_devices: int
    ) -> tuple[tuple, tuple, tuple]:
        """Gradients with respect to row inputs, column inputs and shape parameters."""
        by_row_chunk = _bags_to_chunks(cotangent.astype(self.dtype), self.rows, 0)
        row_moments = [weighted_moments(u, self.row_weights).T for u in self.left]
        col_moments = [weighted_moments(u, self.col_weights) for u in self.right]

        def row(k: Array, carry: tuple) -> tuple:
            i = device + k * n_devices
            every_row, *others = carry
            lefts, row_weights = self._row(i)
            here = [_slice(m, i * self.row_tile, self.row_tile, 1) for m in row_moments]
            chunk_rows = _slice(by_row_chunk, i * self.row_chunks, self.row_chunks)
            by_chunk = _bags_to_chunks(chunk_rows, self.cols, 1)

            def column(step: Array, inner: tuple) -> tuple:
                row_sums, col_sums, shape_sums = list(inner[0]), list(inner[1]), list(inner[2])
                t = self._column_of(i, step)
                rights, col_weights = self._column(t)
                g = _slice(by_chunk, t * self.col_chunks, self.col_chunks, 1) * self._share(step)
                g = _spread(g, self.chunks, (self.row_tile, self.col_tile))
                slopes = tile_slopes(self.profiles, lefts, rights, self.shapes)
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
        by_row = tuple(
            input_gradient(u, self.row_weights, total)
            for u, total in zip(self.left, row_sums, strict=True)
        )
        by_column = tuple(
            input_gradient(u, self.col_weights, total.T)
            for u, total in zip(self.right, col_sums, strict=True)
        )
        return by_row, by_column, tuple(shape_sums)

    def _row(self, i: Array) -> tuple[list, Array]:
        start = i * self.row_tile
        lefts = [_slice(left, start, self.row_tile) for left in self._lefts]
        return lefts, _slice(self.row_weights, start, self.row_tile)

    def _column(self, t: Array) -> tuple[list, Array]:
        start = t * self.col_tile
        rights = [_slice(right, start, self.col_tile, 1) for right in self._rights]
        return rights, _slice(self.col_weights, start, self.col_tile)


class _DifferenceSweep(_Sweep):
    """Distances by differences, summed in the loop that makes them.

    Values are one sum over each pair of chunks; sums of gradients run along rows. Columns are held
    by chunk, (d, chunks, points of a chunk), so that what belongs to a chunk is broadcast and not
    spread out.
    """

    def _row(self, i: Array) -> tuple[list, Array]:
        start = i * self.row_tile
        lefts = [_slice(u, start, self.row_tile).T for u in self.left]
        return lefts, _slice(self.row_weights, start, self.row_tile)

    def _column(self, t: Array) -> tuple[list, Array]:
        start, shape = t * self.col_tile, (self.col_chunks, self.cols.chunk)
        rights = [_slice(u, start, self.col_tile).T.reshape(-1, *shape) for u in self.right]
        return rights, _slice(self.col_weights, start, self.col_tile).reshape(shape)

    def _chunk_means(self, here: Any, there: Any) -> Array:
        (lefts, row_weights), (rights, col_weights) = here, there
        shape = (self.row_chunks, self.rows.chunk)
        squares = [
            sum_of_squares(differences(u.reshape(-1, *shape), v))
            for u, v in zip(lefts, rights, strict=True)
        ]
        values = product_values(self.profiles, squares, self.shapes)
        weights = row_weights.reshape(*shape, 1, 1) * col_weights
        return jnp.sum(values * weights, (1, 3))

    def gradients(self, cotangent: Array, device: Any, n_devices: int) -> tuple[tuple, tuple]:
        """Gradients with respect to row inputs and shape parameters."""
        by_row_chunk = _bags_to_chunks(cotangent.astype(self.dtype), self.rows, 0)
        shaped = [f for f, p in enumerate(self.profiles) if p.shape_slope is not None]
        width = sum(u.shape[1] for u in self.left) + len(shaped)

        def row(k: Array, every: Array) -> Array:
            i = device + k * n_devices
            lefts, row_weights = self._row(i)
            chunk_rows = _slice(by_row_chunk, i * self.row_chunks, self.row_chunks)
            by_chunk = jnp.repeat(_bags_to_chunks(chunk_rows, self.cols, 1), self.rows.chunk, 0)

            def column(t: Array, sums: list) -> list:
                rights, col_weights = self._column(t)
                g = _slice(by_chunk, t * self.col_chunks, self.col_chunks, 1)[:, :, None]
                g = g * col_weights
                apart = [differences(u, v) for u, v in zip(lefts, rights, strict=True)]
                squares = [sum_of_squares(parts) for parts in apart]
                slopes = product_slopes(self.profiles, squares, self.shapes)
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
        for u in self.left:
            by_row.append(2.0 * every[start : start + u.shape[1]].T)
            start += u.shape[1]
        by_shape = [jnp.zeros((), self.dtype) for _ in self.left]
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


# --------------------------------------------------------------------------- any kernel


def _generic_cross(kernel: AbstractKernel, rows: Layout, cols: Layout) -> Array:
    """The same bag means for a kernel known only point by point, differentiated by JAX."""
    row_tile, col_tile = rows.row_tile, cols.tile
    starts = jnp.arange(0, cols.points.shape[0], col_tile)

    @jax.checkpoint
    def block(row_points: Array, row_weights: Array, start: Array) -> Array:
        points = _slice(cols.points, start, col_tile)
        values = kernel.cross_covariance(row_points, points)
        weights = _slice(cols.weights, start, col_tile)
        return _chunk_means(values, row_weights, weights, (rows.chunk, cols.chunk))

    def row(out: Array, inputs: tuple) -> tuple[Array, None]:
        row_points, row_weights, first_chunk = inputs
        blocks = lax.map(lambda start: block(row_points, row_weights, start), starts)
        strip = jnp.moveaxis(blocks, 0, 1).reshape(row_tile // rows.chunk, -1)
        return _add_rows(out, first_chunk, strip, rows, cols), None

    tiles = (
        rows.points.reshape(-1, row_tile, rows.points.shape[1]),
        rows.weights.reshape(-1, row_tile),
        jnp.arange(0, rows.bag.shape[0], row_tile // rows.chunk),
    )
    return lax.scan(row, _zero_bags(rows, cols), tiles)[0][: rows.n_bags]


def _generic_gram(kernel: AbstractKernel, layout: Layout) -> Array:
    return _generic_cross(kernel, layout, layout)
