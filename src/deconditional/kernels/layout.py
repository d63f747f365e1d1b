"""Ragged bags in arrays of fixed shape: chunks that never cross a bag, tiles of whole chunks.

A tile is what :mod:`deconditional.kernels.sweeps` works on at a time. Two cores want tiles that
stay in their caches and distances by matrix product; an accelerator wants tiles large enough to
fill it, and distances by differences, which it makes and reduces without writing them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

import deconditional.kernels.jax_setup  # noqa: F401

CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Points of a chunk where bags differ in size."""

PRODUCT_CHUNKS = (*CHUNK_SIZES, 24, 48, 96)
"""Points of a chunk where distances come from products, which need no powers of two."""

LONGEST_CHUNK = {"product": 128, "differences": 1024}
"""Points of the largest bag that is one chunk."""

ALIGNMENT = 32
"""Tiles of such chunks are multiples of this."""


FORMS = ("product", "differences")


class Tiles(NamedTuple):
    """Points per tile of rows and of columns, powers of two, and the form that distances take.

    The form is ``"product"`` or ``"differences"``; see :mod:`deconditional.kernels.tiles`.
    """

    rows: int
    columns: int
    form: str


def is_accelerator() -> bool:
    """Whether computations go to something other than the processor."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None or isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    return bool(chosen.platform != "cpu")


def tiles_for(n: int, accelerator: bool | None = None) -> Tiles:
    """Tiles that suit a number of points.

    Examples
    --------
    >>> tiles_for(5_000, accelerator=False)
    Tiles(rows=64, columns=128, form='product')
    >>> tiles_for(100_000, accelerator=True).form
    'differences'
    """
    if is_accelerator() if accelerator is None else accelerator:
        return Tiles(8192, 8192, "differences")
    # 64 KiB in the precision that such problems have by default, and next to no padding: all that
    # is made of a tile stays in the cache of one core. Larger tiles take a third longer.
    return Tiles(64, 128 if n <= 8192 else 256, "product")


class Layout(eqx.Module):
    """Points of ragged bags, cut into chunks that never cross a bag."""

    points: Float[Array, "n d"]  # points in order of their chunk; padding repeats a real point
    weights: Float[Array, " n"]  # within-bag weights, zero where padded
    bag: Array  # the bag of every chunk
    # n_bags, chunk: number of bags, points per chunk.
    n_bags: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    # row_tile, tile: points per tile where the bags are the rows of a matrix, and its columns.
    row_tile: int = eqx.field(static=True)
    tile: int = eqx.field(static=True)
    # True where chunk j is bag j, so that chunk values are bag values.
    one_chunk_per_bag: bool = eqx.field(static=True)
    # How tiles get their distances, `"product"` or `"differences"`.
    form: str = eqx.field(static=True, default="product")
    # The devices that row tiles are dealt out to; None for one device.
    mesh: Mesh | None = eqx.field(static=True, default=None, metadata={"saved": False})

    def __loaded__(self) -> Layout:
        """The layout itself, once its chunks and tiles are known to fit its points."""
        n = len(self.points)
        shapes = self.points.ndim == 2 and self.weights.shape == (n,)
        if not shapes or self.bag.shape != (n // self.chunk,) or n % self.chunk:
            raise ValueError("its points are not cut into chunks")
        if min(self.row_tile, self.tile) < 1 or n % self.row_tile or n % self.tile:
            raise ValueError("its chunks are not cut into tiles")
        if self.row_tile % self.chunk or self.tile % self.chunk or self.form not in FORMS:
            raise ValueError("its tiles do not hold whole chunks")
        if int(self.bag.min()) < 0 or int(self.bag.max()) >= self.n_bags:
            raise ValueError("its chunks are of bags that are not there")
        whole = self.bag[: self.n_bags].tolist() == list(range(self.n_bags))
        if self.one_chunk_per_bag and not whole:
            raise ValueError("its chunks are not bags")
        return self

    @property
    def block(self) -> int:
        """The larger of the two tiles; the number of slots is a multiple of it."""
        return max(self.row_tile, self.tile)

    @property
    def n_row_tiles(self) -> int:
        """Number of tiles of rows."""
        return self.points.shape[0] // self.row_tile

    def with_points(self, points: Float[Array, "n d"]) -> Layout:
        """The layout of the same bags over other points, which are in its order."""
        return replace(self, points=points)


def layout_bags(
    points: np.ndarray,
    bag: np.ndarray,
    weights: np.ndarray,
    n_bags: int,
    chunk: int | None = None,
    *,
    tiles: Tiles | None = None,
) -> tuple[Layout, np.ndarray]:
    """Lay out bags for :func:`bag_gram`; also returns the row of `points` behind every slot.

    Tiles suit the device in use, unless `tiles` are given.
    """
    order = np.argsort(bag, kind="stable")
    sizes = np.bincount(bag, minlength=n_bags)
    tiles = tiles_for(len(bag)) if tiles is None else tiles
    chunk = _best_chunk(sizes, tiles.form, points.shape[1]) if chunk is None else chunk
    n_chunks = -(-sizes // chunk)
    row_tile, tile, total = _whole_tiles(int(n_chunks.sum()) * chunk, chunk, tiles)
    first_slot = np.concatenate([[0], np.cumsum(n_chunks[:-1])]) * chunk
    first_point = np.concatenate([[0], np.cumsum(sizes[:-1])])
    slot = np.arange(len(bag)) - np.repeat(first_point, sizes) + np.repeat(first_slot, sizes)
    source = np.zeros(total, dtype=np.int64)
    source[slot] = order
    slot_weights = np.zeros(total)
    slot_weights[slot] = weights[order]
    chunk_bag = np.zeros(total // chunk, dtype=np.int32)
    chunk_bag[: n_chunks.sum()] = np.repeat(np.arange(n_bags), n_chunks)
    # Bags keep their layout: arrays made while another function is traced must not be tracers.
    with jax.ensure_compile_time_eval():
        layout = Layout(
            points=jax.device_put(points[source]),
            weights=jax.device_put(slot_weights),
            bag=jax.device_put(chunk_bag),
            n_bags=n_bags,
            chunk=chunk,
            row_tile=row_tile,
            tile=tile,
            one_chunk_per_bag=bool(np.all(n_chunks == 1)),
            form=tiles.form,
        )
    return layout, source


class BagSampler(eqx.Module):
    """Draws points of bags with replacement, in proportion to their weights."""

    points: Float[Array, "n d"]  # points in order of their bag
    cumulative: Float[Array, " n"]  # running sum of their weights; it grows by one over each bag
    # bag, first, last (N,): the bags to draw from, and the first and last point of each.
    bag: Array
    first: Array
    last: Array

    @classmethod
    def of(cls, points: np.ndarray, bag: np.ndarray, weights: np.ndarray, n_bags: int) -> Self:
        """A sampler of bags."""
        order = np.argsort(bag, kind="stable")
        ends = np.cumsum(np.bincount(bag, minlength=n_bags))
        first = np.concatenate([[0], ends[:-1]])
        cumulative = np.cumsum(weights[order])
        arrays = points[order], cumulative, np.arange(n_bags), first, ends - 1
        return cls(*map(jnp.asarray, arrays))

    def select(self, bags: Array) -> BagSampler:
        """A sampler of some of the bags."""
        return replace(self, bag=self.bag[bags], first=self.first[bags], last=self.last[bags])

    def draw(self, key: Any, points_per_bag: int) -> Layout:
        """A sample of points of every bag, a power of two up to 128, that count equally."""
        n_bags = self.bag.shape[0]
        level = self.bag[:, None] + jr.uniform(key, (n_bags, points_per_bag))
        found = jnp.searchsorted(self.cumulative, level, side="right")
        rows = jnp.clip(found, self.first[:, None], self.last[:, None]).ravel()
        weights = jnp.full(len(rows), 1.0 / points_per_bag)
        tiles = tiles_for(len(rows))
        return _in_chunks(self.points[rows], weights, points_per_bag, tiles)


def layout_points(x: Float[Array, "m d"], *, row_tiles: int = 1, form: str | None = None) -> Layout:
    """Every row of x a bag of its own, padded to a whole number of tiles.

    With `row_tiles` there are at least so many tiles of rows, if there are points for them. The
    form of distances is the device's unless given.
    """
    m = x.shape[0]
    tiles = tiles_for(m)
    tiles = tiles if form is None else tiles._replace(form=form)
    while tiles.rows > 64 and -(-m // tiles.rows) < row_tiles:
        tiles = tiles._replace(rows=tiles.rows // 2)
    return _in_chunks(x, jnp.ones(m), 1, tiles)


def _in_chunks(
    points: Float[Array, "n d"], weights: Float[Array, " n"], chunk: int, tiles: Tiles
) -> Layout:
    """Bags of one chunk each, one after another, padded to a whole number of tiles."""
    row_tile, tile, total = _whole_tiles(len(points), chunk, tiles)
    missing = total - len(points)
    padding = jnp.broadcast_to(points[:1], (missing, points.shape[1]))
    return Layout(
        points=jnp.concatenate([points, padding]),
        weights=jnp.pad(weights, (0, missing)),
        bag=jnp.arange(total // chunk, dtype=jnp.int32),
        n_bags=len(points) // chunk,
        chunk=chunk,
        row_tile=row_tile,
        tile=tile,
        one_chunk_per_bag=True,
        form=tiles.form,
    )


def _best_chunk(sizes: np.ndarray, form: str, d: int) -> int:
    """Long chunks reduce faster, short ones pad less; bags of one size are a chunk each.

    The gradient by d length scales takes 2d + 1 sums along the rows of each chunk, and a sum costs
    as much as a kernel value. By differences, a chunk costs about three values.
    """
    largest = int(sizes.max())
    if (sizes == largest).all() and largest <= LONGEST_CHUNK[form]:
        return largest
    choices, per_chunk = (PRODUCT_CHUNKS, 2 * d + 1) if form == "product" else (CHUNK_SIZES, 3)

    def cost(chunk: int) -> float:
        padded = float((-(-sizes // chunk) * chunk).sum())
        return padded**2 * (1.0 + per_chunk / chunk)

    return min(choices, key=cost)


def _whole_tiles(n: int, chunk: int, tiles: Tiles) -> tuple[int, int, int]:
    """Points per tile of rows and of columns, and the slots that are whole tiles of both.

    Tiles shrink to what divides the points with little left over.
    """
    larger = max(tiles.rows, tiles.columns)
    parts = larger // min(tiles.rows, tiles.columns)
    count = -(-n // larger)
    unit = parts * (math.lcm(chunk, ALIGNMENT) if chunk in PRODUCT_CHUNKS else chunk)
    block = -(-n // (count * unit)) * unit
    return (
        block if tiles.rows == larger else block // parts,
        block if tiles.columns == larger else block // parts,
        -(-n // block) * block,
    )
