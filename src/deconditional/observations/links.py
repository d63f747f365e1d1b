r"""Links g: f lives on the whole line, the rate :math:`g^{-1}(f)` where rates can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import deconditional.kernels.jax_setup  # noqa: F401

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
"""Rule of Gauss and Hermite for expectations under a standard normal distribution."""

LEAST_SHARE = 1e-12
"""How near to zero or one a probability may come before its logit is taken."""

Function = Callable[..., Array]


@dataclass(frozen=True)
class Link:
    r"""A monotone link by its functions.

    Examples
    --------
    >>> log, logit = link_of("log"), link_of("logit")
    >>> round(float(log.expected(0.0, 2.0)), 4), round(float(logit.expected(1.0, 4.0)), 3)
    (2.7183, 0.648)
    """

    # rate, eta: the rate g^{-1} of a value of f, and the value g of f that has a rate.
    rate: Function
    eta: Function
    slope: Function  # derivative of the rate by f
    # g'' / g'^2 by the rate: what the mean of g loses, twice, of a unit of its variance.
    bend: Function
    # expected, expected_slope, expected_square: the means of the rate, of its slope and of its
    # square where f is normal, by mean and variance of f.
    expected: Function
    expected_slope: Function
    expected_square: Function


def _averaged(function: Function) -> Function:
    """The mean of a function of f where f is normal, by quadrature."""

    def average(mean: Any, variance: Any) -> Array:
        std = jnp.sqrt(jnp.maximum(variance, 1e-24))  # the root has no slope at zero
        total = jnp.zeros(())
        for node, weight in zip(NODES.tolist(), NODE_WEIGHTS.tolist(), strict=True):
            total = total + weight * function(mean + std * node)
        return total

    return average


def _logit(rate: Any) -> Array:
    """The logit, finite at zero and one."""
    share = jnp.clip(rate, LEAST_SHARE, 1.0 - LEAST_SHARE)
    return jnp.log(share) - jnp.log1p(-share)


def _slope_of_logistic(eta: Any) -> Array:
    return jax.nn.sigmoid(eta) * (1.0 - jax.nn.sigmoid(eta))


def _mean_of_exp(mean: Any, variance: Any) -> Array:
    return jnp.exp(mean + 0.5 * variance)


LINKS = {
    "identity": Link(
        *(jnp.asarray, jnp.asarray, jnp.ones_like, jnp.zeros_like),
        expected=lambda mean, _: jnp.asarray(mean),
        expected_slope=lambda mean, _: jnp.ones_like(mean),
        expected_square=lambda mean, variance: mean**2 + variance,
    ),
    "log": Link(
        *(jnp.exp, jnp.log, jnp.exp, lambda rate: -jnp.ones_like(rate)),
        expected=_mean_of_exp,
        expected_slope=_mean_of_exp,
        expected_square=lambda mean, variance: jnp.exp(2.0 * mean + 2.0 * variance),
    ),
    "logit": Link(
        *(jax.nn.sigmoid, _logit, _slope_of_logistic, lambda rate: 2.0 * rate - 1.0),
        expected=_averaged(jax.nn.sigmoid),
        expected_slope=_averaged(_slope_of_logistic),
        expected_square=_averaged(lambda eta: jax.nn.sigmoid(eta) ** 2),
    ),
}
"""Name -> link."""


def link_of(name: str) -> Link:
    """The link of a name: ``"identity"``, ``"log"`` or ``"logit"``."""
    if name not in LINKS:
        raise ValueError(f"link must be one of {', '.join(LINKS)}, not {name!r}.")
    return LINKS[name]
