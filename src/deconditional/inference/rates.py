r"""Mean rates of bags, :math:`\bar r_j = \sum_i w_{ji}\,\mathrm{E}g^{-1}(f(x_i))`, in a basis of f.

:math:`f(x) = \gamma(x)^\top v` with the basis functions and the trend functions in γ. All that is
ever asked of the points are three passes over them: f at every point, means of γ over bags with
other weights, and quadratic forms of γ. Each is linear in the number of points; where the values of
the basis at all points do not fit into :data:`MOST_KEPT` numbers, they are made anew in each pass,
block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.ops import segment_sum
from jaxtyping import Array, Float

from deconditional.inference.basis import Basis
from deconditional.inference.field import Trend
from deconditional.kernels.layout import Layout

MOST_KEPT = 2**25
"""Values of basis functions at points that are kept: 256 MiB."""

BLOCK_VALUES = 2**22
"""Values of basis functions of one block of points, where they are not kept."""


class FinePoints(eqx.Module):
    """The points of some bags, with the values of a basis and of a trend there."""

    basis: Basis
    layout: Layout
    trend_values: Float[Array, "n q"]  # trend functions of unit prior variance at all points
    # Values of the basis at all points; None where they are made anew in each pass.
    kept: Float[Array, "n d"] | None

    @classmethod
    def of(cls, basis: Basis, trend: Trend, layout: Layout) -> FinePoints:
        """The points of a layout."""
        values = trend.whitened(trend.features(layout.points))
        few = len(layout.points) * basis.size <= MOST_KEPT
        return cls(basis, layout, values, basis.values(layout.points) if few else None)

    def values_at(self, v: Float[Array, " D"]) -> Float[Array, " n"]:
        """The function with coefficients v, at every point."""
        at = self.basis.of_values(v[: self.basis.size, None])[:, 0]
        found = self._mapped(lambda block: block @ at)
        return found + self.trend_values @ v[self.basis.size : self._size]

    def bag_means(self, values: Float[Array, " n"]) -> Float[Array, " N"]:
        """Weighted means over the bags of one value for each point."""
        each = (self.layout.weights * values).reshape(-1, self.layout.chunk).sum(1)
        return segment_sum(each, self.layout.bag, self.layout.n_bags)

    def feature_means(self, factors: Float[Array, " n"]) -> Float[Array, "N D"]:
        r"""Means over the bags of γ, each point with a factor beside its weight."""
        weights = self.layout.weights * factors
        basis = self.basis.features_of(self._sums(weights)).T
        rows = (weights[:, None] * self.trend_values).reshape(
            len(self.layout.bag), self.layout.chunk, self.trend_values.shape[1]
        )
        trend = segment_sum(rows.sum(1), self.layout.bag, self.layout.n_bags)
        return jnp.concatenate([basis, trend], axis=1)

    def squares(self, directions: Float[Array, "D k"]) -> Float[Array, " n"]:
        r""":math:`\lVert E^\top\gamma\rVert^2` at every point, E the directions."""
        at = self.basis.of_values(directions[: self.basis.size])
        of_trend = directions[self.basis.size : self._size]
        return self._mapped(
            lambda block, trend: jnp.sum((block @ at + trend @ of_trend) ** 2, 1), self.trend_values
        )

    def prior_variance(self) -> Float[Array, " n"]:
        """Prior variance of f at every point, trend included."""
        values = self.layout.points if self.kept is None else self.kept
        own = self.basis.prior_variance(self.layout.points, values)
        return own + jnp.sum(self.trend_values**2, 1)

    @property
    def _size(self) -> int:
        return self.basis.size + self.trend_values.shape[1]

    def _blocks(self, array: Array) -> Array:
        """Rows of points in blocks of whole chunks, the last padded with the first point."""
        n, chunk = len(self.layout.points), self.layout.chunk
        rows = max(BLOCK_VALUES // (self.basis.size * chunk), 1) * chunk
        padding = -n % rows
        padded = jnp.concatenate([array, jnp.broadcast_to(array[:1], (padding, *array.shape[1:]))])
        return padded.reshape(-1, rows, *array.shape[1:])

    def _mapped(self, function: Callable[..., Array], *more: Array) -> Array:
        """A function of the values of the basis, with one answer for each point."""
        if self.kept is not None:
            return function(self.kept, *more)

        @jax.checkpoint
        def of_block(parts: tuple[Array, ...]) -> Array:
            return function(self.basis.values(parts[0]), *parts[1:])

        blocks = tuple(self._blocks(each) for each in (self.layout.points, *more))
        return lax.map(of_block, blocks).reshape(-1)[: len(self.layout.points)]

    def _sums(self, weights: Float[Array, " n"]) -> Float[Array, "N d"]:
        """Weighted sums over the bags of the values of the basis."""
        chunk, n_bags = self.layout.chunk, self.layout.n_bags

        def of_rows(values: Array, w: Array, bag: Array) -> Array:
            each = jnp.einsum(
                "ck,ckd->cd", w.reshape(-1, chunk), values.reshape(-1, chunk, self.basis.size)
            )
            return segment_sum(each, bag, n_bags)

        if self.kept is not None:
            return of_rows(self.kept, weights, self.layout.bag)

        @jax.checkpoint
        def add(total: Array, parts: Any) -> tuple[Array, None]:
            x, w, bag = parts
            return total + of_rows(self.basis.values(x), w, bag), None

        points = self._blocks(self.layout.points)
        n, rows = len(weights), points.shape[1]
        missing = points.shape[0] * rows - n
        padded = jnp.concatenate([weights, jnp.zeros(missing)]).reshape(-1, rows)
        bags = jnp.concatenate(
            [self.layout.bag, jnp.zeros(missing // chunk, self.layout.bag.dtype)]
        )
        start = jnp.zeros((n_bags, self.basis.size))
        return lax.scan(add, start, (points, padded, bags.reshape(-1, rows // chunk)))[0]
