r"""Counts and other predictions with atoms: mixtures of count distributions, draws, their scores.

A prediction of a count is a mixture over S draws of its mean, each with a Poisson or a negative
binomial distribution. Its continuous ranked probability score is a sum,

.. math:: \sum_{k=0}^{\infty} \big(F(k) - 1[k \ge y]\big)^2 ,

taken over the k at which F is neither 0 nor 1; what lies between these and y adds one each. F is
found once for each of these k, from the ratios of the probabilities of k + 1 and of k,

.. math:: \frac{\mu (1 + \alpha k)}{(k + 1)(1 + \alpha\mu)} ,

or, where there are thousands, for some of them, between which it is linear.

What can only be simulated is :class:`Draws`. Their CRPS is unbiased: with few draws it is that of
the distribution they come from, on average, and not that of a coarser one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaln, gammaincc, gammaln, logsumexp, xlogy

from deconditional.scores.calibration import Ends, pit_coverage
from deconditional.scores.distributions import Distributions, usual_scores
from deconditional.scores.means import Floats, finite, matched, not_negative

NODES = 3000
"""Counts at which a distribution function is found at most: to 1e-4 of a score beyond as many."""

TAIL = 1e-9
"""Probability on either side of the counts at which it is found."""


def dawid_sebastiani(mean: npt.ArrayLike, variance: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    r"""Score of Dawid and Sebastiani: the mean of :math:`(y - \mu)^2 / \sigma^2 + \log \sigma^2`.

    It asks for no more than two moments, and is least, on average, at the true ones.

    Examples
    --------
    >>> dawid_sebastiani([2.0, 2.0], [1.0, 4.0], [3.0, 2.0])
    1.1931
    """
    m, v, t = matched(mean=mean, variance=variance, truth=truth)
    not_negative("variance", v)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where((v == 0) & (m == t), -np.inf, (t - m) ** 2 / v + np.log(v))
    return float(np.mean(np.where((v == 0) & (m != t), np.inf, each)))


class Atoms(Distributions):
    """Predictions whose distribution functions jump; they have `below` and `crps_each` too."""

    def crps(self: Any, truth: npt.ArrayLike) -> float:
        """Continuous ranked probability score, the mean over predictions."""
        return float(np.mean(self.crps_each(truth)))

    def pit(self: Any, truth: npt.ArrayLike) -> Ends:
        """Probabilities of less than the truth, and of no more: the ends of its PIT values."""
        t = self._truth(truth)
        return Ends(self.below(t), self.cdf(t))

    def score(self: Any, truth: npt.ArrayLike) -> dict[str, float]:
        """The scores against the truth.

        Returns
        -------
        dict
            ``rmse``, ``mae`` and ``bias`` of the mean; ``crps``, ``coverage50``, ``coverage95``
            and ``dawid_sebastiani``; ``pit95``, the coverage of 95 % were ties broken at random.
        """
        t = self._truth(truth)
        return {
            **usual_scores(self.mean, self.interval, t, self.crps(t)),
            "pit95": float(pit_coverage(self.pit(t), 0.95)[0]),
            "dawid_sebastiani": dawid_sebastiani(self.mean, self.variance, t),
        }

    def _truth(self: Any, truth: npt.ArrayLike) -> Floats:
        """The truth, once it has a value for every prediction."""
        t = finite("truth", truth).ravel()
        if len(t) != len(self.mean):
            raise ValueError(f"there are {len(self.mean)} predictions and {len(t)} true values.")
        return t


@dataclass(frozen=True)
class Counts(Atoms):
    r"""Equal mixtures of Poisson or negative binomial distributions, one for every count.

    Parameters
    ----------
    means : (S, m)
        Mean of every component; (m,) for one component.
    dispersion : scalar, (S, 1) or (S, m)
        :math:`\alpha` of the variance :math:`\mu + \alpha\mu^2`; 0, the default, is Poisson.

    Examples
    --------
    >>> counts = Counts([2.0, 5.0], dispersion=0.5)
    >>> counts.mean, counts.variance, counts.interval(0.9)
    (array([2., 5.]), array([ 4. , 17.5]), (array([0., 0.]), array([ 6., 13.])))
    >>> Counts([2.0]).log_score([0])
    2.0
    """

    means: Floats
    dispersion: Floats | float = 0.0

    def __post_init__(self) -> None:
        means = np.atleast_2d(finite("means", self.means))
        dispersion = finite("dispersion", self.dispersion)
        not_negative("means", means)
        not_negative("dispersion", dispersion)
        if means.ndim != 2:
            raise ValueError(f"means must be (S, m), a row per component; they are {means.shape}.")
        try:
            full = np.broadcast_to(dispersion, means.shape)
        except ValueError:
            raise ValueError(
                f"dispersion {dispersion.shape} does not fit means {means.shape}: give a number, "
                "one per component as (S, 1), or one for each."
            ) from None
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "dispersion", full)

    @property
    def mean(self) -> Floats:
        """Means, (m,)."""
        return self.means.mean(0)

    @property
    def variance(self) -> Floats:
        """Variances, (m,): within components and between their means."""
        return (self.means + self.dispersion * self.means**2).mean(0) + self.means.var(0)

    def log_probability(self, count: npt.ArrayLike) -> Floats:
        """Log probabilities of counts."""
        each = _log_pmf(self._truth(count), self.means, self.dispersion)
        return logsumexp(each, axis=0) - np.log(len(self.means))

    def cdf(self, value: npt.ArrayLike) -> Floats:
        """Probability of at most a value."""
        return _cdf(np.floor(value), self.means, self.dispersion).mean(0)

    def below(self, value: npt.ArrayLike) -> Floats:
        """Probability of less than a value."""
        return self.cdf(np.ceil(value) - 1.0)

    def quantile(self, level: float) -> Floats:
        """The least count that is exceeded with a probability of at most one less `level`."""
        if not 0 <= level < 1:
            raise ValueError(f"the level of a quantile must be in [0, 1); it is {level!r}.")
        return np.array(
            [k[min(int(np.searchsorted(f, level)), len(k) - 1)] for k, f in self._tables]
        )

    def sample(self, n: int, seed: int = 0) -> Floats:
        """Counts drawn from the mixtures, (n, m), components in turn."""
        rng = np.random.default_rng(seed)
        row = rng.permutation(np.arange(n) % len(self.means))
        mean, dispersion = self.means[row], np.asarray(self.dispersion)[row]
        shape = 1.0 / np.maximum(dispersion, 1e-300)
        varied = rng.gamma(shape) / shape if (dispersion > 0).any() else 1.0
        return rng.poisson(mean * np.where(dispersion > 0, varied, 1.0)).astype(float)

    def log_score(self, truth: npt.ArrayLike) -> float:
        """Mean negative log probability of the truth, in nats.

        Examples
        --------
        >>> Counts([[1.0], [3.0]]).log_score([0])  # -log((exp(-1) + exp(-3)) / 2)
        1.5663
        """
        return float(-np.mean(self.log_probability(truth)))

    def crps_each(self, truth: npt.ArrayLike) -> Floats:
        """Continuous ranked probability score of every count.

        Examples
        --------
        >>> Counts([0.0, 2.0]).crps_each([3, 2])
        array([3.    , 0.3112])
        """
        t = self._truth(truth)
        return np.array([_crps_of(*table, y) for table, y in zip(self._tables, t, strict=True)])

    def score(self, truth: npt.ArrayLike) -> dict[str, float]:
        """The scores against the truth: those of :class:`Atoms`, and ``log_score``."""
        return {**super().score(truth), "log_score": self.log_score(truth)}

    @cached_property
    def _tables(self) -> list[tuple[Floats, Floats]]:
        """Counts and the probability of at most each, for every prediction."""
        # No component is below the least mean, or above the largest, both at the most dispersion.
        widest, mean = np.max(self.dispersion, axis=0), self.means
        low = _quantile(TAIL, mean.min(0), widest)
        high = _quantile(1.0 - TAIL, mean.max(0), widest)
        return [self._table(*each) for each in zip(range(len(low)), low, high, strict=True)]

    def _table(self, j: int, low: float, high: float) -> tuple[Floats, Floats]:
        mean, a = self.means[:, j, None], np.asarray(self.dispersion)[:, j, None]
        if high - low >= NODES:
            k = np.unique(np.round(np.linspace(low, high, NODES)))
            return k, _cdf(k, mean, a).mean(0)
        k = np.arange(low, high + 1.0)
        with np.errstate(divide="ignore"):
            ratios = np.log(mean * (1.0 + a * k[:-1])) - np.log((k[:-1] + 1.0) * (1.0 + a * mean))
        logs = np.concatenate([_log_pmf(k[:1], mean, a), ratios], axis=1).cumsum(1)
        return k, _cdf(k[:1] - 1.0, mean, a).mean() + np.exp(logs).mean(0).cumsum()

    def _truth(self, truth: npt.ArrayLike) -> Floats:
        t = super()._truth(truth)
        wrong = (t < 0) | (t != np.round(t))
        if wrong.any():
            raise ValueError(f"counts are whole and not negative; there is {t[wrong][0]:g}.")
        return t


@dataclass(frozen=True)
class Draws(Atoms):
    """Predictions known by draws alone: counts of any family, rain with its dry hours.

    Parameters
    ----------
    values : (S, m)
        A row per draw.

    Examples
    --------
    >>> rain = Draws([[0.0, 1.0], [0.0, 3.0], [2.0, 5.0]])
    >>> rain.cdf(1.0), rain.crps_each([3.0, 9.0])
    (array([0.6667, 0.3333]), array([1.6667, 4.6667]))
    """

    values: Floats

    def __post_init__(self) -> None:
        values = finite("values", self.values)
        if values.ndim != 2:
            raise ValueError(f"draws must be (S, m), a row per draw; they are {values.shape}.")
        object.__setattr__(self, "values", values)

    @cached_property
    def ordered(self) -> Floats:
        """The draws of every value in ascending order."""
        return np.sort(self.values, axis=0)

    @property
    def mean(self) -> Floats:
        """Means, (m,)."""
        return self.values.mean(0)

    @property
    def variance(self) -> Floats:
        """Variances, (m,)."""
        return self.values.var(0, ddof=1) if len(self.values) > 1 else np.zeros_like(self.mean)

    def cdf(self, value: npt.ArrayLike) -> Floats:
        """Share of draws of at most a value."""
        return (self.values <= np.asarray(value)).mean(0)

    def below(self, value: npt.ArrayLike) -> Floats:
        """Share of draws of less than a value."""
        return (self.values < np.asarray(value)).mean(0)

    def quantile(self, level: float | Floats) -> Floats:
        """The least draw that is exceeded by a share of at most one less `level`, or several."""
        return np.quantile(self.ordered, level, axis=0, method="inverted_cdf")

    def crps_each(self, truth: npt.ArrayLike) -> Floats:
        """Continuous ranked probability score of every value, without bias from few draws."""
        t, n = self._truth(truth), len(self.values)
        to_truth = np.abs(self.values - t).mean(0)
        if n == 1:
            return to_truth
        weight = 2.0 * np.arange(n) - (n - 1.0)  # each ordered draw: those below less those above
        return to_truth - weight @ self.ordered / (n * (n - 1.0))


def _crps_of(k: Floats, f: Floats, y: float) -> float:
    """CRPS from the distribution function f at counts k, linear between them."""
    middle = float(np.clip(y, k[0], k[-1]))
    at = np.interp(middle, k, f)
    lower, upper = k < middle, k > middle
    total = float(abs(y - middle))
    for nodes, gaps in (
        (np.append(k[lower], middle), np.append(f[lower], at)),
        (np.append(middle, k[upper]), 1.0 - np.append(at, f[upper])),
    ):
        step, square = np.diff(nodes), gaps**2
        # The counts from a node up to the next, that one left out, with a linear summand.
        total += float(step @ square[:-1] + 0.5 * (step - 1.0) @ np.diff(square))
    return total


def _quantile(level: float, mean: Floats, dispersion: Floats) -> Floats:
    """Quantiles of counts without mixing, by bisection."""
    low, high = np.full(len(mean), -1.0), np.ceil(2.0 * mean + 8.0)
    while (short := _cdf(high, mean, dispersion) < level).any():
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    while (high - low > 1).any():
        middle = np.floor(0.5 * (low + high))
        reached = _cdf(middle, mean, dispersion) >= level
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high


def _log_pmf(k: Floats, mean: Floats, dispersion: Floats | float) -> Floats:
    """Log probability of a count, Poisson where there is no dispersion."""
    a = np.asarray(dispersion)
    poisson = xlogy(k, mean) - mean - gammaln(k + 1.0)
    if not a.any():
        return poisson
    some, scaled = np.where(a > 0, a, 1.0), a * mean
    with np.errstate(divide="ignore", invalid="ignore"):
        # Γ(k + 1/α)/Γ(1/α) by the beta function keeps its digits where α is tiny.
        choose = np.where(
            k > 0, gammaln(np.maximum(k, 1.0)) - betaln(1.0 / some, np.maximum(k, 1.0)), 0.0
        )
        varied = choose - gammaln(k + 1.0) + xlogy(k, scaled) - (k + 1.0 / some) * np.log1p(scaled)
    return np.where(a > 0, varied, poisson)


def _cdf(k: Floats, mean: Floats, dispersion: Floats | float) -> Floats:
    """Probability of at most k; 0 below zero."""
    a, at = np.asarray(dispersion), np.maximum(k, 0.0)
    varied = a * mean > 1e-7  # below, the incomplete beta function loses the difference to Poisson
    below = gammaincc(at + 1.0, mean)
    if varied.any():
        size = 1.0 / np.where(varied, a, 1.0)
        below = np.where(varied, betainc(size, at + 1.0, 1.0 / (1.0 + a * mean)), below)
    return np.where(k < 0, 0.0, below)
