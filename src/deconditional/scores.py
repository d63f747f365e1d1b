r"""How good a prediction is: errors of the mean, and scores of the whole distribution.

The functions take arrays of one shape and return one number, the average over all values. Missing
values are refused rather than skipped, so that two models are never compared on different points.
Predictive distributions are normal, or equal mixtures of normals as
:class:`~deconditional.Posterior` is when hyper-parameters were integrated over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

__all__ = [
    "bias",
    "coverage",
    "crps",
    "crps_gaussian",
    "crps_mixture",
    "mae",
    "nll",
    "pearson",
    "rmse",
    "score",
    "spearman",
    "ssim",
]

Floats = npt.NDArray[np.float64]

BLOCK = 4096
"""Points per block where all pairs of mixture components are needed: what bounds memory."""


class Predictive(Protocol):
    """What the scores ask of a posterior: :class:`~deconditional.Posterior` has it."""

    @property
    def component_means(self) -> np.ndarray:
        """Means of the components, (S, m)."""

    @property
    def component_variances(self) -> np.ndarray:
        """Variances of the components, (S, m)."""

    @property
    def mean(self) -> np.ndarray:
        """Mean of the mixture, (m,)."""

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Central interval, lower and upper ends."""


# ---------------------------------------------------------------------- errors of the mean


def rmse(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Root mean squared error.

    Examples
    --------
    >>> rmse([1.0, 2.0], [1.0, 4.0])
    1.4142
    """
    p, t = _matched(prediction=prediction, truth=truth)
    return float(np.sqrt(np.mean((p - t) ** 2)))


def mae(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Mean absolute error.

    Examples
    --------
    >>> mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    p, t = _matched(prediction=prediction, truth=truth)
    return float(np.mean(np.abs(p - t)))


def bias(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Mean of prediction minus truth: positive where the prediction is too high.

    Examples
    --------
    >>> bias([1.0, 2.0], [1.0, 4.0])
    -1.0
    """
    p, t = _matched(prediction=prediction, truth=truth)
    return float(np.mean(p - t))


def pearson(prediction: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Pearson's correlation; NaN where either side is constant.

    Examples
    --------
    >>> pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    1.0
    """
    p, t = _matched(prediction=prediction, truth=truth)
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
    from scipy.stats import rankdata

    p, t = _matched(prediction=prediction, truth=truth)
    return pearson(rankdata(p), rankdata(t))


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
    from scipy.ndimage import correlate1d

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


# ---------------------------------------------------------------------- scores of distributions


def crps_gaussian(mean: npt.ArrayLike, std: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    r"""Continuous ranked probability score of normal predictions.

    With :math:`w = (y - \mu)/\sigma` it is
    :math:`\sigma\,[w(2\Phi(w) - 1) + 2\varphi(w) - 1/\sqrt\pi]`, and :math:`|y - \mu|` where
    :math:`\sigma` is zero. Lower is better; the unit is that of the truth.

    Examples
    --------
    >>> crps_gaussian([0.0], [1.0], [0.0])
    0.2337
    >>> crps_gaussian([1.0], [0.0], [3.0])
    2.0
    """
    m, s, t = _matched(mean=mean, std=std, truth=truth)
    _not_negative("std", s)
    return crps_mixture(m[None], s[None] ** 2, t)


def crps_mixture(
    component_means: npt.ArrayLike, component_variances: npt.ArrayLike, truth: npt.ArrayLike
) -> float:
    r"""Continuous ranked probability score of equal mixtures of normals.

    It is :math:`E|X - y| - \frac12 E|X - X'|` with X and X' independent draws of the prediction,
    both in closed form, since a difference of normals is normal.

    Parameters
    ----------
    component_means, component_variances : (S, m)
        One row per component.
    truth : (m,)
        What came true.

    Examples
    --------
    Two components that agree are one:

    >>> crps_mixture([[0.0], [0.0]], [[1.0], [1.0]], [0.0])
    0.2337
    """
    means, variances, t = _mixture(component_means, component_variances, truth)
    total = sum(
        float(np.sum(_crps_at(means[:, rows], variances[:, rows], t[rows])))
        for rows in _blocks(len(t))
    )
    return total / len(t)


def crps(posterior: Predictive, truth: npt.ArrayLike) -> float:
    """Continuous ranked probability score of a posterior's marginals.

    Examples
    --------
    >>> from deconditional.inference.posterior import Gaussians
    >>> crps(Gaussians(np.zeros((1, 2)), np.ones((1, 2))), [0.0, 0.0])
    0.2337
    """
    return crps_mixture(posterior.component_means, posterior.component_variances, truth)


def coverage(lower: npt.ArrayLike, upper: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Share of the truth that lies within its interval, ends included.

    Examples
    --------
    >>> coverage([0.0, 0.0], [1.0, 1.0], [0.5, 2.0])
    0.5
    """
    low, high, t = _matched(lower=lower, upper=upper, truth=truth)
    if (low > high).any():
        raise ValueError("lower is above upper somewhere; give interval ends as (lower, upper).")
    return float(np.mean((low <= t) & (t <= high)))


def nll(posterior: Predictive, truth: npt.ArrayLike) -> float:
    """Mean negative log density of the truth under the posterior's marginals, in nats.

    Infinite where a prediction without variance misses the truth.

    Examples
    --------
    >>> from deconditional.inference.posterior import Gaussians
    >>> nll(Gaussians(np.zeros((1, 2)), np.ones((1, 2))), [0.0, 0.0])
    0.9189
    """
    means, variances, t = _mixture(posterior.component_means, posterior.component_variances, truth)
    floored = np.maximum(variances, np.finfo(float).tiny)
    log_density = -0.5 * (np.log(2 * np.pi * floored) + (t - means) ** 2 / floored)
    log_density[(variances == 0) & (means != t)] = -np.inf
    return float(-np.mean(logsumexp(log_density, axis=0) - np.log(len(means))))


def score(posterior: Predictive, truth: npt.ArrayLike) -> dict[str, float]:
    """The scores of a posterior against the truth at its query points.

    Returns
    -------
    dict
        ``rmse``, ``mae`` and ``bias`` of the mean; ``crps``, ``coverage50``, ``coverage95`` and
        ``nll`` of the marginal distributions.

    Examples
    --------
    >>> from deconditional.inference.posterior import Gaussians
    >>> posterior = Gaussians(np.zeros((1, 2)), np.ones((1, 2)))
    >>> {name: round(value, 2) for name, value in score(posterior, [0.0, 1.5]).items()}
    {'rmse': 1.06, 'mae': 0.75, 'bias': -0.75, 'crps': 0.61, 'coverage50': 0.5,
     'coverage95': 1.0, 'nll': 1.48}
    """
    return {
        "rmse": rmse(posterior.mean, truth),
        "mae": mae(posterior.mean, truth),
        "bias": bias(posterior.mean, truth),
        "crps": crps(posterior, truth),
        "coverage50": coverage(*posterior.interval(0.5), truth),
        "coverage95": coverage(*posterior.interval(0.95), truth),
        "nll": nll(posterior, truth),
    }


# ---------------------------------------------------------------------- parts


def _crps_at(means: Floats, variances: Floats, truth: Floats) -> Floats:
    """CRPS at every point of one block."""
    n = len(means)
    to_truth = _mean_absolute(means - truth, variances).mean(0)
    between = _mean_absolute(np.zeros_like(means), 2 * variances).sum(0)
    for s in range(n - 1):  # pairs of different components, each once
        rest = slice(s + 1, n)
        pair = _mean_absolute(means[rest] - means[s], variances[rest] + variances[s])
        between += 2 * pair.sum(0)
    return to_truth - 0.5 * between / n**2


def _mean_absolute(mean: Floats, variance: Floats) -> Floats:
    """E|X| of normal X: m(2Φ(m/s) - 1) + 2sφ(m/s), which is |m| without variance."""
    std = np.sqrt(variance)
    w = np.divide(mean, std, out=np.zeros_like(mean), where=std > 0)
    spread = mean * (2 * ndtr(w) - 1) + 2 * std * np.exp(-0.5 * w**2) / np.sqrt(2 * np.pi)
    return np.where(std > 0, spread, np.abs(mean))


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def _mixture(means: Any, variances: Any, truth: Any) -> tuple[Floats, Floats, Floats]:
    t = _finite("truth", truth).ravel()
    m = _finite("component_means", means)
    v = _finite("component_variances", variances)
    if m.ndim != 2 or m.shape != v.shape or m.shape[1] != len(t) or len(m) == 0:
        raise ValueError(
            f"component means and variances must have one row per component and one column for "
            f"each of the {len(t)} values of truth; their shapes are {m.shape} and {v.shape}."
        )
    _not_negative("component_variances", v)
    return m, v, t


def _matched(**arrays: npt.ArrayLike) -> tuple[Floats, ...]:
    """The arrays, flat, once they are finite and of one shape."""
    checked = {name: _finite(name, values) for name, values in arrays.items()}
    shapes = {values.shape for values in checked.values()}
    if len(shapes) > 1:
        given = ", ".join(f"{name} {values.shape}" for name, values in checked.items())
        raise ValueError(f"one value is needed for each value of truth; the shapes are {given}.")
    return tuple(values.ravel() for values in checked.values())


def _finite(name: str, values: npt.ArrayLike) -> Floats:
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


def _not_negative(name: str, values: Floats) -> None:
    if (values < 0).any():
        raise ValueError(f"{name} has a negative value ({values.min():g}); a spread has none.")
