"""Kernel values with one core and with several: how much of a processor is used by default.

Every number of cores is a process of its own (``DECONDITIONAL_CORES``); the last is what a user
gets who sets nothing. Where the machine has fewer the devices are virtual, which tests that they
work and gains no time. `exp` on tiles that stay in the cache of one core is the limit of each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
from rich.console import Console

from benchmarks.frame import Benchmark, Costs, Result, Row, percent, shown
from benchmarks.timing import in_own_process
from studies.clock import best_seconds
from studies.command import option

__all__ = ["Cores"]


@dataclass(frozen=True)
class Cores(Benchmark):
    """Bag kernels and their gradients on 1, 2, 4, 8 and 16 devices of the processor."""

    name: ClassVar[str] = "cores"
    help: ClassVar[str] = "kernel values and gradients by the number of cores"
    columns: ClassVar[Any] = {
        "cores": shown("cores"),
        "length scales": shown("scales"),
        "values, G/s": shown("values", "{:.2f}", 1e-9),
        "with gradient, G/s": shown("gradient", "{:.2f}", 1e-9),
        "per processor s": shown("values_per_cpu", "{:.2f}", 1e-9),
        "with gradient, per processor s": shown("gradient_per_cpu", "{:.2f}", 1e-9),
        "values of exp": percent("values_of_exp"),
        "gradient of exp": percent("gradient_of_exp"),
    }

    points: int = option(16_000, "fine points", quick=9_000)
    bags: int = option(200, "bags")
    budget: float = option(3.0, "seconds for each measurement", quick=0.2, type=float)

    def measure(self, where: Console) -> Result:
        """Measure in processes with 1, 2, 4, 8 and 16 devices, and as users have it."""
        rows: list[Row] = []
        sizes = [str(self.points), str(self.bags), str(self.budget)]
        for cores in ("1", "2", "4", "8", "16", ""):
            name = cores or "default"
            with where.status(f"{name} cores"), patch.dict(os.environ, DECONDITIONAL_CORES=cores):
                text = in_own_process(["-m", "benchmarks.cores", *sizes])
            rows += [{"cores": name, **row} for row in json.loads(text)]
        return {"rows": rows}

    def words(self, result: Result) -> tuple[str, None]:
        """Sizes."""
        what = f"{result['points']} points in {result['bags']} bags, 5 dimensions, float32"
        return f"Gaussian kernel, {what}; {result['device']}", None

    def costs(self, result: Result) -> Costs:
        """Nothing is watched: what it shows is the machine as well."""
        return {}


def main(points: str, bags: str, budget: str) -> None:
    """Print rates of this process, for one length scale and for one a dimension, as JSON."""
    import gpjax.kernels as gk
    import jax
    import jax.numpy as jnp

    from benchmarks.timing import exp_on_tiles
    from deconditional import Bags, bag_gram

    def rates(call: Any, values: int) -> tuple[float, float]:
        """Values a second of the clock, the best, and a second of the processor."""
        began, calls = time.process_time(), 0

        def counted() -> Any:
            nonlocal calls
            calls += 1
            return call()

        rate = values / best_seconds(counted, float(budget))
        return rate, values * calls / (time.process_time() - began)

    call, values = exp_on_tiles(jnp.float32)
    call()
    _, limit = rates(call, values)
    rng, n, n_bags = np.random.default_rng(0), int(points), int(bags)
    owners = np.concatenate([np.arange(n_bags), rng.integers(0, n_bags, n - n_bags)])
    layout = Bags.from_points(rng.standard_normal((n, 5)), owners).layout
    cotangent = rng.standard_normal((n_bags, n_bags))
    rows = []
    for scales in (1, 5):
        start = jax.device_put(np.full(scales, 2.0), layout.points.sharding)

        def total(scale: Any) -> Any:
            kernel = gk.RBF(lengthscale=scale if len(scale) > 1 else scale[0])
            return jnp.sum(cotangent * bag_gram(kernel, layout, dtype=jnp.float32))

        row: Row = {"scales": scales}
        for name, function in (("values", total), ("gradient", jax.value_and_grad(total))):
            compiled = partial(jax.jit(function), start)
            compiled()
            row[name], row[f"{name}_per_cpu"] = rates(compiled, n**2)
            row[f"{name}_of_exp"] = row[f"{name}_per_cpu"] / limit
        rows.append({**row, "exp_per_cpu": limit})
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
