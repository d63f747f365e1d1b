"""Every mediated model on unmatched data, to find which should be the default.

Data sets, each with truth at every fine point:

``roll``, ``s-curve``
    the swiss roll and the S-curve, a half of the levels with points, the other with observations;
``noisy-90``, ``noisy-60``, ``noisy-30``, ``useless``
    a synthetic field whose mediator explains 90, 60, 30 or 0 % of the variance of bag means;
``fields``
    real global fields, half of the coarse cells with covariates, the other half with the target;
``fields-shifted``
    the same with covariates of the month before that of the target.

``oracle`` is the matched model of the cells that give observations: it sees the points that no
other model is shown.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.fitting.workers import carry_out, check_jobs
from deconditional.saving.outputs import output_folder, write_atomically
from studies.mediation_output import draw, table
from studies.provenance import code_digest
from studies.records import Record, Results

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DATASETS", "MODELS", "run", "run_task"]

SCORES = ("rmse", "crps", "nll", "coverage95", "coverage50")


class Setting(NamedTuple):
    """What the models of a data set share."""

    kernel: Any
    mediator_kernel: Any
    trend: str


MODELS: dict[str, Callable[[Setting], Any]] = {
    "cmp": lambda s: dc.CMP(s.kernel, s.mediator_kernel, centred=True),
    "s-cmp": lambda s: dc.CMP(s.kernel, s.mediator_kernel, centred=True, cmo="shrinkage"),
    "u-cmp": lambda s: dc.CMP(s.kernel, s.mediator_kernel, centred=True, uncertainty=True),
    "plug-in": lambda s: _pseudo(s, propagate=False),
    "propagated": lambda s: _pseudo(s, propagate=True),
    "propagated, fine noise": lambda s: _pseudo(s, propagate=True, fine_noise=True),
    "mediated": lambda s: dc.MediatedGP(s.kernel, s.mediator_kernel, trend=s.trend),
    "oracle": lambda s: dc.BaggGP(s.kernel, trend=s.trend),
}
"""Name of a model -> what makes it from the kernels and the trend of a data set."""


def _pseudo(setting: Setting, propagate: bool, **options: Any) -> Any:
    base = dc.BaggGP(setting.kernel, trend=setting.trend, **options)
    return dc.PseudoTarget(base, setting.mediator_kernel, propagate=propagate, trend=setting.trend)


@dataclass(frozen=True)
class DataSet:
    """How to draw it, and how often it is drawn."""

    draws: int
    make: Callable[[int], Any]
    setting: Callable[[], Setting]
    of_fields: bool = False


def _rough() -> Setting:
    import gpjax.kernels as gk

    return Setting(None, gk.Matern12(), "constant")


def _smooth() -> Setting:
    import gpjax.kernels as gk

    return Setting(None, gk.Matern32(), "constant")


def _field_setting() -> Setting:
    from deconditional.fields.recipes import field_kernel, mediator_kernel
    from studies.global_fields import COVARIATES, MEDIATORS

    return Setting(field_kernel(3, len(COVARIATES)), mediator_kernel(3, len(MEDIATORS)), "linear")


def _noisy(explained: float) -> DataSet:
    return DataSet(10, lambda seed: dc.datasets.noisy_mediator(explained, seed=seed), _smooth)


MONTHS = (1, 4, 7)
FIELD_DRAWS = 5

DATASETS: dict[str, DataSet] = {
    "roll": DataSet(
        20, lambda seed: dc.datasets.swiss_roll(matching="indirect", seed=seed), _rough
    ),
    "s-curve": DataSet(
        10, lambda seed: dc.datasets.s_curve(matching="indirect", seed=seed), _rough
    ),
    "noisy-90": _noisy(0.9),
    "noisy-60": _noisy(0.6),
    "noisy-30": _noisy(0.3),
    "useless": _noisy(0.0),
    "fields": DataSet(15, lambda seed: _fields(seed, 0), _field_setting, of_fields=True),
    "fields-shifted": DataSet(15, lambda seed: _fields(seed, 1), _field_setting, of_fields=True),
}
"""Name -> data set; draws of fields go through the months first."""


class Task(NamedTuple):
    """One model on one draw of a data set."""

    matching: str
    model: str
    seed: int

    def __str__(self) -> str:
        return f"{self.matching}, {self.model}, draw {self.seed}"


def run(
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    draws: int | None = None,
    *,
    first: int = 0,
    out: str | Path,
    jobs: int = 1,
    overwrite: bool = False,
    figures: bool = True,
    command: str | None = None,
    console: Console | None = None,
) -> Results:
    """Fit what has no record yet, and write ``results.json``, ``table.md`` and a figure.

    Parameters
    ----------
    datasets, models
        Names in :data:`DATASETS` and :data:`MODELS`; all by default.
    draws
        At most so many of each data set.
    first
        The number of the first draw; draws from another one are draws of the same kind that are
        not among those of the study.
    out, overwrite
        Folder of the results, and whether to discard what it holds.
    jobs
        Fits at a time, each in a process of its own.
    figures
        Whether to draw ``mediation.png``.
    command
        What the table says made it.
    console
        Where to print.
    """
    from rich.console import Console

    console = Console(highlight=False) if console is None else console
    chosen = _known("data set", datasets, DATASETS)
    fitted = _known("model", models, MODELS)
    if draws is not None and draws < 1:
        raise UsageError(f"the number of draws must be at least 1, not {draws}.")
    if first < 0:
        raise UsageError(f"draws are numbered from 0; the first cannot be {first}.")
    check_jobs(jobs)
    folder = output_folder(out)
    results = Results.open(
        folder, {"experiment": "mediation", "version": dc.__version__}, overwrite=overwrite
    )
    tasks = [
        Task(name, model, seed)
        for name in chosen
        for seed in range(first, first + min(DATASETS[name].draws, draws or DATASETS[name].draws))
        for model in fitted
    ]
    code = code_digest()
    pending = [task for task in tasks if task not in results]
    for task, found in carry_out(pending, run_task, console, jobs):
        if isinstance(found, Exception):  # must not cost the others their turn
            results.failed(task, found, console)
        else:
            record, how = found
            results.add(record, {**how, "code": code})
    write_atomically(folder / "table.md", table(results, [*DATASETS], [*MODELS], command))
    if figures:
        draw(results, [*DATASETS], [*MODELS], folder)
    return results


def _known(what: str, names: Sequence[str] | None, allowed: Mapping[str, Any]) -> list[str]:
    for name in names or ():
        if name not in allowed:
            raise UsageError(f"unknown {what} {name!r}; choose from {', '.join(allowed)}.")
    return list(allowed) if not names else list(dict.fromkeys(names))


# ---------------------------------------------------------------------- fits


def run_task(task: Task) -> tuple[Record, Record]:
    """Scores of one model on one draw, and how the fit went."""
    data_set = DATASETS[task.matching]
    model = MODELS[task.model](data_set.setting())
    data = data_set.make(task.seed)
    fit = _fit_fields if data_set.of_fields else _fit_points
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", dc.DeconditionalWarning)
        began = time.perf_counter()
        posterior, truth, unit = fit(model, data, task.model == "oracle")
        seconds = time.perf_counter() - began
    ours = [w for w in caught if issubclass(w.category, dc.DeconditionalWarning)]
    scores = dc.scores.score(posterior, truth)
    record: Record = {
        "experiment": "mediation",
        **task._asdict(),
        **{name: scores[name] for name in SCORES},
        "unit": unit,
        "seconds": seconds,
    }
    return record, {"warnings": [f"{w.category.__name__}: {w.message}" for w in ours]}


def _fit_points(model: Any, data: Any, oracle: bool) -> tuple[Any, np.ndarray, str]:
    if oracle:
        model.fit(data.observed_bags, data.z)
    else:
        model.fit(data.bags, data.z, mediator=data.mediator)
    return model.predict(data.x, fine_noise=_has_fine_noise(model)), data.f, ""


def _fit_fields(model: Any, data: Any, oracle: bool) -> tuple[Any, np.ndarray, str]:
    from deconditional.fields.predict import parts_of
    from deconditional.fields.sides import FineSide
    from deconditional.inference.posterior import Gaussians
    from studies.global_fields import BLOCK, COVARIATES, MEDIATORS, TARGET

    fine = data.fine
    if oracle:
        given = data.coarse[TARGET].notnull().any("time").values
        given = given.repeat(BLOCK, 0).repeat(BLOCK, 1)
        fine = data.everywhere.where(given)
    downscaler = dc.Downscaler(
        TARGET, COVARIATES, MEDIATORS, model=model, fine_noise=_has_fine_noise(model)
    )
    downscaler.fit(fine, data.coarse)
    side = FineSide.of(data.everywhere, downscaler.pairing_.question)
    part = parts_of(side, downscaler.learner_.problem).only
    x = downscaler.input_scaling_(part.points)
    found = downscaler.model_.predict(x, fine_noise=_has_fine_noise(model))
    scaling = downscaler.target_scaling_
    posterior = Gaussians(
        scaling.centre + scaling.scale * found.component_means,
        scaling.scale**2 * found.component_variances,
    )
    truth = data.truth.transpose(side.grid.y.name, side.grid.x.name).values
    return posterior, truth.ravel()[part.cells.present.ravel()], "K"


def _has_fine_noise(model: Any) -> bool:
    return bool(getattr(getattr(model, "base", model), "fine_noise", False))


def _fields(seed: int, months_apart: int) -> Any:
    """Covariates of one month in half of the cells, the target of another in the other half."""
    import xarray as xr

    from deconditional import datasets
    from studies.global_fields import (
        BLOCK,
        COVARIATES,
        MEDIATORS,
        TARGET,
        shift_of,
    )

    draw, which = divmod(seed, len(MONTHS))
    month = MONTHS[which]
    before = (month - months_apart - 1) % 12 + 1
    halves = {}
    for each in {month, before}:
        fields = datasets.global_fields(each).roll(lon=shift_of(draw), roll_coords=True)
        halves[each] = datasets.split_cells(
            fields, TARGET, COVARIATES, MEDIATORS, block=BLOCK, matched=0.0, seed=draw
        )
    now, then = halves[month], halves[before]
    times = [np.datetime64("2000-01-01"), np.datetime64("2000-02-01")]
    coarse = now.coarse.expand_dims(time=times[1:])
    fine = now.fine.expand_dims(time=times[1:])
    if months_apart:
        without = then.coarse.assign({TARGET: then.coarse[TARGET].where(False)})
        coarse = xr.concat([without.expand_dims(time=times[:1]), coarse], "time")
        fine = then.fine.expand_dims(time=times[:1])
    return now._replace(
        fine=fine, coarse=coarse, everywhere=now.everywhere.expand_dims(time=times[1:])
    )
