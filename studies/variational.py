"""What variational inference costs in accuracy: four small studies on the swiss roll.

- inducing: the bound and the predictions of VarCMP approach those of CMP as inducing points grow
  in number;
- trace: how noisy estimates of the trace are;
- steps: natural gradients against Adam for q(u);
- features: how many random Fourier features a prediction needs.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import deconditional as dc
from deconditional.datasets.swiss_roll import swiss_roll
from deconditional.errors import UsageError
from deconditional.saving.outputs import output_folder, write_atomically
from studies.plots import can_draw
from studies.provenance import machine, provenance_lines
from studies.records import finished

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["STUDIES", "run"]

INDUCING = (5, 10, 20, 40, 80, 160, 320)
LEARNT_UP_TO = 40
FEATURES = (100, 300, 1000, 3000, 10_000)
TRACE_KEYS = 20
TRACE_INDUCING = (20, 80, 320)
CHOICES = ("kmeans", "uniform")
CLIMBS: dict[str, dict[str, Any]] = {
    "natural, all": {},
    "natural, 16": {"batch_size": 16},
    "adam, all": {"optimiser": "adam", "learning_rate": 0.02},
    "adam, 16": {"optimiser": "adam", "learning_rate": 0.02, "batch_size": 16},
}
"""Optimiser of q(u) and size of batches; Adam at the best rate of 0.02, 0.05, 0.1 on seed 0."""


def _kernels() -> dict[str, Any]:
    import gpjax.kernels as gk
    import jax.numpy as jnp

    ones = jnp.ones(3)
    return {
        "Gaussian": gk.RBF(lengthscale=ones),
        "Matérn-3/2": gk.Matern32(lengthscale=ones),
    }


def run(
    seeds: int = 3,
    out: str | os.PathLike[str] = "variational",
    n_points: int = 5000,
    n_bags: int = 50,
    *,
    steps: int = 3000,
    figures: bool = True,
    command: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the four studies; write ``results.json``, ``table.md`` and pictures.

    Parameters
    ----------
    seeds
        Number of rolls.
    out
        Folder to write to. A study that its ``results.json`` already has, with the same settings,
        is not run again.
    n_points, n_bags
        Size of a roll.
    steps
        Of each stochastic climb.
    figures
        Draw the curves.
    """
    from rich.console import Console

    console = Console() if console is None else console
    if seeds < 1 or n_points < 100 or n_bags < 5 or steps < 10:
        raise UsageError("take at least 1 seed, 100 points, 5 bags and 10 steps.")
    if figures:
        can_draw()
    folder = output_folder(out)
    settings = {"seeds": seeds, "n_points": n_points, "n_bags": n_bags, "steps": steps}
    results = finished(
        folder / "results.json",
        {"settings": settings},
        dict.fromkeys(STUDIES, list),
        remedy="Name another folder.",
    )
    for name, study in STUDIES.items():
        if name in results:
            console.print(f"{name}: kept from an earlier run")
            continue
        began = time.perf_counter()
        with console.status(f"{name} ...") as status, warnings.catch_warnings():
            warnings.simplefilter("ignore", dc.FitWarning)
            results[name] = study(settings, lambda text, n=name: status.update(f"{n}: {text}"))
        console.print(f"{name}: {time.perf_counter() - began:.0f} s")
        kept = {"settings": settings, "machine": machine(), **results}
        write_atomically(folder / "results.json", json.dumps(kept, indent=1) + "\n")
    write_atomically(folder / "table.md", _table(results, settings, command))
    if figures:
        _draw(folder, results)
    return results


def _rolls(settings: dict[str, Any]) -> list[tuple[int, Any]]:
    size = settings["n_points"], settings["n_bags"]
    return [(seed, swiss_roll(*size, seed=seed)) for seed in range(settings["seeds"])]


def _difference(model: Any, exact: Any, data: Any) -> dict[str, float]:
    """Predictions against those of the exact model, in its standard deviations and in itself."""
    post = model.predict(data.x)
    return {
        "gap": exact["evidence"] - float(model.log_evidence_),
        "mean": float(np.sqrt(np.mean((post.mean - exact["mean"]) ** 2))),
        "std": float(np.sqrt(np.mean((post.std - exact["std"]) ** 2))),
        "rmse": float(np.sqrt(np.mean((post.mean - data.f) ** 2))),
    }


def _exact(kernel: Any, data: Any) -> tuple[Any, dict[str, Any]]:
    model = dc.CMP(kernel, cmo="shrinkage", n_restarts=2).fit(data.bags, data.z)
    post = model.predict(data.x)
    error = float(np.sqrt(np.mean((post.mean - data.f) ** 2)))
    evidence = float(model.log_evidence_)
    return model, {"mean": post.mean, "std": post.std, "evidence": evidence, "rmse": error}


def inducing_study(settings: dict[str, Any], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """VarCMP at the parameters of a fitted CMP, for more and more inducing points."""
    rows = []
    for name, kernel in _kernels().items():
        for seed, data in _rolls(settings):
            tell(f"{name}, seed {seed}, exact")
            model, exact = _exact(kernel, data)
            held = {"kernel": kernel, "cmo": "shrinkage", "fixed": model.parameters_}
            for how in (*CHOICES, "learnt"):
                for number in INDUCING:
                    if how == "learnt" and number > LEARNT_UP_TO:
                        continue
                    tell(f"{name}, seed {seed}, {number} points, {how}")
                    learn = {"learn_inducing": True} if how == "learnt" else {"inducing": how}
                    approximate = dc.VarCMP(
                        **held, **learn, n_inducing=number, n_restarts=1, seed=seed, max_iter=100
                    ).fit(data.bags, data.z)
                    row = {"kernel": name, "seed": seed, "choice": how, "inducing": number}
                    row |= {"exact_rmse": exact["rmse"]}
                    rows.append(row | _difference(approximate, exact, data))
    return rows


def trace_study(settings: dict[str, Any], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Error of the estimated bound over keys, at the parameters of a fitted CMP."""
    import jax
    import jax.numpy as jnp

    rows = []
    seed, data = _rolls(settings)[0]
    for name, kernel in _kernels().items():
        tell(f"{name}, exact")
        fixed = _exact(kernel, data)[0].parameters_
        for number in TRACE_INDUCING:
            bounds: dict[str, list[float]] = {}
            for trace in ("exact", "subsample", "features"):
                tell(f"{name}, {number} points, {trace}")
                model = dc.VarCMP(
                    kernel, cmo="shrinkage", fixed=fixed, n_inducing=number, trace=trace
                )
                problem = model._problem(data.bags, data.z, None, None, None)
                empty = jnp.zeros(0)

                @jax.jit
                def bound(key: Any, problem: Any = problem, empty: Any = empty) -> Any:
                    values = problem.parameters.unpack(empty)
                    return problem.field(values, problem.pieces(values, key)).log_evidence

                keys = jax.random.split(jax.random.key(seed), TRACE_KEYS)
                tries = keys[:1] if trace == "exact" else keys
                bounds[trace] = [float(bound(key)) for key in tries]
            for trace in ("subsample", "features"):
                error = np.asarray(bounds[trace]) - bounds["exact"][0]
                rows.append(
                    {
                        "kernel": name,
                        "inducing": number,
                        "trace": trace,
                        "bound": bounds["exact"][0],
                        "mean_error": float(error.mean()),
                        "sd": float(error.std(ddof=1)),
                    }
                )
    return rows


def steps_study(settings: dict[str, Any], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Natural gradients against Adam for q(u), with the collapsed optimum beside."""
    import jax.numpy as jnp

    rows = []
    for seed, data in _rolls(settings):
        tell(f"seed {seed}, collapsed")
        held: dict[str, Any] = {"n_inducing": 60, "seed": seed}
        best = dc.VBagg(**held, n_restarts=2).fit(data.bags, data.z)
        for name, given in CLIMBS.items():
            tell(f"seed {seed}, {name}")
            options = {**given, "max_steps": settings["steps"]}
            began = time.perf_counter()
            model = dc.VBagg(
                **held, n_restarts=1, inference="stochastic", inference_options=options
            ).fit(data.bags, data.z)
            seconds = time.perf_counter() - began
            # The collapsed bound at the parameters that the climb found.
            problem, vector = model.fitted_.problem, jnp.asarray(model.fitted_.vectors[0])
            same = float(problem.solve(vector)[1].log_evidence)
            rows.append(
                {
                    "seed": seed,
                    "optimiser": name,
                    "steps": model.fit_report_.iterations,
                    "seconds": seconds,
                    "bound": float(model.log_evidence_),
                    "collapsed_bound_there": same,
                    "log_posterior": model.fit_report_.log_posterior,
                    "collapsed_log_posterior": best.fit_report_.log_posterior,
                    "collapsed_seconds": best.fit_report_.seconds,
                    "rmse": float(np.sqrt(np.mean((model.predict(data.x).mean - data.f) ** 2))),
                    "collapsed_rmse": float(
                        np.sqrt(np.mean((best.predict(data.x).mean - data.f) ** 2))
                    ),
                    "trace": [float(value) for value in model.bound_trace_],
                }
            )
    return rows


def features_study(settings: dict[str, Any], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Predictions of a fitted CMP with random Fourier features."""
    rows = []
    for name, kernel in _kernels().items():
        for seed, data in _rolls(settings):
            tell(f"{name}, seed {seed}")
            model, exact = _exact(kernel, data)
            for number in FEATURES:
                error = dc.feature_error(model, data.x, number)
                post = model.predict(data.x, features=number)
                rows.append(
                    {
                        "kernel": name,
                        "seed": seed,
                        "features": number,
                        "mean": error.mean_rms,
                        "std": error.std_rms,
                        "relative": error.relative,
                        "rmse": float(np.sqrt(np.mean((post.mean - data.f) ** 2))),
                        "exact_rmse": exact["rmse"],
                    }
                )
    return rows


STUDIES: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "inducing": inducing_study,
    "trace": trace_study,
    "steps": steps_study,
    "features": features_study,
}


# ---------------------------------------------------------------------- table and pictures


def _mean(rows: list[dict[str, Any]], name: str, **where: Any) -> float:
    chosen = [row[name] for row in rows if all(row[k] == v for k, v in where.items())]
    return float(np.mean(chosen)) if chosen else float("nan")


def _table(results: dict[str, Any], settings: dict[str, Any], command: str | None) -> str:
    lines = [
        "# Variational inference on the swiss roll",
        "",
        f"{settings['n_points']} points, {settings['n_bags']} bags, matched; means over "
        f"{settings['seeds']} seed(s).",
        "",
        "## Inducing points",
        "",
        "VarCMP at the parameters of a fitted S-CMP. Gap: exact log evidence less bound, in nats. "
        "Mean and std: root mean square difference of predictions from the exact ones.",
        "",
        "| kernel | choice | points | gap | mean | std | RMSE | RMSE, exact |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = results["inducing"]
    for key in dict.fromkeys((r["kernel"], r["choice"], r["inducing"]) for r in rows):
        where = dict(zip(("kernel", "choice", "inducing"), key, strict=True))
        values = [_mean(rows, n, **where) for n in ("gap", "mean", "std", "rmse", "exact_rmse")]
        cells = [*(f"{v:.3g}" for v in values[:3]), *(f"{v:.3f}" for v in values[3:])]
        lines.append(f"| {' | '.join(map(str, key))} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Estimates of the trace",
        "",
        f"Error of the bound over {TRACE_KEYS} draws, in nats (2 x 16 points per bag; 1000 "
        "features).",
        "",
        "| kernel | inducing points | estimate | bound | mean error | sd |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["trace"]:
        lines.append(
            f"| {row['kernel']} | {row['inducing']} | {row['trace']} | {row['bound']:.2f} | "
            f"{row['mean_error']:.3g} | {row['sd']:.3g} |"
        )
    lines += [
        "",
        "## Steps of q(u)",
        "",
        "VBagg with 60 inducing points; batches of all observations or of 16. Bound: of all data, "
        "at the end; "
        "there: the collapsed bound at the same parameters; log posterior: against the collapsed "
        "optimum.",
        "",
        "| seed | optimiser | steps | s | bound | there | log posterior | collapsed | s | RMSE "
        "| collapsed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["steps"]:
        lines.append(
            f"| {row['seed']} | {row['optimiser']} | {row['steps']} | {row['seconds']:.0f} | "
            f"{row['bound']:.3f} | {row['collapsed_bound_there']:.3f} | "
            f"{row['log_posterior']:.2f} | {row['collapsed_log_posterior']:.2f} | "
            f"{row['collapsed_seconds']:.0f} | {row['rmse']:.3f} | {row['collapsed_rmse']:.3f} |"
        )
    lines += [
        "",
        "## Random Fourier features at prediction",
        "",
        "| kernel | features | mean | std | of a posterior std | RMSE | RMSE, exact |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = results["features"]
    for kernel, number in dict.fromkeys((r["kernel"], r["features"]) for r in rows):
        names = ("mean", "std", "relative", "rmse", "exact_rmse")
        cells = [f"{_mean(rows, n, kernel=kernel, features=number):.3f}" for n in names]
        lines.append(f"| {kernel} | {number} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "## How this was made", "", *provenance_lines(command), ""])


def _lines(
    rows: list[dict[str, Any]], over: str, name: str, group: str, **where: Any
) -> dict[str, Any]:
    """For every group, x and one row of y for each seed."""
    chosen = [row for row in rows if all(row[k] == v for k, v in where.items())]
    lines = {}
    for label in dict.fromkeys(row[group] for row in chosen):
        mine = [row for row in chosen if row[group] == label]
        x = sorted({row[over] for row in mine})
        seeds = sorted({row["seed"] for row in mine})
        value = {(row["seed"], row[over]): row[name] for row in mine}
        lines[label] = (x, [[value[s, v] for v in x] for s in seeds])
    return lines


def _draw(folder: Path, results: dict[str, Any]) -> None:
    from deconditional.report import plots

    panels = []
    for kernel in _kernels():
        for name, label in (("gap", "log evidence - bound, nats"), ("mean", "rms of mean - exact")):
            lines = _lines(results["inducing"], "inducing", name, "choice", kernel=kernel)
            floor = {k: (x, np.maximum(y, 1e-6)) for k, (x, y) in lines.items()}
            panels.append(
                {
                    "lines": floor,
                    "title": kernel,
                    "xlabel": "inducing points",
                    "ylabel": label,
                    "xscale": "log",
                    "yscale": "log",
                }
            )
    plots.save(
        plots.curves(panels, "VarCMP approaches CMP (line: mean, band: range over seeds)", 3.9),
        folder / "inducing.png",
    )
    panels = []
    for seed in sorted({row["seed"] for row in results["steps"]}):
        mine = [row for row in results["steps"] if row["seed"] == seed]
        lines = {r["optimiser"]: (10 * np.arange(1, 1 + len(r["trace"])), r["trace"]) for r in mine}
        best = mine[0]["collapsed_log_posterior"]
        panels.append(
            {
                "lines": lines,
                "title": f"seed {seed}",
                "xlabel": "steps",
                "ylabel": "bound + log prior, smoothed",
                "ylim": (best - 80, best + 8),
                "level": ("collapsed optimum", best),
            }
        )
    plots.save(
        plots.curves(panels, "Steps of q(u), batches of all observations and of 16"),
        folder / "steps.png",
    )
    panels = [
        {
            "lines": _lines(results["features"], "features", name, "kernel"),
            "xlabel": "random Fourier features",
            "ylabel": label,
            "xscale": "log",
            "yscale": "log",
        }
        for name, label in (("mean", "rms of mean - exact"), ("std", "rms of std - exact"))
    ]
    plots.save(plots.curves(panels, "Predictions with random features"), folder / "features.png")
