r"""Effects that points have of their own, and what the totals of observed bags say of them.

The rate of point i is :math:`r_i e^{u_i}`, with independent :math:`u_i \sim N(-\tau^2/2, \tau^2)`,
so that effects leave mean rates as they are. A bag with amounts :math:`a_i` sees

.. math:: \sum_i a_i r_i e^{u_i} = \mu e^{\varepsilon}, \qquad \mu = \sum_i a_i r_i, \qquad
          \varepsilon \sim N(-s^2/2, s^2), \quad s^2 = \log\bigl(1 + (e^{\tau^2} - 1) h\bigr), \quad
          h = \sum_i w_i^2, \quad w_i = a_i r_i / \mu ,

by its first two moments: effects average out in a bag of many points, and are all there in one.

What an observation says of ε, it says of the effects behind it. A draw of effects from the prior
becomes one of the posterior by the least change, in squares, with which their bag has the sum of
:math:`\mu e^{\varepsilon}`, and ε is drawn from its posterior. To first order that is

.. math:: u_i \leftarrow u_i + \frac{w_i}{h}
          \Bigl(\varepsilon - \log \frac{\sum_j a_j r_j e^{u_j}}{\mu}\Bigr) ,

taken a few times, with the shares w that the last one led to. Points with a large share of a bag
learn most. In bags of one point :math:`u = \varepsilon`; in bags of a few points and with τ as
large as 0.6 effects may scatter a third too much, with 0.3 they are right to a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]

STEPS = 12
"""Steps of Newton's method to the effect of an observation."""

CHANGES = 4
"""Changes of effects until their sum is the one that was drawn."""


def std_of_mean(std: Any, crowding: Any) -> Any:
    """Standard deviation s of the logarithm of a mean of effects, from τ and h."""
    return np.sqrt(np.log1p(np.expm1(np.square(std)) * crowding))


def point_effects(
    rates: Floats,
    amount: Floats,
    bag: npt.NDArray[np.int64],
    std: npt.ArrayLike,
    slopes: Callable[[Floats], tuple[Any, Any]],
    seed: int | Sequence[int] = 0,
) -> Floats:
    r"""Factors :math:`e^{u_i}` of points, drawn given the observations of their bags.

    Of S draws of n points: `rates`, effects apart, (S, n); how much of every point its observed
    `bag` has, -1 for none, where effects are as the prior has them; τ; and slopes and Fisher's
    information of the log likelihood by the logarithms of means, (S, M). `seed` is another than
    that of the rates, which effects know nothing of.

    Examples
    --------
    Of two points with the same rate, the one with more people has more of the excess:

    >>> people, bag = np.array([900.0, 100.0]), np.array([0, 0])
    >>> poisson = lambda log_mean: (130.0 - np.exp(log_mean), np.exp(log_mean))
    >>> factors = point_effects(np.full((4000, 2), 0.1), people, bag, 0.5, poisson)
    >>> factors.mean(0).round(1)
    array([1.3, 1.1])
    """
    rng = np.random.default_rng(seed)
    tau = np.broadcast_to(np.asarray(std, dtype=float).reshape(-1, 1), (len(rates), 1))
    effects = tau * rng.normal(size=rates.shape) - 0.5 * tau**2
    inside = np.flatnonzero(bag >= 0)
    if inside.size:
        own = bag[inside]
        sums = csr_array((np.ones(inside.size), (np.arange(inside.size), own)))
        parts = amount[inside] * rates[:, inside]
        mean = parts @ sums
        crowding = (parts / mean[:, own]) ** 2 @ sums
        wanted = np.log(mean) + _log_effect(np.log(mean), std_of_mean(tau, crowding), slopes, rng)
        for _ in range(CHANGES):
            now = parts * np.exp(effects[:, inside])
            total = now @ sums
            share = now / total[:, own]
            missing = (wanted - np.log(total)) / (share**2 @ sums)
            effects[:, inside] += share * missing[:, own]
    return np.exp(effects)


def _log_effect(
    log_mean: Floats,
    s: Floats,
    slopes: Callable[[Floats], tuple[Any, Any]],
    rng: np.random.Generator,
) -> Floats:
    """Draws of ε given the observations, normal about its mode."""
    effect = -0.5 * s**2
    precision = 1.0 / s**2
    for _ in range(STEPS):
        score, information = (np.asarray(each) for each in slopes(log_mean + effect))
        precision = information + 1.0 / s**2
        step = (score - (effect + 0.5 * s**2) / s**2) / precision
        effect = effect + np.clip(step, -1.0, 1.0)
    return effect + rng.normal(size=s.shape) / np.sqrt(precision)
