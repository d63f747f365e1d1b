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

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from gpjax.kernels.base import AbstractKernel
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.devices import summed
from deconditional.kernels.layout import Layout, layout_points
from deconditional.kernels.loops import (
    DifferenceSweep,
    ProductSweep,
    add_rows,
    chunk_means,
    zero_bags,
)
from deconditional.kernels.radial import GenericTerm, sum_of_products
from deconditional.kernels.tiles import scaled_inputs, scaled_pair

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
    sweep = DifferenceSweep if rows.form == "differences" else ProductSweep

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
        return DifferenceSweep(profiles, parts).gradients(cotangent, device, n_devices)

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
        return ProductSweep(profiles, parts, symmetric).gradients(cotangent, device, n_devices)

    operands = (left, right, shapes, rows, cols, cotangent)
    return summed(rows.mesh or cols.mesh, share, *operands)


# --------------------------------------------------------------------------- any kernel


def _generic_cross(kernel: AbstractKernel, rows: Layout, cols: Layout) -> Array:
    """The same bag means for a kernel known only point by point, differentiated by JAX."""
    row_tile, col_tile = rows.row_tile, cols.tile
    starts = jnp.arange(0, cols.points.shape[0], col_tile)

    @jax.checkpoint
    def block(row_points: Array, row_weights: Array, start: Array) -> Array:
        points = lax.dynamic_slice_in_dim(cols.points, start, col_tile, 0)
        values = kernel.cross_covariance(row_points, points)
        weights = lax.dynamic_slice_in_dim(cols.weights, start, col_tile, 0)
        return chunk_means(values, row_weights, weights, (rows.chunk, cols.chunk))

    def row(out: Array, inputs: tuple) -> tuple[Array, None]:
        row_points, row_weights, first_chunk = inputs
        blocks = lax.map(lambda start: block(row_points, row_weights, start), starts)
        strip = jnp.moveaxis(blocks, 0, 1).reshape(row_tile // rows.chunk, -1)
        return add_rows(out, first_chunk, strip, rows, cols), None

    tiles = (
        rows.points.reshape(-1, row_tile, rows.points.shape[1]),
        rows.weights.reshape(-1, row_tile),
        jnp.arange(0, rows.bag.shape[0], row_tile // rows.chunk),
    )
    return lax.scan(row, zero_bags(rows, cols), tiles)[0][: rows.n_bags]


def _generic_gram(kernel: AbstractKernel, layout: Layout) -> Array:
    return _generic_cross(kernel, layout, layout)
