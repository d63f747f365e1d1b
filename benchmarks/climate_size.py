"""A full variational fit at the size of the paper's climate experiment, next to the exact model.

441 bags of 289 points, 441 observations of other cells, 800 inducing points, Matérn-3/2 on position
plus Gaussian on the rest for both kernels: the sizes and kernels of the paper on a synthetic globe
with known truth. With all points the exact model is one for a GPU: a CPU evaluates it once, unless
the whole fit is asked for.

Times are set against `exp` alone, two for every value of the n x n kernel matrix (an evaluation) or
for every pair of a query point and a fine or inducing point (predictions).
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

from benchmarks import figures, timing
from benchmarks.problems import problem_of
from benchmarks.timing import best_seconds, device_name, exp_rate, write_json
from deconditional import CMP, VarCMP, scores
from deconditional.datasets import synthetic_globe
from deconditional.errors import FitWarning
from deconditional.fitting.map import loss_and_gradient
from studies.provenance import machine

__all__ = ["figure", "run"]

SUBSAMPLE = 64

EXPONENTIALS = 2
"""Of one kernel value: a sum of two kernels needs one for each."""


def kernels() -> dict[str, Any]:
    """Those of the paper: position and the rest, added."""
    return {
        "kernel": gk.Matern32(active_dims=[0, 1], lengthscale=jnp.ones(2))
        + gk.RBF(active_dims=[2, 3, 4], lengthscale=jnp.ones(3)),
        "mediator_kernel": gk.Matern32(active_dims=[0, 1], lengthscale=jnp.ones(2))
        + gk.RBF(active_dims=[2]),
    }


def run(
    inducing: int = 800,
    quick: bool = False,
    restarts: int = 1,
    exact_all: bool = False,
    out: str | Path | None = None,
    plot: str | Path | None = None,
) -> int:
    """Measure, print a table, write JSON and a figure.

    `quick` takes a small globe to try the command; `exact_all` fits the exact model with all
    points and predicts with it, where otherwise it is evaluated once.
    """
    console = timing.console()
    size = {"rows": 6, "columns": 8, "block": 5} if quick else {}
    globe = synthetic_globe(**size)
    precision = "auto" if quick else "float32"
    options = {**kernels(), "uncertainty": True, "trend": "linear", "precision": precision}
    budget = 0.2 if quick else 5.0
    with console.status("timing exp"):
        rate = exp_rate(jnp.float32, min(budget, 2.0))
    model = VarCMP(**options, n_inducing=inducing, n_restarts=restarts)
    rows = [_fitted(console, model, globe, f"VarCMP, {inducing} inducing points", budget)]
    few = CMP(**options, points_per_bag=SUBSAMPLE, n_restarts=restarts)
    rows.append(_fitted(console, few, globe, f"exact CMP, {SUBSAMPLE} points per bag", budget))
    every = CMP(**options, n_restarts=restarts)
    if exact_all:
        rows.append(_fitted(console, every, globe, "exact CMP, all points", budget))
    else:
        with console.status("one evaluation of the exact model with all points"):
            seconds = _evaluation(every, globe, budget=0.0)
        rows.append({"model": "exact CMP, all points", "points": globe.bags.n_points})
        rows[-1] |= {"evaluation_seconds": seconds}
    for row in rows:
        _add_shares(row, rate, len(globe.x))
    result = {
        "benchmark": "climate-size",
        "bags": globe.bags.n_bags,
        "points": globe.bags.n_points,
        "observations": len(globe.z),
        "predictions": len(globe.x),
        "inducing": inducing,
        "device": device_name(),
        "exp_per_second": rate,
        "rows": rows,
        "machine": machine(),
    }
    _show(console, result, float(np.std(globe.f)))
    write_json(result, out)
    if plot is not None:
        figures.save(figure(result), plot)
    return 0


def _add_shares(row: dict[str, Any], rate: float, queries: int) -> None:
    """How much of the speed of `exp` was reached, by exponentials of kernel values answered for.

    The evaluation of a variational model also has a trace, estimated or not; its values are those
    between inducing points and fine points alone.
    """
    inducing = row.get("details", {}).get("inducing points")
    against = row["points"] if inducing is None else int(inducing)
    one = EXPONENTIALS * against / rate
    row["evaluation_share_of_exp"] = row["points"] * one / row["evaluation_seconds"]
    if "predict_seconds" in row:
        row["predict_share_of_exp"] = queries * one / row["predict_seconds"]


def figure(result: dict[str, Any]) -> Any:
    """Times of evaluations, fits and predictions, as bars."""
    rows = result["rows"]
    missing = float("nan")
    return figures.bars(
        [row["model"] for row in rows],
        {
            "one evaluation": [row["evaluation_seconds"] for row in rows],
            "whole fit": [row.get("fit_seconds", missing) for row in rows],
            f"{result['predictions']:,} predictions": [
                row.get("predict_seconds", missing) for row in rows
            ],
        },
        f"{result['bags']} bags, {result['points']:,} points; {result['device']}",
        "seconds",
        log=True,
    )


def _evaluation(model: Any, globe: Any, budget: float) -> float:
    """Seconds of one objective and gradient, measured for `budget` seconds but at least once."""
    bags = globe.bags
    if model.points_per_bag is not None:
        bags = bags.subsample(model.points_per_bag, seed=model.seed)
    problem = problem_of(model, bags, globe.z, globe.mediator)
    vector = jnp.asarray(problem.parameters.start())
    return best_seconds(lambda: loss_and_gradient(problem, vector), budget=budget, least=1)


def _fitted(console: Console, model: Any, globe: Any, name: str, budget: float) -> dict[str, Any]:
    with console.status(f"{name}: the whole fit"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        began = time.perf_counter()
        model.fit(globe.bags, globe.z, mediator=globe.mediator)
        fit_seconds = time.perf_counter() - began
    report = model.fit_report_
    with console.status(f"{name}: {len(globe.x)} predictions"):
        seconds_of_predictions = []
        for _ in range(2):  # the first compiles
            began = time.perf_counter()
            posterior = model.predict(globe.x)
            moments = posterior.mean, posterior.variance
            seconds_of_predictions.append(time.perf_counter() - began)
        assert all(np.isfinite(values).all() for values in moments)
        score = scores.score(posterior, globe.f)
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
        "first_predict_seconds": seconds_of_predictions[0],
        "predict_seconds": seconds_of_predictions[1],
        "details": dict(report.details),
        "notes": list(report.notes),
        "bound": report.log_evidence,
        "rmse": float(score["rmse"]),
        "crps": float(score["crps"]),
        "coverage95": float(score["coverage95"]),
    }


def _show(console: Console, result: dict[str, Any], spread: float) -> None:
    table = Table(
        title=f"{result['bags']} bags, {result['points']} points, {result['observations']} "
        f"observations, {result['predictions']} predictions; the field has standard deviation "
        f"{spread:.2f}; {result['device']}",
        caption=f"of exp: share of exp alone, {result['exp_per_second'] / 1e9:.3g} G float32 "
        f"values/s in this run, {EXPONENTIALS} for every kernel value answered for. "
        "predict: compiled; fit: compilation included.",
    )
    columns = {
        "points": ("points", "{:,}"),
        "evaluation_seconds": ("s / eval", "{:.3g}"),
        "evaluation_share_of_exp": ("of exp", "{:.0%}"),
        "evaluations": ("evals", "{}"),
        "fit_seconds": ("fit, s", "{:.1f}"),
        "predict_seconds": ("predict, s", "{:.2f}"),
        "predict_share_of_exp": ("of exp", "{:.0%}"),
        "rmse": ("RMSE", "{:.3f}"),
        "coverage95": ("cover", "{:.2f}"),
    }
    table.add_column("model")
    for title, _ in columns.values():
        table.add_column(title, justify="right")
    for row in result["rows"]:
        cells = [text.format(row[n]) if n in row else "–" for n, (_, text) in columns.items()]
        table.add_row(row["model"], *cells)
    console.print(table)
