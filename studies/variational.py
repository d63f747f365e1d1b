"""What variational inference costs in accuracy: four small studies on the swiss roll.

- inducing: the bound and the predictions of VarCMP approach those of CMP as inducing points grow
  in number;
- trace: how noisy estimates of the trace are;
- steps: natural gradients for q(u), with all observations and with few;
- features: how many random Fourier features a prediction needs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import gpjax.kernels as gk
import jax
import jax.numpy as jnp
import numpy as np

import deconditional as dc
from deconditional.errors import UsageError
from studies import plots
from studies.command import option
from studies.frame import Outcome, Part, Study
from studies.records import Record, Results
from studies.tables import markdown, mean

__all__ = ["Variational"]

INDUCING = (5, 10, 20, 40, 80, 160, 320)
LEARNT_UP_TO = 40
FEATURES = (100, 300, 1000, 3000, 10_000)
TRACE_KEYS = 20
TRACE_INDUCING = (20, 80, 320)
CHOICES = ("kmeans", "uniform")
CLIMBS: dict[str, dict[str, Any]] = {
    "natural, all": {},
    "natural, 16": {"batch_size": 16},
}
"""Steps of q(u) and size of batches."""

KERNELS = {"Gaussian": gk.RBF, "Matérn-3/2": gk.Matern32}


@dataclass(frozen=True)
class Variational(Study):
    """Variational approximations next to the exact model, on matched swiss rolls."""

    name: ClassVar[str] = "variational"
    help: ClassVar[str] = "what variational inference costs in accuracy"
    title: ClassVar[str] = "Variational inference on the swiss roll"
    task: ClassVar[type[Any]] = Part

    seeds: int = option(3, "number of rolls", quick=1)
    points: int = option(5000, "points of a roll", quick=1000)
    bags: int = option(50, "bags of a roll", quick=20)
    steps: int = option(3000, "steps of a climb", quick=300)

    def settings(self) -> Record:
        """The size of a roll, and the length of a climb."""
        return {"n_points": self.points, "n_bags": self.bags, "steps": self.steps}

    def tasks(self) -> list[Part]:
        """One task for every kernel or climb on every roll; estimates of the trace take one."""
        if self.seeds < 1 or self.points < 100 or self.bags < 5 or self.steps < 10:
            raise UsageError("take at least 1 seed, 100 points, 5 bags and 10 steps.")
        seeds = range(self.seeds)
        return [
            *(Part("inducing", kernel, seed) for kernel in KERNELS for seed in seeds),
            *(Part("trace", kernel, 0) for kernel in KERNELS),
            *(Part("steps", climb, seed) for seed in seeds for climb in CLIMBS),
            *(Part("features", kernel, seed) for kernel in KERNELS for seed in seeds),
        ]

    def fit(self, task: Part) -> list[Outcome]:
        """The rows of one part for one kernel or climb on one roll."""
        data = dc.datasets.swiss_roll(self.points, self.bags, seed=task.seed)
        if task.part == "steps":
            return [Outcome(task, [_climb(data, task.case, task.seed, self.steps)])]
        kernel = KERNELS[task.case](lengthscale=jnp.ones(3))
        exact = dc.CMP(kernel, cmo="shrinkage", n_restarts=2).fit(data.bags, data.z)
        rows = {"inducing": _inducing, "trace": _trace, "features": _features}[task.part]
        return [Outcome(task, rows(kernel, exact, data, task.seed))]

    def table(self, results: Results) -> list[str]:
        """A table for every part; means over rolls."""
        return [
            f"{self.points} points, {self.bags} bags, matched; means over {self.seeds} seed(s).",
            "",
            *_inducing_table(results),
            *_trace_table(results),
            *_steps_table(results),
            *_features_table(results),
        ]

    def figures(self, results: Results) -> None:
        """``inducing.png``, ``steps.png`` and ``features.png``."""
        logs = {"xscale": "log", "yscale": "log"}
        panels = []
        for kernel in KERNELS:
            for name, label in (
                ("gap", "log evidence - bound, nats"),
                ("mean", "rms of mean - exact"),
            ):
                rows = results.where(part="inducing", case=kernel)
                lines = _lines(rows, "inducing", name, "choice")
                floor = {key: (x, np.maximum(y, 1e-6)) for key, (x, y) in lines.items()}
                text = {"title": kernel, "xlabel": "inducing points", "ylabel": label}
                panels.append({"lines": floor, **text, **logs})
        title = "VarCMP approaches CMP (line: mean, band: range over seeds)"
        plots.save(plots.curves(panels, title, 3.9), results.folder / "inducing.png")

        panels = []
        for (seed,) in results.each("seed", part="steps"):
            rows = results.where(part="steps", seed=seed)
            best = rows[0]["collapsed_log_posterior"]
            panels.append(
                {
                    "lines": {
                        r["case"]: (10 * np.arange(1, 1 + len(r["trace"])), r["trace"])
                        for r in rows
                    },
                    "title": f"seed {seed}",
                    "xlabel": "steps",
                    "ylabel": "bound + log prior, smoothed",
                    "ylim": (best - 80, best + 8),
                    "level": ("collapsed optimum", best),
                }
            )
        title = "Steps of q(u), batches of all observations and of 16"
        plots.save(plots.curves(panels, title), results.folder / "steps.png")

        rows = results.where(part="features")
        panels = [
            {
                "lines": _lines(rows, "features", name, "case"),
                "xlabel": "random Fourier features",
                "ylabel": f"rms of {name} - exact",
                **logs,
            }
            for name in ("mean", "std")
        ]
        figure = plots.curves(panels, "Predictions with random features")
        plots.save(figure, results.folder / "features.png")


# ---------------------------------------------------------------------- the parts


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(difference**2)))


def _inducing(kernel: Any, exact: Any, data: Any, seed: int) -> list[Record]:
    """VarCMP at the parameters of a fitted CMP, for more and more inducing points."""
    post = exact.predict(data.x)
    held = {"kernel": kernel, "cmo": "shrinkage", "fixed": exact.parameters_}
    rows = []
    for how in (*CHOICES, "learnt"):
        for number in INDUCING:
            if how == "learnt" and number > LEARNT_UP_TO:
                continue
            learn = {"learn_inducing": True} if how == "learnt" else {"inducing": how}
            model = dc.VarCMP(
                **held, **learn, n_inducing=number, n_restarts=1, seed=seed, max_iter=100
            ).fit(data.bags, data.z)
            mine = model.predict(data.x)
            rows.append(
                {
                    "choice": how,
                    "inducing": number,
                    "exact_rmse": _rms(post.mean - data.f),
                    "gap": float(exact.log_evidence_) - float(model.log_evidence_),
                    "mean": _rms(mine.mean - post.mean),
                    "std": _rms(mine.std - post.std),
                    "rmse": _rms(mine.mean - data.f),
                }
            )
    return rows


def _trace(kernel: Any, exact: Any, data: Any, seed: int) -> list[Record]:
    """Error of the estimated bound over keys, at the parameters of a fitted CMP."""
    keys = jax.random.split(jax.random.key(seed), TRACE_KEYS)
    rows = []
    for number in TRACE_INDUCING:
        held = {"cmo": "shrinkage", "fixed": exact.parameters_, "n_inducing": number}
        bound = _bounds(dc.VarCMP(kernel, **held, trace="exact"), data, keys[:1])[0]
        error = _bounds(dc.VarCMP(kernel, **held, trace="subsample"), data, keys) - bound
        rows.append(
            {
                "inducing": number,
                "bound": float(bound),
                "mean_error": float(error.mean()),
                "sd": float(error.std(ddof=1)),
            }
        )
    return rows


def _bounds(model: Any, data: Any, keys: Any) -> np.ndarray:
    """The bound of a model whose parameters are all held, for several keys."""
    problem = model.fit(data.bags, data.z).fitted_.problem

    @jax.jit
    def bound(key: Any) -> Any:
        values = problem.parameters.unpack(jnp.zeros(0))
        return problem.field(values, problem.pieces(values, key)).log_evidence

    return np.array([float(bound(key)) for key in keys])


def _climb(data: Any, climb: str, seed: int, steps: int) -> Record:
    """Natural gradients for q(u), with the collapsed optimum beside."""
    held: dict[str, Any] = {"n_inducing": 60, "seed": seed}
    best = dc.VBagg(**held, n_restarts=2).fit(data.bags, data.z)
    options = {**CLIMBS[climb], "max_steps": steps}
    began = time.perf_counter()
    model = dc.VBagg(**held, n_restarts=1, inference="stochastic", inference_options=options)
    model.fit(data.bags, data.z)
    seconds = time.perf_counter() - began
    # The collapsed bound at the parameters that the climb found.
    problem, vector = model.fitted_.problem, jnp.asarray(model.fitted_.vectors[0])
    return {
        "steps": model.fit_report_.iterations,
        "seconds": seconds,
        "bound": float(model.log_evidence_),
        "collapsed_bound_there": float(problem.solve(vector)[1].log_evidence),
        "log_posterior": model.fit_report_.log_posterior,
        "collapsed_log_posterior": best.fit_report_.log_posterior,
        "collapsed_seconds": best.fit_report_.seconds,
        "rmse": _rms(model.predict(data.x).mean - data.f),
        "collapsed_rmse": _rms(best.predict(data.x).mean - data.f),
        "trace": [float(value) for value in model.bound_trace_],
    }


def _features(kernel: Any, exact: Any, data: Any, seed: int) -> list[Record]:
    """Predictions of a fitted CMP with random Fourier features."""
    rows = []
    for number in FEATURES:
        error = dc.feature_error(exact, data.x, number)
        rows.append(
            {
                "features": number,
                "mean": error.mean_rms,
                "std": error.std_rms,
                "relative": error.relative,
                "rmse": _rms(exact.predict(data.x, features=number).mean - data.f),
                "exact_rmse": _rms(exact.predict(data.x).mean - data.f),
            }
        )
    return rows


# ---------------------------------------------------------------------- tables and lines


def _inducing_table(results: Results) -> list[str]:
    cells = [mean(name, ".3g") for name in ("gap", "mean", "std")]
    cells += [mean("rmse"), mean("exact_rmse")]
    rows = []
    for kernel, choice, number in results.each("case", "choice", "inducing", part="inducing"):
        mine = results.where(part="inducing", case=kernel, choice=choice, inducing=number)
        rows.append([kernel, choice, number, *(cell(mine) for cell in cells)])
    head = ["kernel", "choice", "points", "gap", "mean", "std", "RMSE", "RMSE, exact"]
    return [
        "## Inducing points",
        "",
        "VarCMP at the parameters of a fitted S-CMP. Gap: exact log evidence less bound, in nats. "
        "Mean and std: root mean square difference of predictions from the exact ones.",
        "",
        *markdown(head, rows),
        "",
    ]


def _trace_table(results: Results) -> list[str]:
    rows = [
        [
            *(row["case"], row["inducing"], f"{row['bound']:.2f}"),
            *(f"{row[name]:.3g}" for name in ("mean_error", "sd")),
        ]
        for row in results.where(part="trace")
    ]
    return [
        "## Estimates of the trace",
        "",
        f"Error of the bound over {TRACE_KEYS} draws, in nats (2 x 16 points per bag).",
        "",
        *markdown(["kernel", "inducing points", "bound", "mean error", "sd"], rows),
        "",
    ]


def _steps_table(results: Results) -> list[str]:
    digits = {
        "steps": "d",
        "seconds": ".0f",
        "bound": ".3f",
        "collapsed_bound_there": ".3f",
        "log_posterior": ".2f",
        "collapsed_log_posterior": ".2f",
        "collapsed_seconds": ".0f",
        "rmse": ".3f",
        "collapsed_rmse": ".3f",
    }
    rows = [
        [row["seed"], row["case"], *(f"{row[name]:{shape}}" for name, shape in digits.items())]
        for row in results.where(part="steps")
    ]
    head = ["seed", "optimiser", "steps", "s", "bound", "there", "log posterior", "collapsed", "s"]
    return [
        "## Steps of q(u)",
        "",
        "VBagg with 60 inducing points; batches of all observations or of 16. Bound: of all data, "
        "at the end; there: the collapsed bound at the same parameters; log posterior: against the "
        "collapsed optimum.",
        "",
        *markdown([*head, "RMSE", "collapsed"], rows),
        "",
    ]


def _features_table(results: Results) -> list[str]:
    cells = [mean(name) for name in ("mean", "std", "relative", "rmse", "exact_rmse")]
    rows = []
    for kernel, number in results.each("case", "features", part="features"):
        mine = results.where(part="features", case=kernel, features=number)
        rows.append([kernel, number, *(cell(mine) for cell in cells)])
    head = ["kernel", "features", "mean", "std", "of a posterior std", "RMSE", "RMSE, exact"]
    return ["## Random Fourier features at prediction", "", *markdown(head, rows)]


def _lines(rows: list[Record], over: str, name: str, group: str) -> dict[str, Any]:
    """For every group, x and one row of y for each seed."""
    lines = {}
    for label in dict.fromkeys(row[group] for row in rows):
        mine = [row for row in rows if row[group] == label]
        x = sorted({row[over] for row in mine})
        value = {(row["seed"], row[over]): row[name] for row in mine}
        lines[label] = (x, [[value[s, v] for v in x] for s in sorted({s for s, _ in value})])
    return lines
