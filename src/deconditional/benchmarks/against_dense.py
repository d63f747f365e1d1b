"""Exact CMP against the dense formula of the paper, in one run.

The opponent replicates every bag's mediator to its points and inverts the n x n matrix
L + nλI, as the paper writes it, with the same kernels and parameters, compiled by JAX and
differentiated by it. Both give the same number; only the cost differs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from rich.console import Console
from rich.table import Table

from deconditional.benchmarks.timing import best_seconds, write_json
from deconditional.datasets import swiss_roll
from deconditional.fit import _loss_and_gradient
from deconditional.inference.problem import ExactProblem, Mediated
from deconditional.models import CMP
from deconditional.provenance import machine

__all__ = ["dense_log_posterior", "run"]

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


def run(points: int = 5000, bags: int = 50, out: str | Path | None = None) -> int:
    """Measure, print a table, write JSON."""
    console = Console()
    data = swiss_roll(n_points=points, n_bags=bags)
    model = CMP(trend="none")
    problem = model._problem(data.bags, data.z, data.mediator, None, None)
    vector = jnp.asarray(problem.parameters.start())
    bag_of, x = jnp.asarray(data.bags.bag), jnp.asarray(data.bags.points)

    @jax.jit
    def dense(vector: Any) -> Any:
        return jax.value_and_grad(lambda v: -dense_log_posterior(problem, bag_of, x, v))(vector)

    with console.status("the whole fit, first of all: nothing is compiled yet"):
        began = time.perf_counter()
        model.fit(data.bags, data.z, mediator=data.mediator)
        fit_seconds = time.perf_counter() - began
    with console.status("one evaluation of the bag form, with gradient"):
        ours = best_seconds(lambda: _loss_and_gradient(problem, vector))
        ours_value, ours_gradient = _loss_and_gradient(problem, vector)
    with console.status(f"the dense formula at n = {data.bags.n_points}, with gradient"):
        dense_seconds = best_seconds(lambda: dense(vector), budget=0.0, least=2)
        dense_value, dense_gradient = dense(vector)
    with console.status(f"peak memory of a process at n = {MEMORY_POINTS}"):
        memory = _peak_memory()
    scale = float(jnp.max(jnp.abs(dense_gradient)))
    report = model.fit_report_
    result = {
        "benchmark": "against-dense",
        "points": points,
        "bags": bags,
        "evaluation_seconds": ours,
        "dense_evaluation_seconds": dense_seconds,
        "evaluation_speedup": dense_seconds / ours,
        "fit_seconds": fit_seconds,
        "fit_compile_seconds": report.compile_seconds,
        "fit_evaluations": report.evaluations,
        "fit_in_dense_evaluations": fit_seconds / dense_seconds,
        "value_difference": abs(float(ours_value - dense_value)),
        "gradient_difference": float(jnp.max(jnp.abs(ours_gradient - dense_gradient))) / scale,
        "peak_memory_points": MEMORY_POINTS,
        "peak_memory_bytes": memory,
        "machine": machine(),
    }
    _show(console, result)
    write_json(result, out)
    return 0


def _peak_memory() -> int:
    """Peak resident bytes of a new process that evaluates, differentiates and predicts."""
    module = "deconditional.benchmarks.peak_memory"
    done = subprocess.run(
        [sys.executable, "-m", module, str(MEMORY_POINTS)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout.strip().splitlines()[-1])


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
