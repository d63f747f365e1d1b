"""How the cost of a variational model grows with the number of fine points.

Every size is measured in a process of its own, ``python -m deconditional.benchmarks.scaling MODEL
POINTS INDUCING``, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from deconditional.benchmarks.timing import best_seconds, peak_bytes, write_json
from deconditional.provenance import machine

__all__ = ["run"]

SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)
MODELS = {
    "vbagg": "VBagg, matched, 100 points per bag",
    "varcmp": "VarCMP, mediated, 400 bags",
}


def run(points: int = SIZES[-1], inducing: int = 400, out: str | Path | None = None) -> int:
    """Measure sizes up to `points`, print a table and the slopes, write JSON."""
    console = Console()
    sizes = [size for size in SIZES if size < points] + [points]
    rows: list[dict[str, Any]] = []
    for model in MODELS:
        for size in sizes:
            with console.status(f"{MODELS[model]}, {size} points"):
                rows.append(_measured(model, size, inducing))
    slopes = {name: _slope([row for row in rows if row["model"] == name]) for name in MODELS}
    _show(console, rows, slopes, inducing)
    result = {
        "benchmark": "scaling",
        "inducing": inducing,
        "rows": rows,
        "slopes": slopes,
        "machine": machine(),
    }
    write_json(result, out)
    return 0


def _measured(model: str, points: int, inducing: int) -> dict[str, Any]:
    module = "deconditional.benchmarks.scaling"
    done = subprocess.run(
        [sys.executable, "-m", module, model, str(points), str(inducing)],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _slope(rows: list[dict[str, Any]]) -> float:
    """Of log seconds against log points, by least squares."""
    if len(rows) < 2:
        return float("nan")
    points, seconds = (np.log([row[key] for row in rows]) for key in ("points", "seconds"))
    return float(np.polyfit(points, seconds, 1)[0])


def _show(
    console: Console, rows: list[dict[str, Any]], slopes: dict[str, float], inducing: int
) -> None:
    table = Table(title=f"One objective and gradient with {inducing} inducing points")
    for name in ("model", "points", "bags", "seconds", "µs / point", "memory"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in rows:
        table.add_row(
            row["model"],
            f"{row['points']:,}",
            f"{row['bags']:,}",
            f"{row['seconds']:.3f}",
            f"{1e6 * row['seconds'] / row['points']:.2f}",
            f"{row['peak_bytes'] / 2**20:.0f} MiB",
        )
    console.print(table)
    for name, slope in slopes.items():
        trace = rows[-1]["trace"] if rows[-1]["model"] == name else rows[0]["trace"]
        console.print(f"{MODELS[name]}: log-log slope {slope:.2f}; trace {trace}")


def _one(model: str, points: int, inducing: int) -> dict[str, Any]:
    """Time of one evaluation with gradient, and the peak memory of this process."""
    import jax.numpy as jnp

    import deconditional as dc
    from deconditional.fit import _loss_and_gradient

    rng = np.random.default_rng(0)
    x = rng.uniform(size=(points, 3))
    n_bags = 400 if model == "varcmp" else points // 100
    # Bags are strips along the first covariate, which is also the mediator.
    bag_of = np.minimum((x[:, 0] * n_bags).astype(int), n_bags - 1)
    y = (np.arange(n_bags) + 0.5) / n_bags
    bags = dc.Bags.from_points(x, bag_of, mediator=y)
    z = bags.means(np.sin(6 * x[:, 0]) + x[:, 1] ** 2) + 0.05 * rng.standard_normal(n_bags)
    options: dict[str, Any] = {"n_inducing": inducing, "precision": "float32"}
    estimator: Any = dc.VarCMP(**options) if model == "varcmp" else dc.VBagg(**options)
    problem = estimator._problem(bags, z, y if model == "varcmp" else None, None, None)
    vector = jnp.asarray(problem.parameters.start())
    seconds = best_seconds(lambda: _loss_and_gradient(problem, vector), budget=5.0)
    return {
        "model": model,
        "points": points,
        "bags": n_bags,
        "trace": estimator._trace_used,
        "seconds": seconds,
        "peak_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(_one(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
