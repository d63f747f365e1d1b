"""The S-curve cut into bags by height."""

from __future__ import annotations

import numpy as np

from deconditional.datasets.surfaces import CutSurface, check_cut, cut

__all__ = ["s_curve"]


def s_curve(
    n_points: int = 5000,
    n_bags: int = 50,
    matching: str = "direct",
    noise_std: float = 0.05,
    seed: int = 0,
) -> CutSurface:
    """Draw an S-curve.

    The position t is uniform between -3π/2 and 3π/2, the point (sin t, 2v, sign(t) (cos t - 1)).
    Bags and matching are those of :func:`swiss_roll`. A level meets the curve once or twice, where
    the roll meets it up to six times.

    Examples
    --------
    >>> data = s_curve(n_points=500, n_bags=20, matching="indirect")
    >>> data.bags.n_bags, len(data.z), data.observed_bags.n_bags
    (10, 10, 10)
    """
    check_cut(n_points, n_bags, matching)
    rng = np.random.default_rng(seed)
    t = 3.0 * np.pi * (rng.uniform(size=n_points) - 0.5)
    across = 2.0 * rng.uniform(size=n_points)
    points = np.stack([np.sin(t), across, np.sign(t) * (np.cos(t) - 1.0)], axis=1)
    return cut(points, t, n_bags, matching, noise_std, rng)
