"""Predictions of models of families: rates at points, sums and counts over new bags."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.inference.learn import Fitted
from deconditional.inference.posterior import Posterior
from deconditional.inference.rate_posterior import BagDraws, RatePosterior, bag_rates
from deconditional.models.checks import query_points
from deconditional.models.point_draws import own_values, point_draws
from deconditional.models.sources import amounts, with_task
from deconditional.observations.families import OVERDISPERSION, Family, Normal


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
        draws = observed(fitted, family, source, draws, which, amount, shares, seed, noise)
        return BagDraws(draws / amount if kind == "mean" else draws)
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
    Effects of points are in the rates already. `old` says which
    observations of the fit they are, if they are none that are new.
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
