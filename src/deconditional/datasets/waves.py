"""Random smooth functions: sums of waves."""

from __future__ import annotations

import numpy as np


def smooth(rng: np.random.Generator, points: np.ndarray, length: float | np.ndarray) -> np.ndarray:
    """A random field of unit variance with a Gaussian covariance, roughly.

    Parameters
    ----------
    rng
        Source of the 60 waves that are added up.
    points : (..., d)
        Where the field is wanted.
    length
        Length scale, for all coordinates or for each.

    Examples
    --------
    >>> at = np.linspace(0.0, 1.0, 5)[:, None]
    >>> coarse = smooth(np.random.default_rng(0), at[::2], 0.3)
    >>> bool(np.allclose(coarse, smooth(np.random.default_rng(0), at, 0.3)[::2]))
    True
    """
    out = np.zeros(points.shape[:-1])
    waves = 60
    for _ in range(waves):
        wave = rng.standard_normal(points.shape[-1]) / length
        out += np.cos(points @ wave + rng.uniform(0, 2 * np.pi))
    return out * np.sqrt(2.0 / waves)
