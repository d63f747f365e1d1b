"""How the second ridge of two-stage regression is best chosen: by evidence or by leaving one out.

:class:`~deconditional.DeconditionalRegressor` on swiss rolls of three sizes, with kernels by the
median heuristic. *Best* is the ε with the least error against the truth, which no user can see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gpjax.kernels as gk
import numpy as np

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.operators import median_kernel
from studies.command import known, option, whole
from studies.frame import Outcome, Study, Task
from studies.records import Results
from studies.tables import markdown, values

__all__ = ["Ridges"]

SIZES = {500: 20, 1500: 30, 5000: 50}
"""Points of a roll -> its bags."""

MATCHINGS = {"matched": "direct", "mediated": "indirect"}
FAMILIES = {"Gaussian": gk.RBF, "Matérn-3/2": gk.Matern32, "Matérn-1/2": gk.Matern12}
CHOICES = ("evidence", "leave-one-out", "best")
TRIED = np.logspace(-7, 0, 15)


@dataclass(frozen=True)
class Ridges(Study):
    """The two-stage regressor on swiss rolls, with its second ridge chosen in three ways.

    The seed of a task is 100 times the points of its roll plus the number of the draw.
    """

    name: ClassVar[str] = "ridges"
    help: ClassVar[str] = "ridges of two-stage regression, by evidence and by leaving one out"
    title: ClassVar[str] = "Ridges of two-stage regression"
    has_figures: ClassVar[bool] = False

    seeds: int = option(4, "rolls of every size", quick=1, type=whole)
    points: tuple[int, ...] = option(
        tuple(SIZES), "points of a roll: 500, 1500, 5000", quick=(500,), metavar="N"
    )

    def tasks(self) -> list[Task]:
        """One task for every roll and kernel of the mediators: its first stage serves all."""
        if not 1 <= self.seeds <= 100:
            raise UsageError(f"the number of seeds must be 1 to 100, not {self.seeds}.")
        return [
            Task(matching, f"{family}, {CHOICES[-1]}", 100 * size + draw)
            for size in known("number of points", self.points, [*SIZES])
            for draw in range(self.seeds)
            for matching in MATCHINGS
            for family in FAMILIES
        ]

    def fit(self, task: Task) -> list[Outcome]:
        """Errors with ε chosen in three ways."""
        size, draw = divmod(task.seed, 100)
        family = task.model.split(", ")[0]
        data = dc.datasets.swiss_roll(size, SIZES[size], MATCHINGS[task.matching], 0.05, draw)
        given = {} if data.mediator is None else {"mediator": data.mediator}
        observed = data.bags.mediator if data.mediator is None else data.mediator
        link = median_kernel(np.concatenate([data.bags.mediator, observed]), FAMILIES[family])

        def error(epsilon: float | str, ridge: float | str) -> tuple[float, Any]:
            model = dc.DeconditionalRegressor(None, link, ridge=ridge, epsilon=epsilon)
            model.fit(data.bags, data.z, **given)
            return dc.scores.rmse(model.predict(data.x), data.f), model

        scored, model = error("evidence", "leave-one-out")
        ridge = model.ridge_
        found = [(scored, ridge, model.epsilon_)]
        scored, model = error("leave-one-out", ridge)
        found.append((scored, model.ridge_, model.epsilon_))
        tried = [error(float(epsilon), ridge)[0] for epsilon in TRIED]
        best = int(np.argmin(tried))
        found.append((tried[best], ridge, float(TRIED[best])))
        return [
            Outcome(
                Task(task.matching, f"{family}, {choice}", task.seed),
                [dict(zip(("rmse", "ridge", "epsilon"), numbers, strict=True))],
            )
            for choice, numbers in zip(CHOICES, found, strict=True)
        ]

    def table(self, results: Results) -> list[str]:
        """The median of the RMSE over rolls, and the worst."""
        rows = []
        for matching in MATCHINGS:
            for family in FAMILIES:
                errors = [
                    values(results.where(matching=matching, model=f"{family}, {choice}"), "rmse")
                    for choice in CHOICES
                ]
                if errors[0].size:
                    cells = [f"{np.median(e):.2f} ({e.max():.2f})" for e in errors]
                    rows.append([family, matching, errors[0].size, *cells])
        head = ["ℓ", "observations", "rolls", "by evidence", "by leaving one out", "best ε"]
        return [
            "RMSE over all points of a roll, whose standard deviation is one: median (worst) over "
            "rolls.",
            "",
            *markdown(head, rows),
        ]
