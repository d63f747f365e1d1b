"""Models of families compared with what a user has without them, on zones they have not seen.

A zone that is held out has its fine points and its people, and its count is predicted. The simple
answers are areal weighting, here one rate for all that is not hidden, and a Poisson regression on
means of the covariates; of normal observations, interpolation. Of several sources the zones of the
first are judged, and all sources are hidden where these are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional import models
from deconditional.fields.opponents import BILINEAR, REGRESSION
from deconditional.fields.problem import FitData
from deconditional.fields.validation import Comparison, Folds
from deconditional.scores import Counts, Draws

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DRAWS = 500
"""Of counts that a model predicts."""

FEW = 32
"""Points that stand for a zone in fits without others: five fits should not cost more than one."""

NOBODY = 1e-9
"""Share of the people of a zone that is hidden who stay."""

COLUMNS = ("rmse", "crps", "nll", "coverage95", "coverage50")
SIMPLE = {
    "areal weighting": lambda amounts, z, points: models.baselines.areal_weighting(amounts, z),
    "Poisson regression": lambda *given: models.baselines.poisson_regression(*given),
}


def compared_counts(
    learner: Any, models: Mapping[str, Any], data: Mapping[str, Any], refit: bool = False
) -> Comparison:
    """Fitted models beside simple answers, in blocks of zones; parameters held, or learnt anew."""
    folds: Folds = learner.folds
    first, problem = next(iter(data.values())), learner.problem
    fold, family = folds.fold[first.used], problem.pairing.question.family
    judged = np.flatnonzero((np.zeros(len(first.z)) if first.source is None else first.source) == 0)
    centre, scale = problem.target.centre, problem.target.scale
    z = centre + scale * first.z[judged]
    rows, pit = [], {}
    for name, model in models.items():
        began = time.perf_counter()
        known = None if refit else model.fitted_.values()[0]
        given = learner.recipe.model
        size = learner.recipe.points_per_bag
        recipe = replace(learner.recipe, held=known, points_per_bag=FEW if size == "auto" else size)
        if isinstance(given, str):
            recipe = replace(recipe, model=name)
        held = replace(learner, recipe=recipe)
        draws = _of_model(held, name, held.data(name), fold, judged)
        found: Any = Draws(centre + scale * draws)
        rows.append(_row(name, found, z, time.perf_counter() - began))
        pit[name] = found.pit(z).draw(learner.recipe.seed)
    named = problem.pairing.question.covariates
    for name in [*([REGRESSION] if named else []), BILINEAR] if family is None else ():
        tried = learner.interpolated(first.used[judged], folds, (), name)
        seconds = round(tried.seconds, 2)
        rows.append({"model": name, **tried.held_out.scores(scale), "seconds": seconds})
    for name, method in SIMPLE.items() if family is not None else ():
        began = time.perf_counter()
        found = _of_method(method, first.rows(judged), fold[judged])
        rows.append(_row(name, found, z, time.perf_counter() - began))
    best = min(rows[len(models) :], key=lambda row: row["crps"])["model"]
    chosen = min(rows[: len(models)], key=lambda row: row["crps"])["model"]
    judge = "rmse" if family is None else "crps"
    return Comparison(tuple(rows), chosen, folds.how, pit, opponent=best, judge=judge)


def _row(name: str, found: Any, z: Floats, seconds: float) -> dict[str, Any]:
    scores = found.score(z)
    scores["nll"] = scores.get("log_score")
    return {"model": name, **{c: scores[c] for c in COLUMNS}, "seconds": round(seconds, 2)}


def _of_model(learner: Any, name: str, data: FitData, fold: Ints, judged: Ints) -> Floats:
    """Draws of what is observed of zones that are judged, from fits to those of other folds."""
    found, seed = np.empty((DRAWS, len(data.z))), learner.recipe.seed
    known = data.noise[judged] if data.noise is not None else np.full(len(judged), np.nan)
    learnt = bool(np.isnan(known).any())
    for label in np.unique(fold[judged]):
        hidden = np.flatnonzero(fold == label)
        asked = np.intersect1d(hidden, judged)
        model = learner.fit(name, part := _without(data, hidden), part.z)
        options: dict[str, Any] = {"noise": learnt, "n_draws": DRAWS, "seed": seed}
        if data.amounts is not None and learner.problem.pairing.question.family is not None:
            options[data.amounts[0]] = data.amounts[1][asked]
        found[:, asked] = model.predict_bags(data.bags.select(asked), **options).draws
    if not learnt:
        found[:, judged] += known * np.random.default_rng(seed).normal(size=(DRAWS, len(judged)))
    return found[:, judged]


def _without(data: FitData, hidden: Ints) -> FitData:
    """The data without some zones, in arrays of one size where that can be: one compilation.

    Of next to no people there is next to no case, and that says nothing. Of a source of which
    nothing would be left, all is kept.
    """
    kinds = [told.question.family for told in data.told]
    counted = data.amounts is not None and data.amounts[0] == "exposure"
    if counted and all(kind is not None and kind.amount == "exposure" for kind in kinds):
        assert data.amounts is not None
        z, amounts = data.z.copy(), data.amounts[1].copy()
        z[hidden], amounts[hidden] = 0.0, NOBODY * amounts[hidden]
        return replace(data, z=z, amounts=("exposure", amounts))
    rest = np.setdiff1d(np.arange(len(data.z)), hidden)
    if data.source is not None:
        rest = np.union1d(rest, np.flatnonzero(~np.isin(data.source, data.source[rest])))
    return data.rows(rest)


def _of_method(method: Callable[..., Any], data: Any, fold: Ints) -> Counts:
    """Counts of every zone as a simple method expects them from the zones of the other folds."""
    means, dispersion = np.empty(len(data.z)), np.empty(len(data.z))
    bags = data.bags
    amount = np.ones(bags.n_bags) if data.amounts is None else data.amounts[1]
    entries = bags.weights * amount[bags.bag], (bags.bag, np.arange(bags.n_points))
    every = csr_array(entries, shape=(bags.n_bags, bags.n_points))
    for label in np.unique(fold):
        rest, asked = np.flatnonzero(fold != label), np.flatnonzero(fold == label)
        fitted = method(every[rest], data.z[rest], bags.points)
        means[asked], dispersion[asked] = every[asked] @ fitted.rate, fitted.dispersion
    return Counts(np.maximum(means, 1e-12)[None], dispersion[None])
