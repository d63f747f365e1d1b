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
from dataclasses import dataclass
from typing import Any, ClassVar

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Result, Row, percent, shown
from benchmarks.problems import start
from benchmarks.timing import exp_rate
from studies.clock import best_seconds
from studies.command import option
from studies.data import synthetic_globe

__all__ = ["ClimateSize"]

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


@dataclass(frozen=True)
class ClimateSize(Benchmark):
    """A variational and an exact model on 441 bags of 289 points, and predictions at 254 898."""

    name: ClassVar[str] = "climate-size"
    help: ClassVar[str] = "whole fits at the size of the paper's climate experiment"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {
        "model": shown("model"),
        "points": shown("points", "{:,}"),
        "s / eval": shown("evaluation_seconds", "{:.3g}"),
        "of exp": percent("evaluation_share_of_exp"),
        "evals": shown("evaluations"),
        "fit, s": shown("fit_seconds", "{:.1f}"),
        "predict, s": shown("predict_seconds", "{:.2f}"),
        "predict, of exp": percent("predict_share_of_exp"),
        "RMSE": shown("rmse", "{:.3f}"),
        "cover": shown("coverage95", "{:.2f}"),
    }
    series: ClassVar[Any] = {
        "one evaluation": "evaluation_seconds",
        "whole fit": "fit_seconds",
        "all predictions": "predict_seconds",
    }
    axis: ClassVar[str] = "seconds"
    log: ClassVar[bool] = True

    inducing: int = option(800, "inducing points")
    restarts: int = option(1, "starts of a fit")
    exact_all: bool = option(False, "fit the exact model with all points too: for a GPU")
    cells: tuple[int, ...] = option(
        (21, 42, 17), "coarse rows, columns, fine ones in each", quick=(6, 8, 5), metavar="N"
    )
    budget: float = option(5.0, "seconds for each measurement", quick=0.2, type=float)

    def measure(self, where: Console) -> Result:
        """Time `exp`, then both models, and the exact one with all points."""
        globe = synthetic_globe(*self.cells)
        precision = "auto" if len(globe.x) < 10_000 else "float32"
        options = {**kernels(), "uncertainty": True, "trend": "linear", "precision": precision}
        options["n_restarts"] = self.restarts
        with where.status("timing exp"):
            rate = exp_rate(jnp.float32, min(self.budget, 2.0))
        every = dc.CMP(**options)
        models = {
            f"VarCMP, {self.inducing} inducing points": dc.VarCMP(
                **options, n_inducing=self.inducing
            ),
            f"exact CMP, {SUBSAMPLE} points per bag": dc.CMP(**options, points_per_bag=SUBSAMPLE),
        }
        if self.exact_all:
            models["exact CMP, all points"] = every
        rows = [_fitted(where, model, globe, name, self.budget) for name, model in models.items()]
        if not self.exact_all:
            with where.status("one evaluation of the exact model with all points"):
                seconds = _evaluation(every, globe, budget=0.0)
            rows.append({"model": "exact CMP, all points", "points": globe.bags.n_points})
            rows[-1] |= {"evaluation_seconds": seconds}
        for row in rows:
            _add_shares(row, rate, len(globe.x))
        return {
            "bags": globe.bags.n_bags,
            "points": globe.bags.n_points,
            "observations": len(globe.z),
            "predictions": len(globe.x),
            "spread": float(np.std(globe.f)),
            "exp_per_second": rate,
            "rows": rows,
        }

    def words(self, result: Result) -> tuple[str, str]:
        """Sizes, and the limit."""
        return (
            f"{result['bags']} bags, {result['points']} points, {result['observations']} "
            f"observations, {result['predictions']} predictions; the field has standard deviation "
            f"{result['spread']:.2f}; {result['device']}",
            f"of exp: share of exp alone, {result['exp_per_second'] / 1e9:.3g} G float32 "
            f"values/s in this run, {EXPONENTIALS} for every kernel value answered for. "
            "predict: compiled; fit: compilation included.",
        )


def _add_shares(row: Row, rate: float, queries: int) -> None:
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


def _evaluation(model: Any, globe: Any, budget: float) -> float:
    """Seconds of one objective and gradient, measured for `budget` seconds but at least once."""
    bags = globe.bags
    if model.points_per_bag is not None:
        bags = bags.subsample(model.points_per_bag, seed=model.seed)
    begun = start(model, bags, globe.z, globe.mediator)
    return best_seconds(begun.evaluate, budget=budget, least=1)


def _fitted(where: Console, model: Any, globe: Any, name: str, budget: float) -> Row:
    with where.status(f"{name}: the whole fit"), warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.FitWarning)
        began = time.perf_counter()
        model.fit(globe.bags, globe.z, mediator=globe.mediator)
        fit_seconds = time.perf_counter() - began
    report = model.fit_report_
    with where.status(f"{name}: {len(globe.x)} predictions"):
        seconds_of_predictions = []
        for _ in range(2):  # the first compiles
            began = time.perf_counter()
            posterior = model.predict(globe.x)
            moments = posterior.mean, posterior.variance
            seconds_of_predictions.append(time.perf_counter() - began)
        assert all(np.isfinite(values).all() for values in moments)
        score = dc.scores.score(posterior, globe.f)
    with where.status(f"{name}: one evaluation"):
        seconds = _evaluation(model, globe, budget)
    where.print(f"{name}: {report}", highlight=False)
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
