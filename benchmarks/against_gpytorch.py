"""Bagg-GP against the same model written with GPyTorch, on the swiss roll of the paper.

Both maximise the same marginal likelihood, without priors, from the same start, over the same
logarithms of parameters, on the same cores: an ARD kernel, a noise, a constant integrated out. The
opponent, ``benchmarks/gpytorch_bagg.py``, runs with two optimisers and is judged
by the better one. Its clock stops at the first evaluation within half a nat of the best evidence
that anybody found; ours is stopped there too, and also shown for the whole fit.

Evidences are those of one dense formula in NumPy, evaluated at everybody's parameters. Ours runs in
three kinds of process: with nothing compiled, with compiled code on disk, and a second time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import deconditional as dc
from benchmarks.frame import Benchmark, Result, Row, shown
from benchmarks.problems import start
from benchmarks.timing import available_cores, in_own_process, peak_bytes
from deconditional.fitting import map as fitting
from deconditional.fitting.evaluation import loss_and_gradient
from studies import plots
from studies.command import known, option, require

__all__ = ["AgainstGPyTorch", "dense_log_evidence"]

OPPONENT = Path(__file__).with_name("gpytorch_bagg.py")
KERNELS = {"gaussian": gk.RBF, "matern12": gk.Matern12, "matern32": gk.Matern32}
OPTIMISERS = {"lbfgs": "L-BFGS with strong Wolfe line search", "adam": "Adam, step 0.1"}
WITHIN = 0.5
"""Nats below the best evidence that count as having reached it."""

FLOOR = 1e-3
"""Nats; the figure's logarithmic axis ends here."""

STEPS = 250
PATIENCE = 25
NEAR = 0.1
"""Evaluations at most, and those without progress that end the opponent's fit; nats below the best
evidence known at which its second optimiser may stop."""


@partial(jax.tree_util.register_dataclass, data_fields=["start"], meta_fields=[])
@dataclass(frozen=True)
class Uninformed:
    """A prior that is constant in the logarithm, so that the fit maximises the evidence alone."""

    start: Any

    def log_prob(self, value: Any) -> Any:
        """Minus the logarithm: the change of variables takes it away again."""
        return -jnp.log(value)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """The start: there is nothing to draw from."""
        return jnp.broadcast_to(jnp.asarray(self.start), (*sample_shape, *jnp.shape(self.start)))


@dataclass(frozen=True)
class AgainstGPyTorch(Benchmark):
    """The same Bagg-GP, by maximum likelihood from the same start, with GPyTorch and with ours."""

    name: ClassVar[str] = "against-gpytorch"
    help: ClassVar[str] = "Bagg-GP against the same model written with GPyTorch"
    times_compilation: ClassVar[bool] = True
    columns: ClassVar[Any] = {
        "fit": shown("fit"),
        "ms / eval": shown("evaluation_seconds", "{:.0f}", 1e3),
        "evals": shown("evaluations"),
        "reached, s": shown("seconds_to_reach", "{:.2f}"),
        "whole, s": shown("seconds", "{:.2f}"),
        "evidence": shown("dense_log_evidence", "{:.3f}"),
        "MiB": shown("peak_bytes", "{:.0f}", 2**-20),
        "ratio to reach": shown("speedup_to_reach", "{:.1f}"),
        "of whole fit": shown("speedup_of_whole_fit", "{:.1f}"),
        "whole to whole": shown("speedup_whole_to_whole", "{:.1f}"),
    }
    series: ClassVar[Any] = {"nats missing": "trace"}

    points: int = option(5000, "fine points", quick=500)
    bags: int = option(50, "bags", quick=20)
    kernel: str = option("gaussian", f"one of {', '.join(KERNELS)}, ARD", choices=[*KERNELS])
    optimisers: tuple[str, ...] = option(tuple(OPTIMISERS), "those of GPyTorch", metavar="NAME")

    def measure(self, where: Console) -> Result:
        """Fit with both, in processes of their own."""
        require("bench", "torch", "gpytorch")
        names = known("optimiser", self.optimisers, [*OPTIMISERS])
        with tempfile.TemporaryDirectory() as folder:
            problem = Path(folder) / "problem.npz"
            _write_problem(problem, self.points, self.bags, self.kernel)
            ours = _our_fits(where, problem, Path(folder))
            theirs: dict[str, dict[str, Any]] = {}
            for name in names:
                # The first runs until it finds no more; the next need not go beyond what is known.
                best = max(_best(fit) for fit in (*ours.values(), *theirs.values()))
                enough = best - NEAR if theirs else np.inf
                with where.status(f"GPyTorch, {OPTIMISERS[name]}"):
                    theirs[name] = _opponent_fit(problem, Path(folder), name, enough)
            return _compared(problem, ours, theirs)

    def words(self, result: Result) -> tuple[str, str]:
        """Sizes, and what is compared."""
        return (
            f"Bagg-GP, swiss roll of {self.points} points in {self.bags} bags, {self.kernel} "
            f"kernel, {result['cores']} core(s)",
            f"reached: first evaluation within {result['within_nats']} nats of the best evidence, "
            f"{result['best_log_evidence']:.3f}. Ratios: GPyTorch's better optimiser to reach it, "
            "over ours to reach it, and over our whole fit; and the whole fit of its first "
            "optimiser over ours. Evidences by one dense formula in NumPy.",
        )

    def lines(self, result: Result) -> list[Row]:
        """A line for every fit."""
        return [{"fit": name, **fit} for name, fit in result["fits"].items()]

    def figure(self, result: Result) -> Any:
        """Evidence still missing against time, for everybody."""
        lines = {}
        for name, fit in result["fits"].items():
            evidence = np.array([step["log_evidence"] for step in fit["trace"]])
            offset = fit["dense_log_evidence"] - fit["own_log_evidence"]
            missing = result["best_log_evidence"] - np.maximum.accumulate(evidence + offset)
            ours = "" if name.startswith("GPyTorch") else "ours, "
            seconds = [step["seconds"] for step in fit["trace"]]
            lines[ours + name] = (seconds, np.maximum(missing, FLOOR))
        panel = {
            "lines": lines,
            "xlabel": "seconds since the fit began",
            "ylabel": f"nats below the best evidence, drawn at {FLOOR} if less",
            "level": (f"{WITHIN} nats", WITHIN),
            "xscale": "log",
            "yscale": "log",
        }
        return plots.curves([panel], self.words(result)[0], 7.6, 5.0)


# ---------------------------------------------------------------------- the problem


def _model(problem: Any) -> dc.BaggGP:
    """Our model of the stored problem, from its start and without priors."""
    starts = {
        "kernel.lengthscale": problem["lengthscale"],
        "kernel.variance": problem["variance"],
        "noise_std": np.sqrt(problem["noise_variance"]),
    }
    return dc.BaggGP(
        kernel=KERNELS[str(problem["kernel"])](lengthscale=jnp.ones(problem["x"].shape[1])),
        trend="constant",
        priors={name: Uninformed(start) for name, start in starts.items()},
        n_restarts=1,
    )


def _write_problem(path: Path, points: int, bags: int, kernel: str) -> None:
    """A matched swiss roll with our data-driven start of the parameters."""
    data = dc.datasets.swiss_roll(n_points=points, n_bags=bags)
    model = dc.BaggGP(kernel=KERNELS[kernel](lengthscale=jnp.ones(3)), trend="constant")
    problem = start(model, data.bags, data.z).problem
    first = {parameter.name: parameter.start for parameter in problem.parameters.learnt}
    np.savez(
        path,
        x=data.bags.points,
        bag=data.bags.bag,
        z=data.z,
        kernel=kernel,
        offset_variance=np.asarray(problem.trend.prior_std)[0] ** 2,
        lengthscale=first["kernel.lengthscale"],
        variance=first["kernel.variance"],
        noise_variance=first["noise_std"] ** 2,
    )


def dense_log_evidence(
    problem: Any, lengthscale: Any, variance: float, noise_variance: float
) -> float:
    """Log evidence from the n x n kernel matrix, a block of rows at a time, in NumPy alone."""
    x = np.asarray(problem["x"]) / np.asarray(lengthscale)
    bag, z = np.asarray(problem["bag"]), np.asarray(problem["z"])
    sizes = np.bincount(bag)
    weights = np.zeros((len(x), len(sizes)))
    weights[np.arange(len(x)), bag] = 1.0 / sizes[bag]
    gram = np.zeros((len(sizes), len(sizes)))
    for first in range(0, len(x), 1000):
        rows = slice(first, first + 1000)
        squared = np.maximum(
            (x[rows] ** 2).sum(1)[:, None] + (x**2).sum(1) - 2.0 * x[rows] @ x.T, 0.0
        )
        values = _profile(str(problem["kernel"]), squared)
        gram += weights[rows].T @ (values @ weights)
    total = float(variance) * gram + float(problem["offset_variance"])
    total[np.diag_indices_from(total)] += float(noise_variance)
    root = np.linalg.cholesky(total)
    white = np.linalg.solve(root, z)
    determinant = 2.0 * np.sum(np.log(np.diag(root)))
    return float(-0.5 * (white @ white + determinant + len(z) * np.log(2.0 * np.pi)))


def _profile(kernel: str, squared: np.ndarray) -> np.ndarray:
    if kernel == "gaussian":
        return np.exp(-0.5 * squared)
    distance = np.sqrt(squared)
    if kernel == "matern12":
        return np.exp(-distance)
    return (1.0 + np.sqrt(3.0) * distance) * np.exp(-np.sqrt(3.0) * distance)


# ---------------------------------------------------------------------- both sides


def _best(fit: dict[str, Any]) -> float:
    return max(step["log_evidence"] for step in fit["trace"])


def _opponent_fit(problem: Path, folder: Path, optimiser: str, enough: float) -> dict[str, Any]:
    trace = folder / f"{optimiser}.json"
    limits = [STEPS, PATIENCE, enough, len(available_cores())]
    in_own_process([str(OPPONENT), str(problem), str(trace), optimiser, *map(str, limits)])
    return json.loads(trace.read_text(encoding="utf-8"))


def _our_fits(where: Console, problem: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Fits in new processes: nothing compiled, the same again in that process, code from disk."""

    def fits(count: int, kept: Path | None) -> list[dict[str, Any]]:
        command = ["-m", "benchmarks.against_gpytorch", str(problem), str(count)]
        return json.loads(in_own_process(command, cache=kept).strip().splitlines()[-1])

    with where.status("our fit, with nothing compiled, and once more"):
        first, again = fits(2, None)
    with where.status("our fit, compiled code on disk"):
        fits(1, folder / "compiled")
        (stored,) = fits(1, folder / "compiled")
    return {
        "new process, nothing compiled": first,
        "new process, compiled code on disk": stored,
        "same process, compiled": again,
    }


def _compared(
    problem_path: Path, ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Evidences by the dense formula, when each was within reach of the best, and ratios."""
    with np.load(problem_path) as stored:
        problem = {name: stored[name] for name in stored.files}
    fits = {**{f"GPyTorch, {name}": fit for name, fit in theirs.items()}, **ours}
    for fit in fits.values():
        step = max(fit["trace"], key=lambda step: step["log_evidence"])
        found = {key: step[key] for key in ("lengthscale", "variance", "noise_variance")}
        fit["dense_log_evidence"] = dense_log_evidence(problem, **found)
        fit["own_log_evidence"] = step["log_evidence"]
    best = max(fit["dense_log_evidence"] for fit in fits.values())
    for fit in fits.values():
        fit["evaluations"] = len(fit["trace"])
        fit.setdefault("seconds", fit["trace"][-1]["seconds"])
        fit["seconds_to_reach"] = _reached(fit, best - WITHIN)
        times = np.diff([step["seconds"] for step in fit["trace"]])
        fit["evaluation_seconds"] = float(np.median(times)) if len(times) else None
    reached = [fit["seconds_to_reach"] for name, fit in fits.items() if name not in ours]
    opponent = min((s for s in reached if s is not None), default=None)
    whole = next(iter(theirs.values()))["seconds"]
    for name in ours:
        fit = fits[name]
        fit["speedup_to_reach"] = _ratio(opponent, fit["seconds_to_reach"])
        fit["speedup_of_whole_fit"] = _ratio(opponent, fit["seconds"])
        fit["speedup_whole_to_whole"] = _ratio(whole, fit["seconds"])
    return {
        "cores": len(available_cores()),
        "within_nats": WITHIN,
        "best_log_evidence": best,
        "opponent_seconds_to_reach": opponent,
        "fits": fits,
    }


def _reached(fit: dict[str, Any], wanted: float) -> float | None:
    """Seconds to the first evaluation whose evidence, corrected to the dense formula, is enough."""
    offset = fit["dense_log_evidence"] - fit["own_log_evidence"]
    steps = (s["seconds"] for s in fit["trace"] if s["log_evidence"] + offset >= wanted)
    return next(steps, None)


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return None if theirs is None or ours is None else theirs / ours


# ---------------------------------------------------------------------- in a process of its own


@contextmanager
def _traced(trace: list[tuple[float, float, np.ndarray]]) -> Iterator[None]:
    """Note the moment, the log evidence and the vector of every evaluation of a fit."""

    def traced(problem: Any, vector: Any) -> tuple[Any, Any]:
        value, gradient = jax.block_until_ready(loss_and_gradient(problem, vector))
        trace.append((time.perf_counter(), -float(value), np.array(vector)))
        return value, gradient

    with patch.object(fitting, "loss_and_gradient", traced):
        yield


def _fits(problem: Any, count: int) -> list[dict[str, Any]]:
    """So many fits of the stored problem, one after another, with every evaluation."""
    answers = []
    bags = dc.Bags.from_points(problem["x"], problem["bag"])
    for _ in range(count):
        trace: list[tuple[float, float, np.ndarray]] = []
        began = time.perf_counter()
        with _traced(trace), warnings.catch_warnings():
            # Without priors a length scale that does not matter runs to its bound.
            warnings.simplefilter("ignore", dc.FitWarning)
            model = _model(problem).fit(bags, problem["z"])
        seconds = time.perf_counter() - began
        parameters = model.fitted_.problem.parameters
        steps = []
        for moment, value, vector in trace:
            found = parameters.unpack(jnp.asarray(vector))
            steps.append(
                {
                    "seconds": moment - began,
                    "log_evidence": value,
                    "lengthscale": np.asarray(found["kernel.lengthscale"]).tolist(),
                    "variance": float(found["kernel.variance"]),
                    "noise_variance": float(found["noise_std"]) ** 2,
                }
            )
        answers.append({"seconds": seconds, "trace": steps, "peak_bytes": peak_bytes()})
    return answers


def main(given: list[str]) -> int:
    """Fit the problem of a file so many times and print the traces."""
    with np.load(given[0]) as stored:
        problem = {name: stored[name] for name in stored.files}
    print(json.dumps(_fits(problem, int(given[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
