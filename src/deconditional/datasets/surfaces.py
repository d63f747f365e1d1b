"""Curved surfaces cut into bags by height: the paper's swiss roll, and an S-curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deconditional.bags import Bags


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


def swiss_roll(
    n_points: int = 5000,
    n_bags: int = 50,
    matching: str = "direct",
    noise_std: float = 0.05,
    seed: int = 0,
) -> CutSurface:
    """Draw a swiss roll cut into bags by height, the paper's first experiment.

    The position is t = 1.5π(1 + 2u), the point (t cos t, 21 v, t sin t), both standardised. Levels
    of equal height along the last axis are the bags, so they differ in size. Directly matched data
    has points and observations of every level; indirectly matched data keeps the points of a
    random half of the levels and the observations of the other half.

    Examples
    --------
    >>> data = swiss_roll(matching="indirect", seed=3)
    >>> len(data.x), data.bags.n_bags, len(data.z)
    (5000, 25, 25)
    >>> bool(set(data.bags.ids) & set(data.observed.tolist()))
    False
    """

    def surface(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        t = 1.5 * np.pi * (1.0 + 2.0 * u)
        return t, (t * np.cos(t), 21.0 * v, t * np.sin(t))

    return _cut(surface, n_points, n_bags, matching, noise_std, seed)


def s_curve(
    n_points: int = 5000,
    n_bags: int = 50,
    matching: str = "direct",
    noise_std: float = 0.05,
    seed: int = 0,
) -> CutSurface:
    """Draw an S-curve cut into bags by height.

    The position t is uniform between -3π/2 and 3π/2, the point (sin t, 2v, sign(t) (cos t - 1)).
    Bags and matching are those of :func:`swiss_roll`. A level meets the curve once or twice, where
    the roll meets it up to six times.

    Examples
    --------
    >>> data = s_curve(n_points=500, n_bags=20, matching="indirect")
    >>> data.bags.n_bags, len(data.z), data.observed_bags.n_bags
    (10, 10, 10)
    """

    def surface(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        t = 3.0 * np.pi * (u - 0.5)
        return t, (np.sin(t), 2.0 * v, np.sign(t) * (np.cos(t) - 1.0))

    return _cut(surface, n_points, n_bags, matching, noise_std, seed)


def _cut(
    surface: Callable[..., tuple[np.ndarray, tuple[np.ndarray, ...]]],
    n_points: int,
    n_bags: int,
    matching: str,
    noise_std: float,
    seed: int,
) -> CutSurface:
    """A standardised surface, cut into levels of equal height along its last axis.

    `surface` gives positions and points from two shares, one along the surface and one across.
    """
    if matching not in ("direct", "indirect"):
        raise ValueError(f"matching must be 'direct' or 'indirect', not {matching!r}.")
    if n_bags < 2 or n_points < n_bags:
        raise ValueError("a surface needs at least two bags and a point for each.")
    rng = np.random.default_rng(seed)
    position, axes = surface(rng.uniform(size=n_points), rng.uniform(size=n_points))
    points = np.stack(axes, axis=1)
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
