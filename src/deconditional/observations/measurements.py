r"""Mediators as measurements of bag means: W = I and S of what a regression says of the bags.

Observations and bags are draws of one population. Under the regression of z on its mediator y the
mean of a bag is :math:`\bar f = g(y) + \epsilon`, with a bag effect of variance :math:`\rho^2` that
is each bag's own. Four steps lead from there to observations of bag means.

**What a mediator measures, given g.** Bayes' rule in the population, where bag means are
:math:`N(m, v)` before their mediators are looked at:

.. math:: p(y \mid \bar f) \propto \frac{N(\bar f; g, \rho^2)}{N(\bar f; m, v)}
          \propto N\Bigl(m + \frac{g - m}{b};\ \bar f,\ \frac{\rho^2}{b}\Bigr),
          \quad b = 1 - \frac{\rho^2}{v} = \frac{\mathrm{var}(g)}{\mathrm{var}(g) + \rho^2},

so a bag mean is measured without the attenuation that a regression has. A mediator that says
nothing has b near zero, and its measurements a noise that says as much. Mean m and variance of g
are those over the mediators of bags and observations.

**What is open of g.** The regression knows g with prior covariance L and posterior
:math:`N(\hat g, U)`. An error of g that many bags have in common cannot be noise of the
measurements: it is a function of the mediators, as their values are, so the field would take these
values themselves for errors. The field has no say in it, as it has none in the hyper-parameters of
the regression: such errors are drawn. With :math:`U = AA^\top + V`, where A is what g at a few
mediators tells of g at all of them,

.. math:: g_s = \hat g + A\xi_s, \qquad \xi_s \sim N(0, I),

and every draw measures with a b of its own, by its own variance (:func:`errors_in_common`,
:func:`steps`). What is left, V, are errors of each bag or of few, and are noise.

**What is known twice.** How bag means hang together is for the field to say, which has a prior of
its own, so the regression's is divided out of what it says of errors that are left,
:math:`N(g_s, V) / N(m, T)` with :math:`T = L + \rho^2 I`, what it expects of bag means before z:

.. math:: V' = (V^{-1} - T^{-1})^{-1}, \qquad g' = m + (I - V T^{-1})^{-1}(g_s - m).

Where z says nothing of g at a bag, V' is without bound there, and the field has its prior.
Altogether

.. math:: t = m + (g' - m) / b, \qquad t = \bar f + e, \quad
          e \sim N\Bigl(0,\ \frac{\rho^2}{b} I + \frac{1}{b^2} V'\Bigr).

**The level.** Bayes' rule took N(m, v) out of what mediators say, for the field to put in its own.
How much bag means vary it has from z (:class:`~deconditional.inference.exact.SpreadPrior`), and so
it should have their level: M observations and N bags are samples of one population,

.. math:: \bar z = \frac1N \sum_j \bar f_j + \eta, \quad
          \eta \sim N\Bigl(0,\ v\Bigl(\frac1M + \frac1N\Bigr)\Bigr),

one more measurement, which t and its noise take in. Without it a field whose mediators say little
has its level from values that are stretched by 1/b.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg as sl

Floats = npt.NDArray[np.float64]

LEAST_EFFECT = 1e-6
"""Of bag effects, in units of v: keeps T - V regular where observations repeat themselves."""

COMMON = 7
"""Mediators whose g is drawn: eight draws give these their mean and covariance exactly."""


class Population(NamedTuple):
    r"""Bag means before mediators are looked at, by one regression.

    Attributes
    ----------
    mean, explained
        m and var(g), over the mediators of bags and observations.
    bag_effect
        :math:`\rho^2`.
    size
        Number of observations they are known from.
    """

    mean: float
    explained: float
    bag_effect: float
    size: int

    @property
    def variance(self) -> float:
        """v."""
        return self.explained + self.bag_effect

    @property
    def share(self) -> float:
        """b: the share of v that g has, at least what chance explains of so many observations."""
        least = 1.0 / max(self.size, 2)
        return max(self.explained / self.variance, least) if self.variance > 0 else 1.0


class Measurements(NamedTuple):
    """Measured bag means t, (N,), and the covariance of their errors, (N, N); (N,) if diagonal."""

    values: Floats
    noise: Floats


def errors_in_common(
    covariance: Floats, number: int = COMMON, pivots: Sequence[int] | None = None
) -> tuple[Floats, list[int]]:
    """A, a column for each of a few mediators, and which they are: those that tell most of all.

    Conditioned on g at these mediators nothing of A is left, so that U - AAᵀ is a covariance.

    Examples
    --------
    An error that all have in common is in the first column.

    >>> factor, pivots = errors_in_common(np.full((5, 5), 4.0) + np.eye(5), 1)
    >>> bool(np.isclose(factor[pivots[0], 0] ** 2, 5.0)), factor.shape
    (True, (5, 1))
    """
    left = np.array(covariance, dtype=float)
    least = 1e-12 * max(float(np.diag(left).max(initial=0.0)), 1e-300)
    factor, chosen = [], []
    for k in range(min(number, len(left))):
        own = np.maximum(np.diag(left), least)
        pivot = int(np.argmax((left**2).sum(0) / own)) if pivots is None else pivots[k]
        column = left[:, pivot] / np.sqrt(own[pivot])
        left -= np.outer(column, column)
        factor.append(column)
        chosen.append(pivot)
    return np.reshape(factor, (len(factor), len(left))).T, chosen


def steps(draws: int, size: int, seed: int = 0) -> Floats:
    """ξ, (draws, size): mean zero, and the unit covariance where draws are more than its size.

    Examples
    --------
    >>> xi = steps(8, 7)
    >>> bool(np.allclose(xi.mean(0), 0.0)), bool(np.allclose(xi.T @ xi / 8, np.eye(7)))
    (True, True)
    """
    normal = np.random.default_rng(seed).standard_normal((draws, size + 1))
    normal[:, 0] = 1.0
    axes = np.linalg.qr(normal)[0][:, 1:]  # orthogonal to one another and to the level
    return np.sqrt(draws) * np.pad(axes, ((0, 0), (0, size - axes.shape[1])))


def measured(mean: Floats, prior: Floats, errors: Floats, population: Population) -> Measurements:
    """Bag means as their mediators measure them.

    Parameters
    ----------
    mean : (N,), prior, errors : (N, N)
        g, L and V: the regression at the mediators of the bags, a draw of it.
    population
        m, v and b.

    Examples
    --------
    Mediators that determine bag means, and a regression that is known: its values are observed.

    >>> g = np.array([0.0, 1.0, 2.0])
    >>> found = measured(g, np.eye(3), 1e-9 * np.eye(3), Population(1.0, 1.0, 1e-9, 30))
    >>> found.values.round(6), bool(np.abs(found.noise).max() < 1e-8)
    (array([0., 1., 2.]), True)
    """
    m, share = population.mean, population.share
    effect = max(population.bag_effect, LEAST_EFFECT * population.variance)
    told = sl.cho_factor(prior - errors + effect * np.eye(len(mean)), lower=True)  # T - V
    deviation = mean - m + errors @ sl.cho_solve(told, mean - m)
    unknown = errors + errors @ sl.cho_solve(told, errors)
    noise = 0.5 * (unknown + unknown.T) / share**2
    noise += population.bag_effect / share * np.eye(len(mean))
    return Measurements(m + deviation / share, noise)


def measured_apart(
    mean: Floats, prior: Floats, errors: Floats, population: Population
) -> Measurements:
    """Bag means as their mediators measure them, errors of the regression taken bag by bag.

    For more bags than matrices can hold: `prior` and `errors` are variances, and so is the noise
    of what comes back, all of them (N,). What bags have in common is left out, their level with it,
    which is little where observations are many.

    Examples
    --------
    >>> one = np.array([0.3]), np.array([1.2]), np.array([0.2]), Population(0.1, 1.2, 0.4, 50)
    >>> apart, together = (
    ...     measured_apart(*one),
    ...     measured(one[0], *(np.diag(v) for v in one[1:3]), one[3]),
    ... )
    >>> bool(np.allclose(apart.values, together.values))
    True
    """
    m, share, effect = population.mean, population.share, population.bag_effect
    told = np.maximum(prior - errors, 0.0) + max(effect, LEAST_EFFECT * population.variance)
    open_still = 1.0 + errors / told
    noise = (errors * open_still / share + effect) / share
    return Measurements(m + (mean - m) * open_still / share, noise)


def with_level(found: Measurements, level: float, population: Population) -> Measurements:
    """Measurements that have taken in the mean of all observations.

    Examples
    --------
    Mediators that say nothing leave the level and its two sampling errors, here 1/4 and 1/12.

    >>> nothing = Measurements(np.zeros(4), 1e9 * np.eye(4))
    >>> told = with_level(nothing, 2.0, Population(2.0, 3.0, 0.0, 12))
    >>> bool(np.isclose(told.values.mean(), 2.0)), bool(np.isclose(told.noise.mean(), 1.0))
    (True, True)
    """
    size = len(found.values)
    with_mean = found.noise.mean(1)
    variance = with_mean.mean() + population.variance * (1.0 / population.size + 1.0 / size)
    gain = with_mean / variance
    values = found.values + gain * (level - found.values.mean())
    return Measurements(values, found.noise - np.outer(gain, with_mean))
