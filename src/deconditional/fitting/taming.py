"""Losses as a line search can use them."""

from __future__ import annotations

import numpy as np

FAR = 1e4
"""Nats above the start from which a loss grows like its logarithm."""


def tamed(loss: float, gradient: np.ndarray, start: float) -> tuple[float, np.ndarray]:
    """A loss and its gradient, no more absurd than a line search can use.

    The first step of L-BFGS-B goes as far as the gradient, or to the bounds. After a loss of 1e90
    there the step that is interpolated is none, and the search ends where it began.

    Examples
    --------
    >>> tamed(5.0, np.array([1.0]), 2.0), round(tamed(1e90, np.array([1.0]), 2.0)[0])
    ((5.0, array([1.])), 1990225)
    """
    rise = loss - start
    if not np.isfinite(start) or rise <= FAR:
        return loss, gradient
    return start + FAR * (1.0 + float(np.log(rise / FAR))), gradient * (FAR / rise)
