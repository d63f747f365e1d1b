"""The swiss roll with matched and unmatched bags: the paper's first table.

Every model learns from the bags and coarse values of a roll and is scored at all its points; this
is repeated over seeds, and models are compared by paired tests. :data:`MODELS` has every setting
that is not the package's default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gpjax.kernels as gk
import numpy as np

import deconditional as dc
from deconditional.errors import UsageError
from studies import plots
from studies.command import known, option, whole
from studies.frame import Outcome, Study, Task, fit_and_predict
from studies.records import Record, Results
from studies.tables import count, markdown, mean_and_sd, values, wilcoxon_table

__all__ = ["MATCHINGS", "MODELS", "SwissRoll"]

MATCHINGS = ("direct", "indirect")
INDUCING = 100
"""Inducing points of the variational models; VarCentroidGP takes all centroids."""


def _rough() -> Any:
    """Matérn-1/2 on the mediator for the baselines, as U-CMP has by default: a fair comparison."""
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

PAPER: dict[str, dict[str, str]] = {
    "direct": {
        "cmp": ".33 ± .06",
        "s-cmp": ".25 ± .04",
        "varcmp": ".18 ± .04",
        "bagg-gp": ".60 ± .01",
        "vbagg": ".22 ± .04",
        "gpr": ".70 ± .05",
    },
    "indirect": {
        "cmp": ".80 ± .14",
        "s-cmp": "1.05 ± .04",
        "varcmp": ".87 ± .07",
        "bagg-gp": "1.13 ± .11",
        "vbagg": "1.46 ± .34",
        "gpr": "1.04 ± .05",
    },
}
"""Published RMSE, mean ± standard deviation over 20 seeds."""

PAPER_TESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "direct": {
        "bagg-gp": ("6e-05",),
        "varcmp": ("8e-05", "6e-05"),
        "vbagg": ("6e-05", "6e-05", "0.0057"),
        "gpr": ("6e-05", "6e-05", "6e-05", "6e-05"),
        "s-cmp": ("6e-05", "6e-05", "0.00048", "0.014", "6e-05"),
    },
    "indirect": {
        "bagg-gp": ("0.011",),
        "varcmp": ("0.0019", "0.015"),
        "vbagg": ("8.9e-05", "0.048", "8.9e-05"),
        "gpr": ("0.025", "0.048", "0.048", "0.85"),
        "s-cmp": ("8.9e-05", "0.0028", "8.9e-05", "0.00014", "0.052"),
    },
}
"""Published p-values of RMSE; columns are cmp, bagg-gp, varcmp, vbagg, gpr."""


@dataclass(frozen=True)
class SwissRoll(Study):
    """Models on swiss rolls cut into bags, scored at all points and compared over seeds.

    Examples
    --------
    >>> len(SwissRoll(seeds=2, models=("gpr", "gpr-plugin")).tasks())  # -plugin is indirect only
    6
    """

    name: ClassVar[str] = "swiss-roll"
    help: ClassVar[str] = "matched and unmatched bags on a swiss roll (section 5.1)"
    title: ClassVar[str] = "Swiss roll"

    matching: tuple[str, ...] = option(MATCHINGS, "direct, indirect", metavar="M")
    models: tuple[str, ...] = option((), f"some of: {', '.join(MODELS)}", metavar="NAME")
    seeds: int = option(20, "number of rolls", quick=1, type=whole)
    first_seed: int = option(0, "seed of the first roll", type=whole, metavar="SEED")
    points: int = option(5000, "points of a roll", quick=1000)
    bags: int = option(50, "bags of a roll", quick=20)

    def settings(self) -> Record:
        """The size of a roll."""
        return {"n_points": self.points, "n_bags": self.bags, "noise_std": NOISE_STD}

    def tasks(self) -> list[Task]:
        """All fits asked for; seeds are outermost, so an interrupted run has whole pairs."""
        kinds, chosen = (
            known("matching", self.matching, MATCHINGS),
            known("model", self.models, [*MODELS]),
        )
        if self.seeds < 1:
            raise UsageError(f"the number of seeds must be at least 1, not {self.seeds}.")
        if self.first_seed < 0:
            raise UsageError(f"the first seed must not be negative, and is {self.first_seed}.")
        if "indirect" in kinds and self.bags < 4:
            raise UsageError(f"indirect matching halves the bags; use at least 4, not {self.bags}.")
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        for seed in seeds:  # cheap, and better than to fail at the last one
            self._roll("direct", seed)
        tasks = [
            Task(kind, model, seed)
            for kind in kinds
            for seed in seeds
            for model in chosen
            if kind == "indirect" or model not in INDIRECT_ONLY
        ]
        if not tasks:
            raise UsageError(f"{', '.join(chosen)}: for indirect matching alone.")
        return tasks

    def _roll(self, matching: str, seed: int) -> Any:
        try:
            return dc.datasets.swiss_roll(self.points, self.bags, matching, NOISE_STD, seed)
        except ValueError as error:
            raise UsageError(
                f"no roll of {self.points} points in {self.bags} bags with seed {seed}: {error}"
            ) from None

    def fit(self, task: Task) -> list[Outcome]:
        """Scores of one model at all points of one roll."""
        data = self._roll(task.matching, task.seed)
        model = MODELS[task.model](task.matching)
        given = {} if task.matching == "direct" else {"mediator": data.mediator}
        bags = (
            _misordered(data.bags, task.seed) if task.model.endswith("-misordered") else data.bags
        )
        posterior, seconds = fit_and_predict(
            lambda: model.fit(bags, data.z, **given), lambda: model.predict(data.x)
        )
        scores = dc.scores.score(posterior, data.f)

        def draw(path: Any) -> None:
            title = f"{task.model}, {task.matching} matching, seed {task.seed}"
            figure = plots.posterior_panels(
                data.x[:, [0, 2]], data.f, posterior, title=title, axes=("x₁", "x₃")
            )
            plots.save(figure, path)

        details = {"compile_seconds": model.fit_report_.compile_seconds}
        return [Outcome(task, [{name: scores[name] for name in SCORES} | seconds], details, draw)]

    def picture(self, task: Task) -> str | None:
        """The posterior of every model at the first seed."""
        if task.seed != self.first_seed:
            return None
        return f"posterior-{task.matching}-{task.model}.png"

    def table(self, results: Results) -> list[str]:
        """Scores next to the published ones, and paired tests between models."""
        lines = [
            f"{self.points} points, {self.bags} bags, noise of standard deviation {NOISE_STD} on "
            "the bag means. Scores are over all points of a roll; ± is one standard deviation over "
            "seeds. Lower is better, except coverage, where 0.95 is best. Rows with the paper's "
            "number alone are models of the paper that this run did not fit. Fit times include "
            "compiling (the first evaluation), which models of one seed can share.",
        ]
        for matching in MATCHINGS:
            if results.where(matching=matching):
                lines += _section(results, matching)
        return lines

    def figures(self, results: Results) -> None:
        """The data of the first seed: ``data.png`` and ``bags.png``."""
        kinds = [kind for kind in MATCHINGS if kind in self.matching]
        rolls = [self._roll(kind, self.first_seed) for kind in kinds]
        seed = f"seed {self.first_seed}"
        plots.save(plots.roll(rolls[0], title=f"Swiss roll, {seed}"), results.folder / "data.png")
        plots.save(plots.roll_bags(rolls, title=f"Bags, {seed}"), results.folder / "bags.png")


def _misordered(bags: dc.Bags, seed: int) -> dc.Bags:
    """The bags with each other's mediators, hence with each other's pseudo-targets."""
    assert bags.mediator is not None
    order = np.random.default_rng(seed).permutation(bags.n_bags)
    return replace(bags, mediator=bags.mediator[order])


# ---------------------------------------------------------------------- the table


COLUMNS = {
    "CRPS": mean_and_sd("crps"),
    "coverage of 95%": mean_and_sd("coverage95"),
    "NLL": mean_and_sd("nll", ".2f"),
    "fit (s)": mean_and_sd("fit_seconds", ".1f"),
}


def _section(results: Results, matching: str) -> list[str]:
    models = [name for name in MODELS if results.where(matching=matching, model=name)]
    head = ["model", "seeds", "RMSE", "RMSE, paper", "worst RMSE (seed)", *COLUMNS]
    rows = [_row(results, matching, name) for name in _shown(matching, models)]
    lines = ["", f"## {matching.capitalize()} matching", ""]
    lines += markdown([*head, "of it compiling (s)"], rows)
    if matching == "indirect":
        lines += [
            "",
            "bagg-gp, vbagg, gpr and vargpr learn from pseudo-targets whose covariance is "
            "propagated; the paper's take them at face value, as the -plugin rows do. In the "
            "published code they also reach the wrong bags, as in the -misordered rows.",
        ]
    for name in ("rmse", "crps"):
        lines += ["", f"### Wilcoxon signed-rank tests of {name.upper()}, {matching} matching", ""]
        lines += wilcoxon_table(results, matching, models, name)
        if name == "rmse":
            columns = ("cmp", "bagg-gp", "varcmp", "vbagg", "gpr")
            tests = [
                [model, *cells, *[""] * (len(columns) - len(cells))]
                for model, cells in PAPER_TESTS[matching].items()
            ]
            lines += ["", "The paper's:", "", *markdown(["", *columns], tests)]
    return lines


def _shown(matching: str, models: Sequence[str]) -> list[str]:
    """The models fitted and those of the paper, each family together."""
    order = ["cmp", "s-cmp", "u-cmp", "varcmp", "u-varcmp"]
    for base in ("bagg-gp", "vbagg", "gpr"):
        order += [base, f"{base}-plugin", f"{base}-misordered"]
    shown = {*models, *PAPER[matching]}
    return [name for name in dict.fromkeys([*order, *models]) if name in shown]


def _row(results: Results, matching: str, model: str) -> list[str]:
    paper = PAPER[matching].get(model.removesuffix("-plugin").removesuffix("-misordered"), "–")
    mine = results.where(matching=matching, model=model)
    if not mine:
        return [model, "–", "–", paper, *["–"] * (len(COLUMNS) + 2)]
    errors = values(mine, "rmse")
    worst = f"{errors.max():.3f} ({mine[int(np.argmax(errors))]['seed']})"
    fits = [fit for fit in results.fits if (fit["matching"], fit["model"]) == (matching, model)]
    cells = [cell(mine) for cell in COLUMNS.values()]
    compiling = mean_and_sd("compile_seconds", ".1f")(fits)
    return [model, count(mine), mean_and_sd("rmse")(mine), paper, worst, *cells, compiling]
