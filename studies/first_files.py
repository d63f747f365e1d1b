"""Files that users have, without options: the default against the simplest answers.

Every scenario (:mod:`studies.first_scenarios`) has a known truth. The default is fitted once;
what it compares itself with is scored on the way: kriging, regression kriging, pseudo-targets where
data is unmatched, and bilinear interpolation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.fields.opponents import BILINEAR, bilinear
from deconditional.scores.marginals import Marginals
from studies.command import known, option, whole
from studies.first_scenarios import (
    CHOICES,
    NEEDS,
    SCENARIOS,
    Files,
    Given,
    Scenario,
    random_scenario,
)
from studies.frame import Outcome, Study, Task
from studies.package_files import LOOKED_AT, SCORED_ONCE, STRANGERS, PackageFiles
from studies.records import Record, Results
from studies.tables import markdown

__all__ = ["FirstFiles"]

DEFAULT, ORACLE, REGRESSION = "default", "matched oracle", "regression"
SCORES = ("rmse", "crps", "coverage95")

MOST_TIMES = 60
"""Times up to which the other models of a fit predict too; of long series the chosen one does."""


@dataclass(frozen=True)
class FirstFiles(Study):
    """The first file of a user, without options."""

    name: ClassVar[str] = "first-files"
    help: ClassVar[str] = "files that users have, the default against the simplest answers"
    title: ClassVar[str] = "First files"
    needs: ClassVar[tuple[str, ...]] = ("demo", "xarray", "cf_xarray", "itur")
    has_figures: ClassVar[bool] = False

    data: str = option("", "folder of the files; those that are absent are left out", metavar="DIR")
    packages: str = option("", "instead, a folder of unpacked packages", metavar="DIR")
    scenarios: tuple[str, ...] = option(
        (), "some scenarios (default: all)", quick=("globe, 48",), metavar="NAME"
    )
    random: int = option(0, "instead, so many random problems made of the files", type=int)
    first: int = option(0, "seed of the first random problem", type=whole, metavar="N")

    @property
    def files(self) -> Files:
        """The folder."""
        if self.packages:
            return PackageFiles(Path(self.packages))
        return Files(Path(self.data) if self.data else Path("no files"))

    def chosen(self) -> list[Scenario]:
        """The scenarios whose files are there; a line for each of the others."""
        files = self.files
        if self.data and not Path(self.data).is_dir():
            raise UsageError(f"there is no folder {self.data!r}; name the one with the files.")
        if self.random < 0:
            raise UsageError(f"the number of random problems must not be negative: {self.random}.")
        if self.random:
            seeds = range(self.first, self.first + self.random)
            there = [name for name in CHOICES if all(each in files for each in NEEDS[name])]
            return [random_scenario(seed, there) for seed in seeds]
        every = LOOKED_AT + SCORED_ONCE + STRANGERS if self.packages else SCENARIOS
        names = known("scenario", self.scenarios, [each.name for each in every])
        found = []
        for each in (each for each in every if each.name in names):
            absent = [name for name in each.needs if name not in files]
            if absent:
                print(f"left out, for want of {', '.join(absent)}: {each.name}")
            else:
                found.append(each)
        return found

    def tasks(self) -> list[Task]:
        """The default in every scenario."""
        return [Task(each.name, DEFAULT, 0) for each in self.chosen()]

    def fit(self, task: Task) -> list[Outcome]:
        """Scores of the default, of all that it compares itself with, and of simple answers."""
        scenario = next(each for each in self.chosen() if each.name == task.matching)
        given = scenario.make(self.files)
        downscaler, fitted = _fitted(given)
        mine, mean = _scored(task, downscaler, given, fitted)
        outcomes = [mine]
        many = given.truth.sizes.get("time", 1) > MOST_TIMES
        for name in () if many else downscaler.candidates_:
            seconds = downscaler.timings_[f"learning {name}"]
            other = task._replace(model=name)
            outcomes.append(_scored(other, downscaler.using(name), given, seconds)[0])
        for name, field in _simple(given, scenario.cut.block).items():
            scores = dict.fromkeys(SCORES) | _errors(field.where(mean.notnull()), given.truth)
            outcomes.append(Outcome(task._replace(model=name), [scores]))
        if scenario.matched != scenario:
            known = scenario.matched.make(self.files)
            fit, seconds = _fitted(known)
            outcomes.append(_scored(task._replace(model=ORACLE), fit, given, seconds)[0])
        return outcomes

    def table(self, results: Results) -> list[str]:
        """Every scenario: the default beside the best of the simple answers."""
        rows = [_row(results, name) for (name,) in results.each("matching")]
        columns = ["scenario", "sd", *COLUMNS]
        lines = ["Errors in units of the target.", "", *markdown(columns, rows)]
        names = [name for (name,) in results.each("matching")]
        found = [_ratio(results, name) for name in names]
        plain = [
            (_error(results, name, DEFAULT) or 0.0) / (_error(results, name, BILINEAR) or 1.0)
            for name in names
        ]
        silent = sum(
            r > 1.5 and not _how(results, n)["doubt"] for n, r in zip(names, found, strict=True)
        )
        covered = [r["coverage95"] for r in results.where(model=DEFAULT)]
        lines += [
            "",
            f"{len(found)} scenarios: RMSE at most 1.05 times the best simple answer in "
            f"{sum(r <= 1.05 for r in found)}, below it in {sum(r < 1 for r in found)}; above "
            f"bilinear interpolation in {sum(r > 1 for r in plain)}; over 1.5 times the best "
            f"without a warning of no skill in {silent}; mean coverage {np.mean(covered):.3f}, "
            f"lowest {min(covered):.2f}.",
        ]
        return lines


COLUMNS = (
    "chosen",
    "RMSE",
    "bilinear",
    "regression",
    "kriging",
    "regression kriging",
    "pseudo-targets",
    "ratio to the best",
    "matched oracle",
    "CRPS",
    "95 % coverage",
    "seconds",
    "warned",
)
SIMPLE = (BILINEAR, REGRESSION, "kriging", "regression-kriging", "bagg-gp")
"""Simple answers; the last is one where data is unmatched, by pseudo-targets, else our own."""


def _row(results: Results, name: str) -> list[Any]:
    """One line of the table."""
    mine = results.where(matching=name, model=DEFAULT)[0]
    how = _how(results, name)
    errors = [*(_simple_error(results, name, model) for model in SIMPLE), _ratio(results, name)]
    seconds = mine["fit_seconds"] + mine["predict_seconds"]
    errors.append(_error(results, name, ORACLE))
    return [
        name,
        f"{how['sd']:.2f}",
        how["chosen"],
        f"{mine['rmse']:.3f}",
        *("–" if e is None else f"{e:.3f}" for e in errors),
        f"{mine['crps']:.3f}",
        f"{mine['coverage95']:.2f}",
        f"{seconds:.0f}",
        "yes" if how["doubt"] else "",
    ]


def _how(results: Results, name: str) -> Record:
    """How the default went."""
    (found,) = (f for f in results.fits if (f["matching"], f["model"]) == (name, DEFAULT))
    return found


def _error(results: Results, name: str, model: str) -> float | None:
    found = results.where(matching=name, model=model)
    return found[0]["rmse"] if found else None


def _simple_error(results: Results, name: str, model: str) -> float | None:
    """The RMSE of a simple answer; None where the model is none here."""
    ours = model == "bagg-gp" and not results.where(matching=name, model="mediated")
    return None if ours else _error(results, name, model)


def _ratio(results: Results, name: str) -> float:
    """The RMSE of the default over that of the best simple answer."""
    errors = [_simple_error(results, name, model) for model in SIMPLE]
    mine = _error(results, name, DEFAULT)
    assert mine is not None
    return mine / min(e for e in errors if e is not None)


def _fitted(given: Given) -> tuple[dc.Downscaler, float]:
    """The default, fitted, and the seconds that took."""
    began = time.perf_counter()
    asked = dc.Downscaler(given.target, given.covariates, given.mediators)
    return asked.fit(given.fine, given.coarse), time.perf_counter() - began


def _scored(
    task: Task, downscaler: dc.Downscaler, given: Given, seconds: float
) -> tuple[Outcome, xr.DataArray]:
    """Scores of a fitted downscaler, and its mean."""
    began, truth = time.perf_counter(), given.truth
    result = downscaler.predict(given.everywhere)
    took = {"fit_seconds": seconds, "predict_seconds": time.perf_counter() - began}
    mean, std = (result[name].transpose(*truth.dims) for name in ("mean", "std"))
    there = np.isfinite(mean.values) & np.isfinite(truth.values)
    at = mean.values[there]
    found = Marginals("normal", at, std.values[there]).score(at, truth.values[there])
    details = {
        "chosen": downscaler.model_name_,
        "sd": float(truth.std()),
        "skill": result.attrs.get("skill"),
        "doubt": result.attrs.get("doubt"),
        "comparison": [dict(row) for row in getattr(downscaler.comparison_, "rows", ())],
    }
    return Outcome(task, [{name: found[name] for name in SCORES} | took], details), mean


def _errors(field: xr.DataArray, truth: xr.DataArray) -> Record:
    error = (field - truth).values
    error = error[np.isfinite(error)]
    return {"rmse": float(np.sqrt(np.mean(error**2))), "crps": float(np.mean(np.abs(error)))}


def _simple(given: Given, block: tuple[int, int]) -> dict[str, xr.DataArray]:
    """Bilinear interpolation, and a linear regression with its residuals interpolated."""
    found = {BILINEAR: _interpolated(given)}
    if given.covariates:
        means = dc.datasets.coarsen(given.fine, block)[list(given.covariates)]
        late = "time" in means.dims and not np.isin(given.coarse.time, means.time).all()
        if not late and not given.mediators:
            found[REGRESSION] = _interpolated(given, means)
    return found


def _interpolated(given: Given, means: xr.Dataset | None = None) -> xr.DataArray:
    """Interpolation of every time; of one without observations, of their mean."""
    coarse, truth = given.coarse[given.target], given.truth
    if "time" not in truth.dims:
        return _at_one_time(coarse, truth, means, given.everywhere)
    found = []
    for k, now in enumerate(truth.time.values):
        here = coarse.sel(time=now, drop=True)
        known = here if bool(here.notnull().any()) else coarse.mean("time")
        inside = [
            None if each is None else each.sel(time=now) if "time" in each.dims else each
            for each in (means, given.everywhere)
        ]
        found.append(_at_one_time(known, truth.isel(time=k, drop=True), *inside))
    return xr.concat(found, "time").assign_coords(time=truth.time).transpose(*truth.dims)


def _at_one_time(
    coarse: xr.DataArray, like: xr.DataArray, means: xr.Dataset | None, fine: xr.Dataset | None
) -> xr.DataArray:
    """Bilinear interpolation, of residuals where there are coarse means of covariates."""
    if means is None or fine is None:
        return bilinear(coarse, like)
    z = coarse.values.ravel()
    x = np.stack(
        [np.ones(len(z)), *(m.transpose(*coarse.dims).values.ravel() for m in means.values())], 1
    )
    known = np.isfinite(z) & np.isfinite(x).all(1)
    weights = np.linalg.lstsq(x[known], z[known], rcond=None)[0]
    left = coarse.copy(data=(z - x @ weights).reshape(coarse.shape))
    slopes = sum(w * fine[name] for w, name in zip(weights[1:], means, strict=True))
    return (bilinear(left, like) + weights[0] + slopes).transpose(*like.dims)
