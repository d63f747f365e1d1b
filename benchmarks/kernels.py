"""Throughput of the bag kernels next to that of `exp` alone, the limit of any kernel code.

A kernel value needs one exponential. `exp` is timed in the same run and type in two ways: on tiles
that stay in cache, the hard limit, and over a large array, ``jnp.exp(array)``, which is what code
that holds the kernel matrix could reach. Every other row is a share of these.

The symmetric half of K is computed once, so rates are given in two ways: kernel values of the full
n x n matrix answered for per second, which is what a user waits for, and values evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks.frame import Benchmark, Costs, Result, Row, percent, shown
from benchmarks.timing import array_exp_rate, exp_rate
from deconditional import Bags, bag_cross, bag_gram
from studies.clock import best_seconds
from studies.command import option

__all__ = ["Kernels"]

FAMILIES: dict[str, Any] = {"Gaussian": gk.RBF, "Matérn-3/2": gk.Matern32}


@dataclass(frozen=True)
class Kernels(Benchmark):
    """Averages of kernels over pairs of bags, their gradients, and those with points."""

    name: ClassVar[str] = "kernels"
    help: ClassVar[str] = "the bag kernels against the speed of exp alone"
    columns: ClassVar[Any] = {
        "function": shown("function"),
        "kernel": shown("kernel"),
        "type": shown("dtype"),
        "ms": shown("seconds", "{:.1f}", 1e3),
        "G values/s": shown("values_per_second", "{:.2f}", 1e-9),
        "of exp in cache": percent("share_of_exp"),
        "of exp(array)": percent("share_of_array_exp"),
        "evaluated": percent("evaluated_share_of_exp"),
    }

    series: ClassVar[Any] = {
        "of exp in cache": "share_of_exp",
        "of exp over an array": "share_of_array_exp",
    }
    axis: ClassVar[str] = "kernel values answered for, as a share of exp"
    level: ClassVar[Any] = ("exp", 1.0)

    points: int = option(20_000, "fine points")
    bags: int = option(200, "bags")
    dims: int = option(5, "covariates")
    types: tuple[str, ...] = option(
        ("float32", "float64"), "precisions", quick=("float32",), metavar="TYPE"
    )
    budget: float = option(4.0, "seconds for each measurement", quick=0.5, type=float)

    def measure(self, where: Console) -> Result:
        """Time `exp` and the bag kernels."""
        rows: list[Row] = []
        for dtype in map(jnp.dtype, self.types):
            # Bags keep the tiles of the first type they meet.
            data = _ragged_bags(self.points, self.bags, self.dims)
            with where.status(f"exp, {dtype}"):
                limits = exp_rate(dtype, self.budget), array_exp_rate(dtype, self.budget)
            for family in FAMILIES:
                with where.status(f"{family}, {dtype}"):
                    rows += _measured(data, family, dtype, limits, self.budget)
        return {
            "points": data.n_points,
            "bag_sizes": [int(data.sizes.min()), int(data.sizes.max())],
            "rows": rows,
        }

    def words(self, result: Result) -> tuple[str, str]:
        """Sizes, and the two limits."""
        low, high = result["bag_sizes"]
        first = result["rows"][0]
        return (
            f"Bag kernels: {result['points']} points, {result['bags']} bags of {low}-{high}, "
            f"{result['dims']} dimensions",
            "G values/s: n x n kernel values answered for per second. exp reaches "
            f"{first['exp_per_second'] / 1e9:.2f} G/s in cache and "
            f"{first['array_exp_per_second'] / 1e9:.2f} G/s over an array ({first['dtype']}). "
            "evaluated: share of exp in cache by values computed (the symmetric half, padding, and "
            "a second pass for the gradient).",
        )

    def label(self, row: Row) -> str:
        """Function, kernel and precision."""
        return f"{row['function']}, {row['kernel']}, {row['dtype']}"

    def costs(self, result: Result) -> Costs:
        """For every function its seconds, and those of `exp` on the values it answers for."""
        return {
            self.label(row): (
                row["seconds"],
                row["values_per_second"] * row["seconds"] / row["exp_per_second"],
            )
            for row in result["rows"]
        }


def _ragged_bags(points: int, n_bags: int, dims: int) -> Bags:
    rng = np.random.default_rng(0)
    share = rng.uniform(0.2, 1.8, n_bags)
    sizes = np.maximum(1, np.round(points * share / share.sum()).astype(int))
    bag_of = np.repeat(np.arange(n_bags), sizes)
    return Bags.from_points(rng.standard_normal((len(bag_of), dims)), bag_of)


def _measured(
    data: Bags, family: str, dtype: Any, limits: tuple[float, float], budget: float
) -> list[Row]:
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
