"""Sizes of tiles: the table, and answers that do not depend on them."""

from functools import cache

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deconditional import bag_cross, bag_gram
from deconditional.kernels.layout import Tiles, layout_bags, tiles_for
from helpers import assert_close, flat_kernel, ragged_bags, weight_matrix


@pytest.mark.parametrize("accelerator", [True, False])
@pytest.mark.parametrize("n", [10, 5_000, 500_000])
def test_an_accelerator_gets_larger_tiles_by_differences(n, accelerator):
    tiles = tiles_for(n, accelerator)
    assert tiles.form == ("differences" if accelerator else "product")
    assert (tiles.rows * tiles.columns >= 2**24) == accelerator
    # Four bytes a value, should the compiler write a tile.
    assert 4 * tiles.rows * tiles.columns <= 2**29


# --------------------------------------------------------------------------- what tiles must not do

BAGS = {
    "ragged": ragged_bags([3, 1, 7, 40, 9, 2, 90, 33, 5], weighted=True),
    "equal": ragged_bags([17] * 9, weighted=True),
}
KERNEL = gk.Matern32(active_dims=[0, 2]) * gk.RationalQuadratic(active_dims=[1], lengthscale=0.8)
QUERIES = np.random.default_rng(5).normal(size=(70, 3))
THETA, rebuild = flat_kernel(KERNEL)


def linear_form(of_gram, of_cross):
    """A random linear form of both, whose gradients are compared."""
    rng = np.random.default_rng(11)
    by_gram, by_cross = rng.normal(size=of_gram.shape), rng.normal(size=of_cross.shape)
    return jnp.sum(by_gram * of_gram) + jnp.sum(by_cross * of_cross), (of_gram, of_cross)


def values_and_gradients(function, bags):
    """K̄, k̄ and the gradients of the form by parameters, points and queries."""
    gradient = jax.jit(jax.grad(function, argnums=(0, 1, 2), has_aux=True))
    gradients, values = gradient(THETA, jnp.asarray(bags.points), jnp.asarray(QUERIES))
    return *values, *gradients


@cache
def dense_answers(which):
    """The same from dense matrices, which know no tiles."""
    bags = BAGS[which]
    p = weight_matrix(bags)

    def dense(theta, points, queries):
        kernel = rebuild(theta)
        square = kernel.cross_covariance(points, points)
        return linear_form(p.T @ square @ p, kernel.cross_covariance(queries, points) @ p)

    return values_and_gradients(dense, bags)


@pytest.mark.parametrize(
    ("which", "tiles"),
    [
        ("ragged", Tiles(64, 64, "product")),
        ("ragged", Tiles(128, 64, "product")),
        ("ragged", Tiles(64, 128, "differences")),
        ("ragged", Tiles(512, 128, "differences")),
        ("equal", Tiles(64, 64, "differences")),
    ],
    ids=str,
)
def test_values_and_gradients_do_not_depend_on_tiles(which, tiles):
    bags = BAGS[which]
    layout, source = layout_bags(bags.points, bags.bag, bags.weights, bags.n_bags, tiles=tiles)
    assert layout.form == tiles.form
    assert len(layout.points) % layout.row_tile == len(layout.points) % layout.tile == 0
    if which == "equal":
        assert (layout.chunk, layout.one_chunk_per_bag) == (17, True)

    def fused(theta, points, queries):
        kernel, moved = rebuild(theta), layout.with_points(points[source])
        return linear_form(bag_gram(kernel, moved), bag_cross(kernel, queries, moved))

    found = values_and_gradients(fused, bags)
    for actual, desired in zip(found, dense_answers(which), strict=True):
        assert_close(actual, desired)
