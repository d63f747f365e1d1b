r"""Bag averages of a kernel, :math:`\bar K = P^\top K P` and :math:`\bar k(x) = k(x, \cdot) P`.

Nothing of size n x n is ever held. Bags are cut into chunks of equal length
(:class:`~deconditional.kernels.layout.Layout`), a tile of kernel values is made from two runs of
chunks, and each tile is reduced at once to one number per pair of chunks. The gradient is written
by hand: with H the tile of :math:`G_{b(i)b(j)}\,\varphi'(s_{ij})`, everything it needs are the sums
:math:`\sum_j H_{ij} w_j (u_i - u_j)`, so the backward pass costs one more sweep over the tiles.
Gradients reach kernel parameters, the weights of a network and the points through the scaled
inputs u.

A sweep has two forms (:mod:`deconditional.kernels.tiles`). By products, a tile is multiplied with
:math:`[w, wu]` from both sides. By differences, it is summed along its rows as it is made, so that
an accelerator writes no tile; columns get their sums from a sweep with the roles exchanged, and a
symmetric matrix needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.devices import summed
from deconditional.kernels.layout import Layout, layout_points
from deconditional.kernels.loops import (
    DifferenceSweep,
    ProductSweep,
    add_rows,
    zero_bags,
)
from deconditional.kernels.radial import GenericTerm, sum_of_products
from deconditional.kernels.tiles import (
    Scaled,
    Term,
    chunk_means,
    left_operand,
    moments_pay,
    right_operand,
    tile_squares,
    tile_values_and_declines,
)

DERIVATIVES_PER_TERM = 4
"""Values and derivatives up to which one sweep for all of them is faster than two where bags are
cut into short chunks: each costs about a third of a sweep, the sweep backwards one and a third."""

LARGEST_DERIVATIVES = 2**28
"""Bytes of derivatives that are held at a time."""

MOST_PAIRS = 2**22
"""Pairs of single points whose values and slopes are held for a gradient: 32 MiB for each."""

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
    return between_bags(kernel, _as_layout(bags, points), None, dtype=dtype)


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
    single = layout.chunk == 1 and layout.one_chunk_per_bag and layout.mesh is None
    if single or layout.form == "differences":  # sums run along rows, over the points of bags
        n_devices = 1 if layout.mesh is None else layout.mesh.size
        queries = layout_points(x, row_tiles=n_devices, form=layout.form)
        return between_bags(kernel, queries, layout, dtype=dtype)
    # Bags are the rows of the sweep: tiles reduce over rows first, which keeps vectors long.
    found = between_bags(kernel, layout, layout_points(x), dtype=dtype).T
    if layout.mesh is None:
        return found
    # jaxlib 0.10.2 gets the first rows of products wrong that follow a sum over processor devices
    # in one function, unless what they multiply is laid out by itself.
    return lax.optimization_barrier(found)


def between_bags(
    kernel: AbstractKernel, rows: Layout, cols: Layout | None, *, dtype: Any = None
) -> Float[Array, "N N2"]:
    """Covariance of the means of bags with those of others, or of each other without `cols`."""
    other = rows if cols is None else cols
    total = jnp.zeros((rows.n_bags, other.n_bags), rows.points.dtype)
    radial = []
    for term in sum_of_products(kernel):
        if isinstance(term, GenericTerm):
            total = total + _generic(term.kernel, rows, other)
        elif not term.factors:
            total = total + term.variance
        else:
            radial.append(Term.of(term, rows.points, None if cols is None else cols.points))
    if radial:
        kind = jnp.dtype(dtype or rows.points.dtype)
        total = total + _radial(kind, tuple(radial), rows, cols)
    return total


def _as_layout(bags: Any, points: Float[Array, "n d"] | None) -> Layout:
    if isinstance(bags, Layout):
        return bags if points is None else bags.with_points(points)
    if points is None:
        return bags.layout
    return bags.layout.with_points(jnp.asarray(points)[bags.slot_points])


# --------------------------------------------------------------------------- radial sweeps


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _radial(dtype: Any, terms: tuple[Term, ...], rows: Layout, cols: Layout | None) -> Array:
    """Bag means of a sum of radial terms; a matrix that is its own transpose if `cols` is None."""
    scaled = [term.scaled(dtype) for term in terms]
    return _swept(lambda sweep, *share: sweep.values(*share), scaled, rows, cols)


def _radial_forward(
    dtype: Any, terms: tuple[Term, ...], rows: Layout, cols: Layout | None
) -> tuple[Array, tuple]:
    moving = any(each.perturbed for each in jax.tree.leaves([(t.left, t.right) for t in terms]))
    terms, rows, cols = jax.tree.map(lambda primal: primal.value, (terms, rows, cols))
    if _are_points(rows, cols) and not moving:
        pairs = [_of_pairs(t.scaled(dtype), rows, cols) for t in terms]
        value = _weighted(terms, [own for own, *_ in pairs])
        return value, (terms, rows, cols, pairs)
    if moving or not _is_cheap(terms, rows, cols):
        sums = [_radial(dtype, (replace(t, variance=jnp.ones(())),), rows, cols) for t in terms]
        value = _weighted(terms, sums)
        return value, (terms, rows, cols, sums)
    scaled, sizes = [t.scaled(dtype) for t in terms], [t.sizes for t in terms]
    ends = np.cumsum([term.n_derivatives for term in terms])

    def part(sweep: Any, *share: Any) -> Array:
        return sweep.derivatives(sizes, int(ends[-1]), *share)

    sums = jnp.split(_swept(part, scaled, rows, cols), ends[:-1])
    value = _weighted(terms, [own[0] for own in sums])
    return value, (terms, rows, cols, sums)


def _weighted(terms: tuple[Term, ...], sums: list[Array]) -> Array:
    """The sum of all terms, from their bag means at unit variance."""
    return reduce(jnp.add, [t.variance * own for t, own in zip(terms, sums, strict=True)])


def _is_cheap(terms: tuple[Term, ...], rows: Layout, cols: Layout | None) -> bool:
    """Whether one sweep for values and derivatives costs less than a sweep for each of the two."""
    n = sum(term.n_derivatives for term in terms)
    n_cols = rows.n_bags if cols is None else cols.n_bags
    fits = 8 * n * rows.n_bags * n_cols <= LARGEST_DERIVATIVES
    few = n <= DERIVATIVES_PER_TERM * len(terms)
    together = all(moments_pay(max(term.sizes), rows.chunk) for term in terms)
    return rows.form == "product" and fits and (few or together)


def _radial_backward(dtype: Any, saved: tuple, cotangent: Array) -> tuple:
    terms, rows, cols, sums = saved
    if isinstance(sums[0], tuple):
        along = [_along(cotangent, t, *pairs) for t, pairs in zip(terms, sums, strict=True)]
        return tuple(map(_by_numbers, terms, along)), None, None
    if sums[0].ndim == 3:
        along = [jnp.tensordot(own, cotangent, 2) for own in sums]
        return tuple(map(_by_numbers, terms, along)), None, None
    back = partial(_by_all, dtype, rows, cols, cotangent)
    return tuple(map(back, terms, sums)), None, None


_radial.defvjp(_radial_forward, _radial_backward, symbolic_zeros=True)


def _by_numbers(term: Term, along: Array) -> Term:
    """The gradient by the numbers of a term, from its :func:`tile_derivatives` along it."""
    scales, shapes, at = [], [], 1
    for scale, shape, profile in zip(term.scales, term.shapes, term.profiles, strict=True):
        by_log = -2.0 * term.variance * along[at : at + scale.size]
        scales.append(by_log.reshape(scale.shape) / scale)
        at += scale.size
        shapes.append(jnp.zeros_like(shape))
        if profile.shape_slope is not None:
            shapes[-1] = term.variance * along[at]
            at += 1
    nothing: Any = None
    found = replace(term, left=nothing, right=nothing, variance=along[0])
    return replace(found, scales=tuple(scales), shapes=tuple(shapes))


def _are_points(rows: Layout, cols: Layout | None) -> bool:
    """Whether bags are single points, and so few that what is known of all pairs is held."""
    other = rows if cols is None else cols
    single = all(each.chunk == 1 and each.one_chunk_per_bag for each in (rows, other))
    alone = rows.mesh is None and other.mesh is None and rows.form == "product"
    return single and alone and rows.n_bags * other.n_bags <= MOST_PAIRS


def _of_pairs(term: Scaled, rows: Layout, cols: Layout | None) -> tuple:
    """A term of unit variance at all pairs of single points, and what its derivatives are made of.

    Nothing is summed over bags, so a gradient needs as many numbers as there are values. Kept, they
    take a fraction of the time of a sweep backwards.
    """
    other = rows if cols is None else cols
    left = [u[: rows.n_bags] for u in term.left]
    right = [u[: other.n_bags] for u in term.right]
    every = list(map(left_operand, left)), list(map(right_operand, right))
    squares = tile_squares(term.profiles, *every)
    own, declines = tile_values_and_declines(term.profiles, squares, term.shapes)
    return own, declines, left, right


def _along(
    cotangent: Array, term: Term, own: Array, declines: list, left: list, right: list
) -> Array:
    """Sums over all pairs of the derivatives of a term, each pair with its cotangent."""
    found = [jnp.sum(cotangent * own)[None]]
    every = zip(declines, left, right, term.sizes, strict=True)
    for (tile, rate, by_shape), u, v, size in every:
        h = cotangent.astype(tile.dtype) * tile
        squares = h.sum(1) @ (u * u) + h.sum(0) @ (v * v) - 2.0 * jnp.sum(u * (h @ v), 0)
        found.append(rate * (squares if size > 1 else jnp.sum(squares)[None]))
        if by_shape is not None:
            found.append(jnp.sum(cotangent * by_shape)[None])
    return jnp.concatenate(found)


def _by_all(
    dtype: Any, rows: Layout, cols: Layout | None, cotangent: Array, term: Term, own: Array
) -> Term:
    """The gradient by inputs and numbers of a term, by a sweep backwards."""
    scaled, pull = jax.vjp(lambda term: term.scaled(dtype), term)
    weighted = term.variance * cotangent
    symmetric = cols is None
    other = rows if cols is None else cols
    if symmetric:
        weighted = weighted + weighted.T
    mesh = rows.mesh or other.mesh

    def by_row(term: Scaled, rows: Layout, cols: Layout, cotangent: Array) -> tuple[tuple, tuple]:
        def share(device: Any, n_devices: int, term: Scaled, *operands: Any) -> Any:
            rows, cols, cotangent = operands
            return DifferenceSweep([term], rows, cols).gradients(cotangent, device, n_devices)

        return summed(mesh, share, term, rows, cols, cotangent)

    def both(device: Any, n_devices: int, term: Scaled, *operands: Any) -> Any:
        rows, cols, cotangent = operands
        sweep = ProductSweep([term], rows, cols, symmetric)
        return sweep.gradients(cotangent, device, n_devices)

    if rows.form == "product":
        left, right, shapes = summed(mesh, both, scaled, rows, other, weighted)
    elif symmetric:
        left, shapes = by_row(scaled, rows, other, 0.5 * weighted)
        right = left
    else:
        left, shapes = by_row(scaled, rows, other, weighted)
        turned = replace(scaled, left=scaled.right, right=scaled.left)
        right, _ = by_row(turned, other, rows, weighted.T)
    gradient = replace(scaled, left=left, right=right, shapes=shapes)
    (found,) = pull(replace(gradient, variance=jnp.zeros_like(scaled.variance)))
    return replace(found, variance=jnp.sum(cotangent * own))


def _swept(
    part: Callable[..., Array], terms: list[Scaled], rows: Layout, cols: Layout | None
) -> Array:
    """What a sweep makes of every pair of bags; `part` asks a sweep for one device's share."""
    other = rows if cols is None else cols
    kind = DifferenceSweep if rows.form == "differences" else ProductSweep

    def share(device: Any, n_devices: int, terms: Any, rows: Layout, other: Layout) -> Array:
        return part(kind(terms, rows, other, cols is None), device, n_devices)

    found = summed(rows.mesh or other.mesh, share, terms, rows, other)[..., : rows.n_bags, :]
    return found + jnp.swapaxes(found, -1, -2) if cols is None else found


# --------------------------------------------------------------------------- any kernel


def _generic(kernel: AbstractKernel, rows: Layout, cols: Layout) -> Array:
    """Bag means of a kernel known only point by point, differentiated by JAX."""
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
