"""Models of families compared with what a user has without them, on zones they have not seen.

A zone that is held out has its fine points and its people, and its count is predicted. The simple
answers are areal weighting, here one rate for all that is not hidden, and a Poisson regression on
means of the covariates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.fields.validation import Comparison, Folds
from deconditional.models.baselines import areal_weighting, poisson_regression
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


def compared_counts(
    learner: Any, models: Mapping[str, Any], data: Mapping[str, Any], refit: bool = False
) -> Comparison:
    """Fitted models beside simple answers, in blocks of zones; parameters held, or learnt anew."""
    folds: Folds = learner.folds
    first = next(iter(data.values()))
    fold, z = folds.fold[first.used], first.z
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
        found: Any = Draws(_of_model(held, name, held.data(name), fold))
        rows.append(_row(name, found, z, time.perf_counter() - began))
        pit[name] = found.pit(z).draw(learner.recipe.seed)
    simple = {"areal weighting": _common, "Poisson regression": _regression}
    if not first.bags.points.shape[1]:
        del simple["Poisson regression"]
    for name, method in simple.items():
        began = time.perf_counter()
        found = _of_method(method, first, fold)
        rows.append(_row(name, found, z, time.perf_counter() - began))
    best = min(rows[len(models) :], key=lambda row: row["crps"])["model"]
    chosen = min(rows[: len(models)], key=lambda row: row["crps"])["model"]
    return Comparison(tuple(rows), chosen, folds.how, pit, opponent=best, judge="crps")


def _row(name: str, found: Any, z: Floats, seconds: float) -> dict[str, Any]:
    scores = found.score(z)
    scores["nll"] = scores.get("log_score")
    return {"model": name, **{c: scores[c] for c in COLUMNS}, "seconds": round(seconds, 2)}


def _of_model(learner: Any, name: str, data: Any, fold: Ints) -> Floats:
    """Draws of the counts of every zone, from a fit to the zones of the other folds."""
    found = np.empty((DRAWS, len(data.z)))
    amounts = np.ones(len(data.z)) if data.amounts is None else data.amounts[1]
    for label in np.unique(fold):
        rest, asked = np.flatnonzero(fold != label), np.flatnonzero(fold == label)
        part = _without(data, rest, asked)
        model = learner.fit(name, part, part.z)
        options = {} if data.amounts is None else {data.amounts[0]: amounts[asked]}
        post = model.predict_bags(
            data.bags.select(asked), noise=True, n_draws=DRAWS, seed=learner.recipe.seed, **options
        )
        found[:, asked] = post.draws
    return found


def _without(data: Any, rest: Ints, asked: Ints) -> Any:
    """The data without some zones, in arrays of one size where that can be: one compilation.

    Of next to no people there is next to no case, and that says nothing.
    """
    if data.amounts is None or data.amounts[0] != "exposure":
        name, amounts = data.amounts or ("", None)
        return replace(
            data,
            bags=data.bags.select(rest),
            z=data.z[rest],
            used=data.used[rest],
            bag_of=data.bag_of[rest],
            amounts=None if amounts is None else (name, amounts[rest]),
        )
    z, amounts = data.z.copy(), data.amounts[1].copy()
    z[asked], amounts[asked] = 0.0, NOBODY * amounts[asked]
    return replace(data, z=z, amounts=("exposure", amounts))


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


def _common(amounts: Any, z: Floats, points: Floats) -> Any:
    return areal_weighting(amounts, z)


def _regression(amounts: Any, z: Floats, points: Floats) -> Any:
    return poisson_regression(amounts, z, points)
