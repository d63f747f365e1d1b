"""A full variational fit at the size of the paper's climate experiment, next to the exact model.

441 bags of 289 points, 441 observations of other cells, 800 inducing points, Matérn-3/2 on position
plus Gaussian on the rest for both kernels: the sizes and kernels of the paper on a synthetic globe
with known truth.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from deconditional import CMP, VarCMP, scores
from deconditional.benchmarks.timing import best_seconds, write_json
from deconditional.datasets import synthetic_globe
from deconditional.fit import FitWarning, _loss_and_gradient
from deconditional.provenance import machine

__all__ = ["run"]

SUBSAMPLE = 64


def kernels() -> dict[str, Any]:
    """Those of the paper: position and the rest, added."""
    return {
        "kernel": gk.Matern32(active_dims=[0, 1], lengthscale=jnp.ones(2))
        + gk.RBF(active_dims=[2, 3, 4], lengthscale=jnp.ones(3)),
        "mediator_kernel": gk.Matern32(active_dims=[0, 1], lengthscale=jnp.ones(2))
        + gk.RBF(active_dims=[2]),
    }


def run(
    inducing: int = 800, quick: bool = False, restarts: int = 1, out: str | Path | None = None
) -> int:
    """Measure, print a table, write JSON; `quick` takes a small globe to try the command."""
    console = Console()
    size = {"rows": 6, "columns": 8, "block": 5} if quick else {}
    globe = synthetic_globe(**size)
    precision = "auto" if quick else "float32"
    options = {**kernels(), "uncertainty": True, "trend": "linear", "precision": precision}
    model = VarCMP(**options, n_inducing=inducing, n_restarts=restarts)
    budget = 0.2 if quick else 5.0
    rows = [_fitted(console, model, globe, f"VarCMP, {inducing} inducing points", budget)]
    few = CMP(**options, points_per_bag=SUBSAMPLE, n_restarts=restarts)
    rows.append(_fitted(console, few, globe, f"exact CMP, {SUBSAMPLE} points per bag", budget))
    with console.status("one evaluation of the exact model with all points"):
        seconds = _evaluation(CMP(**options), globe, budget=0.0)
    rows.append({"model": "exact CMP, all points", "points": globe.bags.n_points})
    rows[-1] |= {"evaluation_seconds": seconds}
    _show(console, rows, globe)
    result = {
        "benchmark": "climate-size",
        "bags": globe.bags.n_bags,
        "points": globe.bags.n_points,
        "observations": len(globe.z),
        "predictions": len(globe.x),
        "inducing": inducing,
        "rows": rows,
        "machine": machine(),
    }
    write_json(result, out)
    return 0


def _evaluation(model: Any, globe: Any, budget: float) -> float:
    """Seconds of one objective and gradient, measured for `budget` seconds but at least once."""
    bags = globe.bags
    if model.points_per_bag is not None:
        bags = bags.subsample(model.points_per_bag, seed=model.seed)
    problem = model._problem(bags, globe.z, globe.mediator, None, None)
    vector = jnp.asarray(problem.parameters.start())
    return best_seconds(lambda: _loss_and_gradient(problem, vector), budget=budget, least=1)


def _fitted(console: Console, model: Any, globe: Any, name: str, budget: float) -> dict[str, Any]:
    with console.status(f"{name}: the whole fit"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        began = time.perf_counter()
        model.fit(globe.bags, globe.z, mediator=globe.mediator)
        fit_seconds = time.perf_counter() - began
    report = model.fit_report_
    with console.status(f"{name}: {len(globe.x)} predictions"):
        began = time.perf_counter()
        posterior = model.predict(globe.x)
        score = scores.score(posterior, globe.f)
        predict_seconds = time.perf_counter() - began
    with console.status(f"{name}: one evaluation"):
        seconds = _evaluation(model, globe, budget)
    console.print(f"{name}: {report}", highlight=False)
    return {
        "model": name,
        "points": int(model.bags_.n_points),
        "evaluation_seconds": seconds,
        "evaluations": report.evaluations,
        "fit_seconds": fit_seconds,
        "compile_seconds": report.compile_seconds,
        "converged": report.converged,
        "predict_seconds": predict_seconds,
        "details": dict(report.details),
        "notes": list(report.notes),
        "bound": report.log_evidence,
        "rmse": float(score["rmse"]),
        "crps": float(score["crps"]),
        "coverage95": float(score["coverage95"]),
    }


def _show(console: Console, rows: list[dict[str, Any]], globe: Any) -> None:
    bags = globe.bags
    table = Table(
        title=f"{bags.n_bags} bags, {bags.n_points} points, {len(globe.z)} observations, "
        f"{len(globe.x)} predictions; the field has standard deviation {np.std(globe.f):.2f}"
    )
    columns = {
        "points": ("points", "{:,}"),
        "evaluation_seconds": ("s / eval", "{:.2f}"),
        "evaluations": ("evals", "{}"),
        "fit_seconds": ("fit, s", "{:.0f}"),
        "predict_seconds": ("predict, s", "{:.1f}"),
        "rmse": ("RMSE", "{:.3f}"),
        "coverage95": ("cover", "{:.2f}"),
    }
    table.add_column("model")
    for title, _ in columns.values():
        table.add_column(title, justify="right")
    for row in rows:
        cells = [text.format(row[n]) if n in row else "–" for n, (_, text) in columns.items()]
        table.add_row(row["model"], *cells)
    console.print(table)
