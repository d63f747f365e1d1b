"""Predictions of models of families: rates at points, sums and counts over new bags, held out.

Points of new bags that were in observed ones have the effects of overdispersion that these
observations tell of; others have them as the prior says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from deconditional.bags import Bags
from deconditional.inference.laplace import JointProblem, settled, solution_of
from deconditional.inference.learn import Fitted, solved_at
from deconditional.inference.point_effects import point_effects
from deconditional.inference.posterior import Posterior
from deconditional.inference.rate_posterior import BagDraws, RatePosterior, bag_rates
from deconditional.inference.seen import Seen
from deconditional.models.checks import query_points
from deconditional.models.sources import amounts, with_task
from deconditional.observations.families import OVERDISPERSION, Family, Normal
from deconditional.observations.kinds import Matched

MOST_DRAWN = 2**27
"""Rates of points that are held: a GiB."""

BLOCK = 2**22
"""Rates of points whose effects are drawn at a time."""

HELD_OUT_DRAWS = 1_000
"""Draws of every observation that is held out."""

KEPT = -1
"""The fold of observations that are never held out."""


def asked_points(x: npt.ArrayLike, d: int, n_tasks: int | None, task: int | None) -> np.ndarray:
    """Query points of d inputs, the index of their target last where there are several."""
    _check_task(n_tasks, task)
    if n_tasks is None:
        return query_points(x, d)
    points = query_points(x, d - 1)
    return np.concatenate([points, np.full((len(points), 1), float(task or 0))], axis=1)


def asked_bags(bags: Bags, n_tasks: int | None, task: int | None) -> Bags:
    """New bags of one target."""
    _check_task(n_tasks, task)
    return bags if n_tasks is None else with_task(bags, task or 0)


def _check_task(n_tasks: int | None, task: int | None) -> None:
    if n_tasks is None and task is not None:
        raise ValueError("the model has one target; leave task out.")
    if n_tasks is not None and (task is None or not 0 <= task < n_tasks):
        raise ValueError(
            f"the model has {n_tasks} targets; say which with task=0 to {n_tasks - 1}."
        )


def rates_of(posterior: Posterior, families: tuple[Family, ...], source: int) -> Any:
    """The posterior on the scale of the rate of a source; f itself with an identity link."""
    family = _family(families, source)
    return posterior if family.link == "identity" else RatePosterior(posterior, family.g)


def _family(families: tuple[Family, ...], source: int) -> Family:
    """The family of a source."""
    if not 0 <= source < len(families):
        raise ValueError(f"source must be one of the {len(families)} of the fit, from 0.")
    return families[source]


def over_bags(
    fitted: Fitted,
    families: tuple[Family, ...],
    bags: Bags,
    *,
    source: int = 0,
    exposure: npt.ArrayLike | None = None,
    trials: npt.ArrayLike | None = None,
    kind: str | None = None,
    noise: bool = False,
    effects: bool = False,
    n_draws: int = 500,
    seed: int = 0,
) -> BagDraws:
    """Joint draws over new bags; :meth:`~deconditional.BaggGP.predict_bags` says what of."""
    family = _family(families, source)
    amount = amounts(family, exposure, trials, bags.exposure, bags.n_bags, "new bags")
    if amount is not None and not (np.isfinite(amount) & (amount > 0)).all():
        raise ValueError(f"{family.amount} of new bags must be positive.")
    kind = ("mean" if amount is None else "sum") if kind is None else kind
    if kind not in ("mean", "sum"):
        raise ValueError(f"kind must be 'mean' or 'sum', not {kind!r}.")
    if amount is None and (kind == "sum" or (noise and family.counts)):
        raise ValueError(
            f"the new bags have no {family.amount}, so only kind='mean' is known of them; give "
            f"{family.amount}=..."
        )
    if n_draws < 2:
        raise ValueError(f"n_draws must be at least 2, not {n_draws}.")
    amount = np.ones(bags.n_bags) if amount is None else amount
    if effects and not family.overdispersion:
        raise ValueError("there are no effects without overdispersion; leave effects=True out.")
    if family.overdispersion == "points" and (noise or effects):
        draws, which = point_draws(fitted, family, source, bags, n_draws, seed)
    else:
        draws, which = bag_rates(fitted.fields, family.g, bags, n_draws, seed)
    if noise or effects:
        shares = 1.0 / bags.effective_sizes
        seen = observed(fitted, family, source, draws, which, amount, shares, seed, noise)
        return BagDraws(seen / amount if kind == "mean" else seen, draws)
    return BagDraws(draws * amount if kind == "sum" else draws)


def observed(
    fitted: Fitted,
    family: Family,
    source: int,
    rates: np.ndarray,
    which: np.ndarray,
    amount: np.ndarray,
    shares: np.ndarray,
    seed: int,
    noise: bool,
    old: np.ndarray | None = None,
) -> np.ndarray:
    """Observations of rates, with the parameters of their draw and effects of their own.

    `shares` are those of :class:`~deconditional.inference.seen.Seen`. Without `noise`, their means.
    Effects of points are in the rates already. `old` says which observations of the fit they are,
    if they are none that are new.
    """
    seen = fitted.problem.sources[source]
    found = np.empty_like(rates)
    if isinstance(family, Normal) and not seen.learns_noise and old is None:
        raise ValueError(
            "the noise of new observations is known to you alone; add it to noise=False."
        )
    keys = jax.random.split(jax.random.key(seed), len(fitted.fields))
    for k in np.unique(which):
        rows = which == k
        own = own_values(fitted, family, seen, k)
        spread = own.pop(OVERDISPERSION, 0.0)
        spread = 0.0 if family.overdispersion == "points" else spread
        if isinstance(family, Normal):
            known = 0.0 if old is None else seen.known[old]
            fine = fitted.fields[k].fine_noise_variance * shares
            own = {"variance": known + own.get("noise_std", 0.0) ** 2 + fine}
        effect_key, key = jax.random.split(keys[k])
        eta = family.g.eta(jnp.asarray(rates[rows]))
        eta = eta + spread * jax.random.normal(effect_key, eta.shape)
        mean = amount * family.g.rate(eta)
        drawn = family.simulate(key, mean, jnp.asarray(amount), **own) if noise else mean
        found[rows] = np.asarray(drawn)
    return found


# --------------------------------------------------------------------------- effects of points


def own_values(fitted: Fitted, family: Family, seen: Seen, k: int) -> dict[str, Any]:
    """The parameters of the family of a source in one draw of the hyper-parameters."""
    values = fitted.problems[k].parameters.unpack(jnp.asarray(fitted.vectors[k]))
    own = () if isinstance(family, Normal) and not seen.learns_noise else family.own_parameters()
    return {p.name: values[f"{seen.prefix}{p.name}"] for p in own}


def point_draws(
    fitted: Fitted, family: Family, source: int, bags: Bags, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the mean rates of new bags, effects included, (n, N), and which field each is of."""
    seen = fitted.problem.sources[source]
    points, place, amount, own = _places(seen, bags)
    if n * len(points) > MOST_DRAWN:
        raise ValueError(
            f"{n} draws of {len(points)} points with effects of their own do not fit; ask for "
            f"n_draws={max(MOST_DRAWN // len(points), 2)}, or for parts of the bags at a time."
        )
    single = Bags.from_points(points, np.arange(len(points)))
    rates, which = bag_rates(fitted.fields, family.g, single, n, seed)
    weights = csr_array((bags.weights, (place, bags.bag)), shape=(len(points), bags.n_bags))
    draws, size = np.empty((n, bags.n_bags)), max(BLOCK // len(points), 1)
    for k in np.unique(which):
        values = own_values(fitted, family, seen, k)
        std = float(values.pop(OVERDISPERSION))
        slopes = _slopes(family, seen, values)
        rows = np.flatnonzero(which == k)
        for block in np.split(rows, range(size, len(rows), size)):
            factors = point_effects(
                rates[block], amount, own, std, slopes, (seed, 1, int(block[0]))
            )
            draws[block] = (rates[block] * factors) @ weights
    return draws, which


def _places(seen: Seen, bags: Bags) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points that matter, where those of new bags are, and amounts and observed bags of all.

    Observed bags matter if one of their points is in a new bag. Where they share points, or where
    observations see bags through mediators, effects are as the prior has them.
    """
    layout = seen.layout
    weights = np.asarray(layout.weights)
    kept = weights > 0
    old = np.asarray(layout.points)[kept]
    bag = np.repeat(np.asarray(layout.bag), layout.chunk)[kept]
    points, at = np.unique(np.concatenate([old, bags.points]), axis=0, return_inverse=True)
    at = at.ravel()
    before, place = at[: len(old)], at[len(old) :]
    own, amount = np.full(len(points), -1), np.zeros(len(points))
    if len(np.unique(before)) == len(before) and isinstance(seen.observation, Matched):
        own[before] = bag
        amount[before] = weights[kept] * np.asarray(seen.amount)[bag]
    return points, place, amount, own


def _slopes(
    family: Family, seen: Seen, values: dict[str, Any]
) -> Callable[[np.ndarray], tuple[Any, Any]]:
    """Slopes of the log likelihood of the observations by the logarithms of their means."""
    y, amount, counted = seen.y, seen.amount, seen.counted

    @jax.jit
    def slopes(log_mean: Any) -> tuple[Any, Any]:
        def log_likelihood(at: Any) -> Any:
            return jnp.sum(counted * family.log_density(y, jnp.exp(at), amount, **values))

        mean = jnp.exp(log_mean)
        information = family.information(mean, amount, **values) * mean**2
        return jax.grad(log_likelihood)(log_mean), counted * information

    return slopes


# --------------------------------------------------------------------------- held out


def held_out_draws(
    fitted: Fitted, families: tuple[Family, ...], bags: Bags, folds: np.ndarray, seed: int
) -> BagDraws:
    """Draws of every observation, noise included, from the posterior without its fold.

    Each fold is a solution of its own: those of its observations count for nothing in the
    likelihood, so that shapes stay and one compilation serves all folds. `bags` are those of all
    sources, one after another. What has the fold :data:`KEPT` is not predicted.
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
    values = np.zeros((HELD_OUT_DRAWS, len(folds)))
    for fold in np.setdiff1d(folds, [KEPT]):
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
            return settled(problem, vector, solution_of)[1:]
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
        rates, which = point_draws(fitted, family, k, bags, HELD_OUT_DRAWS, seed)
    else:
        rates, which = bag_rates(fitted.fields, family.g, bags, HELD_OUT_DRAWS, seed)
    if mixing[0] is not None:
        mixed = [np.asarray(each)[:, rows] for each in mixing]
        rates = np.stack([rate @ mixed[j] for rate, j in zip(rates, which, strict=True)])
    amount = np.asarray(seen.amount)[rows]
    how = amount, np.asarray(seen.shares)[rows], seed
    return observed(fitted, family, k, rates, which, *how, noise=True, old=rows)
