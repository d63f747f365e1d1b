"""Kernel values with one core and with several: how much of a processor is used by default.

Every number of cores is a process of its own (``DECONDITIONAL_CORES``). Where the machine has fewer
the devices are virtual, which tests that they work and gains no time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from benchmarks.frame import Benchmark, Costs, Result, Row, shown
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
    }

    points: int = option(16_000, "fine points", quick=9_000)
    bags: int = option(200, "bags")
    budget: float = option(3.0, "seconds for each measurement", quick=0.2, type=float)

    def measure(self, where: Console) -> Result:
        """Measure in processes with 1, 2, 4, 8 and 16 devices."""
        rows: list[Row] = []
        for cores in (1, 2, 4, 8, 16):
            with where.status(f"{cores} cores"):
                sizes = [str(self.points), str(self.bags), str(self.budget)]
                before = os.environ.get("DECONDITIONAL_CORES")
                os.environ["DECONDITIONAL_CORES"] = str(cores)
                try:
                    text = in_own_process(["-m", "benchmarks.cores", *sizes])
                finally:
                    os.environ.pop("DECONDITIONAL_CORES")
                    if before is not None:
                        os.environ["DECONDITIONAL_CORES"] = before
                rows += [{"cores": cores, **row} for row in json.loads(text)]
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

    from deconditional import Bags, bag_gram

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
            compiled = jax.jit(function)
            compiled(start)
            began, calls = time.process_time(), 0

            def call(compiled: Any = compiled, start: Any = start) -> Any:
                nonlocal calls
                calls += 1
                return compiled(start)

            row[name] = n**2 / best_seconds(call, float(budget))
            row[f"{name}_per_cpu"] = n**2 * calls / (time.process_time() - began)
        rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
