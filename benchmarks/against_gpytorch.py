"""Bagg-GP against the same model written with GPyTorch, on the swiss roll of the paper.

Both maximise the same marginal likelihood, without priors, from the same start, over the same
logarithms of parameters, on the same cores: an ARD kernel, a noise, a constant integrated out. The
opponent, ``benchmarks/gpytorch_bagg.py`` of the repository, runs with two optimisers and is judged
by the better one. Its clock stops at the first evaluation within half a nat of the best evidence
that anybody found; ours is stopped there too, and also shown for the whole fit.

Evidences are those of one dense formula in NumPy, evaluated at everybody's parameters. Ours runs in
three kinds of process: with nothing compiled, with compiled code on disk, and a second time.
"""

from __future__ import annotations

import importlib.util
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
from typing import Any

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import figures, timing
from benchmarks.problems import problem_of
from benchmarks.timing import available_cores, in_own_process, peak_bytes, write_json
from deconditional.bags import Bags
from deconditional.datasets import swiss_roll
from deconditional.errors import FitWarning, UsageError
from deconditional.fitting import map as fitting
from deconditional.models import BaggGP
from studies.provenance import machine

__all__ = ["dense_log_evidence", "figure", "run"]

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


def run(
    points: int = 5000,
    bags: int = 50,
    kernel: str = "gaussian",
    optimisers: tuple[str, ...] = tuple(OPTIMISERS),
    out: str | Path | None = None,
    plot: str | Path | None = None,
) -> int:
    """Measure both sides, print a table of ratios, write JSON and a figure."""
    opponent = find_opponent()
    console = timing.console()
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.npz"
        _write_problem(problem, points, bags, kernel)
        ours = _our_fits(console, problem, Path(folder))
        theirs: dict[str, dict[str, Any]] = {}
        for name in optimisers:
            # The first runs until it finds no more; the next need not go beyond what is known.
            known = [_best(fit) for fit in (*ours.values(), *theirs.values())]
            enough = max(known) - NEAR if theirs else np.inf
            with console.status(f"GPyTorch, {OPTIMISERS[name]}"):
                theirs[name] = _opponent_fit(opponent, problem, Path(folder), name, enough)
        result = _compared(problem, ours, theirs)
    result |= {"points": points, "bags": bags, "kernel": kernel, "machine": machine()}
    _show(console, result)
    write_json(result, out)
    if plot is not None:
        figures.save(figure(result), plot)
    return 0


def find_opponent() -> Path:
    """The opponent's script, once it is known that it can run."""
    if importlib.util.find_spec("gpytorch") is None or importlib.util.find_spec("torch") is None:
        raise UsageError(
            "against-gpytorch needs GPyTorch and PyTorch: install them with "
            'pip install "deconditional[bench]" (PyTorch for CPUs alone: add --extra-index-url '
            "https://download.pytorch.org/whl/cpu)."
        )
    candidates = [
        Path(__file__).parents[3] / "benchmarks" / "gpytorch_bagg.py",
        Path("benchmarks") / "gpytorch_bagg.py",
    ]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    raise UsageError(
        "the opponent, benchmarks/gpytorch_bagg.py, is part of the repository and not of the "
        "installed package; run the command in a clone."
    )


# ---------------------------------------------------------------------- the problem


def _bags(problem: Any) -> Bags:
    return Bags.from_points(problem["x"], problem["bag"])


def _model(problem: Any, precision: str = "auto") -> BaggGP:
    """Our model of the stored problem, from its start and without priors."""
    starts = {
        "kernel.lengthscale": problem["lengthscale"],
        "kernel.variance": problem["variance"],
        "noise_std": np.sqrt(problem["noise_variance"]),
    }
    return BaggGP(
        kernel=KERNELS[str(problem["kernel"])](lengthscale=jnp.ones(problem["x"].shape[1])),
        trend="constant",
        priors={name: Uninformed(start) for name, start in starts.items()},
        n_restarts=1,
        precision=precision,
    )


def _write_problem(path: Path, points: int, bags: int, kernel: str) -> None:
    """A matched swiss roll with our data-driven start of the parameters."""
    data = swiss_roll(n_points=points, n_bags=bags)
    model = BaggGP(kernel=KERNELS[kernel](lengthscale=jnp.ones(3)), trend="constant")
    problem = problem_of(model, data.bags, data.z)
    start = {parameter.name: parameter.start for parameter in problem.parameters.learnt}
    np.savez(
        path,
        x=data.bags.points,
        bag=data.bags.bag,
        z=data.z,
        kernel=kernel,
        offset_variance=np.asarray(problem.trend.prior_std)[0] ** 2,
        lengthscale=start["kernel.lengthscale"],
        variance=start["kernel.variance"],
        noise_variance=start["noise_std"] ** 2,
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
    for start in range(0, len(x), 1000):
        rows = slice(start, start + 1000)
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


def _opponent_fit(
    script: Path, problem: Path, folder: Path, optimiser: str, enough: float
) -> dict[str, Any]:
    trace = folder / f"{optimiser}.json"
    limits = [STEPS, PATIENCE, enough, len(available_cores())]
    in_own_process([str(script), str(problem), str(trace), optimiser, *map(str, limits)])
    return json.loads(trace.read_text(encoding="utf-8"))


def _our_fits(console: Console, problem: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Fits in new processes: nothing compiled, the same again in that process, code from disk."""
    module = ["-m", "benchmarks.against_gpytorch", str(problem)]
    cache = folder / "compiled"

    def fits(count: int, kept: Path | None) -> list[dict[str, Any]]:
        answer = in_own_process([*module, str(count)], cache=kept)
        return json.loads(answer.strip().splitlines()[-1])

    with console.status("our fit, with nothing compiled, and once more"):
        first, again = fits(2, None)
    with console.status("our fit, compiled code on disk"):
        fits(1, cache)
        stored = fits(1, cache)[0]
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
        "benchmark": "against-gpytorch",
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


# ---------------------------------------------------------------------- what is shown


def figure(result: dict[str, Any]) -> Any:
    """Evidence still missing against time, for everybody."""
    best = result["best_log_evidence"]
    lines = {}
    for name, fit in result["fits"].items():
        values = np.array([step["log_evidence"] for step in fit["trace"]])
        offset = fit["dense_log_evidence"] - fit["own_log_evidence"]
        missing = np.maximum(best - np.maximum.accumulate(values + offset), FLOOR)
        ours = "" if name.startswith("GPyTorch") else "ours, "
        lines[ours + name] = ([step["seconds"] for step in fit["trace"]], missing)
    panel = {
        "lines": lines,
        "xlabel": "seconds since the fit began",
        "ylabel": f"nats below the best evidence, drawn at {FLOOR} if less",
        "level": (f"{result['within_nats']} nats", result["within_nats"]),
    }
    title = f"Bagg-GP, swiss roll, {result['points']:,} points in {result['bags']} bags"
    return figures.growth([panel], title, size=(7.6, 5.0))


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table(
        title=f"Bagg-GP, swiss roll of {result['points']} points in {result['bags']} bags, "
        f"{result['kernel']} kernel, {result['cores']} core(s)",
        caption=f"reached: first evaluation within {result['within_nats']} nats of the best "
        f"evidence, {result['best_log_evidence']:.3f}. Ratios: GPyTorch's better optimiser to "
        "reach it, over ours to reach it, and over our whole fit; and the whole fit of its first "
        "optimiser over ours. "
        "Evidences by one dense formula in NumPy.",
    )
    table.add_column("fit")
    headings = ("ms / eval", "evals", "reached, s", "whole, s", "evidence", "MiB")
    for heading in (*headings, "ratio to reach", "of whole fit", "whole to whole"):
        table.add_column(heading, justify="right")

    def text(value: float | None, shape: str) -> str:
        return "–" if value is None else format(value, shape)

    for name, fit in result["fits"].items():
        speedups = ("speedup_to_reach", "speedup_of_whole_fit", "speedup_whole_to_whole")
        per_evaluation = fit["evaluation_seconds"]
        table.add_row(
            name,
            text(None if per_evaluation is None else 1e3 * per_evaluation, ".0f"),
            str(fit["evaluations"]),
            text(fit["seconds_to_reach"], ".2f"),
            text(fit["seconds"], ".2f"),
            f"{fit['dense_log_evidence']:.3f}",
            f"{fit['peak_bytes'] / 2**20:.0f}",
            *(text(fit.get(key), ".1f") for key in speedups),
        )
    console.print(table)


# ---------------------------------------------------------------------- in a process of its own


@contextmanager
def _traced(trace: list[tuple[float, float, np.ndarray]]) -> Iterator[None]:
    """Note the moment, the log evidence and the vector of every evaluation of a fit."""
    plain = fitting._Objective

    class Traced(plain):  # type: ignore[valid-type, misc]
        def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = super().__call__(vector)
            trace.append((time.perf_counter(), -value, np.array(vector)))
            return value, gradient

    fitting._Objective = Traced  # type: ignore[misc]
    try:
        yield
    finally:
        fitting._Objective = plain  # type: ignore[misc]


def _fits(problem: Any, count: int) -> list[dict[str, Any]]:
    """So many fits of the stored problem, one after another, with every evaluation."""
    answers = []
    for _ in range(count):
        trace: list[tuple[float, float, np.ndarray]] = []
        began = time.perf_counter()
        with _traced(trace), warnings.catch_warnings():
            # Without priors a length scale that does not matter runs to its bound.
            warnings.simplefilter("ignore", FitWarning)
            model = _model(problem).fit(_bags(problem), problem["z"])
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
