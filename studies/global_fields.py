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
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deconditional import __version__
from deconditional.errors import UsageError
from deconditional.fitting.workers import carry_out, check_jobs
from deconditional.saving.outputs import output_folder, write_atomically
from studies.plots import can_draw
from studies.provenance import code_digest, provenance_lines
from studies.records import (
    Record,
    Results,
    code_notes,
    mean_and_sd,
    values,
    wilcoxon_table,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MODELS", "run", "run_task", "shift_of"]

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


class Task(NamedTuple):
    """One model on one draw; the seed is 100 times the month plus the number of the draw."""

    matching: str
    model: str
    seed: int

    def __str__(self) -> str:
        return f"{self.matching}, {self.model}, month {self.seed // 100}, draw {self.seed % 100}"


def run(
    months: Sequence[int] = (1, 4, 7),
    draws: int = 3,
    matching: Sequence[str] = STUDIED,
    models: Sequence[str] | None = None,
    *,
    out: str | Path,
    jobs: int = 1,
    overwrite: bool = False,
    figures: bool = True,
    command: str | None = None,
    console: Console | None = None,
) -> Results:
    """Fit what has no record yet, and write ``results.json``, ``table.md`` and maps.

    Parameters
    ----------
    months, draws
        Months of the climatology, and draws of each.
    matching, models
        Which data (``matched``, ``half``, ``cells``) and which models of :data:`MODELS`.
    out, overwrite
        Folder of the results, and whether to discard what it holds.
    jobs
        Fits at a time, each in a process of its own.
    figures
        Draw maps of the first draw.
    command
        What the table says made it.
    console
        Where to print.
    """
    from rich.console import Console

    console = Console(highlight=False) if console is None else console
    for kind in matching:
        if kind not in MODELS:
            raise UsageError(f"unknown matching {kind!r}; choose from {', '.join(MODELS)}.")
    known = dict.fromkeys(name for kind in matching for name in MODELS[kind])
    for name in models or ():
        if name not in known:
            choice = ", ".join(repr(each) for each in known)
            raise UsageError(f"unknown model {name!r}; choose from {choice}.")
    for month in months:
        if month not in range(1, 13):
            raise UsageError(f"months run from 1 to 12, not {month}.")
    if not 1 <= draws <= 100:
        raise UsageError(f"the number of draws must be 1 to 100, not {draws}.")
    check_jobs(jobs)
    if figures:
        can_draw()
    folder = output_folder(out)
    settings = {"experiment": "global-fields", "block": BLOCK, "version": __version__}
    results = Results.open(folder, settings, overwrite=overwrite)
    tasks = [
        Task(kind, model, 100 * month + draw)
        for draw in range(draws)
        for month in months
        for kind in matching
        for model in MODELS[kind]
        if models is None or model in models
    ]
    code = code_digest()
    picture_seed = 100 * months[0] if figures else None
    work = partial(_worked, folder=folder, picture_seed=picture_seed)

    def pending_of(among: Sequence[Task]) -> list[Task]:
        return [t for t in among if t not in results or _undrawn(t, folder, picture_seed)]

    for wave in _waves(pending_of(tasks)):
        pending = pending_of(wave)
        for task, found in carry_out(pending, work, console, jobs):
            if isinstance(found, Exception):  # must not cost the others their turn
                results.failed(task, found, console)
                continue
            for record, how in found:
                if (task.matching, record["model"], task.seed) not in results:
                    results.add(record, {**how, "code": code})
    write_atomically(folder / "table.md", table(results, command))
    return results


def _waves(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """The models that "auto" fits in any case wait until it has."""
    asked = {(task.matching, task.seed) for task in tasks if task.model == "auto"}
    later = [
        task
        for task in tasks
        if (task.matching, task.seed) in asked and task.model in ("bagg-gp", "u-cmp")
    ]
    return [task for task in tasks if task not in later], later


def _undrawn(task: Task, folder: Path, picture_seed: int | None) -> bool:
    drawn = task.model == "bilinear" or task.seed != picture_seed
    return not (drawn or (folder / _picture(task.matching, task.model)).exists())


def _worked(task: Task, folder: Path, picture_seed: int | None) -> list[tuple[Record, Record]]:
    """Records of a task, and of what else it fitted on the way; draws maps for one seed."""
    found, how, maps = run_task(task)
    if maps is None:
        return [(found, how)]
    if task.seed == picture_seed:
        _draw(folder, task, maps["data"], maps["result"])
    if task.model != "auto":
        return [(found, how)]
    others = []
    for record, its, result in _candidates(task, maps):
        others.append((record, its))
        if task.seed == picture_seed:
            _draw(folder, task._replace(model=record["model"]), maps["data"], result)
    return [(found, how), *others]


def run_task(task: Task) -> tuple[Record, Record, Mapping[str, Any] | None]:
    """Scores of one model on one draw, how the fit went, and fields for maps."""
    from deconditional.errors import FitWarning
    from deconditional.fields.interpolation import bilinear

    data = _data(task)
    truth = data.truth
    f = truth.values.ravel()
    record: Record = {"matching": task.matching, "model": task.model, "seed": task.seed}
    if task.model == "bilinear":
        plain = bilinear(data.coarse[TARGET], truth).values.ravel()
        error = plain - f
        scores = {
            "rmse": float(np.sqrt(np.mean(error**2))),
            "mae": float(np.mean(np.abs(error))),
            "bias": float(np.mean(error)),
        }
        missing = {name: None for name in SCORES if name not in scores}
        return {**record, **scores, **missing}, {"warnings": []}, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        began = time.perf_counter()
        downscaler = _downscaler(task).fit(data.fine, data.coarse)
        fitted = time.perf_counter()
        result = downscaler.predict(data.everywhere)
        predicted = time.perf_counter()
    how = {
        "warnings": [str(w.message) for w in caught if issubclass(w.category, FitWarning)],
        **_how(downscaler),
    }
    record |= _scores(result, truth)
    record |= {"fit_seconds": fitted - began, "predict_seconds": predicted - fitted}
    return record, how, {"data": data, "result": result, "downscaler": downscaler}


def _scores(result: Any, truth: Any) -> dict[str, float]:
    from deconditional.report.marginals import Marginals

    mean, std = (result[name].transpose(*truth.dims).values.ravel() for name in ("mean", "std"))
    scores = Marginals("normal", mean, std).score(mean, truth.values.ravel())
    return {name: scores[name] for name in SCORES}


def _how(downscaler: Any) -> Record:
    comparison = downscaler.comparison_
    return {
        "chosen": downscaler.model_name_,
        "comparison": [] if comparison is None else [dict(row) for row in comparison.rows],
        "log_evidence": downscaler.fit_report_.log_evidence,
    }


def _candidates(task: Task, maps: Mapping[str, Any]) -> Iterator[tuple[Record, Record, Any]]:
    """Records and results of the models that "auto" fitted."""
    for name in maps["downscaler"].candidates_:
        downscaler = maps["downscaler"].using(name)
        began = time.perf_counter()
        result = downscaler.predict(maps["data"].everywhere)
        yield (
            {
                "matching": task.matching,
                "model": name,
                "seed": task.seed,
                **_scores(result, maps["data"].truth),
                "fit_seconds": downscaler.timings_[f"learning {name}"],
                "predict_seconds": time.perf_counter() - began,
            },
            {"warnings": list(downscaler.fit_report_.notes), **_how(downscaler)},
            result,
        )


def _data(task: Task) -> Any:
    from deconditional import datasets

    month, draw = divmod(task.seed, 100)
    fields = datasets.global_fields(month)
    fields = fields.roll(lon=shift_of(draw), roll_coords=True)
    matched = 0.0 if task.matching == "half" else 1.0
    data = datasets.split_cells(
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


def _downscaler(task: Task) -> Any:
    from deconditional.fields import Downscaler
    from deconditional.fields.recipes import field_kernel, mediator_kernel
    from deconditional.models import BaggGP, PseudoTarget

    options: dict[str, Any] = {"model": task.model, "n_restarts": 1}
    n = len(COVARIATES)
    if task.model == "bagg-gp, smooth kernel":
        options |= {"model": "bagg-gp", "kernel": "smooth"}
    elif task.model == "bagg-gp, plug-in":
        base = BaggGP(field_kernel(3, n), trend="linear", n_restarts=1)
        link = mediator_kernel(3, len(MEDIATORS))
        options["model"] = PseudoTarget(base, link, propagate=False, trend="linear", n_restarts=1)
    elif task.model == "oracle":
        options["model"] = "bagg-gp"
    elif task.matching == "cells":
        condensed = 16 if task.model == "16 condensed" else None
        options |= {"model": "bagg-gp", "points_per_bag": condensed, "min_cover": 0.01}
    elif task.model.endswith(", linear trend"):
        options |= {"model": task.model.removesuffix(", linear trend"), "trend": "linear"}
    return Downscaler(TARGET, COVARIATES, MEDIATORS, **options)


# ---------------------------------------------------------------------- tables and maps


def table(results: Results, command: str | None) -> str:
    """All scores as Markdown."""
    lines = ["# Real global fields", ""]
    for kind, models in MODELS.items():
        present = [name for name in models if results.of(kind, name)]
        if not present:
            continue
        lines += [
            f"## {kind}",
            "",
            "| model | draws | RMSE (K) | worst | CRPS | 95 % coverage | range | 50 % | fit (s) |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_row(name, results.of(kind, name)) for name in present),
            "",
        ]
        if "auto" in present:
            fits = [f for f in results.fits if (f["matching"], f["model"]) == (kind, "auto")]
            chosen = [f["chosen"] for f in fits]
            counts = ", ".join(f"{name} {chosen.count(name)}" for name in dict.fromkeys(chosen))
            lines += [f"auto chose: {counts}.", ""]
        for score in ("rmse", "crps"):
            among = [m for m in present if score == "rmse" or m != "bilinear"]
            lines += [f"### {kind}: {score.upper()} compared", ""]
            lines += [*wilcoxon_table(results, kind, among, score), ""]
    lines += [*provenance_lines(command), *code_notes(results.fits)]
    return "\n".join(lines) + "\n"


def _row(model: str, records: Sequence[Record]) -> str:
    rmse = values(records, "rmse")
    cells = [model, str(len(records)), mean_and_sd(rmse, 2), f"{rmse.max():.2f}"]
    if records[0].get("crps") is None:
        return f"| {' | '.join([*cells, *['–'] * 5])} |"
    cover = values(records, "coverage95")
    cells += [
        mean_and_sd(values(records, "crps"), 2),
        f"{cover.mean():.3f}",
        f"{cover.min():.2f}–{cover.max():.2f}",
        f"{values(records, 'coverage50').mean():.2f}",
        f"{values(records, 'fit_seconds').mean():.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _picture(matching: str, model: str) -> str:
    return f"maps-{matching}-{model.replace(', ', '-').replace(' ', '-')}.png"


def _draw(folder: Path, task: Task, data: Any, result: Any) -> None:
    from deconditional.report import field_plots

    figure = field_plots.demo_maps(
        data.truth,
        data.coarse[TARGET],
        result["mean"],
        2 * 1.96 * result["std"],
        result["mean"] - data.truth,
        "K",
        f"{task}",
    )
    content = field_plots.png(figure)
    write_atomically(folder / _picture(task.matching, task.model), content)
