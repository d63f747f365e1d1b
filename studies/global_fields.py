"""Real global fields, matched and unmatched: every model against the truth.

Surface temperature on the 0.75° grid of :func:`~deconditional.datasets.global_fields` is to be
found from its means over 12 x 12 cells, with altitude, rain and cloud as fine covariates.

``matched``
    every coarse cell gives its temperature and its fine covariates;
``half``
    a random half of the coarse cells gives covariates, the other half temperature, and the water
    vapour column links them. ``oracle`` is the matched model on the cells that give temperature;
``cells``
    as ``matched``, with some of the 144 fine cells of every coarse cell: condensed, random, all.

A draw rolls the grid under the coarse cells by a number of columns of its own and, where cells are
divided, divides them anew. These are climatologies, not the CMIP6 fields of the paper.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.fields.default_kernels import Inputs, field_kernel, mediator_kernel
from deconditional.fields.opponents import bilinear
from deconditional.report.maps import demo_maps
from deconditional.report.plots import save
from deconditional.scores.marginals import Marginals
from studies.command import known, option, whole
from studies.frame import Outcome, Study, Task
from studies.records import Record, Results
from studies.tables import count, highest, lowest, mean, mean_and_sd, summary, wilcoxon_table

__all__ = ["BLOCK", "COVARIATES", "MEDIATORS", "MODELS", "TARGET", "GlobalFields", "shift_of"]

TARGET, COVARIATES, MEDIATORS = "tas", ("altitude", "rain", "cloud"), ("water_vapour",)
BLOCK = 12

MODELS = {
    "matched": ("bilinear", "gpr", "bagg-gp", "bagg-gp, smooth kernel", "vbagg"),
    "half": (
        "bilinear",
        "gpr",
        "vargpr",
        "bagg-gp",
        "bagg-gp, plug-in",
        "vbagg",
        "cmp",
        "s-cmp",
        "u-cmp",
        "varcmp",
        "cmp, linear trend",
        "s-cmp, linear trend",
        "u-cmp, linear trend",
        "mediated",
        "auto",
        "oracle",
    ),
    "cells": (
        "16 condensed",
        "16 random",
        "36 random",
        "all",
    ),
}
STUDIED = ("matched", "half")
"""What is run unless asked for otherwise; an exact model of all fine cells wants an accelerator."""

SCORES = ("rmse", "mae", "bias", "crps", "coverage95", "coverage50")

FITTED_BY_AUTO = ("mediated", "bagg-gp", "kriging")
"""What "auto" compares at this size, and fits in any case."""

COLUMNS = {
    "draws": count,
    "RMSE (K)": mean_and_sd("rmse", ".2f"),
    "worst": highest("rmse", ".2f"),
    "CRPS": mean_and_sd("crps", ".2f"),
    "95 % coverage": mean("coverage95"),
    "lowest": lowest("coverage95", ".2f"),
    "highest": highest("coverage95", ".2f"),
    "50 %": mean("coverage50", ".2f"),
    "fit (s)": mean("fit_seconds", ".0f"),
}


@dataclass(frozen=True)
class GlobalFields(Study):
    """Real climatologies of surface temperature, with every model.

    The seed of a task is 100 times its month plus the number of the draw.
    """

    name: ClassVar[str] = "global-fields"
    help: ClassVar[str] = "real global fields, matched and unmatched, every model"
    title: ClassVar[str] = "Real global fields"
    needs: ClassVar[tuple[str, ...]] = ("demo", "xarray", "cf_xarray", "itur")

    months: tuple[int, ...] = option((1, 4, 7), "months", quick=(1,), type=whole, metavar="M")
    draws: int = option(3, "of each month", quick=1)
    matching: tuple[str, ...] = option(
        STUDIED, "matched, half, cells (condensed, random or all fine cells)", metavar="M"
    )
    models: tuple[str, ...] = option(
        (), "some models (default: all)", quick=("bilinear", "gpr", "bagg-gp"), metavar="NAME"
    )

    def settings(self) -> Record:
        """Fine cells of a coarse cell, each way."""
        return {"block": BLOCK}

    def tasks(self) -> list[Task]:
        """Every model on every draw of every month."""
        kinds = known("matching", self.matching, [*MODELS])
        chosen = known("model", self.models, [name for kind in kinds for name in MODELS[kind]])
        for month in self.months:
            if month not in range(1, 13):
                raise UsageError(f"months run from 1 to 12, not {month}.")
        if not 1 <= self.draws <= 100:
            raise UsageError(f"the number of draws must be 1 to 100, not {self.draws}.")
        return [
            Task(kind, model, 100 * month + draw)
            for draw in range(self.draws)
            for month in self.months
            for kind in kinds
            for model in MODELS[kind]
            if model in chosen
        ]

    def waves(self, tasks: Sequence[Task]) -> list[Sequence[Task]]:
        """The models that "auto" fits in any case wait until it has."""
        asked = {(task.matching, task.seed) for task in tasks if task.model == "auto"}
        later = [
            task
            for task in tasks
            if task.model in FITTED_BY_AUTO and (task.matching, task.seed) in asked
        ]
        return [[task for task in tasks if task not in later], later]

    def fit(self, task: Task) -> list[Outcome]:
        """Scores of one model on one draw; those of its candidates, for "auto"."""
        data = data_of(task)
        if task.model == "bilinear":
            return [Outcome(task, [_interpolated(data)])]
        began = time.perf_counter()
        downscaler = downscaler_of(task).fit(data.fine, data.coarse)
        seconds = time.perf_counter() - began
        outcomes = [_predicted(task, downscaler, data, seconds)]
        if task.model == "auto":
            outcomes += _candidates(task, downscaler, data)
        return outcomes

    def picture(self, task: Task) -> str | None:
        """Maps of every model for the first draw of the first month."""
        if task.seed != 100 * self.months[0] or task.model == "bilinear":
            return None
        return f"maps-{task.matching}-{task.model.replace(', ', '-').replace(' ', '-')}.png"

    def table(self, results: Results) -> list[str]:
        """All scores, and paired tests."""
        lines = ["Over all fine cells."]
        for kind, models in MODELS.items():
            present = [name for name in models if results.where(matching=kind, model=name)]
            if not present:
                continue
            lines += ["", f"## {kind}", "", *summary(results, kind, models, COLUMNS)]
            fits = [f for f in results.fits if (f["matching"], f["model"]) == (kind, "auto")]
            if fits:
                chosen = [f["chosen"] for f in fits]
                counts = ", ".join(f"{name} {chosen.count(name)}" for name in dict.fromkeys(chosen))
                lines += ["", f"auto chose: {counts}."]
            for score in ("rmse", "crps"):
                among = [m for m in present if score == "rmse" or m != "bilinear"]
                lines += ["", f"### {kind}: {score.upper()} compared", ""]
                lines += wilcoxon_table(results, kind, among, score)
        return lines


# ---------------------------------------------------------------------- one model on one draw


def _interpolated(data: Any) -> Record:
    """Scores of interpolation, which has no distribution."""
    error = bilinear(data.coarse[TARGET], data.truth).values.ravel() - data.truth.values.ravel()
    return dict.fromkeys(SCORES) | {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.mean(np.abs(error))),
        "bias": float(np.mean(error)),
    }


def _predicted(task: Task, downscaler: Any, data: Any, seconds: float) -> Outcome:
    """Scores of a fitted downscaler that took so many seconds to fit."""
    began = time.perf_counter()
    result = downscaler.predict(data.everywhere)
    took = {"fit_seconds": seconds, "predict_seconds": time.perf_counter() - began}
    truth = data.truth
    mean, std = (result[name].transpose(*truth.dims).values.ravel() for name in ("mean", "std"))
    scores = Marginals("normal", mean, std).score(mean, truth.values.ravel())
    comparison = downscaler.comparison_
    details = {
        "chosen": downscaler.model_name_,
        "comparison": [] if comparison is None else [dict(row) for row in comparison.rows],
        "log_evidence": downscaler.fit_report_.log_evidence,
    }

    def draw(path: Path) -> None:
        width, error = 2 * 1.96 * result["std"], result["mean"] - truth
        figure = demo_maps(truth, data.coarse[TARGET], result["mean"], width, error, "K", f"{task}")
        save(figure, path)

    return Outcome(task, [{name: scores[name] for name in SCORES} | took], details, draw)


def _candidates(task: Task, downscaler: Any, data: Any) -> Iterator[Outcome]:
    """Scores of the models that "auto" fitted."""
    for name in downscaler.candidates_:
        one = downscaler.using(name)
        seconds = downscaler.timings_[f"learning {name}"]
        outcome = _predicted(task._replace(model=name), one, data, seconds)
        outcome.details["warnings"] = list(one.fit_report_.notes)
        yield outcome


def data_of(task: Task) -> Any:
    """The fields of a draw, with what the model of a task may see of them."""
    month, draw = divmod(task.seed, 100)
    fields = dc.datasets.global_fields(month)
    fields = fields.roll(lon=shift_of(draw), roll_coords=True)
    matched = 0.0 if task.matching == "half" else 1.0
    data = dc.datasets.split_cells(
        fields, TARGET, COVARIATES, MEDIATORS, block=BLOCK, matched=matched, seed=draw
    )
    if task.model == "oracle":
        given = data.coarse[TARGET].notnull().values.repeat(BLOCK, 0).repeat(BLOCK, 1)
        return data._replace(fine=data.everywhere.where(given))
    if task.model.endswith(" random"):
        drawn = _drawn(data.truth.shape, int(task.model.split()[0]), draw)
        return data._replace(fine=data.everywhere.where(drawn))
    return data


def shift_of(draw: int) -> int:
    """Columns by which a draw rolls the grid: another for each of the first twelve draws."""
    return (10 + 7 * draw) % BLOCK


def _drawn(shape: tuple[int, ...], size: int, seed: int) -> np.ndarray:
    """Where the fine cells are that were drawn at random from every coarse cell."""
    rows, columns = shape[0] // BLOCK, shape[1] // BLOCK
    order = np.random.default_rng(seed).random((rows, columns, BLOCK**2)).argsort(-1).argsort(-1)
    blocks = (order < size).reshape(rows, columns, BLOCK, BLOCK)
    return blocks.transpose(0, 2, 1, 3).reshape(shape)


def downscaler_of(task: Task) -> Any:
    """What a model is asked with."""
    options: dict[str, Any] = {"model": task.model, "n_restarts": 1}
    n = len(COVARIATES)
    if task.model == "bagg-gp, smooth kernel":
        options |= {"model": "bagg-gp", "kernel": "smooth"}
    elif task.model == "bagg-gp, plug-in":
        base = dc.BaggGP(field_kernel(Inputs(3, n)), trend="linear", n_restarts=1)
        link = mediator_kernel(Inputs(3, len(MEDIATORS)))
        options["model"] = dc.PseudoTarget(
            base, link, propagate=False, trend="linear", n_restarts=1
        )
    elif task.model == "oracle":
        options["model"] = "bagg-gp"
    elif task.matching == "cells":
        condensed = 16 if task.model == "16 condensed" else None
        options |= {"model": "bagg-gp", "points_per_bag": condensed, "min_cover": 0.01}
    elif task.model.endswith(", linear trend"):
        options |= {"model": task.model.removesuffix(", linear trend"), "trend": "linear"}
    return dc.Downscaler(TARGET, COVARIATES, MEDIATORS, **options)
