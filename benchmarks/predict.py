"""Mean and variance at query points, next to what `exp` alone would allow.

A query point needs one kernel value for every fine point of the bags (exact), for every inducing
point, or one cosine or sine for every feature: `exp` on as many values, in the same run and type,
is the first limit. Its variance needs products with matrices in float64: of size N x M for exact
models, and twice m x m for a basis of m functions. The second limit adds these, at the speed of a
plain matrix product. Fields are taken at the start of the parameters, which cost does not depend
on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Costs, Result, Row, shown
from benchmarks.problems import start, strips
from benchmarks.timing import exp_rate, matmul_rate
from studies.clock import best_seconds
from studies.command import option

__all__ = ["Predict"]


def _block_text(row: Row) -> str:
    return "Posterior" if row["block"] is None else f"blocks of {row['block']:,}"


@dataclass(frozen=True)
class Predict(Benchmark):
    """The exact posterior, inducing points and random features, in blocks of several sizes."""

    name: ClassVar[str] = "predict"
    help: ClassVar[str] = "mean and variance at query points against the speed of exp alone"
    columns: ClassVar[Any] = {
        "field": shown("field"),
        "computed by": _block_text,
        "thousand points / s": shown("points_per_second", "{:.1f}", 1e-3),
        "values / point": shown("values_per_point"),
        "of exp": shown("share_of_exp", "{:.1%}"),
        "of exp + products": shown("share_of_both", "{:.1%}"),
    }

    series: ClassVar[Any] = {
        "of exp": "share_of_exp",
        "of exp and matrix products": "share_of_both",
    }
    axis: ClassVar[str] = "share of the speed limit"
    level: ClassVar[Any] = ("limit", 1.0)

    points: int = option(20_000, "fine points of the bags", quick=5000)
    bags: int = option(200, "bags", quick=100)
    dims: int = option(5, "covariates")
    inducing: int = option(400, "inducing points")
    features: int = option(1000, "random features")
    queries: int = option(65_536, "query points", quick=8192)
    blocks: tuple[int, ...] = option(
        (1024, 4096, 16_384), "query points computed at once", quick=(4096,), metavar="N"
    )
    budget: float = option(3.0, "seconds for each measurement", quick=0.5, type=float)

    def measure(self, where: Console) -> Result:
        """Time `exp`, then every kind of field in every size of block."""
        with where.status("timing exp and matrix products"):
            rates = exp_rate(jnp.float32, self.budget), matmul_rate(jnp.float64, self.budget)
        x = np.random.default_rng(1).uniform(size=(self.queries, self.dims))
        rows = []
        sizes = (self.points, self.bags, self.dims, self.inducing, self.features)
        for name, (field, *work) in _fields(*sizes).items():
            for block in sorted(size for size in self.blocks if size <= self.queries):
                with where.status(f"{name}, blocks of {block}"):
                    seconds = _seconds(field, x, block, self.budget)
                rows.append(_row(name, block, len(x), seconds, work, rates))
            with where.status(f"{name}, through Posterior"):
                seconds = best_seconds(partial(_through_posterior, field, x), self.budget)
            rows.append(_row(name, None, len(x), seconds, work, rates))
        return {
            "exp_per_second": rates[0],
            "matmul_flops_per_second": rates[1],
            "rows": rows,
        }

    def words(self, result: Result) -> tuple[str, str]:
        """Sizes, and the two limits."""
        return (
            f"Mean and variance at {result['queries']} points; {result['device']}",
            f"exp: {result['exp_per_second'] / 1e9:.2f} G values/s in cache (float32); matrix "
            f"products: {result['matmul_flops_per_second'] / 1e9:.0f} Gflop/s (float64). Shares of "
            "exp alone on the values a point needs, and of both one after the other. "
            "Posterior: what users call, answers on the host.",
        )

    def label(self, row: Row) -> str:
        """The field, and what computed it."""
        return f"{row['field']}: {_block_text(row)}"

    def costs(self, result: Result) -> Costs:
        """Seconds through Posterior, which users call, and those of both limits together."""
        return {
            row["field"]: (row["seconds"], row["exp_seconds"] + row["product_seconds"])
            for row in result["rows"]
            if row["block"] is None
        }


def _fields(
    points: int, bags: int, dims: int, inducing: int, features: int
) -> dict[str, tuple[Any, int, int]]:
    """Posteriors of the field by name, with the values and the flops that a query point needs."""
    data = strips(points, bags, dims=dims)
    exact, vector = start(dc.CMP(precision="float32"), *data)
    pieces, field = exact.solve(vector)
    fourier = exact.fourier_field(vector, pieces.weights, pieces.noise, features, jax.random.key(0))
    reduced = start(dc.VarCMP(precision="float32", n_inducing=inducing), *data).field()
    return {
        f"exact, {points} points": (field, points, 2 * bags * len(data.z)),
        f"{inducing} inducing points": (reduced, inducing, 4 * inducing**2),
        f"{features} features": (fourier, features, 2 * features**2),
    }


def _through_posterior(field: Any, x: np.ndarray) -> np.ndarray:
    return dc.Posterior([field], x).variance


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
) -> Row:
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
