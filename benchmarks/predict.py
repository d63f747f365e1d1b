"""Mean and variance at query points, next to what `exp` alone would allow.

A query point needs one kernel value for every fine point of the bags (exact), for every inducing
point, or one cosine or sine for every feature: `exp` on as many values, in the same run and type,
is the first limit. Its variance needs products with matrices in float64: of size N x M for exact
models, and twice m x m for a basis of m functions. The second limit adds these, at the speed of a
plain matrix product. Fields are taken at the start of the parameters, which cost does not depend
on.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import figures, timing
from benchmarks.problems import problem_of, strips
from benchmarks.timing import (
    best_seconds,
    device_name,
    exp_rate,
    matmul_rate,
    write_json,
)
from deconditional.inference.posterior import BLOCK, Posterior
from deconditional.models import CMP, VarCMP
from studies.provenance import machine

__all__ = ["costs", "figure", "measure", "run"]

BLOCKS = (1024, 4096, 16_384)
"""Query points computed at once; the package takes BLOCK of them."""


def run(
    points: int = 20_000,
    bags: int = 200,
    dims: int = 5,
    inducing: int = 400,
    features: int = 1000,
    queries: int = 65_536,
    quick: bool = False,
    out: str | Path | None = None,
    plot: str | Path | None = None,
) -> int:
    """Measure, print a table, write JSON and a figure; `quick` takes few queries, one block."""
    console = timing.console()
    if quick:
        points, bags, queries = min(points, 5000), min(bags, 100), min(queries, 8192)
    result = measure(
        points, bags, dims, inducing, features, queries, 0.5 if quick else 3.0, quick, console
    )
    _show(console, result)
    write_json(result, out)
    if plot is not None:
        figures.save(figure(result), plot)
    return 0


def measure(
    points: int,
    bags: int,
    dims: int,
    inducing: int,
    features: int,
    queries: int,
    budget: float,
    quick: bool,
    console: Console,
) -> dict[str, Any]:
    """Time `exp`, then every kind of field in every size of block."""
    with console.status("timing exp and matrix products"):
        rates = exp_rate(jnp.float32, budget), matmul_rate(jnp.float64, budget)
    x = np.random.default_rng(1).uniform(size=(queries, dims))
    rows = []
    for name, (field, *work) in _fields(points, bags, dims, inducing, features).items():
        for block in sorted({BLOCK} if quick else {BLOCK, *BLOCKS}):
            if block > queries:
                continue
            with console.status(f"{name}, blocks of {block}"):
                seconds = _seconds(field, x, block, budget)
            rows.append(_row(name, block, len(x), seconds, work, rates))
        with console.status(f"{name}, through Posterior"):
            seconds = best_seconds(partial(_through_posterior, field, x), budget)
        rows.append(_row(name, None, len(x), seconds, work, rates))
    return {
        "benchmark": "predict",
        "points": points,
        "bags": bags,
        "dims": dims,
        "queries": queries,
        "device": device_name(),
        "exp_per_second": rates[0],
        "matmul_flops_per_second": rates[1],
        "rows": rows,
        "machine": machine(),
    }


def _fields(
    points: int, bags: int, dims: int, inducing: int, features: int
) -> dict[str, tuple[Any, int, int]]:
    """Posteriors of the field by name, with the values and the flops that a query point needs."""
    data = strips(points, bags, dims=dims)
    exact = problem_of(CMP(precision="float32"), data.bags, data.z, data.mediator)
    vector = jnp.asarray(exact.parameters.start())
    pieces, field = exact.solve(vector)
    fourier = exact.fourier_field(vector, pieces.weights, pieces.noise, features, jax.random.key(0))
    model = VarCMP(precision="float32", n_inducing=inducing)
    sparse = problem_of(model, data.bags, data.z, data.mediator)
    _, reduced = sparse.solve(jnp.asarray(sparse.parameters.start()))
    return {
        f"exact, {points} points": (field, points, 2 * bags * len(data.z)),
        f"{inducing} inducing points": (reduced, inducing, 4 * inducing**2),
        f"{features} features": (fourier, features, 2 * features**2),
    }


def _through_posterior(field: Any, x: np.ndarray) -> np.ndarray:
    return Posterior([field], x).variance


def _seconds(field: Any, x: np.ndarray, block: int, budget: float) -> float:
    """Best time of all query points, in whole blocks."""
    parts = [jnp.asarray(x[at : at + block]) for at in range(0, len(x) - block + 1, block)]
    whole = best_seconds(lambda: [field.moments(part) for part in parts], budget)
    return whole * len(x) / (len(parts) * block)


def _row(
    name: str,
    block: int | None,
    queries: int,
    seconds: float,
    work: list[int],
    rates: tuple[float, float],
) -> dict[str, Any]:
    exps, products = (queries * w / rate for w, rate in zip(work, rates, strict=True))
    return {
        "field": name,
        "block": block,
        "seconds": seconds,
        "points_per_second": queries / seconds,
        "values_per_point": work[0],
        "flops_per_point": work[1],
        "exp_seconds": exps,
        "product_seconds": products,
        "share_of_exp": exps / seconds,
        "share_of_both": (exps + products) / seconds,
    }


def costs(result: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Seconds through Posterior, which users call, and those of both limits together."""
    return {
        row["field"]: (row["seconds"], row["exp_seconds"] + row["product_seconds"])
        for row in result["rows"]
        if row["block"] is None
    }


def figure(result: dict[str, Any]) -> Any:
    """Shares of the limit, as bars."""
    rows = result["rows"]
    return figures.bars(
        [f"{row['field']}: {_block_text(row)}" for row in rows],
        {
            "of exp": [row["share_of_exp"] for row in rows],
            "of exp and matrix products": [row["share_of_both"] for row in rows],
        },
        f"Mean and variance at {result['queries']:,} points; {result['device']}",
        "share of the speed limit",
        ("limit", 1.0),
    )


def _block_text(row: dict[str, Any]) -> str:
    return "Posterior" if row["block"] is None else f"blocks of {row['block']:,}"


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table(
        title=f"Mean and variance at {result['queries']} points; {result['device']}",
        caption=f"exp: {result['exp_per_second'] / 1e9:.2f} G values/s in cache (float32); matrix "
        f"products: {result['matmul_flops_per_second'] / 1e9:.0f} Gflop/s (float64). Shares of "
        "exp alone on the values a point needs, and of both one after the other. "
        "Posterior: what users call, answers on the host.",
    )
    table.add_column("field")
    table.add_column("computed by")
    for heading in ("thousand points / s", "values / point", "of exp", "of exp + products"):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        table.add_row(
            row["field"],
            _block_text(row),
            f"{row['points_per_second'] / 1e3:.1f}",
            f"{row['values_per_point']}",
            f"{row['share_of_exp']:.1%}",
            f"{row['share_of_both']:.1%}",
        )
    console.print(table)
