"""Exact CMP against the dense formula of the paper, in one run.

The opponent replicates every bag's mediator to its points and inverts the n x n matrix
L + nλI, as the paper writes it, with the same kernels and parameters, compiled by JAX and
differentiated by it. Both give the same number; only the cost differs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Costs, Result, Row, shown
from benchmarks.problems import start
from benchmarks.timing import in_own_process, peak_bytes
from studies.clock import best_seconds
from studies.command import option

__all__ = ["AgainstDense", "dense_log_posterior"]

MEMORY_POINTS = 20_000


def dense_log_posterior(problem: Any, bag_of: Any, x: Any, vector: Any) -> Any:
    """The paper's replicated estimator, everything n x n: a zero-mean CMP with equal weights."""
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


QUANTITIES = {
    "objective and gradient, bag form": shown("evaluation_seconds", "{:.1f} ms", 1e3),
    "objective and gradient, dense": shown("dense_evaluation_seconds", "{:.2f} s"),
    "ratio": shown("evaluation_speedup", "{:.0f}x"),
    "whole fit, compilation included": shown("fit_seconds", "{:.1f} s"),
    "evaluations of the fit": shown("fit_evaluations"),
    "whole fit in dense evaluations": shown("fit_in_dense_evaluations", "{:.2f}"),
    "difference of log posteriors": shown("value_difference", "{:.1e}"),
    "difference of gradients, relative": shown("gradient_difference", "{:.1e}"),
    f"peak memory at n = {MEMORY_POINTS}": shown("peak_memory_bytes", "{:.0f} MiB", 2**-20),
}


@dataclass(frozen=True)
class AgainstDense(Benchmark):
    """The bag form of exact CMP and the n x n formula: times, memory, and that both agree."""

    name: ClassVar[str] = "against-dense"
    help: ClassVar[str] = "an exact fit against the dense formula of the paper"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {"quantity": shown("quantity"), "value": shown("value")}
    series: ClassVar[Any] = {"in dense evaluations": "in_dense_evaluations"}
    axis: ClassVar[str] = "time in evaluations of the dense formula, with gradient"
    log: ClassVar[bool] = True

    points: int = option(5000, "fine points", quick=1200)
    bags: int = option(50, "bags", quick=30)
    budget: float = option(3.0, "seconds for each measurement", quick=0.5, type=float)

    def measure(self, where: Console) -> Result:
        """Time both formulas, the whole fit, and the memory of a process."""
        data = dc.datasets.swiss_roll(n_points=self.points, n_bags=self.bags)
        model = dc.CMP(trend="none")
        with where.status("the whole fit, first of all: nothing is compiled yet"):
            began = time.perf_counter()
            model.fit(data.bags, data.z, mediator=data.mediator)
            seconds = time.perf_counter() - began
        result = self.evaluations(where)
        with where.status(f"peak memory of a process at n = {MEMORY_POINTS}"):
            command = ["-m", "benchmarks.against_dense", str(MEMORY_POINTS)]
            peak = int(in_own_process(command).split()[-1])
        return result | {
            "rows": [
                {"quantity": name, "in_dense_evaluations": its / result["dense_evaluation_seconds"]}
                for name, its in (
                    ("bag form, one evaluation", result["evaluation_seconds"]),
                    ("dense formula, one evaluation", result["dense_evaluation_seconds"]),
                    ("bag form, whole fit", seconds),
                )
            ],
            "fit_seconds": seconds,
            "fit_compile_seconds": model.fit_report_.compile_seconds,
            "fit_evaluations": model.fit_report_.evaluations,
            "fit_in_dense_evaluations": seconds / result["dense_evaluation_seconds"],
            "peak_memory_points": MEMORY_POINTS,
            "peak_memory_bytes": peak,
        }

    def evaluations(self, where: Console) -> Result:
        """Time one evaluation of both formulas, and compare their numbers."""
        data = dc.datasets.swiss_roll(n_points=self.points, n_bags=self.bags)
        ours = start(dc.CMP(trend="none"), data.bags, data.z, data.mediator)
        bag_of, x = jnp.asarray(data.bags.bag), jnp.asarray(data.bags.points)

        @jax.jit
        def dense(vector: Any) -> Any:
            return jax.value_and_grad(lambda v: -dense_log_posterior(ours.problem, bag_of, x, v))(
                vector
            )

        with where.status("one evaluation of the bag form, with gradient"):
            seconds = best_seconds(ours.evaluate, self.budget)
            value, gradient = ours.evaluate()
        with where.status(f"the dense formula at n = {data.bags.n_points}, with gradient"):
            dense_seconds = best_seconds(lambda: dense(ours.vector), budget=0.0, least=2)
            dense_value, dense_gradient = dense(ours.vector)
        scale = float(jnp.max(jnp.abs(dense_gradient)))
        return {
            "evaluation_seconds": seconds,
            "dense_evaluation_seconds": dense_seconds,
            "evaluation_speedup": dense_seconds / seconds,
            "value_difference": abs(float(value - dense_value)),
            "gradient_difference": float(jnp.max(jnp.abs(gradient - dense_gradient))) / scale,
        }

    def words(self, result: Result) -> tuple[str, None]:
        """The size."""
        return f"Exact CMP at n = {self.points} against the dense n x n formula", None

    def lines(self, result: Result) -> list[Row]:
        """A line for every quantity."""
        return [{"quantity": name, "value": cell(result)} for name, cell in QUANTITIES.items()]

    def costs(self, result: Result) -> Costs:
        """Seconds of one evaluation, and those of the dense formula."""
        name = f"objective and gradient, {self.points} points"
        return {name: (result["evaluation_seconds"], result["dense_evaluation_seconds"])}


def main(points: int) -> None:
    """Evaluate, differentiate and predict; print the peak memory of this process in bytes.

    Peak memory is a property of a whole process, so it needs one of its own.
    """
    data = dc.datasets.swiss_roll(n_points=points, n_bags=200)
    ours = start(dc.CMP(), data.bags, data.z, data.mediator)
    jax.block_until_ready(ours.evaluate())
    field = ours.field()
    for at in range(0, points, 4096):
        jax.block_until_ready(field.moments(jnp.asarray(np.resize(data.x[at:], (4096, 3)))))
    print(peak_bytes())


if __name__ == "__main__":
    main(int(sys.argv[1]))
