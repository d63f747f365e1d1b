r"""Links g: f lives on the whole line, the rate :math:`g^{-1}(f)` where rates can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import deconditional.kernels.jax_setup  # noqa: F401

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
"""Of Gauss and Hermite: expectations under a standard normal distribution."""

LEAST_SHARE = 1e-12
"""How near to zero or one a probability may come before its logit is taken."""


@dataclass(frozen=True)
class Link:
    """A monotone link; a subclass has `rate`, `eta` and `slope`."""

    def rate(self, eta: Any) -> Array:
        """The rate g⁻¹ of a value of f."""
        raise NotImplementedError

    def eta(self, rate: Any) -> Array:
        """The value g of f that has this rate."""
        raise NotImplementedError

    def slope(self, eta: Any) -> Array:
        """Derivative of the rate by f."""
        return jax.jvp(self.rate, (eta,), (jnp.ones_like(eta),))[1]

    def bend(self, rate: Any) -> Array:
        r""":math:`g'' / g'^2`: what the mean of g loses, twice, of each unit of its variance."""
        raise NotImplementedError

    def expected(self, mean: Any, variance: Any) -> Array:
        """The mean rate where f is normal."""
        return self._average(self.rate, mean, variance)

    def expected_slope(self, mean: Any, variance: Any) -> Array:
        """Derivative of the mean rate by the mean of f."""
        return self._average(self.slope, mean, variance)

    def expected_square(self, mean: Any, variance: Any) -> Array:
        """The mean of the squared rate where f is normal."""
        return self._average(lambda eta: self.rate(eta) ** 2, mean, variance)

    def _average(self, function: Any, mean: Any, variance: Any) -> Array:
        std = jnp.sqrt(jnp.maximum(variance, 1e-24))  # the root has no slope at zero
        total = 0.0
        for node, weight in zip(NODES.tolist(), NODE_WEIGHTS.tolist(), strict=True):
            total = total + weight * function(mean + std * node)
        return jnp.asarray(total)


@dataclass(frozen=True)
class IdentityLink(Link):
    """The rate is f itself.

    Examples
    --------
    >>> float(IdentityLink().rate(2.0))
    2.0
    """

    def rate(self, eta: Any) -> Array:
        """The value itself."""
        return jnp.asarray(eta)

    def eta(self, rate: Any) -> Array:
        """The rate itself."""
        return jnp.asarray(rate)

    def slope(self, eta: Any) -> Array:
        """One."""
        return jnp.ones_like(eta)

    def bend(self, rate: Any) -> Array:
        """None."""
        return jnp.zeros_like(rate)

    def expected(self, mean: Any, variance: Any) -> Array:
        """The mean."""
        return jnp.asarray(mean)


@dataclass(frozen=True)
class LogLink(Link):
    """The rate is exp(f).

    Examples
    --------
    >>> round(float(LogLink().expected(0.0, 2.0)), 4)
    2.7183
    """

    def rate(self, eta: Any) -> Array:
        """The exponential."""
        return jnp.exp(eta)

    def eta(self, rate: Any) -> Array:
        """The logarithm."""
        return jnp.log(rate)

    def slope(self, eta: Any) -> Array:
        """The exponential."""
        return jnp.exp(eta)

    def bend(self, rate: Any) -> Array:
        """Minus one, whatever the rate."""
        return -jnp.ones_like(rate)

    def expected(self, mean: Any, variance: Any) -> Array:
        """The mean of a log-normal variable."""
        return jnp.exp(mean + 0.5 * variance)

    def expected_slope(self, mean: Any, variance: Any) -> Array:
        """Derivative of the mean rate, which is that rate itself."""
        return self.expected(mean, variance)

    def expected_square(self, mean: Any, variance: Any) -> Array:
        """The second moment of a log-normal variable."""
        return jnp.exp(2.0 * mean + 2.0 * variance)


@dataclass(frozen=True)
class LogitLink(Link):
    """The rate is a probability, the logistic function of f.

    Examples
    --------
    >>> float(LogitLink().rate(0.0)), round(float(LogitLink().expected(1.0, 4.0)), 3)
    (0.5, 0.648)
    """

    def rate(self, eta: Any) -> Array:
        """The logistic function."""
        return jax.nn.sigmoid(eta)

    def eta(self, rate: Any) -> Array:
        """The logit, finite at zero and one."""
        share = jnp.clip(rate, LEAST_SHARE, 1.0 - LEAST_SHARE)
        return jnp.log(share) - jnp.log1p(-share)

    def slope(self, eta: Any) -> Array:
        """P (1 - p)."""
        share = jax.nn.sigmoid(eta)
        return share * (1.0 - share)

    def bend(self, rate: Any) -> Array:
        """Zero at one half."""
        return 2.0 * rate - 1.0


LINKS: dict[str, Link] = {"identity": IdentityLink(), "log": LogLink(), "logit": LogitLink()}


def link_of(name: str) -> Link:
    """The link of a name: ``"identity"``, ``"log"`` or ``"logit"``."""
    if name not in LINKS:
        raise ValueError(f"link must be one of {', '.join(LINKS)}, not {name!r}.")
    return LINKS[name]
