"""How the second ridge of two-stage regression is best chosen: by evidence or by leaving one out.

:class:`~deconditional.DeconditionalRegressor` on swiss rolls of three sizes, with kernels by the
median heuristic. *Best* is the ε with the least error against the truth, which no user can see.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deconditional import __version__
from deconditional.datasets.swiss_roll import swiss_roll
from deconditional.errors import UsageError
from deconditional.fitting.workers import carry_out
from deconditional.saving.outputs import output_folder, write_atomically
from deconditional.scores import rmse
from studies.provenance import code_digest, provenance_lines
from studies.records import Record, Results, values

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run"]

SIZES = {500: 20, 1500: 30, 5000: 50}
"""Points of a roll -> its bags."""

MATCHINGS = {"matched": "direct", "mediated": "indirect"}
FAMILIES = {"Gaussian": "RBF", "Matérn-3/2": "Matern32", "Matérn-1/2": "Matern12"}
CHOICES = ("evidence", "leave-one-out", "best")
TRIED = np.logspace(-7, 0, 15)


class Task(NamedTuple):
    """One kernel of the mediators on one roll; the seed is 100 times its points plus the draw."""

    matching: str
    family: str
    seed: int

    def __str__(self) -> str:
        return f"{self.matching}, {self.family}, {self.seed // 100} points"


def run(
    seeds: int = 4,
    *,
    out: str | Path,
    points: Sequence[int] = tuple(SIZES),
    overwrite: bool = False,
    command: str | None = None,
    console: Console | None = None,
) -> Results:
    """Fit, and write ``results.json`` and ``table.md``.

    Parameters
    ----------
    seeds
        Rolls of every size.
    out, overwrite
        Folder of the results, and whether to discard what it holds.
    points
        Sizes of rolls, of those in :data:`SIZES`.
    command
        What the table says made it.
    console
        Where to print.
    """
    from rich.console import Console

    console = Console(highlight=False) if console is None else console
    if not 1 <= seeds <= 100:
        raise UsageError(f"the number of seeds must be 1 to 100, not {seeds}.")
    for size in points:
        if size not in SIZES:
            raise UsageError(f"rolls have {', '.join(map(str, SIZES))} points, not {size}.")
    settings = {"experiment": "ridges", "version": __version__}
    results = Results.open(output_folder(out), settings, overwrite=overwrite)
    tasks = [
        Task(matching, family, 100 * size + draw)
        for size in dict.fromkeys(points)
        for draw in range(seeds)
        for matching in MATCHINGS
        for family in FAMILIES
    ]
    code = code_digest()
    pending = [t for t in tasks if (t.matching, f"{t.family}, best", t.seed) not in results]
    for task, found in carry_out(pending, _worked, console):
        if isinstance(found, Exception):
            results.failed(task, found, console)
            continue
        for record, how in found:
            if (record["matching"], record["model"], record["seed"]) not in results:
                results.add(record, {**how, "code": code})
    write_atomically(results.folder / "table.md", table(results, command))
    return results


def _worked(task: Task) -> list[tuple[Record, Record]]:
    """Errors with ε chosen in three ways; the first stage is the same for all."""
    import gpjax.kernels as gk

    from deconditional import DeconditionalRegressor, FitWarning
    from deconditional.operators import median_kernel

    size, draw = divmod(task.seed, 100)
    data = swiss_roll(size, SIZES[size], MATCHINGS[task.matching], 0.05, draw)
    given = {} if data.mediator is None else {"mediator": data.mediator}
    observed = data.bags.mediator if data.mediator is None else data.mediator
    y = np.concatenate([data.bags.mediator, observed])
    link = median_kernel(y, getattr(gk, FAMILIES[task.family]))

    def error(epsilon: float | str, ridge: float | str) -> tuple[float, Any]:
        model = DeconditionalRegressor(None, link, ridge=ridge, epsilon=epsilon)
        model.fit(data.bags, data.z, **given)
        return rmse(model.predict(data.x), data.f), model

    found: list[tuple[str, float, float, float]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        for choice in CHOICES[:2]:
            scored, model = error(choice, "leave-one-out" if not found else found[0][2])
            found.append((choice, scored, model.ridge_, model.epsilon_))
        tried = [error(float(epsilon), found[0][2])[0] for epsilon in TRIED]
    best = int(np.argmin(tried))
    found.append(("best", tried[best], found[0][2], float(TRIED[best])))
    notes = [str(w.message) for w in caught if issubclass(w.category, FitWarning)]
    return [
        (
            {
                "matching": task.matching,
                "model": f"{task.family}, {choice}",
                "seed": task.seed,
                "rmse": scored,
                "ridge": ridge,
                "epsilon": epsilon,
            },
            {"warnings": notes},
        )
        for choice, scored, ridge, epsilon in found
    ]


def table(results: Results, command: str | None) -> str:
    """RMSE as Markdown: the median over rolls, and the worst."""
    lines = [
        "# Ridges of two-stage regression",
        "",
        "RMSE over all points of a roll, whose standard deviation is one: median (worst) over "
        "rolls.",
        "",
        "| ℓ | observations | rolls | by evidence | by leaving one out | best ε |",
        "|---|---|---|---|---|---|",
    ]
    for matching in MATCHINGS:
        for family in FAMILIES:
            errors = [
                values(results.of(matching, f"{family}, {choice}"), "rmse") for choice in CHOICES
            ]
            if not errors[0].size:
                continue
            cells = [f"{np.median(e):.2f} ({e.max():.2f})" for e in errors]
            lines.append(f"| {family} | {matching} | {errors[0].size} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *provenance_lines(command), ""])
