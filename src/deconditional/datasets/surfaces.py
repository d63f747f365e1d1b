"""Curved surfaces cut into bags by height: what the swiss roll and the S-curve share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deconditional.bags import Bags

__all__ = ["CutSurface", "check_cut", "cut"]


@dataclass(frozen=True)
class CutSurface:
    """Points of a surface, their bags, and the coarse observations.

    Attributes
    ----------
    x : (n, 3)
        Standardised points; the last axis is the height that cuts the bags.
    f : (n,)
        The truth: standardised position along the surface.
    bag_of : (n,)
        The height level of every point, among all levels.
    bags
        D1: the bags that keep their points, with mediator y (the mid-height of the level).
    mediator : (M, 1)
        The mediators of the observations.
    z : (M,)
        D2: noisy means of f over the observed bags.
    observed : (M,)
        The level behind each observation.
    observed_bags
        The bags of these levels, which no model of unmatched data is shown.
    matching
        ``"direct"`` or ``"indirect"``.
    """

    x: np.ndarray
    f: np.ndarray
    bag_of: np.ndarray
    bags: Bags
    mediator: np.ndarray
    z: np.ndarray
    observed: np.ndarray
    observed_bags: Bags
    matching: str


def check_cut(n_points: int, n_bags: int, matching: str) -> None:
    """Raise where a surface cannot be cut so."""
    if matching not in ("direct", "indirect"):
        raise ValueError(f"matching must be 'direct' or 'indirect', not {matching!r}.")
    if n_bags < 2 or n_points < n_bags:
        raise ValueError("a surface needs at least two bags and a point for each.")


def cut(
    points: np.ndarray,
    position: np.ndarray,
    n_bags: int,
    matching: str,
    noise_std: float,
    rng: np.random.Generator,
) -> CutSurface:
    """Standardise a surface and cut it into levels of equal height along its last axis."""
    x = (points - points.mean(0)) / points.std(0)
    f = (position - position.mean()) / position.std()
    height = x[:, 2]
    edges = np.linspace(height.min(), height.max(), n_bags + 1)
    level = np.clip(np.searchsorted(edges, height, side="right") - 1, 0, n_bags - 1)
    middle = 0.5 * (edges[:-1] + edges[1:])
    counts = np.bincount(level, minlength=n_bags)
    if not counts.all():
        raise ValueError(
            f"level {int(np.argmin(counts))} of the surface has no point; use fewer bags or more "
            "points."
        )
    means = np.bincount(level, weights=f, minlength=n_bags) / counts
    z = means + noise_std * rng.standard_normal(n_bags)
    order = rng.permutation(n_bags)
    if matching == "direct":
        kept, observed = np.arange(n_bags), np.arange(n_bags)
    else:
        half = n_bags // 2
        kept, observed = np.sort(order[:half]), np.sort(order[half:])
    everything = Bags.from_points(x, level, mediator=middle)
    return CutSurface(
        x=x,
        f=f,
        bag_of=level,
        bags=everything.select(kept),
        mediator=middle[observed, None],
        z=z[observed],
        observed=observed,
        observed_bags=everything.select(observed),
        matching=matching,
    )
