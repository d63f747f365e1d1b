"""Where inducing points go."""

from __future__ import annotations

from typing import Any

import numpy as np

from deconditional.bags import Bags
from deconditional.bags.clusters import far_apart
from deconditional.models.checks import rows_of

DEFAULT_INDUCING = 400
MOST_FOR_KMEANS = 10_000
"""Points that k-means++ chooses from; of more, these are sampled first."""


def inducing_points(
    bags: Bags, how: Any, number: int | None, seed: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Inducing points in the units of the covariates, and notes for the report."""
    if not isinstance(how, str):
        return _given(how, number, bags.points.shape[1]), ()
    if how not in ("kmeans", "uniform"):
        raise ValueError(f"inducing must be 'kmeans', 'uniform' or an array, not {how!r}.")
    rng = np.random.default_rng(seed)
    points = bags.points
    if len(points) > MOST_FOR_KMEANS:
        points = points[rng.choice(len(points), MOST_FOR_KMEANS, replace=False)]
    distinct = np.unique(points, axis=0)
    wanted = DEFAULT_INDUCING if number is None else int(number)
    notes: tuple[str, ...] = ()
    if wanted > len(distinct):
        if number is not None:
            notes = (
                f"{wanted} inducing points were asked for, but the bags have only {len(distinct)} "
                "distinct points; all of them are used. Ask for fewer, or use the exact model.",
            )
        wanted = len(distinct)
    if wanted == len(distinct):
        return distinct, notes
    if how == "uniform":
        return distinct[np.sort(rng.choice(len(distinct), wanted, replace=False))], notes
    return spread_out(distinct, wanted, seed), notes


def spread_out(points: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Points far from one another, chosen by k-means++ in standardised units."""
    spread = points.std(0)
    scaled = (points - points.mean(0)) / np.where(spread > 0, spread, 1.0)
    return points[np.sort(far_apart(scaled, number, seed))]


def _given(how: Any, number: int | None, d: int) -> np.ndarray:
    needed = f"inducing points need the {d} covariates of the bags, one row each"
    points = rows_of(how, d, "inducing point", needed, "Leave it out.")
    if number is not None and number != len(points):
        raise ValueError(
            f"n_inducing is {number}, but {len(points)} inducing points were given; leave "
            "n_inducing out."
        )
    return points
