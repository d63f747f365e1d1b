"""Observations of a family as those of other folds predict them, hyper-parameters held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from deconditional.bags import Bags
from deconditional.inference.laplace import JointProblem, settle, solution_of
from deconditional.inference.learn import Fitted, solved_at
from deconditional.inference.rate_posterior import BagDraws, bag_rates
from deconditional.models.point_draws import point_draws
from deconditional.models.rates import observed
from deconditional.observations.families import Family

DRAWS = 1_000
"""Of every observation."""


def held_out_draws(
    fitted: Fitted, families: tuple[Family, ...], bags: Bags, folds: np.ndarray, seed: int
) -> BagDraws:
    """Draws of every observation, noise included, from the posterior without its fold.

    Each fold is a solution of its own: those of its observations count for nothing in the
    likelihood, so that shapes stay and one compilation serves all folds. `bags` are those of all
    sources, one after another.
    """
    sources = fitted.problem.sources
    if isinstance(fitted.problem, JointProblem):
        raise ValueError(
            "after method='nuts' held-out predictions would need a chain for every fold; fit with "
            "method='draws' or 'map'."
        )
    if any(seen.offset or seen.affine for seen in sources):
        raise ValueError(
            "held-out predictions are for sources without a bias; hold observations out of fit."
        )
    ends = np.cumsum([len(seen.y) for seen in sources])
    first = np.cumsum([0, *(seen.layout.n_bags for seen in sources)])
    values = np.empty((DRAWS, len(folds)))
    for fold in np.unique(folds):
        out = folds == fold
        rest = _without(fitted, np.split(out, ends[:-1]))
        for k, own in enumerate(np.split(np.arange(len(folds)), ends[:-1])):
            rows = np.flatnonzero(out[own])
            if rows.size:
                its = bags.select(np.arange(first[k], first[k + 1]))
                values[:, own[rows]] = _draws(rest, families[k], k, its, rows, seed)
    return BagDraws(values)


def _without(fitted: Fitted, out: list[np.ndarray]) -> Fitted:
    """The fit from all observations but some of every source."""

    def held(problem: Any) -> Any:
        pairs = zip(problem.sources, out, strict=True)
        return replace(problem, sources=tuple(seen.holding(~each) for seen, each in pairs))

    def solve(problem: Any, vector: Any) -> Any:
        if problem.variational:
            problem = settle(problem, vector, solution_of)
        return solution_of(problem, vector)

    every = {id(problem): held(problem) for problem in fitted.problems}
    owners = tuple(every[id(problem)] for problem in fitted.problems)
    return solved_at(fitted, owners, fitted.vectors, solve)


def _draws(
    fitted: Fitted, family: Family, k: int, bags: Bags, rows: np.ndarray, seed: int
) -> np.ndarray:
    """Draws of some observations of source k."""
    seen = fitted.problem.sources[k]
    draws = zip(fitted.problems, fitted.vectors, strict=True)
    mixing = [p.sources[k].weights(p.parameters.unpack(vector)) for p, vector in draws]
    bags = bags.select(rows) if mixing[0] is None else bags
    if family.overdispersion == "points":
        rates, which = point_draws(fitted, family, k, bags, DRAWS, seed)
    else:
        rates, which = bag_rates(fitted.fields, family.g, bags, DRAWS, seed)
    if mixing[0] is not None:
        mixed = [np.asarray(each)[:, rows] for each in mixing]
        rates = np.stack([rate @ mixed[j] for rate, j in zip(rates, which, strict=True)])
    amount = np.asarray(seen.amount)[rows]
    how = amount, np.asarray(seen.shares)[rows], seed
    return observed(fitted, family, k, rates, which, *how, noise=True, old=rows)
