"""Run by test_sharding in a process of its own, with four virtual devices; prints JSON."""

import json
import sys
import warnings

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np

from deconditional import CMP, Bags, bag_cross, bag_gram
from deconditional.kernels import devices as sharding
from deconditional.kernels.layout import Tiles, layout_bags
from deconditional.kernels.loops import DifferenceSweep, ProductSweep
from deconditional.kernels.tiles import Scaled
from helpers import flat_kernel, gram, ragged_bags, weight_matrix

assert len(jax.devices()) == 4, jax.devices()

BAGS = ragged_bags(np.random.default_rng(0).integers(3, 40, 30), weighted=True)
KERNEL = gk.Matern32(active_dims=[0, 1], lengthscale=jnp.array([0.7, 1.3])) * gk.RationalQuadratic(
    active_dims=[2]
)
QUERIES = np.random.default_rng(5).normal(size=(300, 3))
TILES = {"product": Tiles(64, 128, "product"), "differences": Tiles(256, 64, "differences")}


def laid_out(form):
    return layout_bags(BAGS.points, BAGS.bag, BAGS.weights, BAGS.n_bags, tiles=TILES[form])


def compared(form):
    """Largest differences from one device, and from dense matrices, relative to the largest."""
    layout, source = laid_out(form)
    rng = np.random.default_rng(11)
    by_gram = jnp.asarray(rng.normal(size=(BAGS.n_bags, BAGS.n_bags)))
    by_cross = jnp.asarray(rng.normal(size=(len(QUERIES), BAGS.n_bags)))
    theta, rebuild = flat_kernel(KERNEL)

    @jax.jit
    def values(theta, points, queries, layout):
        def total(theta, points, queries):
            kernel, moved = rebuild(theta), layout.with_points(points[source])
            of_gram = bag_gram(kernel, moved)
            of_cross = bag_cross(kernel, queries, moved)
            return jnp.sum(by_gram * of_gram) + jnp.sum(by_cross * of_cross), (of_gram, of_cross)

        found = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(theta, points, queries)
        return (*found[1], *found[0])

    at = (theta, jnp.asarray(BAGS.points), jnp.asarray(QUERIES))
    one = values(*at, layout)
    with sharding.use_devices(4):
        spread = sharding.spread(layout)
    assert spread.mesh.size == 4
    assert spread.n_row_tiles >= max(8, layout.n_row_tiles)
    four = values(*at, spread)
    names = ("gram", "cross", "by parameters", "by points", "by queries")
    p = weight_matrix(BAGS)
    dense = {
        "gram": p.T @ gram(KERNEL, BAGS.points) @ p,
        "cross": gram(KERNEL, QUERIES, BAGS.points) @ p,
    }
    errors = {n: difference(a, b) for n, a, b in zip(names, four, one, strict=True)}
    from_dense = {n: difference(a, dense[n]) for n, a in zip(dense, four, strict=False)}
    return errors, from_dense


def difference(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return float(np.abs(a - b).max() / np.abs(b).max())


def compiled_for_both():
    compilations = []

    @jax.jit
    def trace(layout):
        compilations.append(layout.mesh)
        return bag_gram(gk.RBF(), layout)

    layout, _ = laid_out("product")
    devices = []
    for number in (1, 4, 1, 4):
        with sharding.use_devices(number):
            devices.append(len(trace(sharding.spread(layout)).devices()))
    return {"devices of results": devices, "compilations": len(compilations)}


def tiles_of_devices():
    """Column tiles met by the rows of each device, from the loops' own bounds."""
    counts, totals, uneven = {}, {}, {}
    for form, sweep_class in (("product", ProductSweep), ("differences", DifferenceSweep)):
        for n in (1000, 1111, 2000):
            tiles = TILES[form]
            points = np.random.default_rng(0).normal(size=(n, 2))
            bag = np.arange(n) // 10
            layout, _ = layout_bags(points, bag, np.full(n, 0.1), bag[-1] + 1, tiles=tiles)
            u = (layout.points,)
            term = Scaled(u, u, (0.0,), jnp.ones(()), (None,))
            sweep = sweep_class([term], layout, layout, True)
            name = f"{form}, {n} points"
            counts[name] = [
                sum(
                    int(sweep._n_columns(jnp.asarray(device + 4 * k)))
                    for k in range(int(sweep._n_own_rows(device, 4)))
                )
                for device in range(4)
            ]
            per_block = layout.block // layout.tile
            blocks = layout.points.shape[0] // layout.block
            rows_per_block = layout.block // layout.row_tile
            # Every pair of blocks once, in either order, and every block with itself.
            totals[name] = blocks * (blocks + 1) // 2 * rows_per_block * per_block
            # What cannot be dealt out evenly is one row tile.
            uneven[name] = (blocks // 2 + 1) * per_block
    return counts, totals, uneven


def fit():
    """A whole fit and its predictions, on one device and on four."""
    rng = np.random.default_rng(3)
    n_bags, size = 16, 24
    x = rng.uniform(0, 4, (n_bags * size, 2))
    bag = np.repeat(np.arange(n_bags), size)
    bags = Bags.from_points(x, bag, mediator=x[::size])
    z = bags.means(np.sin(x[:, 0]) + 0.5 * x[:, 1])
    found = {}
    for label, number in (("one", 1), ("four", 4)):
        bags.__dict__["_layout_and_source"] = layout_bags(
            bags.points, bags.bag, bags.weights, n_bags, tiles=TILES["product"]
        )
        with sharding.use_devices(number):
            model = CMP(n_restarts=1, precision="float64", max_iter=25)
            posterior = model.fit(bags, z, mediator=x[::size]).predict(x[:40])
        found[label] = {
            "devices": len(model.fitted_.pieces[0].gram.devices()),
            "log evidence": model.log_evidence_,
            "mean": posterior.mean.tolist(),
            "std": posterior.std.tolist(),
        }
    return found


def main():
    warnings.simplefilter("ignore")
    result = {"errors": {}, "dense": {}}
    for form in TILES:
        result["errors"][form], result["dense"][form] = compared(form)
    result["compiled"] = compiled_for_both()
    result["tiles"], result["all tiles"], result["uneven"] = tiles_of_devices()
    result["fit"] = fit()
    mesh = sharding.current_mesh()
    result["after the block"] = 1 if mesh is None else mesh.size
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
