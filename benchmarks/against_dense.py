"""Exact CMP against the dense formula of the paper, in one run.

The opponent replicates every bag's mediator to its points and inverts the n x n matrix
L + nλI, as the paper writes it, with the same kernels and parameters, compiled by JAX and
differentiated by it. Both give the same number; only the cost differs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from rich.console import Console
from rich.table import Table

from benchmarks import figures, timing
from benchmarks.problems import problem_of
from benchmarks.timing import best_seconds, in_own_process, write_json
from deconditional.datasets import swiss_roll
from deconditional.fitting.map import loss_and_gradient
from deconditional.inference.exact import ExactProblem
from deconditional.models import CMP
from deconditional.observations.kinds import Mediated
from studies.provenance import machine

__all__ = ["costs", "dense_log_posterior", "figure", "measure", "run"]

MEMORY_POINTS = 20_000


def dense_log_posterior(problem: ExactProblem, bag_of: Any, x: Any, vector: Any) -> Any:
    """The paper's replicated estimator, everything n x n: a zero-mean CMP with equal weights."""
    assert isinstance(problem.mediation, Mediated)
    values = problem.parameters.unpack(vector)
    kernel = problem.kernel.with_values(values)
    mediator_kernel = problem.mediation.kernel.with_values(values)
    n = x.shape[0]
    y = problem.mediation.bag_mediator[bag_of]
    observed = problem.mediation.observed_mediator
    gram = mediator_kernel.cross_covariance(y, y) + n * values["ridge"] * jnp.eye(n)
    weights = jsl.cho_solve(
        (jnp.linalg.cholesky(gram), True), mediator_kernel.cross_covariance(y, observed)
    )
    q = weights.T @ kernel.cross_covariance(x, x) @ weights
    root = jnp.linalg.cholesky(q + values["noise_std"] ** 2 * jnp.eye(len(problem.z)))
    white = jsl.solve_triangular(root, problem.z, lower=True)
    log_evidence = -0.5 * (
        white @ white
        + 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        + len(problem.z) * jnp.log(2 * jnp.pi)
    )
    return log_evidence + problem.parameters.log_prior(vector)


def run(
    points: int = 5000,
    bags: int = 50,
    out: str | Path | None = None,
    plot: str | Path | None = None,
) -> int:
    """Measure, print a table, write JSON and a figure."""
    console = timing.console()
    result = measure(points, bags, 3.0, console)
    with console.status(f"peak memory of a process at n = {MEMORY_POINTS}"):
        result |= {"peak_memory_points": MEMORY_POINTS, "peak_memory_bytes": _peak_memory()}
    result |= {"machine": machine()}
    _show(console, result)
    write_json(result, out)
    if plot is not None:
        figures.save(figure(result), plot)
    return 0


def measure(
    points: int, bags: int, budget: float, console: Console, fit: bool = True
) -> dict[str, Any]:
    """Time both formulas, and the whole fit unless told not to; compare their numbers."""
    data = swiss_roll(n_points=points, n_bags=bags)
    model = CMP(trend="none")
    problem = problem_of(model, data.bags, data.z, data.mediator)
    vector = jnp.asarray(problem.parameters.start())
    bag_of, x = jnp.asarray(data.bags.bag), jnp.asarray(data.bags.points)

    @jax.jit
    def dense(vector: Any) -> Any:
        return jax.value_and_grad(lambda v: -dense_log_posterior(problem, bag_of, x, v))(vector)

    result: dict[str, Any] = {"benchmark": "against-dense", "points": points, "bags": bags}
    fit_seconds = float("nan")
    if fit:
        with console.status("the whole fit, first of all: nothing is compiled yet"):
            began = time.perf_counter()
            model.fit(data.bags, data.z, mediator=data.mediator)
            fit_seconds = time.perf_counter() - began
    with console.status("one evaluation of the bag form, with gradient"):
        ours = best_seconds(lambda: loss_and_gradient(problem, vector), budget)
        ours_value, ours_gradient = loss_and_gradient(problem, vector)
    with console.status(f"the dense formula at n = {data.bags.n_points}, with gradient"):
        dense_seconds = best_seconds(lambda: dense(vector), budget=0.0, least=2)
        dense_value, dense_gradient = dense(vector)
    scale = float(jnp.max(jnp.abs(dense_gradient)))
    result |= {
        "evaluation_seconds": ours,
        "dense_evaluation_seconds": dense_seconds,
        "evaluation_speedup": dense_seconds / ours,
        "value_difference": abs(float(ours_value - dense_value)),
        "gradient_difference": float(jnp.max(jnp.abs(ours_gradient - dense_gradient))) / scale,
    }
    if fit:
        result |= {
            "fit_seconds": fit_seconds,
            "fit_compile_seconds": model.fit_report_.compile_seconds,
            "fit_evaluations": model.fit_report_.evaluations,
            "fit_in_dense_evaluations": fit_seconds / dense_seconds,
        }
    return result


def costs(result: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Seconds of one evaluation, and those of the dense formula."""
    name = f"objective and gradient, {result['points']} points"
    return {name: (result["evaluation_seconds"], result["dense_evaluation_seconds"])}


def figure(result: dict[str, Any]) -> Any:
    """Seconds of both formulas, and of the whole fit, as bars."""
    rows = {
        "bag form, one evaluation": result["evaluation_seconds"],
        "dense formula, one evaluation": result["dense_evaluation_seconds"],
        "bag form, whole fit": result["fit_seconds"],
    }
    return figures.bars(
        list(rows),
        {"in dense evaluations": [s / result["dense_evaluation_seconds"] for s in rows.values()]},
        f"Exact CMP, {result['points']:,} points in {result['bags']} bags",
        "time in evaluations of the dense formula, with gradient",
        log=True,
    )


def _peak_memory() -> int:
    """Peak resident bytes of a new process that evaluates, differentiates and predicts."""
    command = ["-m", "benchmarks.peak_memory", str(MEMORY_POINTS)]
    return int(in_own_process(command).strip().splitlines()[-1])


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table(title=f"Exact CMP at n = {result['points']} against the dense n x n formula")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    for label, text in {
        "objective and gradient, bag form": f"{1e3 * result['evaluation_seconds']:.1f} ms",
        "objective and gradient, dense": f"{result['dense_evaluation_seconds']:.2f} s",
        "ratio": f"{result['evaluation_speedup']:.0f}x",
        "whole fit, compilation included": f"{result['fit_seconds']:.1f} s "
        f"({result['fit_evaluations']} evaluations)",
        "whole fit in dense evaluations": f"{result['fit_in_dense_evaluations']:.2f}",
        "difference of log posteriors": f"{result['value_difference']:.1e}",
        "difference of gradients, relative": f"{result['gradient_difference']:.1e}",
        f"peak memory at n = {result['peak_memory_points']}": (
            f"{result['peak_memory_bytes'] / 2**20:.0f} MiB"
        ),
    }.items():
        table.add_row(label, text)
    console.print(table)
