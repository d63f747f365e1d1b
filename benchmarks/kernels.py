"""Throughput of the bag kernels next to that of `exp` alone, the limit of any kernel code.

A kernel value needs one exponential. `exp` is timed in the same run and type in two ways: on tiles
that stay in cache, the hard limit, and over a large array, ``jnp.exp(array)``, which is what code
that holds the kernel matrix could reach. Every other row is a share of these.

The symmetric half of K is computed once, so rates are given in two ways: kernel values of the full
n x n matrix answered for per second, which is what a user waits for, and values evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import figures, timing
from benchmarks.timing import array_exp_rate, best_seconds, exp_rate, write_json
from deconditional.bags import Bags
from deconditional.kernels.sweeps import bag_cross, bag_gram
from studies.provenance import machine

__all__ = ["costs", "figure", "measure", "run"]

FAMILIES: dict[str, Any] = {"Gaussian": gk.RBF, "Matérn-3/2": gk.Matern32}


def run(
    points: int = 20_000,
    bags: int = 200,
    dims: int = 5,
    quick: bool = False,
    out: str | Path | None = None,
    plot: str | Path | None = None,
) -> int:
    """Measure, print a table, write JSON and a figure."""
    console = timing.console()
    with console.status("timing exp and the bag kernels"):
        result = measure(points, bags, dims, quick)
    _show(console, result)
    write_json(result, out)
    if plot is not None:
        figures.save(figure(result), plot)
    return 0


def measure(points: int, bags: int, dims: int, quick: bool) -> dict[str, Any]:
    """Time `exp` and the bag kernels; `quick` takes float32 alone and less time for each."""
    budget = 0.5 if quick else 4.0
    rows: list[dict[str, Any]] = []
    for dtype in (jnp.float32,) if quick else (jnp.float32, jnp.float64):
        data = _ragged_bags(points, bags, dims)  # bags keep the tiles of the first type they meet
        limits = exp_rate(dtype, budget), array_exp_rate(dtype, budget)
        for family in FAMILIES:
            rows += _measure(data, family, dtype, limits, budget)
    return {
        "benchmark": "kernels",
        "points": data.n_points,
        "bags": bags,
        "dims": dims,
        "bag_sizes": [int(data.sizes.min()), int(data.sizes.max())],
        "rows": rows,
        "machine": machine(),
    }


def costs(result: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """For every function its seconds, and those of `exp` on the values it answers for."""
    return {
        f"{row['function']}, {row['kernel']}, {row['dtype']}": (
            row["seconds"],
            row["values_per_second"] * row["seconds"] / row["exp_per_second"],
        )
        for row in result["rows"]
    }


def figure(result: dict[str, Any]) -> Any:
    """Shares of the two limits, as bars."""
    rows = result["rows"]
    return figures.bars(
        [f"{row['function']}, {row['kernel']}, {row['dtype']}" for row in rows],
        {
            "of exp in cache": [row["share_of_exp"] for row in rows],
            "of exp over an array": [row["share_of_array_exp"] for row in rows],
        },
        f"Bag kernels, {result['points']:,} points in {result['bags']} bags",
        "kernel values answered for, as a share of exp",
        ("exp", 1.0),
    )


def _ragged_bags(points: int, n_bags: int, dims: int) -> Bags:
    rng = np.random.default_rng(0)
    share = rng.uniform(0.2, 1.8, n_bags)
    sizes = np.maximum(1, np.round(points * share / share.sum()).astype(int))
    bag_of = np.repeat(np.arange(n_bags), sizes)
    return Bags.from_points(rng.standard_normal((len(bag_of), dims)), bag_of)


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
    # A tile of rows meets the tiles of columns from the one that holds its first row on.
    starts = np.arange(0, slots, layout.row_tile) // layout.tile
    evaluated = int((slots // layout.tile - starts).sum()) * layout.row_tile * layout.tile
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
