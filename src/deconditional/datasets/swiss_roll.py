"""The swiss roll cut into bags by height, the paper's first experiment."""

from __future__ import annotations

import numpy as np

from deconditional.datasets.surfaces import CutSurface, check_cut, cut

__all__ = ["swiss_roll"]


def swiss_roll(
    n_points: int = 5000,
    n_bags: int = 50,
    matching: str = "direct",
    noise_std: float = 0.05,
    seed: int = 0,
) -> CutSurface:
    """Draw a swiss roll.

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
    check_cut(n_points, n_bags, matching)
    rng = np.random.default_rng(seed)
    t = 1.5 * np.pi * (1.0 + 2.0 * rng.uniform(size=n_points))
    points = np.stack([t * np.cos(t), 21.0 * rng.uniform(size=n_points), t * np.sin(t)], axis=1)
    return cut(points, t, n_bags, matching, noise_std, rng)
