"""Counts, rain and stations: models of families against what a user has without them.

*simulated*: counts in polygons of a grid, other polygons asked for. *counties*: homicides of four
decades, states given and counties asked for. *rain*: hours of radar, coarse cells given and fine
ones asked for. *stations*: temperatures of coarse cells, of stations, and of a biased source.
*tables*: yields of districts with covariates of two resolutions, other districts asked for.
*calibration*: truths from the prior of each family, and their places in the posterior.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deconditional.errors import UsageError
from studies.command import known, option, require
from studies.count_calibration import CALIBRATED, calibration_scores
from studies.count_fields import RAIN_MODELS, STATION_MODELS, rain_scores, station_scores
from studies.count_models import FORECASTS
from studies.count_problems import DECADES, DEVELOPED_ON, Zones, counties, simulated
from studies.count_tables import TABLE_MODELS, table_scores
from studies.frame import Outcome, Study, Task
from studies.records import Record, Results
from studies.tables import highest, markdown, mean, summary

__all__ = ["Counts"]

PROBLEMS = ("calibration", "simulated", "tables", "counties", "rain", "stations")
NEED_FILES = PROBLEMS[3:]
ON_GRIDS = "pycnophylactic"
HOURS = 22
QUICK = ("field", "areal weighting", "Poisson regression", "dasymetric by regression")


@dataclass(frozen=True)
class Counts(Study):
    """Forecasts of counts and amounts, scored where the truth is known."""

    name: ClassVar[str] = "counts"
    help: ClassVar[str] = "counts, rain and stations, against what a user has already"
    title: ClassVar[str] = "Counts, rain and stations"
    has_figures: ClassVar[bool] = False

    data: str = option("", "folder of the files; without it, what needs none", metavar="DIR")
    problems: tuple[str, ...] = option(
        PROBLEMS, "some of the problems", quick=("simulated",), metavar="NAME"
    )
    models: tuple[str, ...] = option(
        (), "some of the models (default: all)", quick=QUICK, metavar="NAME"
    )
    seeds: int = option(5, "draws of simulated problems and of stations", quick=1)
    points: int = option(28_892, "points of a simulated problem", quick=1200)
    zones: int = option(109, "zones of a simulated problem", quick=24)
    inducing: int = option(400, "basis functions of fields of counts", quick=60)
    hours: int = option(8, "hours of rain, evenly spaced")
    draws: int = option(400, "draws from the prior of each family, for calibration", quick=20)

    def settings(self) -> Record:
        """The size of simulated problems."""
        return {"points": self.points, "zones": self.zones, "inducing": self.inducing}

    def tasks(self) -> list[Task]:
        """Every model on every draw of every problem that can be made."""
        chosen = known("problem", self.problems, PROBLEMS)
        if self.data and not Path(self.data).is_dir():
            raise UsageError(f"there is no folder {self.data!r}; name the one with the files.")
        absent = [name for name in chosen if name in NEED_FILES and not self.data]
        if absent:
            print(f"left out, for want of --data: {', '.join(absent)}")
        if not 1 <= self.hours <= HOURS:
            raise UsageError(f"the number of hours must be 1 to {HOURS}, not {self.hours}.")
        if self.zones * 4 > self.points:
            raise UsageError(f"{self.points} points are too few for {self.zones} zones.")
        every = [task for name in chosen if name not in absent for task in self._of(name)]
        models = known("model", self.models, list(dict.fromkeys(t.model for t in every)))
        if "counties" in {task.matching.split(",")[0] for task in every}:
            require("geo", "geopandas")
        return [task for task in every if task.model in models]

    def _of(self, problem: str) -> list[Task]:
        """The tasks of one problem."""
        draws = range(self.seeds)
        if problem == "counties":
            names = [name for name in FORECASTS if name != ON_GRIDS]
            return [Task(f"counties, 19{d}", name, 0) for d in DECADES for name in names]
        if problem == "rain":
            hours = np.linspace(0, HOURS - 1, self.hours).round().astype(int).tolist()
            return [Task(problem, name, hour) for hour in hours for name in RAIN_MODELS]
        if problem == "calibration":
            return [Task(problem, name, 0) for name in CALIBRATED]
        models: dict[str, Sequence[str]] = {
            "simulated": [*FORECASTS],
            "tables": [*TABLE_MODELS],
            "stations": STATION_MODELS,
        }
        return [Task(problem, name, seed) for seed in draws for name in models[problem]]

    def fit(self, task: Task) -> list[Outcome]:
        """Scores of one model on one draw."""
        began = time.perf_counter()
        folder, problem = Path(self.data), task.matching.split(",")[0]
        if problem == "rain":
            scores = rain_scores(folder, task.model, task.seed, seed=0)
        elif problem == "stations":
            scores = station_scores(folder, task.model, task.seed)
        elif problem == "tables":
            scores = table_scores(task.model, task.seed)
        elif problem == "calibration":
            scores = calibration_scores(task.model, self.draws)
        else:
            scores = self._zone_scores(self._zones(task), task)
        return [Outcome(task, [scores | {"seconds": time.perf_counter() - began}])]

    def _zones(self, task: Task) -> Zones:
        """The problem of a task, if it is one of counts in zones."""
        if task.matching == "simulated":
            return simulated(self.points, self.zones, task.seed)
        return counties(Path(self.data), int(task.matching[-2:]))

    def _zone_scores(self, zones: Zones, task: Task) -> Record:
        """Scores of the counts of hidden zones, and their total over the true one."""
        counts = FORECASTS[task.model](zones, task.seed, self.inducing)
        total = float(counts.mean.sum() / zones.truth.sum())
        return counts.score(zones.truth) | {"total": total}

    # ------------------------------------------------------------------ tables

    def table(self, results: Results) -> list[str]:
        """A table for every problem, and what it says of the aims."""
        lines: list[str] = []
        for (name,) in results.each("matching"):
            problem = name.split(",")[0]
            models = list(dict.fromkeys(m for (m,) in results.each("model", matching=name)))
            lines += [f"## {_heading(name)}", ""]
            lines += [*summary(results, name, models, COLUMNS[problem]), ""]
        won = [_won(results, f"counties, 19{d}") for d in DECADES]
        if any(won):
            lines += ["## Counties, decade by decade", "", *markdown(WON, filter(None, won)), ""]
        return lines


COUNTED = {
    "log score": mean("log_score"),
    "CRPS": mean("crps"),
    "Dawid-Sebastiani": mean("dawid_sebastiani"),
    "95 % coverage": mean("coverage95", ".3f"),
    "the same, ties apart": mean("pit95", ".3f"),
    "total": mean("total", ".2f"),
    "seconds": highest("seconds", ".0f"),
}
MEASURED = {
    "RMSE": mean("rmse"),
    "CRPS": mean("crps"),
    "95 % coverage": mean("coverage95", ".3f"),
    "seconds": highest("seconds", ".0f"),
}
RAINED = {"dry": mean("dry"), "truly dry": mean("truly_dry")}
CALIBRATION = {
    "draws": mean("draws", ".0f"),
    "p of uniformity": mean("p_uniform"),
    "50 % coverage": mean("coverage50", ".3f"),
    "95 % coverage": mean("coverage95", ".3f"),
    "95 % of a bag's rate": mean("bag95", ".3f"),
    "seconds": highest("seconds", ".0f"),
}
COLUMNS: dict[str, dict[str, Any]] = {
    "calibration": CALIBRATION,
    "simulated": COUNTED,
    "counties": COUNTED,
    "tables": MEASURED,
    "stations": MEASURED,
    "rain": {**MEASURED, "ties apart": mean("pit95", ".3f"), **RAINED},
}
FIELD = "field"
WON = ("decade", "log score", "best opponent", "CRPS", "best opponent's", "95 % coverage", "")


def _heading(name: str) -> str:
    developed = name in [f"counties, 19{d}" for d in DEVELOPED_ON]
    return f"{name[0].upper()}{name[1:]}{' (looked at while it was developed)' * developed}"


def _won(results: Results, name: str) -> list[str]:
    """The field model of one decade beside the best of the opponents in each score."""
    mine = results.where(matching=name, model=FIELD)
    others = [r for r in results.where(matching=name) if not r["model"].startswith(FIELD)]
    if not mine or not others:
        return []
    best = {s: min(r[s] for r in others) for s in ("log_score", "crps")}
    better = all(mine[0][s] < best[s] for s in best)
    return [
        name[-4:],
        *(f"{n:.3f}" for s in best for n in (mine[0][s], best[s])),
        f"{mine[0]['coverage95']:.3f}",
        "better in both" if better else "not better in both",
    ]
