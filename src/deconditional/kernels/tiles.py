"""One tile of kernel values: scaled inputs, distances, profiles, and what a gradient needs.

Squared distances come in two forms. ``"product"`` takes them from one matrix product, which two
cores do at full speed. ``"differences"`` squares the differences themselves, coordinate by
coordinate, so that a tile is made, used and forgotten inside one loop of an accelerator and never
written to its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.layout import Layout
from deconditional.kernels.radial import Factor

__all__ = [
    "differences",
    "input_gradient",
    "left_operand",
    "product_slopes",
    "product_values",
    "right_operand",
    "scaled_inputs",
    "scaled_pair",
    "sum_of_squares",
    "tile_slopes",
    "tile_values",
    "weighted_moments",
]


def scaled_inputs(
    factors: Sequence[Factor],
    points: Float[Array, "n d"],
    dtype: Any,
    centres: Sequence[Array] | None = None,
) -> tuple[tuple[Array, ...], tuple[Array, ...], tuple[Any, ...]]:
    """Scaled inputs of every factor, its shape parameter and its profile.

    Inputs are centred: distances by matrix product then lose no digits to an offset, and a
    stationary kernel does not feel it.
    """
    scaled = []
    for index, factor in enumerate(factors):
        u = factor.scaled(points)
        centre = u.mean(0) if centres is None else centres[index]
        scaled.append((u - lax.stop_gradient(centre)).astype(dtype or points.dtype))
    shapes = tuple(jnp.asarray(f.shape, dtype or points.dtype) for f in factors)
    return tuple(scaled), shapes, tuple(f.profile for f in factors)


def scaled_pair(
    factors: Sequence[Factor], rows: Layout, cols: Layout, dtype: Any
) -> tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, ...], tuple[Any, ...]]:
    """Scaled inputs of two layouts about the centre of the first, shapes and profiles."""
    centres = [f.scaled(rows.points).mean(0) for f in factors]
    left, shapes, statics = scaled_inputs(factors, rows.points, dtype, centres)
    right, _, _ = scaled_inputs(factors, cols.points, dtype, centres)
    return left, right, shapes, statics


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


def sum_of_squares(parts: Sequence[Array]) -> Array:
    """Squared distances from differences: exact zeros for equal points."""
    total = parts[0] * parts[0]
    for part in parts[1:]:
        total = total + part * part
    return total


# --------------------------------------------------------------------------- profiles


def product_values(profiles: tuple, squares: Sequence[Array], shapes: tuple) -> Array:
    """The product of all profiles at given squared distances."""
    value = None
    for profile, s, shape in zip(profiles, squares, shapes, strict=True):
        factor = profile.value(s, shape)
        value = factor if value is None else value * factor
    assert value is not None
    return value


def product_slopes(
    profiles: tuple, squares: Sequence[Array], shapes: tuple
) -> list[tuple[Array, Array | None]]:
    """For every factor, the derivatives of the product by its s and by its shape parameter."""
    slopes = []
    for index, (profile, s, shape) in enumerate(zip(profiles, squares, shapes, strict=True)):
        others = 1.0
        for other, (p, t, a) in enumerate(zip(profiles, squares, shapes, strict=True)):
            if other != index:
                others = others * p.value(t, a)
        by_shape = None if profile.shape_slope is None else profile.shape_slope(s, shape) * others
        slopes.append((profile.slope(s, shape) * others, by_shape))
    return slopes


def _squares(profiles: tuple, lefts: list, rights: list) -> list[Array]:
    return [
        _squared_distances(left, right, profile.rough)
        for profile, left, right in zip(profiles, lefts, rights, strict=True)
    ]


def tile_values(profiles: tuple, lefts: list, rights: list, shapes: tuple) -> Array:
    """The product of all profiles at every pair of points, distances by matrix product."""
    return product_values(profiles, _squares(profiles, lefts, rights), shapes)


def tile_slopes(profiles: tuple, lefts: list, rights: list, shapes: tuple) -> list:
    """The derivatives of :func:`product_slopes`, distances by matrix product."""
    return product_slopes(profiles, _squares(profiles, lefts, rights), shapes)


# --------------------------------------------------------------------------- gradients


def weighted_moments(u: Array, weights: Array) -> Array:
    """[w u, w]: what a tile of slopes is multiplied with."""
    return jnp.concatenate([u * weights[:, None], weights[:, None]], axis=1)


def input_gradient(u: Array, sums: Array, weights: Array) -> Array:
    r"""From :math:`\sum_j H_{ij} w_j [u_j, 1]` to :math:`2 w_i \sum_j H_{ij} w_j (u_i - u_j)`."""
    return 2.0 * weights[:, None] * (u * sums[:, -1:] - sums[:, :-1])
