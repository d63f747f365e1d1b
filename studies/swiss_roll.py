"""The swiss roll with matched and unmatched bags: the paper's first table.

Every model learns from the bags and coarse values of a roll and is scored at all its points; this
is repeated over seeds, and models are compared by paired tests. :data:`MODELS` has every setting
that is not the package's default.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import deconditional as dc
from deconditional.datasets.surfaces import CutSurface
from deconditional.datasets.swiss_roll import swiss_roll
from deconditional.errors import UsageError
from deconditional.fitting.workers import carry_out, check_jobs
from deconditional.saving.outputs import output_folder, write_atomically
from studies.plots import can_draw
from studies.provenance import code_digest
from studies.records import Record, Results
from studies.swiss_roll_table import table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MATCHINGS", "MODELS", "run"]

MATCHINGS = ("direct", "indirect")
INDUCING = 100
"""Inducing points of the variational models; VarCentroidGP takes all centroids."""


def _rough() -> Any:
    """Matérn-1/2 on the mediator for the baselines, as U-CMP has by default: a fair comparison."""
    import gpjax.kernels as gk

    return gk.Matern12()


def _mediated(base: Any, matching: str, propagate: bool) -> Any:
    """A matched model, or the same behind pseudo-targets where the data is not matched."""
    if matching == "direct":
        return base
    return dc.PseudoTarget(base, mediator_kernel=_rough(), propagate=propagate)


MODELS: dict[str, Callable[[str], Any]] = {
    "cmp": lambda matching: dc.CMP(),
    "s-cmp": lambda matching: dc.CMP(cmo="shrinkage"),
    "u-cmp": lambda matching: dc.CMP(uncertainty=True),
    "varcmp": lambda matching: dc.VarCMP(cmo="shrinkage", n_inducing=INDUCING),
    "u-varcmp": lambda matching: dc.VarCMP(uncertainty=True, n_inducing=INDUCING),
    "bagg-gp": lambda matching: _mediated(dc.BaggGP(), matching, propagate=True),
    "vbagg": lambda matching: _mediated(dc.VBagg(n_inducing=INDUCING), matching, propagate=True),
    "gpr": lambda matching: _mediated(dc.CentroidGP(), matching, propagate=True),
    "vargpr": lambda matching: _mediated(dc.VarCentroidGP(), matching, propagate=True),
    "bagg-gp-plugin": lambda matching: _mediated(dc.BaggGP(), matching, propagate=False),
    "vbagg-plugin": lambda matching: _mediated(
        dc.VBagg(n_inducing=INDUCING), matching, propagate=False
    ),
    "gpr-plugin": lambda matching: _mediated(dc.CentroidGP(), matching, propagate=False),
    "bagg-gp-misordered": lambda matching: MODELS["bagg-gp-plugin"](matching),
    "vbagg-misordered": lambda matching: MODELS["vbagg-plugin"](matching),
    "gpr-misordered": lambda matching: MODELS["gpr-plugin"](matching),
}
"""Name of a model -> what makes it for ``"direct"`` or ``"indirect"`` data.

``-plugin``
    takes pseudo-targets at face value, as the paper does;
``-misordered``
    and gives them to the wrong bags, as the published code does: it computes them for bags in
    ascending order and hands them to bags in random order.
"""

INDIRECT_ONLY = tuple(name for name in MODELS if name.endswith(("-plugin", "-misordered")))
"""Matched data needs no pseudo-targets."""

NOISE_STD = 0.05
SCORES = ("rmse", "mae", "crps", "coverage95", "nll")


@dataclass(frozen=True)
class Task:
    """One model to fit to one roll."""

    matching: str
    model: str
    seed: int

    def __str__(self) -> str:
        return f"{self.matching} {self.model} seed {self.seed}"

    @property
    def key(self) -> tuple[str, str, int]:
        """What names its record."""
        return self.matching, self.model, self.seed


@dataclass(frozen=True)
class Fitted:
    """A fitted model's posterior at all points of the roll, and what it took."""

    data: CutSurface
    posterior: Any
    fit_seconds: float
    predict_seconds: float
    compile_seconds: float
    warnings: list[str]


def run(
    matching: Sequence[str] = MATCHINGS,
    models: Sequence[str] | None = None,
    seeds: int = 20,
    first_seed: int = 0,
    out: str | os.PathLike[str] = "swiss-roll",
    n_points: int = 5000,
    n_bags: int = 50,
    *,
    jobs: int = 1,
    overwrite: bool = False,
    figures: bool = True,
    command: str | None = None,
    console: Console | None = None,
) -> Results:
    """Fit the models to rolls, score them, write records, tables and pictures.

    Parameters
    ----------
    matching
        ``"direct"``, ``"indirect"`` or both.
    models
        Names in :data:`MODELS`; all by default.
    seeds, first_seed
        How many rolls, and the seed of the first.
    out
        Folder for ``results.json``, ``table.md`` and pictures. Records already there are kept, and
        what is missing is added.
    n_points, n_bags
        Size of a roll.
    jobs
        Fits at a time, each in a process of its own.
    overwrite
        Discard what the folder holds.
    figures
        Draw the data, and the posterior of every model at the first seed.
    command
        The command line to name in the table.
    console
        A rich console for progress; the terminal by default.

    Returns
    -------
    Results
        With ``records``, and with ``failures`` where a fit failed.

    Raises
    ------
    UsageError
        Before any fit, if the arguments cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> from rich.console import Console
    >>> with tempfile.TemporaryDirectory() as here:
    ...     results = run(
    ...         ["direct"],
    ...         ["gpr"],
    ...         seeds=1,
    ...         out=here,
    ...         n_points=200,
    ...         n_bags=8,
    ...         figures=False,
    ...         console=Console(quiet=True),
    ...     )
    >>> [(record["model"], record["seed"]) for record in results.records]
    [('gpr', 0)]
    """
    from rich.console import Console

    console = Console() if console is None else console
    tasks = _tasks(matching, models, seeds, first_seed, console)
    check_jobs(jobs)
    if figures:
        can_draw()
    _check_data(matching, range(first_seed, first_seed + seeds), n_points, n_bags)
    folder = output_folder(out)
    settings = {
        "experiment": "swiss-roll",
        "n_points": n_points,
        "n_bags": n_bags,
        "noise_std": NOISE_STD,
        "version": dc.__version__,
    }
    results = Results.open(folder, settings, overwrite=overwrite)
    if overwrite:
        _remove_outputs(folder)
    if figures:
        _draw_data(folder, matching, first_seed, settings)
    _work(tasks, results, settings, first_seed if figures else None, jobs, console)
    write_atomically(folder / "table.md", table(results, list(MODELS), settings, command))
    return results


# ---------------------------------------------------------------------- before any fit


def _tasks(
    matching: Sequence[str],
    models: Sequence[str] | None,
    seeds: int,
    first_seed: int,
    console: Console,
) -> list[Task]:
    """All fits asked for. The seeds are outermost, so that an interrupted run has whole pairs."""
    _known("matching", matching, MATCHINGS)
    _known("model", MODELS if models is None else models, MODELS)
    if seeds < 1:
        raise UsageError(f"the number of seeds must be at least 1, not {seeds}.")
    if first_seed < 0:
        raise UsageError(f"the first seed must not be negative, and is {first_seed}.")
    chosen = list(dict.fromkeys(MODELS if models is None else models))
    skipped = [name for name in models or () if name in INDIRECT_ONLY]
    if skipped and "direct" in matching:
        console.print(
            f"{', '.join(skipped)}: skipped for direct matching, which needs no pseudo-targets."
        )
    return [
        Task(kind, model, seed)
        for kind in dict.fromkeys(matching)
        for seed in range(first_seed, first_seed + seeds)
        for model in chosen
        if kind == "indirect" or model not in INDIRECT_ONLY
    ]


def _known(what: str, names: Any, allowed: Any) -> None:
    if not names:
        raise UsageError(f"name at least one {what}: {', '.join(allowed)}.")
    for name in names:
        if name not in allowed:
            raise UsageError(f"unknown {what} {name!r}; choose from {', '.join(allowed)}.")


def _check_data(matching: Sequence[str], seeds: Sequence[int], n_points: int, n_bags: int) -> None:
    """Draw every roll once: cheap, and better than to fail at the last seed."""
    if "indirect" in matching and n_bags < 4:
        raise UsageError(f"indirect matching halves the bags; use at least 4, not {n_bags}.")
    for seed in seeds:
        try:
            swiss_roll(n_points, n_bags, "direct", NOISE_STD, seed)
        except ValueError as error:
            raise UsageError(
                f"no roll of {n_points} points in {n_bags} bags with seed {seed}: {error}"
            ) from None


def _remove_outputs(folder: Path) -> None:
    """What an earlier run drew and this one may not draw again."""
    pictures = [_picture(kind, model) for kind in MATCHINGS for model in MODELS]
    for name in ("table.md", "data.png", "bags.png", *pictures):
        (folder / name).unlink(missing_ok=True)


# ---------------------------------------------------------------------- the fits


def _work(
    tasks: Sequence[Task],
    results: Results,
    settings: Mapping[str, Any],
    picture_seed: int | None,
    jobs: int,
    console: Console,
) -> None:
    """Fit what has no record or no picture yet."""
    code = code_digest()
    pending = [task for task in tasks if _missing(task, results, picture_seed)]
    work = partial(_worked, settings=settings, folder=results.folder, picture_seed=picture_seed)
    for task, outcome in carry_out(pending, work, console, jobs):
        if isinstance(outcome, Exception):  # must not cost the others their turn
            results.failed(task, outcome, console)
        elif task.key not in results:
            record, how = outcome
            results.add(record, {**how, "code": code})


def _worked(
    task: Task, settings: Mapping[str, Any], folder: Path, picture_seed: int | None
) -> tuple[Record, Record]:
    """The record of a task, and how its fit went; draws the posterior of one seed."""
    fitted = _fit(task, settings)
    record = _record(task, fitted)
    if task.seed == picture_seed:
        _draw_posterior(folder, task, fitted)
    return record, {"compile_seconds": fitted.compile_seconds, "warnings": fitted.warnings}


def _missing(task: Task, results: Results, picture_seed: int | None) -> bool:
    picture = results.folder / _picture(task.matching, task.model)
    return task.key not in results or (task.seed == picture_seed and not picture.exists())


def _fit(task: Task, settings: Mapping[str, Any]) -> Fitted:
    from deconditional.errors import FitWarning

    size = settings["n_points"], settings["n_bags"]
    data = swiss_roll(*size, task.matching, settings["noise_std"], task.seed)
    model = MODELS[task.model](task.matching)
    mediator = {} if task.matching == "direct" else {"mediator": data.mediator}
    bags = data.bags
    if task.model.endswith("-misordered"):
        bags = _misordered(bags, task.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        began = time.perf_counter()
        model.fit(bags, data.z, **mediator)
        fitted = time.perf_counter()
        posterior = model.predict(data.x)
        _ = posterior.mean  # a posterior computes its moments when they are first asked for
        predicted = time.perf_counter()
    notes = [str(w.message) for w in caught if issubclass(w.category, FitWarning)]
    for other in caught:
        if not issubclass(other.category, FitWarning):
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    compiling = model.fit_report_.compile_seconds
    return Fitted(data, posterior, fitted - began, predicted - fitted, compiling, notes)


def _misordered(bags: dc.Bags, seed: int) -> dc.Bags:
    """The bags with each other's mediators, hence with each other's pseudo-targets."""
    assert bags.mediator is not None
    order = np.random.default_rng(seed).permutation(bags.n_bags)
    return replace(bags, mediator=bags.mediator[order])


def _record(task: Task, fitted: Fitted) -> Record:
    scores = dc.scores.score(fitted.posterior, fitted.data.f)
    return {
        "experiment": "swiss-roll",
        "matching": task.matching,
        "model": task.model,
        "seed": task.seed,
        **{name: scores[name] for name in SCORES},
        "fit_seconds": fitted.fit_seconds,
        "predict_seconds": fitted.predict_seconds,
    }


# ---------------------------------------------------------------------- pictures


def _picture(matching: str, model: str) -> str:
    return f"posterior-{matching}-{model}.png"


def _draw_data(
    folder: Path, matching: Sequence[str], seed: int, settings: Mapping[str, Any]
) -> None:
    from deconditional.report import plots

    size = settings["n_points"], settings["n_bags"]
    kinds = [kind for kind in MATCHINGS if kind in matching]
    rolls = [swiss_roll(*size, kind, settings["noise_std"], seed) for kind in kinds]
    plots.save(plots.roll(rolls[0], title=f"Swiss roll, seed {seed}"), folder / "data.png")
    plots.save(plots.roll_bags(rolls, title=f"Bags, seed {seed}"), folder / "bags.png")


def _draw_posterior(folder: Path, task: Task, fitted: Fitted) -> None:
    from deconditional.report import plots

    figure = plots.posterior_panels(
        fitted.data.x[:, [0, 2]],
        fitted.data.f,
        fitted.posterior,
        title=f"{task.model}, {task.matching} matching, seed {task.seed}",
        axes=("x₁", "x₃"),
    )
    plots.save(figure, folder / _picture(task.matching, task.model))
