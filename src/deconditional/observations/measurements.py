r"""Mediators as measurements of bag means: W = I and S of what a regression says of the bags.

Observations and bags are draws of one population. Under the regression of z on its mediator y the
mean of a bag is :math:`\bar f = g(y) + \epsilon`, with a bag effect of variance :math:`\rho^2` that
is each bag's own. Four steps lead from there to observations of bag means.

**What a mediator measures, given g.** Bayes' rule in the population, where bag means are
:math:`N(m, v)` before their mediators are looked at:

.. math:: p(y \mid \bar f) \propto \frac{N(\bar f; g, \rho^2)}{N(\bar f; m, v)}
          \propto N\Bigl(m + \frac{g - m}{b};\ \bar f,\ \frac{\rho^2}{b}\Bigr),
          \quad b = 1 - \frac{\rho^2}{v},

so a bag mean is measured without the attenuation that a regression has. A mediator that says
nothing has b near zero, and its measurements a noise that says as much.

**What z says of g.** The regression has g at the bags with prior :math:`N(\cdot, L)` and posterior
:math:`N(\hat g, U)`. How bag means hang together is for the field to say, which has a prior of its
own, so the regression's is divided out, :math:`N(\hat g, U) / N(m, T)` with
:math:`T = L + \rho^2 I`, what it expects of bag means before z is seen:

.. math:: U' = (U^{-1} - T^{-1})^{-1}, \qquad g' = m + (I - U T^{-1})^{-1}(\hat g - m).

Where z says nothing of g, U' is without bound, and the field has its prior.

**Both together.** g' for g, and its errors as errors of the measurements. Stretching by 1/b
stretches them too, with two exceptions. The level m moves with g. And along
:math:`g' - m` itself, where g is larger by a share :math:`\delta`, b is larger as well, since
:math:`b = \mathrm{var}(g) / (\mathrm{var}(g) + \rho^2)`: measurements grow by
:math:`(2b - 1)\,\delta` only, for how much bag means vary is known from z whatever g is. So
:math:`J = \partial t / \partial g`,
:math:`J = P_1 + \frac{2b - 1}{b} P_{g'} + \frac1b (I - P_1 - P_{g'})`, projections on the level, on
g' less its level, and on the rest,

.. math:: t = m + (g' - m) / b, \qquad t = \bar f + e, \quad
          e \sim N\Bigl(0,\ \frac{\rho^2}{b} I + J U' J^\top\Bigr).

**The level.** Bayes' rule took N(m, v) out of what mediators say, for the field to put in its own.
How much bag means vary it has from z (:class:`~deconditional.inference.exact.SpreadPrior`), and so
it should have their level: M observations and N bags are samples of one population,

.. math:: \bar z = \frac1N \sum_j \bar f_j + \eta, \quad
          \eta \sim N\Bigl(0,\ v\Bigl(\frac1M + \frac1N\Bigr)\Bigr),

one more measurement, which t and its noise take in. Without it a field whose mediators say little
has its level from values that are stretched by 1/b.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg as sl

Floats = npt.NDArray[np.float64]

LEAST_EFFECT = 1e-6
"""Of bag effects, in units of v: keeps T - U regular where observations repeat themselves."""


class Population(NamedTuple):
    """Bag means before mediators are looked at: as observations have them.

    Attributes
    ----------
    mean, variance
        m and v.
    size
        Number of observations they are known from.
    """

    mean: float
    variance: float
    size: int

    @classmethod
    def of(cls, z: Floats, noise_variance: float) -> Population:
        """Measurements from observations whose errors have a known variance."""
        variance = float(np.var(z, ddof=1)) if len(z) > 1 else 0.0
        variance = max(variance - noise_variance, 1e-3 * variance)
        variance = variance or 1e-12 * float(np.mean(z**2)) or 1.0
        return cls(float(np.mean(z)), variance, len(z))

    def explained_share(self, bag_effect: float) -> float:
        """b: the share of v that g has, at least what chance explains of so many observations."""
        return max(1.0 - bag_effect / self.variance, 1.0 / max(self.size, 2))


class Measurements(NamedTuple):
    """Measured bag means t, (N,), and the covariance of their errors, (N, N); (N,) if diagonal."""

    values: Floats
    noise: Floats


def measured(
    mean: Floats, prior: Floats, posterior: Floats, bag_effect: float, population: Population
) -> Measurements:
    r"""Bag means as their mediators measure them.

    Parameters
    ----------
    mean : (N,), prior, posterior : (N, N)
        :math:`\hat g`, L and U: the regression at the mediators of the bags.
    bag_effect
        :math:`\rho^2`.
    population
        m and v.

    Examples
    --------
    Mediators that determine bag means, and a regression that is known: its values are observed.

    >>> g = np.array([0.0, 1.0, 2.0])
    >>> found = measured(g, np.eye(3), 1e-9 * np.eye(3), 1e-9, Population(1.0, 1.0, 30))
    >>> found.values, bool(np.abs(found.noise).max() < 1e-8)
    (array([0., 1., 2.]), True)
    """
    m, size = population.mean, len(mean)
    share = population.explained_share(bag_effect)
    effect = max(bag_effect, LEAST_EFFECT * population.variance)
    told = sl.cho_factor(prior - posterior + effect * np.eye(size), lower=True)  # T - U
    deviation = mean - m + posterior @ sl.cho_solve(told, mean - m)
    errors = posterior + posterior @ sl.cho_solve(told, posterior)
    stretch = _stretch(deviation, share)
    errors = stretch @ errors @ stretch
    noise = 0.5 * (errors + errors.T) + bag_effect / share * np.eye(size)
    return Measurements(m + deviation / share, noise)


def measured_apart(
    mean: Floats, prior: Floats, posterior: Floats, bag_effect: float, population: Population
) -> Measurements:
    """Bag means as their mediators measure them, errors of the regression taken bag by bag.

    For more bags than matrices can hold: `prior` and `posterior` are variances, and so is the noise
    of what comes back, all of them (N,). What bags have in common is left out, their level with it,
    which is little where observations are many.

    Examples
    --------
    >>> one = np.array([0.3]), np.array([1.2]), np.array([0.2]), 0.4, Population(0.1, 1.6, 50)
    >>> apart, together = (
    ...     measured_apart(*one),
    ...     measured(one[0], *(np.diag(v) for v in one[1:3]), *one[3:]),
    ... )
    >>> bool(np.allclose(apart.values, together.values))
    True
    """
    m, share = population.mean, population.explained_share(bag_effect)
    told = np.maximum(prior - posterior, 0.0) + max(bag_effect, LEAST_EFFECT * population.variance)
    open_still = 1.0 + posterior / told
    noise = (posterior * open_still / share + bag_effect) / share
    return Measurements(m + (mean - m) * open_still / share, noise)


def with_level(found: Measurements, population: Population) -> Measurements:
    """Measurements that have taken in the mean of all observations.

    Examples
    --------
    Mediators that say nothing leave the level and its two sampling errors, here 1/4 and 1/12.

    >>> nothing = Measurements(np.zeros(4), 1e9 * np.eye(4))
    >>> told = with_level(nothing, Population(2.0, 3.0, 12))
    >>> bool(np.isclose(told.values.mean(), 2.0)), bool(np.isclose(told.noise.mean(), 1.0))
    (True, True)
    """
    size = len(found.values)
    with_mean = found.noise.mean(1)
    variance = with_mean.mean() + population.variance * (1.0 / population.size + 1.0 / size)
    gain = with_mean / variance
    values = found.values + gain * (population.mean - found.values.mean())
    return Measurements(values, found.noise - np.outer(gain, with_mean))


def _stretch(deviation: Floats, share: float) -> Floats:
    """J: how errors of g move measurements."""
    size = len(deviation)
    level = np.full((size, size), 1.0 / size)
    along = deviation - deviation.mean()
    squared = float(along @ along)
    amplitude = np.outer(along, along) / squared if squared > 0 else np.zeros((size, size))
    rest = np.eye(size) - level - amplitude
    return level + (2.0 * share - 1.0) / share * amplitude + rest / share
