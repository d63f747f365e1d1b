"""One tile of kernel values: scaled inputs, distances, profiles, and what a gradient needs.

Squared distances come in two forms. ``"product"`` takes them from one matrix product, which two
cores do at full speed. ``"differences"`` squares the differences themselves, coordinate by
coordinate, so that a tile is made, used and forgotten inside one loop of an accelerator and never
written to its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.radial import RadialTerm


class Term(eqx.Module):
    """A radial term of a kernel between two sets of points; numbers are as users gave them."""

    # left, right: inputs of rows and of columns by factor, centred: distances by matrix product
    # then lose no digits to an offset, and a stationary kernel does not feel it. `right` is None
    # where the columns are the rows.
    left: tuple[Array, ...]
    right: tuple[Array, ...] | None
    # scales, shapes, variance, profiles: length scales and shape parameters of the factors, the
    # term's variance, the profiles.
    scales: tuple[Array, ...]
    shapes: tuple[Array, ...]
    variance: Array
    profiles: tuple[Any, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, term: RadialTerm, rows: Array, cols: Array | None) -> Term:
        """The term between the points of rows and those of columns."""
        centres = [lax.stop_gradient(f.inputs(rows).mean(0)) for f in term.factors]

        def centred(points: Array) -> tuple[Array, ...]:
            pairs = zip(term.factors, centres, strict=True)
            return tuple(f.inputs(points) - centre for f, centre in pairs)

        return cls(
            centred(rows),
            None if cols is None else centred(cols),
            tuple(f.scale for f in term.factors),
            tuple(f.shape for f in term.factors),
            term.variance,
            tuple(f.profile for f in term.factors),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of length scales."""
        return tuple(scale.size for scale in self.scales)

    @property
    def n_derivatives(self) -> int:
        """Number of tiles that :func:`tile_derivatives` makes of a term."""
        return 1 + sum(self.sizes) + sum(p.shape_slope is not None for p in self.profiles)

    def scaled(self, dtype: Any) -> Scaled:
        """The term in the type of the tiles."""

        def divided(inputs: tuple[Array, ...]) -> tuple[Array, ...]:
            pairs = zip(inputs, self.scales, strict=True)
            return tuple((x / scale).astype(dtype) for x, scale in pairs)

        left = divided(self.left)
        right = left if self.right is None else divided(self.right)
        shapes = tuple(shape.astype(dtype) for shape in self.shapes)
        return Scaled(left, right, shapes, self.variance.astype(dtype), self.profiles)


class Scaled(eqx.Module):
    """A term whose inputs are divided by their length scales: what a tile is made from."""

    left: tuple[Array, ...]
    right: tuple[Array, ...]
    shapes: tuple[Array, ...]
    variance: Array
    profiles: tuple[Any, ...] = eqx.field(static=True)


# --------------------------------------------------------------------------- distances


def left_operand(u: Array) -> Array:
    """[u, |u|², 1]: times :func:`right_operand` this gives squared distances."""
    square = jnp.sum(u * u, axis=1, keepdims=True)
    return jnp.concatenate([u, square, jnp.ones_like(square)], axis=1)


def right_operand(u: Array) -> Array:
    """[-2u, 1, |u|²], transposed."""
    square = jnp.sum(u * u, axis=1, keepdims=True)
    return jnp.concatenate([-2.0 * u, jnp.ones_like(square), square], axis=1).T


def _squared_distances(left: Array, right: Array, rough: bool) -> Array:
    """Squared distances of a tile from one matrix product, with rounding near zero removed."""
    s = jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
    if not rough:
        return jnp.maximum(s, 0.0)
    magnitude = left[:, -2:-1] + right[-1:, :]
    return jnp.where(s > 8.0 * jnp.finfo(s.dtype).eps * magnitude, s, 0.0)


def differences(left: Float[Array, "d *rows"], right: Float[Array, "d *cols"]) -> list[Array]:
    """Differences of every pair of points, one array (*rows, *cols) for each coordinate."""
    rows = (..., *(None,) * (right.ndim - 1))
    return [u[rows] - v for u, v in zip(left, right, strict=True)]


def sum_of_squares(parts: Sequence[Array], least: Array) -> Array:
    """Squared distances from differences; zero up to `least`, where rounding alone tells apart."""
    total = parts[0] * parts[0]
    for part in parts[1:]:
        total = total + part * part
    return jnp.where(total > least, total, 0.0)


def rounding_of_squares(u: Array) -> Array:
    """Squared distance that a point may have from itself, its inputs having been scaled twice."""
    return (4.0 * jnp.finfo(u.dtype).eps * jnp.max(jnp.abs(u))) ** 2


# --------------------------------------------------------------------------- profiles


def product_values(
    profiles: tuple, squares: Sequence[Array], shapes: tuple, f: int | None = None, by: Any = None
) -> Array:
    """The product of all profiles at given squared distances; of factor f, `by` in its place."""
    functions = [by if k == f else profile.value for k, profile in enumerate(profiles)]
    every = zip(functions, squares, shapes, strict=True)
    return reduce(jnp.multiply, [function(s, shape) for function, s, shape in every])


def product_slopes(
    profiles: tuple, squares: Sequence[Array], shapes: tuple
) -> list[tuple[Array, Array | None]]:
    """Derivatives of a product of factors by the s and the shape parameter of each."""
    _, declines = tile_values_and_declines(profiles, squares, shapes)
    return [(rate * tile, by_shape) for tile, rate, by_shape in declines]


def _by_shape(profiles: tuple, squares: Sequence[Array], shapes: tuple, f: int) -> Array | None:
    """The derivative of a product by the shape parameter of factor f, if it has one."""
    by_shape = profiles[f].shape_slope
    return None if by_shape is None else product_values(profiles, squares, shapes, f, by_shape)


def tile_squares(profiles: tuple, lefts: list, rights: list) -> list[Array]:
    """Squared distances of every pair of points by factor, by matrix product."""
    return [
        _squared_distances(left, right, profile.rough)
        for profile, left, right in zip(profiles, lefts, rights, strict=True)
    ]


def tile_values(profiles: tuple, lefts: list, rights: list, shapes: tuple) -> Array:
    """The product of all profiles at every pair of points, distances by matrix product."""
    return product_values(profiles, tile_squares(profiles, lefts, rights), shapes)


def tile_slopes(profiles: tuple, lefts: list, rights: list, shapes: tuple) -> list:
    """The derivatives of :func:`product_slopes`, distances by matrix product."""
    return product_slopes(profiles, tile_squares(profiles, lefts, rights), shapes)


def tile_values_and_declines(
    profiles: tuple, squares: Sequence[Array], shapes: tuple
) -> tuple[Array, list[tuple[Array, float, Array | None]]]:
    """The product of all profiles at given squared distances, and its slopes by every factor.

    These are a tile, a constant that its sums are to be multiplied with, and the slope by the shape
    parameter. The tile is the first one itself where the profile is its own decline.
    """
    values = product_values(profiles, squares, shapes)
    declines = [
        values
        if profile.decline is profile.value
        else product_values(profiles, squares, shapes, f, profile.decline)
        for f, profile in enumerate(profiles)
    ]
    return values, [
        (tile, profile.rate, _by_shape(profiles, squares, shapes, f))
        for f, (tile, profile) in enumerate(zip(declines, profiles, strict=True))
    ]


def tile_derivatives(
    profiles: tuple, lefts: list, rights: list, shapes: tuple, sizes: Sequence[int]
) -> list[tuple[Array, float, int | None]]:
    r"""Tiles whose sums are the product of all profiles and its derivatives, in turn.

    Each has a constant that its sums are to be multiplied with. By the logarithm of a length scale
    that all inputs share, over minus two, the derivative is :math:`\varphi'(s)\,s`. Where every
    input has a length scale of its own the tile is :math:`\varphi'(s)` alone, with the index of the
    factor: what it is reduced to are the sums of :math:`\varphi'(s)\,s_d`. It is the first tile
    itself where the profile is its own decline. Shape parameters follow. `sizes` are the numbers
    of length scales.
    """
    squares = tile_squares(profiles, lefts, rights)
    values, declines = tile_values_and_declines(profiles, squares, shapes)
    tiles: list[tuple[Array, float, int | None]] = [(values, 1.0, None)]
    for f, (tile, rate, by_shape) in enumerate(declines):
        tile, factor = (tile * squares[f], None) if sizes[f] == 1 else (tile, f)
        tiles.append((tile, rate, factor))
        if by_shape is not None:
            tiles.append((by_shape, 1.0, None))
    return tiles


# --------------------------------------------------------------------------- sums over chunks


def chunk_means(values: Array, row_weights: Array, col_weights: Array, chunks: tuple) -> Array:
    """Weighted sums of a tile over every pair of chunks; rows first, which keeps vectors long."""
    row_chunk, col_chunk = chunks
    rows, cols = values.shape
    by_row = row_weights.reshape(-1, row_chunk)
    summed = jnp.einsum("rc,rct->rt", by_row, values.reshape(rows // row_chunk, row_chunk, cols))
    return (summed * col_weights).reshape(summed.shape[0], cols // col_chunk, col_chunk).sum(-1)


def summed_squares(
    tile: Array, left: Array, right: Array, row_weights: Array, col_weights: Array, chunks: tuple
) -> list[Array]:
    r"""Weighted sums of :math:`H_{ij} (u_{id} - v_{jd})^2` over every pair of chunks, for each d.

    Before them, those of :math:`H_{ij}` itself. Where chunks are long, by the sums of
    :math:`H_{ij} u_{id}^k` along rows, k up to 2: one product with the tile for all inputs. `right`
    is -2v, transposed.
    """
    row_chunk, col_chunk = chunks
    d, there = left.shape[1], -0.5 * right
    if not moments_pay(d, row_chunk):
        apart = [left[:, k, None] - there[k] for k in range(d)]
        tiles = [tile, *(tile * e * e for e in apart)]
        return [chunk_means(each, row_weights, col_weights, chunks) for each in tiles]
    powers = jnp.concatenate([jnp.ones_like(left[:, :1]), left, left * left], 1)
    by_row = (powers * row_weights[:, None]).reshape(-1, row_chunk, 2 * d + 1)
    sums = jnp.einsum("rcm,rct->rmt", by_row, tile.reshape(-1, row_chunk, tile.shape[1]))
    squares = sums[:, 1 + d :] + there * (there * sums[:, :1] - 2.0 * sums[:, 1 : 1 + d])
    total = jnp.concatenate([sums[:, :1], squares], 1) * col_weights
    total = total.reshape(*total.shape[:2], -1, col_chunk).sum(-1)
    return [total[:, k] for k in range(d + 1)]


def moments_pay(d: int, row_chunk: int) -> bool:
    """Whether the sums along the rows of a chunk are fewer than the rows."""
    return 2 * d + 1 <= row_chunk


# --------------------------------------------------------------------------- gradients


def weighted_moments(u: Array, weights: Array) -> Array:
    """[w u, w]: what a tile of slopes is multiplied with."""
    return jnp.concatenate([u * weights[:, None], weights[:, None]], axis=1)


def input_gradient(u: Array, sums: Array, weights: Array) -> Array:
    r"""Gradient :math:`2w_i\sum_jH_{ij}w_j(u_i-u_j)` from :math:`\sum_jH_{ij}w_j[u_j,1]`."""
    return 2.0 * weights[:, None] * (u * sums[:, -1:] - sums[:, :-1])
