"""Whole fits of a fixed swiss roll, in units of `exp` on n² values.

An exact model sweeps the n x n kernel matrix once for its value and once for its gradient, so the
time of `exp` on n² values, in the same run and type, is the natural unit. Fits are timed twice:
the first compiles, the second does not.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Costs, Result, Row, shown
from benchmarks.problems import start
from benchmarks.timing import exp_rate
from studies.clock import best_seconds
from studies.command import option

__all__ = ["Fit", "models"]


def models(inducing: int, restarts: int) -> dict[str, Any]:
    """The models by name; tiles are float32 in all of them, as is the unit."""
    common: dict[str, Any] = {"precision": "float32", "n_restarts": restarts}
    return {
        "CMP": dc.CMP(**common),
        "S-CMP": dc.CMP(cmo="shrinkage", **common),
        "U-CMP": dc.CMP(uncertainty=True, **common),
        "Bagg-GP": dc.BaggGP(**common),
        f"VarCMP, {inducing} inducing": dc.VarCMP(n_inducing=inducing, **common),
    }


@dataclass(frozen=True)
class Fit(Benchmark):
    """CMP, S-CMP, U-CMP, Bagg-GP and VarCMP on a swiss roll."""

    name: ClassVar[str] = "fit"
    help: ClassVar[str] = "whole fits, in units of exp on n² values"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {
        "model": shown("model"),
        "ms / eval": shown("evaluation_seconds", "{:.1f}", 1e3),
        "units": shown("evaluation_in_units", "{:.1f}"),
        "evals": shown("evaluations"),
        "first, s": shown("first_fit_seconds", "{:.1f}"),
        "fit, s": shown("fit_seconds", "{:.2f}"),
        "fit, units": shown("fit_in_units", "{:.0f}"),
        "per eval": shown("fit_over_evaluations", "{:.2f}"),
    }

    series: ClassVar[Any] = {
        "objective and gradient": "evaluation_in_units",
        "whole fit, compiled": "fit_in_units",
    }
    axis: ClassVar[str] = "in units of exp on n² values"
    log: ClassVar[bool] = True

    points: int = option(5000, "fine points", quick=1500)
    bags: int = option(50, "bags", quick=30)
    inducing: int = option(100, "inducing points of VarCMP")
    restarts: int = option(4, "starts of every fit", quick=1)
    budget: float = option(3.0, "seconds for each measurement", quick=0.5, type=float)

    def measure(self, where: Console) -> Result:
        """Time the unit, then every model."""
        data = dc.datasets.swiss_roll(n_points=self.points, n_bags=self.bags)
        with where.status("timing exp"):
            rate = exp_rate(jnp.float32, self.budget)
        unit = data.bags.n_points**2 / rate
        rows = []
        for name, model in models(self.inducing, self.restarts).items():
            with where.status(f"{name}: fits and evaluations"):
                rows.append(_measured(name, model, data, self.budget) | {"unit_seconds": unit})
            rows[-1]["evaluation_in_units"] = rows[-1]["evaluation_seconds"] / unit
            rows[-1]["fit_in_units"] = rows[-1]["fit_seconds"] / unit
        return {
            "exp_per_second": rate,
            "unit": "exp on n² float32 values in cache",
            "unit_seconds": unit,
            "rows": rows,
        }

    def words(self, result: Result) -> tuple[str, str]:
        """Sizes, and the unit."""
        return (
            f"Whole fits: swiss roll of {result['points']} points in {result['bags']} bags, "
            f"{result['restarts']} start(s); {result['device']}",
            f"unit: {result['unit']}, {1e3 * result['unit_seconds']:.2f} ms in this run. "
            "first: with compilation. per eval: the fit over its evaluations at their best speed.",
        )

    def costs(self, result: Result) -> Costs:
        """Seconds of an evaluation, alone and within a whole fit, compiled, and of the unit.

        How many evaluations a fit takes follows from rounding, and is not what speed is about.
        """
        times: Costs = {}
        for row in result["rows"]:
            within_fit = row["fit_seconds"] / row["evaluations"]
            times[f"{row['model']}, evaluation"] = (row["evaluation_seconds"], row["unit_seconds"])
            times[f"{row['model']}, fit per evaluation"] = (within_fit, row["unit_seconds"])
        return times


def _measured(name: str, model: Any, data: Any, budget: float) -> Row:
    given = {} if isinstance(model, dc.BaggGP) else {"mediator": data.mediator}
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.FitWarning)
        for _ in range(2):
            began = time.perf_counter()
            model.fit(data.bags, data.z, **given)
            seconds.append(time.perf_counter() - began)
    report = model.fit_report_
    evaluation = best_seconds(start(model, data.bags, data.z, **given).evaluate, budget)
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
