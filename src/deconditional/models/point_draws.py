"""Rates of new bags with the effects that overdispersion gives to fine points.

Points of the new bags that were in observed ones have effects as these observations say; others
have them as the prior says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from deconditional.bags import Bags
from deconditional.inference.learn import Fitted
from deconditional.inference.point_effects import point_effects
from deconditional.inference.rate_posterior import bag_rates
from deconditional.inference.seen import Seen
from deconditional.observations.families import OVERDISPERSION, Family, Normal
from deconditional.observations.kinds import Matched

MOST_DRAWN = 2**27
"""Rates of points that are held: a GiB."""

BLOCK = 2**22
"""Rates of points whose effects are drawn at a time."""


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
