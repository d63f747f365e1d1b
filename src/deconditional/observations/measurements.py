r"""Mediators as measurements of bag means: W = I and S of what a regression says of the bags.

Observations and bags are draws of one population, in which bag means are :math:`N(m, v)`. Under the
regression of z on its mediator y the mean of a bag is :math:`\bar f = g(y) + \epsilon`, with a bag
effect of variance :math:`\rho^2`. Bayes' rule makes of it a measurement without attenuation,

.. math:: p(y \mid \bar f) \propto \frac{N(\bar f; g, \rho^2)}{N(\bar f; m, v)}
          \propto N\Bigl(m + \frac{g - m}{b};\ \bar f,\ \frac{\rho^2}{b}\Bigr),
          \quad b = \frac{\mathrm{var}(g)}{\mathrm{var}(g) + \rho^2}.

The regression knows g but for errors of covariance :math:`U = AA^\top + V`, where A is what g at a
few mediators tells of g at all of them. As noise of measurements, errors that many bags have in
common would explain all their values at once, for both are functions of the mediators: they are
drawn, :math:`g_s = \hat g + A\xi_s`. V is of each bag or of few, and is noise, once what the
regression expected of bag means before z, :math:`N(m, T)` with :math:`T = L + \rho^2 I`, is divided
out, for the field has a prior of its own:

.. math:: V' = (V^{-1} - T^{-1})^{-1}, \quad g' = m + (I - V T^{-1})^{-1}(g_s - m), \quad
          t = m + \frac{g' - m}{b} = \bar f + e, \quad
          e \sim N\Bigl(0,\ \frac{\rho^2}{b} I + \frac{V'}{b^2}\Bigr).

The level, which Bayes' rule took out, comes back as one more measurement by the mean of z.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg as sl

from deconditional.kernels.linalg import JITTER, lifted_cholesky

Floats = npt.NDArray[np.float64]


class Population(NamedTuple):
    """Bag means before mediators are looked at, by one regression: m, var(g), ρ², and M."""

    mean: float
    explained: float
    bag_effect: float
    size: int

    @property
    def variance(self) -> float:
        """Variance v of bag means."""
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
    covariance: Floats, most: int | None = None, pivots: Sequence[int] | None = None
) -> tuple[Floats, list[int]]:
    """A, a column for each of a few mediators, and which they are: those that tell most of all.

    Conditioned on g at these mediators nothing of A is left, so that U - AAᵀ is a covariance. They
    end where an error is its own mediator's more than that of all others together, or by `most`;
    with `pivots` they are these.

    Examples
    --------
    An error that all have in common is in the first column, and errors of their own in none.

    >>> factor, pivots = errors_in_common(np.full((5, 5), 4.0) + np.eye(5))
    >>> bool(np.isclose(factor[pivots[0], 0] ** 2, 5.0)), factor.shape
    (True, (5, 1))
    """
    left = np.array(covariance, dtype=float)
    least = 1e-12 * max(float(left.max()), 1e-300)
    limit = len(left) if most is None else min(most, len(left))
    columns: list[Floats] = []
    chosen: list[int] = []
    for k in range(limit if pivots is None else len(pivots)):
        own = np.maximum(np.diag(left), least)
        told = (left**2).sum(0) / own
        pivot = int(np.argmax(told)) if pivots is None else pivots[k]
        if pivots is None and told[pivot] <= 2.0 * own[pivot]:
            break
        column = left[:, pivot] / np.sqrt(own[pivot])
        left -= np.outer(column, column)
        columns.append(column)
        chosen.append(pivot)
    return np.stack(columns, 1) if columns else np.zeros((len(left), 0)), chosen


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
    mean : (N,), prior, errors : (N, N) or (N,)
        g, L and V: the regression at the mediators of the bags, a draw of it. For more bags than
        matrices can hold, variances: errors are taken bag by bag, and so is the noise.
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
    effect, own = population.bag_effect, population.bag_effect / share
    if errors.ndim == 1:
        still_open = errors / np.maximum(prior - errors + effect, JITTER * prior.mean())
        values, unknown = (mean - m) * (1.0 + still_open), errors * (1.0 + still_open)
        return Measurements(m + values / share, unknown / share**2 + own)
    told = lifted_cholesky(prior - errors + effect * np.eye(len(mean))), True  # T - V
    values = mean - m + errors @ sl.cho_solve(told, mean - m)
    unknown = errors + errors @ sl.cho_solve(told, errors)
    noise = 0.5 * (unknown + unknown.T) / share**2 + own * np.eye(len(mean))
    return Measurements(m + values / share, noise)


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
