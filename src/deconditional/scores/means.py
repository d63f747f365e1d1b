"""How far a mean is from the truth: errors, correlations, and the likeness of two maps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.ndimage import correlate1d

Floats = npt.NDArray[np.float64]


def matched(**arrays: npt.ArrayLike) -> tuple[Floats, ...]:
    """The arrays, flat, once they are finite and of one shape."""
    checked = {name: finite(name, values) for name, values in arrays.items()}
    shapes = {values.shape for values in checked.values()}
    if len(shapes) > 1:
        given = ", ".join(f"{name} {values.shape}" for name, values in checked.items())
        raise ValueError(f"one value is needed for each value of truth; the shapes are {given}.")
    return tuple(values.ravel() for values in checked.values())


def finite(name: str, values: npt.ArrayLike) -> Floats:
    """An array of numbers, once there are some and all are finite."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers.") from None
    if array.size == 0:
        raise ValueError(f"{name} is empty: there is nothing to score.")
    bad = ~np.isfinite(array)
    if bad.any():
        raise ValueError(
            f"{name} has {int(bad.sum())} missing or infinite value(s) of {array.size}, the first "
            f"at position {int(np.argmax(bad.ravel()))}. Drop these points from every argument."
        )
    return array


def not_negative(name: str, values: Floats) -> None:
    """Raise where a spread is negative."""
    if (values < 0).any():
        raise ValueError(f"{name} has a negative value ({values.min():g}); a spread has none.")


def rmse(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Root mean squared error.

    Examples
    --------
    >>> rmse([1.0, 2.0], [1.0, 4.0])
    1.4142
    """
    p, t = matched(prediction=prediction, truth=truth)
    return float(np.sqrt(np.mean((p - t) ** 2)))


def mae(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Mean absolute error.

    Examples
    --------
    >>> mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    p, t = matched(prediction=prediction, truth=truth)
    return float(np.mean(np.abs(p - t)))


def bias(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Mean of prediction minus truth: positive where the prediction is too high.

    Examples
    --------
    >>> bias([1.0, 2.0], [1.0, 4.0])
    -1.0
    """
    p, t = matched(prediction=prediction, truth=truth)
    return float(np.mean(p - t))


def pearson(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Pearson's correlation; NaN where either side is constant.

    Examples
    --------
    >>> pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    1.0
    """
    p, t = matched(prediction=prediction, truth=truth)
    p, t = p - p.mean(), t - t.mean()
    scale = np.linalg.norm(p) * np.linalg.norm(t)
    return float(p @ t / scale) if scale > 0 else float("nan")


def spearman(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; NaN where a side is constant.

    Examples
    --------
    >>> spearman([1.0, 2.0, 3.0], [0.0, 1.0, 100.0])
    1.0
    """
    p, t = matched(prediction=prediction, truth=truth)
    return pearson(_ranks(p), _ranks(t))


def ssim(prediction: npt.ArrayLike, truth: npt.ArrayLike, data_range: float | None = None) -> float:
    r"""Structural similarity of two maps (Wang, Bovik, Sheikh and Simoncelli, 2004).

    The mean over windows of

    .. math:: \frac{(2 \mu_p \mu_t + C_1)(2 \sigma_{pt} + C_2)}
        {(\mu_p^2 + \mu_t^2 + C_1)(\sigma_p^2 + \sigma_t^2 + C_2)},

    with moments under Gaussian weights of standard deviation 1.5 cells, cut at 3.5 standard
    deviations, :math:`C_1 = (0.01 R)^2` and :math:`C_2 = (0.03 R)^2`. Windows that reach past the
    edge, or over a cell that is NaN in either map, do not count.

    Parameters
    ----------
    prediction, truth : (rows, columns)
        The maps.
    data_range
        :math:`R`; left out, the range of the truth.

    Examples
    --------
    >>> truth = np.random.default_rng(0).normal(size=(20, 30))
    >>> ssim(truth, truth), ssim(truth + 1.0, truth) < ssim(truth + 0.1, truth)
    (1.0, True)
    """
    p, t = np.asarray(prediction, dtype=float), np.asarray(truth, dtype=float)
    if p.ndim != 2 or p.shape != t.shape:
        raise ValueError(f"two maps of one shape are needed; the shapes are {p.shape}, {t.shape}.")
    radius = 5
    if min(p.shape) <= 2 * radius:
        raise ValueError(f"maps need more than {2 * radius} cells each way; this is {p.shape}.")
    known = np.isfinite(p) & np.isfinite(t)
    if not known.any():
        raise ValueError("the maps have no cell in common that is known in both.")
    span = float(np.ptp(t[known])) if data_range is None else data_range
    if not 0 < span < np.inf:
        raise ValueError(f"data_range must be positive; it is {span!r}.")
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / 1.5) ** 2)
    weights /= weights.sum()

    def windowed(values: Floats) -> Floats:
        return correlate1d(correlate1d(values, weights, axis=0), weights, axis=1)

    # Moments about a common level: squares of temperatures in kelvin would cost digits.
    level = t[known].mean()
    p0, t0 = (np.where(known, values - level, 0.0) for values in (p, t))
    whole = windowed((~known).astype(float)) == 0
    whole[:radius] = whole[-radius:] = False
    whole[:, :radius] = whole[:, -radius:] = False
    if not whole.any():
        raise ValueError("no window of 11 x 11 cells is free of missing values.")
    mp, mt = windowed(p0), windowed(t0)
    vp, vt, cov = (
        windowed(a * b) - ma * mb
        for a, b, ma, mb in ((p0, p0, mp, mp), (t0, t0, mt, mt), (p0, t0, mp, mt))
    )
    mp, mt = mp + level, mt + level
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    index = (2 * mp * mt + c1) * (2 * cov + c2) / ((mp**2 + mt**2 + c1) * (vp + vt + c2))
    return float(index[whole].mean())


def _ranks(values: Floats) -> Floats:
    """Ranks from 1 up; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - 0.5 * (counts - 1))[which]
