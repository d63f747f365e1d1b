"""Throughput of the bag kernels next to that of `exp` alone, the limit of any kernel code.

A kernel value needs one exponential. `exp` is timed in the same run and type in two ways: on tiles
that stay in cache, the hard limit, and over a large array, ``jnp.exp(array)``, which is what code
that holds the kernel matrix could reach. Every other row is a share of these.

The symmetric half of K is computed once, so rates are given in two ways: kernel values of the full
n x n matrix answered for per second, which is what a user waits for, and values evaluated.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from deconditional.bag_kernels import bag_cross, bag_gram
from deconditional.bags import Bags
from deconditional.benchmarks.timing import best_seconds, write_json
from deconditional.provenance import machine

__all__ = ["run"]

FAMILIES: dict[str, Any] = {"Gaussian": gk.RBF, "Matérn-3/2": gk.Matern32}


def run(
    points: int = 20_000,
    bags: int = 200,
    dims: int = 5,
    quick: bool = False,
    out: str | Path | None = None,
) -> int:
    """Measure, print a table, write JSON."""
    console = Console()
    data = _ragged_bags(points, bags, dims)
    budget = 0.5 if quick else 4.0
    dtypes = (jnp.float32,) if quick else (jnp.float32, jnp.float64)
    rows = []
    with console.status("timing exp and the bag kernels"):
        for dtype in dtypes:
            limits = _exp_rate(dtype, budget), _array_exp_rate(dtype, budget)
            for family in FAMILIES:
                rows += _measure(data, family, dtype, limits, budget)
    result = {
        "benchmark": "kernels",
        "points": data.n_points,
        "bags": bags,
        "dims": dims,
        "bag_sizes": [int(data.sizes.min()), int(data.sizes.max())],
        "rows": rows,
        "machine": machine(),
    }
    _show(console, result)
    write_json(result, out)
    return 0


def _ragged_bags(points: int, n_bags: int, dims: int) -> Bags:
    rng = np.random.default_rng(0)
    share = rng.uniform(0.2, 1.8, n_bags)
    sizes = np.maximum(1, np.round(points * share / share.sum()).astype(int))
    bag_of = np.repeat(np.arange(n_bags), sizes)
    return Bags.from_points(rng.standard_normal((len(bag_of), dims)), bag_of)


def _exp_rate(dtype: Any, budget: float) -> float:
    """The best rate of `exp` over two tile sizes, summed in place so that nothing is stored."""
    rates = []
    for shape in ((256, 512), (512, 2048)):
        start = jnp.asarray(np.random.default_rng(0).standard_normal(shape), dtype)
        repeats = max(1, 2**25 // start.size)

        @jax.jit
        def many(tile: jax.Array, repeats: int = repeats) -> jax.Array:
            def body(i: Any, total: jax.Array) -> jax.Array:
                return total + jnp.exp(tile - 1e-3 * i.astype(tile.dtype))

            return jax.lax.fori_loop(0, repeats, body, jnp.zeros_like(tile))

        seconds = best_seconds(partial(many, start), budget)
        rates.append(start.size * repeats / seconds)
    return max(rates)


def _array_exp_rate(dtype: Any, budget: float) -> float:
    """The rate of `exp` over an array that does not fit in cache."""
    array = jnp.asarray(np.random.default_rng(0).standard_normal((4096, 4096)), dtype)
    return array.size / best_seconds(partial(jax.jit(jnp.exp), array), budget)


def _measure(
    data: Bags, family: str, dtype: Any, limits: tuple[float, float], budget: float
) -> list[dict]:
    layout = data.layout
    scales = jnp.linspace(0.8, 2.0, data.points.shape[1])
    cotangent = jnp.asarray(np.random.default_rng(1).standard_normal((data.n_bags, data.n_bags)))
    queries = jnp.asarray(data.points[: min(4096, data.n_points)])

    @jax.jit
    def gram(scales: Any, layout: Any) -> Any:
        return bag_gram(FAMILIES[family](lengthscale=scales), layout, dtype=dtype)

    @jax.jit
    def gradient(scales: Any, layout: Any) -> Any:
        return jax.value_and_grad(
            lambda s: jnp.sum(
                cotangent * bag_gram(FAMILIES[family](lengthscale=s), layout, dtype=dtype)
            )
        )(scales)

    @jax.jit
    def cross(scales: Any, layout: Any) -> Any:
        return bag_cross(FAMILIES[family](lengthscale=scales), queries, layout, dtype=dtype)

    slots = layout.points.shape[0]
    n_tiles = slots // layout.tile
    evaluated = n_tiles * (n_tiles + 1) // 2 * layout.tile**2
    pairs = data.n_points**2
    cases = {
        "bag_gram": (lambda: gram(scales, layout), pairs, evaluated),
        "bag_gram + gradient": (lambda: gradient(scales, layout), pairs, 2 * evaluated),
        "bag_cross": (
            lambda: cross(scales, layout),
            len(queries) * data.n_points,
            len(queries) * slots,
        ),
    }
    rows = []
    for name, (call, answered, computed) in cases.items():
        seconds = best_seconds(call, budget)
        rows.append(
            {
                "function": name,
                "kernel": family,
                "dtype": jnp.dtype(dtype).name,
                "seconds": seconds,
                "values_per_second": answered / seconds,
                "evaluated_per_second": computed / seconds,
                "exp_per_second": limits[0],
                "array_exp_per_second": limits[1],
                "share_of_exp": answered / seconds / limits[0],
                "share_of_array_exp": answered / seconds / limits[1],
                "evaluated_share_of_exp": computed / seconds / limits[0],
            }
        )
    return rows


def _show(console: Console, result: dict[str, Any]) -> None:
    low, high = result["bag_sizes"]
    table = Table(
        title=f"Bag kernels: {result['points']} points, {result['bags']} bags of {low}-{high}, "
        f"{result['dims']} dimensions",
        caption=f"G values/s: n x n kernel values answered for per second. exp reaches "
        f"{result['rows'][0]['exp_per_second'] / 1e9:.2f} G/s in cache and "
        f"{result['rows'][0]['array_exp_per_second'] / 1e9:.2f} G/s over an array (float32). "
        "evaluated: share of exp in cache by values computed (the symmetric half, padding, and a "
        "second pass for the gradient).",
    )
    for heading in ("function", "kernel", "type"):
        table.add_column(heading)
    for heading in ("ms", "G values/s", "of exp in cache", "of exp(array)", "evaluated"):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        table.add_row(
            row["function"],
            row["kernel"],
            row["dtype"],
            f"{1e3 * row['seconds']:.1f}",
            f"{row['values_per_second'] / 1e9:.2f}",
            f"{row['share_of_exp']:.0%}",
            f"{row['share_of_array_exp']:.0%}",
            f"{row['evaluated_share_of_exp']:.0%}",
        )
    console.print(table)
