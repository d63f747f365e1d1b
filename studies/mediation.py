"""Every mediated model on unmatched data, to find which should be the default.

Data sets, each with truth at every fine point:

``roll``, ``s-curve``
    the swiss roll and the S-curve, a half of the levels with points, the other with observations;
``noisy-90``, ``noisy-60``, ``noisy-30``, ``useless``
    a synthetic field whose mediator explains 90, 60, 30 or 0 % of the variance of bag means;
``fields``
    real global fields, half of the coarse cells with covariates, the other half with the target;
``fields-shifted``
    the same with covariates of the month before that of the target;
``globe``
    a made-up globe of few cells, whose truth is linear in altitude.

A name with a colon is a variation of a data set: see :data:`VARIATIONS`.

``oracle`` is the matched model of the cells that give observations: it sees the points that no
other model is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import gpjax.kernels as gk
import numpy as np
from scipy.stats import wilcoxon

import deconditional as dc
from deconditional.errors import UsageError
from deconditional.fields.default_kernels import Inputs, field_kernel, mediator_kernel
from deconditional.fields.predict import parts_of
from deconditional.fields.sides import FineSide
from deconditional.inference.posterior import Gaussians
from studies import plots
from studies.command import known, option, positive, whole
from studies.data import mountain_globe, noisy_mediator
from studies.frame import Outcome, Study, Task
from studies.global_fields import BLOCK, COVARIATES, MEDIATORS, TARGET, shift_of
from studies.records import Record, Results
from studies.tables import (
    LEAST_SEEDS,
    count,
    highest,
    lowest,
    markdown,
    mean,
    mean_and_sd,
    summary,
    values,
    wilcoxon_table,
)

__all__ = ["DATASETS", "MODELS", "Mediation"]

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
    "most probable": lambda s: dc.MediatedGP(
        s.kernel, s.mediator_kernel, trend=s.trend, method="map"
    ),
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
    return Setting(None, gk.Matern12(), "constant")


def _smooth() -> Setting:
    return Setting(None, gk.Matern32(), "constant")


def _field_setting() -> Setting:
    return Setting(
        field_kernel(Inputs(3, len(COVARIATES))),
        mediator_kernel(Inputs(3, len(MEDIATORS))),
        "linear",
    )


def _noisy(explained: float) -> DataSet:
    return DataSet(10, lambda seed: noisy_mediator(explained, seed=seed), _smooth)


def _hilly() -> Setting:
    return Setting(field_kernel(Inputs(3, 1)), mediator_kernel(Inputs(3, 1)), "linear")


def _few_observations(data: Any, rng: np.random.Generator) -> Any:
    some = np.sort(rng.permutation(len(data.z))[: max(len(data.z) // 4, 8)])
    seen = data.observed_bags.select(some)
    return replace(data, z=data.z[some], mediator=data.mediator[some], observed_bags=seen)


def _few_bags(data: Any, rng: np.random.Generator) -> Any:
    n = data.bags.n_bags
    return replace(data, bags=data.bags.select(np.sort(rng.permutation(n)[: max(n // 4, 8)])))


def _with_mediators(data: Any, of_bags: np.ndarray, of_observations: np.ndarray) -> Any:
    bags = replace(data.bags, mediator=np.column_stack([data.bags.mediator, of_bags]))
    return replace(data, bags=bags, mediator=np.column_stack([data.mediator, of_observations]))


def _noise_beside(data: Any, rng: np.random.Generator) -> Any:
    n, m = data.bags.n_bags, len(data.z)
    return _with_mediators(data, rng.standard_normal(n), rng.standard_normal(m))


def _said_twice(data: Any, rng: np.random.Generator) -> Any:
    both = [data.bags.mediator[:, 0], data.mediator[:, 0]]
    again = [y + 0.01 * np.std(both[1]) * rng.standard_normal(len(y)) for y in both]
    return _with_mediators(data, *again)


def _heavy_tails(data: Any, rng: np.random.Generator) -> Any:
    return replace(data, z=data.z + 0.1 * data.z.std() * rng.standard_t(2, len(data.z)))


def _flat_covariate(data: Any, rng: np.random.Generator) -> Any:
    bags = _with_flat_column(data.bags, rng)
    x = np.column_stack([data.x, rng.standard_normal(len(data.x))])
    return replace(data, bags=bags, x=x, observed_bags=_with_flat_column(data.observed_bags, rng))


def _with_flat_column(bags: dc.Bags, rng: np.random.Generator) -> dc.Bags:
    """Bags with one more covariate, whose mean is the same in all of them."""
    column = rng.standard_normal(bags.n_points)
    column = column - bags.means(column)[bags.bag]
    return replace(bags, points=np.column_stack([bags.points, column]))


VARIATIONS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "few observations": _few_observations,
    "few bags": _few_bags,
    "noise beside": _noise_beside,
    "said twice": _said_twice,
    "heavy tails": _heavy_tails,
    "flat covariate": _flat_covariate,
}
"""A quarter of the observations, or of the bags; a mediator of noise beside the good one; a
mediator that says the same again; noise of observations with two degrees of freedom; a covariate
whose bag means are constant."""


def _varied(name: str, variation: str) -> DataSet:
    """A data set in a variation, with default kernels where it has other variables."""
    whole = DATASETS[name]
    change = VARIATIONS[variation]
    setting = whole.setting
    if variation in ("noise beside", "said twice", "flat covariate"):
        setting = lambda: Setting(None, None, "constant")  # noqa: E731

    def make(seed: int) -> Any:
        return change(whole.make(seed), np.random.default_rng([3000, seed]))

    return DataSet(whole.draws, make, setting)


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
    "globe": DataSet(10, lambda seed: mountain_globe(seed), _hilly),
    "fields": DataSet(15, lambda seed: _fields(seed, 0), _field_setting, of_fields=True),
    "fields-shifted": DataSet(15, lambda seed: _fields(seed, 1), _field_setting, of_fields=True),
}
"""Name -> data set; draws of fields go through the months first."""

for _name in ("noisy-60", "s-curve"):
    for _variation in VARIATIONS:
        DATASETS[f"{_name}: {_variation}"] = _varied(_name, _variation)

FAIR = ("plug-in", "propagated", "propagated, fine noise")
"""Baselines that see what the others see: regressions whose predictions are targets."""

DEFAULT, ORACLE = "mediated", "oracle"
COVERED = (0.92, 0.98)
"""Where the coverage of 95 % intervals is to lie on average."""

COLUMNS = {
    "draws": count,
    "RMSE": mean_and_sd("rmse"),
    "worst RMSE": highest("rmse"),
    "CRPS": mean_and_sd("crps"),
    "worst CRPS": highest("crps"),
    "NLL": mean("nll", ".2f"),
    "95 %": mean("coverage95"),
    "least": lowest("coverage95", ".2f"),
    "50 %": mean("coverage50", ".2f"),
    "s": mean("seconds", ".0f"),
}


@dataclass(frozen=True)
class Mediation(Study):
    """Every mediated model on unmatched data sets, compared with fair baselines."""

    name: ClassVar[str] = "mediation"
    help: ClassVar[str] = "every mediated model on unmatched data sets, against fair baselines"
    title: ClassVar[str] = "Mediated models"
    needs: ClassVar[tuple[str, ...]] = ("demo", "xarray", "cf_xarray", "itur")

    datasets: tuple[str, ...] = option(
        (), "some data sets (default: all)", quick=("noisy-60",), metavar="NAME"
    )
    models: tuple[str, ...] = option(
        (), "some models (default: all)", quick=("propagated", "mediated"), metavar="NAME"
    )
    draws: int | None = option(None, "of each data set, at most", quick=1, type=positive)
    first: int = option(0, "number of the first draw", type=whole, metavar="N")

    def tasks(self) -> list[Task]:
        """Every model on every draw; another first draw gives draws outside those of the study."""
        chosen = known("data set", self.datasets, [*DATASETS])
        fitted = known("model", self.models, [*MODELS])
        if self.draws is not None and self.draws < 1:
            raise UsageError(f"the number of draws must be at least 1, not {self.draws}.")
        if self.first < 0:
            raise UsageError(f"draws are numbered from 0; the first cannot be {self.first}.")
        return [
            Task(name, model, self.first + draw)
            for name in chosen
            for draw in range(min(DATASETS[name].draws, self.draws or DATASETS[name].draws))
            for model in fitted
        ]

    def fit(self, task: Task) -> list[Outcome]:
        """Scores of one model on one draw."""
        data_set = DATASETS[task.matching]
        model = MODELS[task.model](data_set.setting())
        data = data_set.make(task.seed)
        fit = _fit_fields if data_set.of_fields else _fit_points
        began = time.perf_counter()
        posterior, truth, unit = fit(model, data, task.model == ORACLE)
        seconds = time.perf_counter() - began
        scores = dc.scores.score(posterior, truth)
        found = {name: scores[name] for name in SCORES}
        return [Outcome(task, [found | {"unit": unit, "seconds": seconds}])]

    def table(self, results: Results) -> list[str]:
        """An overview, the default against baselines, and all scores of every data set."""
        present = [name for name in DATASETS if results.where(matching=name)]
        lines = [*_overview(results, present), *_default_against_baselines(results, present)]
        for name in present:
            lines += [f"## {name}", "", *summary(results, name, MODELS, COLUMNS)]
            others = [m for m in MODELS if m != ORACLE and results.where(matching=name, model=m)]
            for score in ("rmse", "crps"):
                lines += ["", f"### {name}: {score.upper()} compared", ""]
                lines += [*wilcoxon_table(results, name, others, score), ""]
        return lines

    def figures(self, results: Results) -> None:
        """``mediation.png``: RMSE and CRPS over the best baseline's, coverage with its range."""
        shown = [name for name in DATASETS if _baselines(results, name)]
        if shown:
            figure = _compared(results, shown)
            plots.save(figure, results.folder / "mediation.png", dpi=110)


# ---------------------------------------------------------------------- fits


def _fit_points(model: Any, data: Any, oracle: bool) -> tuple[Any, np.ndarray, str]:
    if oracle:
        model.fit(data.observed_bags, data.z)
    else:
        model.fit(data.bags, data.z, mediator=data.mediator)
    return model.predict(data.x, fine_noise=_has_fine_noise(model)), data.f, ""


def _fit_fields(model: Any, data: Any, oracle: bool) -> tuple[Any, np.ndarray, str]:
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
    answer = downscaler.model_.predict(x, fine_noise=_has_fine_noise(model))
    scaling = downscaler.target_scaling_
    posterior = Gaussians(
        scaling.centre + scaling.scale * answer.component_means,
        scaling.scale**2 * answer.component_variances,
    )
    truth = data.truth.transpose(*side.grid.spatial).values
    return posterior, truth.ravel()[part.present.ravel()], "K"


def _has_fine_noise(model: Any) -> bool:
    return bool(getattr(getattr(model, "base", model), "fine_noise", False))


def _fields(seed: int, months_apart: int) -> Any:
    """Covariates of one month in half of the cells, the target of another in the other half."""
    import xarray as xr

    draw, which = divmod(seed, len(MONTHS))
    month = MONTHS[which]
    before = (month - months_apart - 1) % 12 + 1
    halves = {}
    for each in {month, before}:
        fields = dc.datasets.global_fields(each).roll(lon=shift_of(draw), roll_coords=True)
        halves[each] = dc.datasets.split_cells(
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


# ---------------------------------------------------------------------- tables


def _overview(results: Results, datasets: Sequence[str]) -> list[str]:
    """RMSE / CRPS / coverage of every model on every data set; the best of each in bold."""
    best = {
        (name, score): min(
            values(found, score).mean()
            for model in MODELS
            if model != ORACLE and (found := results.where(matching=name, model=model))
        )
        for name in datasets
        for score in ("rmse", "crps")
        if any(results.where(matching=name, model=model) for model in MODELS if model != ORACLE)
    }

    def cell(name: str, model: str) -> str:
        found = results.where(matching=name, model=model)
        if not found:
            return "–"
        shown = []
        for score in ("rmse", "crps"):
            mean = values(found, score).mean()
            bold = "**" if model != ORACLE and mean <= best[name, score] else ""
            shown.append(f"{bold}{mean:.3f}{bold}")
        return " / ".join([*shown, f"{values(found, 'coverage95').mean():.2f}"])

    rows = [
        [model, *(cell(name, model) for name in datasets)]
        for model in MODELS
        if results.where(model=model)
    ]
    said = "RMSE / CRPS / coverage of 95 % intervals, means over draws."
    return ["## Overview", "", said, "", *markdown(["", *datasets], rows), ""]


def _baselines(results: Results, name: str) -> list[list[Record]]:
    """The records of each baseline that has some on a data set."""
    found = [results.where(matching=name, model=model) for model in FAIR]
    return [each for each in found if each]


def _default_against_baselines(results: Results, datasets: Sequence[str]) -> list[str]:
    rows = [row for name in datasets if (row := _against_baselines(results, name))]
    if not rows:
        return []
    head = ["data set", "draws", "RMSE / best", "CRPS / best", "largest p", "95 %", "least"]
    return [
        f"## {DEFAULT} against pseudo-targets",
        "",
        "Ratios of means to the best of the three baselines in that score. p: Wilcoxon signed-rank "
        "over draws, of the CRPS being smaller than a baseline's, the largest of the three. Last: "
        "RMSE to that of the oracle.",
        "",
        *markdown([*head, "RMSE / oracle"], rows),
        "",
    ]


def _against_baselines(results: Results, name: str) -> list[str]:
    """The cells of one data set, over the draws that all have."""
    mine, *others = (
        {record["seed"]: record for record in records}
        for records in (results.where(matching=name, model=DEFAULT), *_baselines(results, name))
    )
    seeds = sorted(set(mine).intersection(*others)) if others else []
    if not seeds:
        return []

    def average(records: dict[int, Record], score: str) -> float:
        return float(np.mean([records[seed][score] for seed in seeds]))

    cells = [name, str(len(seeds))]
    for score in ("rmse", "crps"):
        ratio = average(mine, score) / min(average(other, score) for other in others)
        cells.append(f"{ratio:.3f}")
    largest = max(_p_smaller(mine, other, seeds) for other in others)
    cells.append(f"{largest:.2g}" if len(seeds) >= LEAST_SEEDS else "not tested")
    cover = np.array([mine[seed]["coverage95"] for seed in seeds])
    cells += [f"{cover.mean():.3f}", f"{cover.min():.2f}"]
    oracle = {r["seed"]: r for r in results.where(matching=name, model=ORACLE)}
    known_of_all = set(seeds) <= set(oracle)
    to_oracle = f"{average(mine, 'rmse') / average(oracle, 'rmse'):.3f}" if known_of_all else "–"
    return [*cells, to_oracle]


def _p_smaller(mine: dict[int, Record], other: dict[int, Record], seeds: Sequence[int]) -> float:
    """One-sided: that the CRPS of the first is smaller."""
    gap = np.array([mine[s]["crps"] - other[s]["crps"] for s in seeds])
    return float(wilcoxon(gap, alternative="less").pvalue) if gap.any() else 1.0


# ---------------------------------------------------------------------- picture


def _compared(results: Results, datasets: Sequence[str]) -> Any:
    from matplotlib.figure import Figure

    shown = [m for m in MODELS if m != ORACLE and results.where(model=m)]
    figure = Figure(figsize=(12.0, 1.4 + 0.72 * len(datasets)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    heights = np.arange(len(datasets))[::-1]
    for place, model in enumerate(shown):
        main = model == DEFAULT
        look = {"color": "black" if main else f"C{place}", "marker": "D" if main else "o"}
        at = heights + 0.34 - 0.68 * place / max(len(shown) - 1, 1)
        for axes, score in zip(panels, ("rmse", "crps", "coverage95"), strict=True):
            _draw_model(axes, results, model, score, dict(zip(datasets, at, strict=True)), look)
    for axes, score in zip(panels, ("RMSE", "CRPS"), strict=False):
        axes.axvline(1.0, color="0.3", ls="--", lw=1)
        title = f"{score} / best pseudo-targets"
        axes.set(title=title, xscale="log", xticks=[0.5, 0.7, 1.0, 1.5, 2.0, 3.0])
        axes.set_xticklabels(["0.5", "0.7", "1", "1.5", "2", "3"])
        axes.minorticks_off()
    panels[2].axvspan(*COVERED, color="0.85", zorder=0)
    panels[2].set(title="coverage of 95 % intervals", xlim=(0.0, 1.02))
    for axes in panels:
        axes.set_yticks(heights, datasets)
        for height in heights[:-1]:
            axes.axhline(height - 0.5, color="0.8", lw=0.8)
        axes.set_ylim(-0.55, len(datasets) - 0.45)
        axes.grid(axis="x", alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _draw_model(
    axes: Any, results: Results, model: str, score: str, heights: dict[str, float], look: Any
) -> None:
    """The mean of a score on every data set, over the best baseline's; coverage with its range."""
    at, means, ends = [], [], []
    for name, height in heights.items():
        scores = values(results.where(matching=name, model=model), score)
        if not len(scores):
            continue
        if score != "coverage95":
            scores = scores / min(values(each, score).mean() for each in _baselines(results, name))
        else:
            ends.append((height, scores.min(), scores.max()))
        at.append(height)
        means.append(scores.mean())
    for height, low, high in ends:
        axes.hlines(height, low, high, color=look["color"], lw=1, alpha=0.5)
    axes.plot(means, at, ls="", label=model, ms=6 if model == DEFAULT else 4.5, **look)
