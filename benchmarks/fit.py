"""Whole fits of a fixed swiss roll, in units of `exp` on n² values.

An exact model sweeps the n x n kernel matrix once for its value and once for its gradient, so the
time of `exp` on n² values, in the same run and type, is the natural unit. Fits are timed twice:
the first compiles, the second does not.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from benchmarks import figures, timing
from benchmarks.problems import problem_of
from benchmarks.timing import best_seconds, device_name, exp_rate, write_json
from deconditional.datasets import swiss_roll
from deconditional.errors import FitWarning
from deconditional.fitting.map import loss_and_gradient
from deconditional.models import CMP, BaggGP, VarCMP
from studies.provenance import machine

__all__ = ["costs", "figure", "measure", "run"]


def models(inducing: int, restarts: int) -> dict[str, Any]:
    """The models by name; tiles are float32 in all of them, as is the unit."""
    common: dict[str, Any] = {"precision": "float32", "n_restarts": restarts}
    return {
        "CMP": CMP(**common),
        "S-CMP": CMP(cmo="shrinkage", **common),
        "U-CMP": CMP(uncertainty=True, **common),
        "Bagg-GP": BaggGP(**common),
        f"VarCMP, {inducing} inducing": VarCMP(n_inducing=inducing, **common),
    }


def run(
    points: int = 5000,
    bags: int = 50,
    inducing: int = 100,
    restarts: int = 4,
    quick: bool = False,
    out: str | Path | None = None,
    plot: str | Path | None = None,
) -> int:
    """Measure, print a table, write JSON and a figure; `quick` takes 1500 points and one start."""
    console = timing.console()
    if quick:
        points, bags, restarts = min(points, 1500), min(bags, 30), 1
    result = measure(points, bags, inducing, restarts, 0.5 if quick else 3.0, console)
    _show(console, result)
    write_json(result, out)
    if plot is not None:
        figures.save(figure(result), plot)
    return 0


def measure(
    points: int, bags: int, inducing: int, restarts: int, budget: float, console: Console
) -> dict[str, Any]:
    """Time the unit, then every model."""
    data = swiss_roll(n_points=points, n_bags=bags)
    with console.status("timing exp"):
        rate = exp_rate(jnp.float32, budget)
    unit = data.bags.n_points**2 / rate
    rows = []
    for name, model in models(inducing, restarts).items():
        with console.status(f"{name}: fits and evaluations"):
            rows.append(_measured(name, model, data, budget) | {"unit_seconds": unit})
    for row in rows:
        row["evaluation_in_units"] = row["evaluation_seconds"] / unit
        row["fit_in_units"] = row["fit_seconds"] / unit
    return {
        "benchmark": "fit",
        "points": points,
        "bags": bags,
        "inducing": inducing,
        "restarts": restarts,
        "device": device_name(),
        "exp_per_second": rate,
        "unit": "exp on n² float32 values in cache",
        "unit_seconds": unit,
        "rows": rows,
        "machine": machine(),
    }


def _measured(name: str, model: Any, data: Any, budget: float) -> dict[str, Any]:
    given = {} if isinstance(model, BaggGP) else {"mediator": data.mediator}
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        for _ in range(2):
            began = time.perf_counter()
            model.fit(data.bags, data.z, **given)
            seconds.append(time.perf_counter() - began)
    report = model.fit_report_
    problem = problem_of(model, data.bags, data.z, given.get("mediator"))
    vector = jnp.asarray(problem.parameters.start())
    evaluation = best_seconds(lambda: loss_and_gradient(problem, vector), budget)
    return {
        "model": name,
        "evaluation_seconds": evaluation,
        "evaluations": report.evaluations,
        "first_fit_seconds": seconds[0],
        "fit_seconds": seconds[1],
        "fit_over_evaluations": seconds[1] / (report.evaluations * evaluation),
        "log_evidence": report.log_evidence,
        "converged": report.converged,
    }


def costs(result: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Seconds of an evaluation, alone and within a whole fit, compiled, and of the unit.

    How many evaluations a fit takes follows from rounding, and is not what speed is about.
    """
    found = {}
    for row in result["rows"]:
        within_fit = row["fit_seconds"] / row["evaluations"]
        found[f"{row['model']}, evaluation"] = (row["evaluation_seconds"], row["unit_seconds"])
        found[f"{row['model']}, fit per evaluation"] = (within_fit, row["unit_seconds"])
    return found


def figure(result: dict[str, Any]) -> Any:
    """Evaluations and whole fits in units, as bars."""
    rows = result["rows"]
    return figures.bars(
        [row["model"] for row in rows],
        {
            "objective and gradient": [row["evaluation_in_units"] for row in rows],
            "whole fit, compiled": [row["fit_in_units"] for row in rows],
        },
        f"Fits of a swiss roll: {result['points']:,} points, {result['bags']} bags, "
        f"{result['restarts']} start(s)",
        f"in units of exp on n² values ({1e3 * result['unit_seconds']:.2g} ms)",
        log=True,
    )


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table(
        title=f"Whole fits: swiss roll of {result['points']} points in {result['bags']} bags, "
        f"{result['restarts']} start(s); {result['device']}",
        caption=f"unit: {result['unit']}, {1e3 * result['unit_seconds']:.2f} ms in this run. "
        "first: with compilation. per eval: the fit over its evaluations at their best speed.",
    )
    table.add_column("model")
    for heading in ("ms / eval", "units", "evals", "first, s", "fit, s", "units", "per eval"):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        table.add_row(
            row["model"],
            f"{1e3 * row['evaluation_seconds']:.1f}",
            f"{row['evaluation_in_units']:.1f}",
            f"{row['evaluations']}",
            f"{row['first_fit_seconds']:.1f}",
            f"{row['fit_seconds']:.2f}",
            f"{row['fit_in_units']:.0f}",
            f"{row['fit_over_evaluations']:.2f}",
        )
    console.print(table)
