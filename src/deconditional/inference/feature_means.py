"""Means of functions over bags."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.layout import Layout

__all__ = ["feature_means"]


def feature_means(features: Any, layout: Layout) -> Float[Array, "N F"]:
    """Pᵀφ(x), a tile of points at a time."""
    chunks = layout.tile // layout.chunk

    @jax.checkpoint
    def chunk_sums(points: Array, weights: Array) -> Array:
        values = features(points)
        weighted = values * weights[:, None].astype(values.dtype)
        return weighted.reshape(chunks, layout.chunk, -1).sum(1)

    def tile(out: Array, inputs: tuple) -> tuple[Array, None]:
        points, weights, bag = inputs
        sums = chunk_sums(points, weights)
        return out.at[bag].add(sums.astype(out.dtype), mode="drop"), None

    n_features = jax.eval_shape(features, layout.points[:1]).shape[1]
    tiles = (
        layout.points.reshape(-1, layout.tile, layout.points.shape[1]),
        layout.weights.reshape(-1, layout.tile),
        layout.bag.reshape(-1, chunks),
    )
    start = jnp.zeros((layout.n_bags, n_features), layout.points.dtype)
    return lax.scan(tile, start, tiles)[0]
