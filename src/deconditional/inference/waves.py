"""Cosines and sines of chosen frequencies: draws of the prior that can be evaluated anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from gpjax.kernels.base import AbstractKernel
from jax import lax
from jaxtyping import Array, Float

from deconditional.kernels.layout import Layout
from deconditional.kernels.radial import RadialTerm, radial_terms, wave_features

GROUP = 256
"""Frequencies at a time where paths are evaluated: what bounds memory."""


class Waves(eqx.Module):
    r"""Cosines and sines of chosen frequencies: with normal loadings, draws of the prior."""

    kernel: AbstractKernel
    # By term of the kernel and by factor, (groups, GROUP, inputs of the factor).
    frequencies: tuple[tuple[Array, ...], ...]
    # By term, (groups, GROUP): their squares sum to the prior variance; zero where padded.
    amplitudes: tuple[Array, ...]
    dtype: Any = eqx.field(static=True)

    def loadings(self, key: Any, n_paths: int) -> tuple[Float[Array, "groups features paths"], ...]:
        """Normal loadings: each set of them makes one draw of the prior."""
        keys = jr.split(key, len(self.amplitudes))
        drawn = []
        for each, amplitude in zip(keys, self.amplitudes, strict=True):
            scale = jnp.concatenate([amplitude, amplitude], axis=1)
            drawn.append(scale[..., None] * jr.normal(each, (*scale.shape, n_paths)))
        return tuple(drawn)

    @eqx.filter_jit
    def draws(self, loadings: Sequence[Array], x: Float[Array, "m d"]) -> Float[Array, "m paths"]:
        """Draws of the prior at every row of x, from their loadings."""
        total = jnp.zeros((x.shape[0], loadings[0].shape[2]), x.dtype)
        terms = radial_terms(self.kernel)
        for term, frequencies, loads in zip(terms, self.frequencies, loadings, strict=True):

            def step(total: Array, group: tuple, term: RadialTerm = term) -> tuple[Array, None]:
                omegas, load = group
                values = wave_features(term, omegas, x, GROUP, self.dtype)
                return total + (values @ load.astype(values.dtype)).astype(total.dtype), None

            total = lax.scan(step, total, (frequencies, loads))[0]
        return total


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
