r"""Normal distributions and equal mixtures of normals, one at every point, and their scores.

A mixture of S components at m points is two arrays (S, m), means and variances. Its distribution
function is the mean of those of its components,

.. math:: F(t) = \frac1S \sum_s \Phi\big((t - \mu_s) / \sigma_s\big),

its quantiles lie between those of its components and are found by Newton's method, and its
continuous ranked probability score is :math:`E|X - y| - \frac12 E|X - X'|` with independent draws X
and X', in closed form because a difference of normals is normal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr, ndtri

from deconditional.scores.means import Floats, bias, finite, mae, matched, not_negative, rmse

BLOCK = 4096
"""Points per block where all pairs of mixture components are needed: what bounds memory."""

LEAST_VARIANCE = 1e-300
"""What stands for no variance at all: a step, one half at the step itself."""

STEPS, HALVINGS = 10, 60
"""Steps to a quantile by Newton's method, then by bisection, more than a number has bits."""


class Distributions:
    """One distribution for every value of truth: what follows from means, variances and quantiles.

    A subclass has `mean`, `variance`, `cdf` and `quantile`.
    """

    mean: Any
    variance: Any

    def cdf(self, value: Any) -> Floats:
        """Probability of at most a value."""
        raise NotImplementedError

    def quantile(self, level: Any) -> Floats:
        """The value below which a truth lies with this probability."""
        raise NotImplementedError

    @property
    def std(self) -> Floats:
        """Standard deviations, (m,)."""
        return np.sqrt(self.variance)

    def exceedance(self, level: Any) -> Floats:
        """Probability of more than a level."""
        return 1.0 - self.cdf(level)

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Central interval of the given probability, as (lower, upper)."""
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval lies between 0 and 1, not {level!r}.")
        tail = 0.5 * (1.0 - level)
        return self.quantile(tail), self.quantile(1.0 - tail)


class Gaussians(Distributions):
    """Normal marginals, or an equal mixture of such, with the questions one asks of them.

    Attributes
    ----------
    component_means, component_variances : (S, m)
        One row per component; S = 1 unless hyper-parameters were integrated over.
    """

    def __init__(self, component_means: np.ndarray, component_variances: np.ndarray):
        self._moments = (component_means, component_variances)

    @property
    def component_means(self) -> np.ndarray:
        """Means of the components, (S, m)."""
        return self._moments[0]

    @property
    def component_variances(self) -> np.ndarray:
        """Variances of the components, (S, m)."""
        return self._moments[1]

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean."""
        return self.component_means.mean(0)

    @property
    def variance(self) -> np.ndarray:
        """Posterior variance, by the law of total variance."""
        return self.component_variances.mean(0) + self.component_means.var(0)

    def cdf(self, value: Any) -> np.ndarray:
        """Probability that the field is below a value, at every point."""
        return mixture_cdf(self.component_means, self.component_variances, value)

    def quantile(self, q: float | np.ndarray) -> np.ndarray:
        """Quantiles at every point: (m,) for one level, (levels, m) for several."""
        levels = np.atleast_1d(np.asarray(q, dtype=float))
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"quantile levels lie strictly between 0 and 1, not {q!r}.")
        values = np.stack([self._quantile(level) for level in levels])
        return values if np.ndim(q) else values[0]

    def _quantile(self, level: float) -> np.ndarray:
        return mixture_quantile(self.component_means, self.component_variances, level)


# ---------------------------------------------------------------------- the distributions


def mixture_cdf(
    component_means: np.ndarray, component_variances: np.ndarray, value: npt.ArrayLike
) -> Floats:
    """Probability that a mixture of normals is below a value, at every point.

    Examples
    --------
    >>> mixture_cdf(np.array([[0.0], [2.0]]), np.ones((2, 1)), 1.0)
    array([0.5])
    """
    spread = np.sqrt(np.maximum(component_variances, LEAST_VARIANCE))
    return ndtr((np.asarray(value) - component_means) / spread).mean(0)


def mixture_quantile(
    component_means: np.ndarray, component_variances: np.ndarray, level: float
) -> Floats:
    """The value that a mixture of normals is below with a probability, at every point.

    Examples
    --------
    >>> mixture_quantile(np.array([[0.0], [2.0]]), np.ones((2, 1)), 0.5)
    array([1.])
    """
    wanted = ndtri(level)
    candidates = component_means + wanted * np.sqrt(component_variances)
    if len(candidates) == 1:
        return candidates[0]
    low, high = candidates.min(0), candidates.max(0)
    close, value = 1e-12 * (high - low), 0.5 * (low + high)
    spread = np.sqrt(np.maximum(component_variances, LEAST_VARIANCE))
    for k in range(STEPS + HALVINGS):
        score = (value - component_means) / spread
        reached = ndtri(ndtr(score).mean(0))  # of one normal it would be linear in the value
        low, high = np.where(reached < wanted, value, low), np.where(reached < wanted, high, value)
        with np.errstate(all="ignore"):  # a step of the distribution, or nothing for miles
            slope = (np.exp(-0.5 * score**2) / spread).mean(0) / np.exp(-0.5 * reached**2)
            nearer = value - (reached - wanted) / slope
        inside = (low <= nearer) & (nearer <= high) & (k < STEPS)
        before, value = value, np.where(inside, nearer, 0.5 * (low + high))
        if (np.abs(value - before) <= close).all():
            break
    return value


# ---------------------------------------------------------------------- scores


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
    m, s, t = matched(mean=mean, std=std, truth=truth)
    not_negative("std", s)
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
    return float(np.mean(_crps(*_mixture(component_means, component_variances, truth))))


def crps(posterior: Gaussians, truth: npt.ArrayLike) -> float:
    """Continuous ranked probability score of a posterior's marginals.

    Examples
    --------
    >>> crps(Gaussians(np.zeros((1, 2)), np.ones((1, 2))), [0.0, 0.0])
    0.2337
    """
    return crps_mixture(posterior.component_means, posterior.component_variances, truth)


def crps_each(posterior: Gaussians, truth: npt.ArrayLike) -> Floats:
    """Continuous ranked probability score at every point.

    Examples
    --------
    >>> crps_each(Gaussians(np.zeros((1, 2)), np.ones((1, 2))), [0.0, 3.0])
    array([0.2337, 2.4366])
    """
    return _crps(*_mixture(posterior.component_means, posterior.component_variances, truth))


def pit(posterior: Gaussians, truth: npt.ArrayLike) -> Floats:
    """Probability that every value is below its truth: uniform where predictions are calibrated.

    Examples
    --------
    >>> pit(Gaussians(np.zeros((1, 2)), np.ones((1, 2))), [0.0, 1.96])
    array([0.5  , 0.975])
    """
    return mixture_cdf(*_mixture(posterior.component_means, posterior.component_variances, truth))


def coverage(lower: npt.ArrayLike, upper: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Share of the truth that lies within its interval, ends included.

    Examples
    --------
    >>> coverage([0.0, 0.0], [1.0, 1.0], [0.5, 2.0])
    0.5
    """
    low, high, t = matched(lower=lower, upper=upper, truth=truth)
    if (low > high).any():
        raise ValueError("lower is above upper somewhere; give interval ends as (lower, upper).")
    return float(np.mean((low <= t) & (t <= high)))


def nll(posterior: Gaussians, truth: npt.ArrayLike) -> float:
    """Mean negative log density of the truth under the posterior's marginals, in nats.

    Infinite where a prediction without variance misses the truth.

    Examples
    --------
    >>> nll(Gaussians(np.zeros((1, 2)), np.ones((1, 2))), [0.0, 0.0])
    0.9189
    """
    return float(-np.mean(log_densities(posterior, truth)))


def log_densities(posterior: Gaussians, truth: npt.ArrayLike) -> Floats:
    """Log density of every value under its marginal distribution, in nats.

    Examples
    --------
    >>> log_densities(Gaussians(np.zeros((1, 2)), np.ones((1, 2))), [0.0, 1.0])
    array([-0.9189, -1.4189])
    """
    means, variances, t = _mixture(posterior.component_means, posterior.component_variances, truth)
    floored = np.maximum(variances, np.finfo(float).tiny)
    log_density = -0.5 * (np.log(2 * np.pi * floored) + (t - means) ** 2 / floored)
    log_density[(variances == 0) & (means != t)] = -np.inf
    return np.asarray(logsumexp(log_density, axis=0) - np.log(len(means)))


def score(posterior: Gaussians, truth: npt.ArrayLike) -> dict[str, float]:
    """The scores of a posterior against the truth at its query points.

    Returns
    -------
    dict
        ``rmse``, ``mae`` and ``bias`` of the mean; ``crps``, ``coverage50``, ``coverage95`` and
        ``nll`` of the marginal distributions.

    Examples
    --------
    >>> posterior = Gaussians(np.zeros((1, 2)), np.ones((1, 2)))
    >>> {name: round(value, 2) for name, value in score(posterior, [0.0, 1.5]).items()}
    {'rmse': 1.06, 'mae': 0.75, 'bias': -0.75, 'crps': 0.61, 'coverage50': 0.5,
     'coverage95': 1.0, 'nll': 1.48}
    """
    scored = usual_scores(posterior.mean, posterior.interval, truth, crps(posterior, truth))
    return {**scored, "nll": nll(posterior, truth)}


def usual_scores(
    mean: npt.ArrayLike,
    interval: Callable[[float], tuple[Any, Any]],
    truth: npt.ArrayLike,
    crps: float,
) -> dict[str, float]:
    """Errors of a mean, the CRPS, and the coverage of central intervals, by name."""
    return {
        "rmse": rmse(mean, truth),
        "mae": mae(mean, truth),
        "bias": bias(mean, truth),
        "crps": crps,
        "coverage50": coverage(*interval(0.5), truth),
        "coverage95": coverage(*interval(0.95), truth),
    }


# ---------------------------------------------------------------------- parts


def _crps(means: Floats, variances: Floats, truth: Floats) -> Floats:
    """CRPS at every point, block by block."""
    blocks = (slice(start, start + BLOCK) for start in range(0, len(truth), BLOCK))
    return np.concatenate([_crps_at(means[:, b], variances[:, b], truth[b]) for b in blocks])


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


def _mixture(means: Any, variances: Any, truth: Any) -> tuple[Floats, Floats, Floats]:
    """A mixture and the truth, once they are finite and of fitting shapes."""
    t = finite("truth", truth).ravel()
    m = finite("component_means", means)
    v = finite("component_variances", variances)
    if m.ndim != 2 or m.shape != v.shape or m.shape[1] != len(t) or len(m) == 0:
        raise ValueError(
            f"component means and variances must have one row per component and one column for "
            f"each of the {len(t)} values of truth; their shapes are {m.shape} and {v.shape}."
        )
    not_negative("component_variances", v)
    return m, v, t
