r"""Families of amounts: rain and other sums that can be exactly zero.

A Tweedie variable with power 1 < p < 2 is a sum of N gamma variables, N a Poisson count. Its
density has a factor without closed form (Dunn and Smyth 2005),

.. math:: \frac1y \sum_{j \ge 1} \frac{1}{j!\,\Gamma(j\alpha)}
          \Bigl(\frac{y^\alpha}{(p-1)^\alpha \phi^{1+\alpha} (2-p)}\Bigr)^{j} ,
          \qquad \alpha = \frac{2-p}{p-1} ,

whose terms rise to one maximum near :math:`j = y^{2-p} / (\phi(2-p))` and fall; far from zero they
are a smooth function of j, which is summed in steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array

from deconditional.fitting.parameters import Interval, Parameter, positive
from deconditional.fitting.priors import Normal as NormalPrior
from deconditional.observations.families import Family

TERMS = 128
"""Of the sum, over eight standard deviations of j on either side of its maximum."""


@dataclass(frozen=True, kw_only=True)
class Tweedie(Family):
    r"""Amounts with exact zeros, such as rain: the variance is :math:`\phi\mu^p`, 1 < p < 2.

    The parameters are the `dispersion` φ and the `power` p. Sums of such amounts are such amounts:
    with an exposure of E an observation is the sum of E independent ones, and its dispersion
    :math:`\phi E^{1-p}`. It takes what :class:`Poisson` takes.

    Examples
    --------
    The probability of no rain at all:

    >>> import deconditional as dc
    >>> float(dc.Tweedie().log_density(0.0, 1.0, 1.0, dispersion=1.0, power=1.5))
    -2.0
    """

    support: ClassVar[str] = "not negative"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        positive("dispersion", 1.0, 1.0, reach=8.0),
        Parameter("power", 1.5, NormalPrior(1.5, 0.2), Interval(1.01, 1.99)),  # type: ignore[arg-type]
    )

    def log_density(
        self, y: Any, mean: Any, exposure: Any, *, dispersion: Any, power: Any
    ) -> Array:
        """Log probability of zero, log density elsewhere."""
        dispersion = dispersion * exposure ** (1.0 - power)
        none = -(mean ** (2.0 - power)) / (dispersion * (2.0 - power))
        positive_y = jnp.where(y > 0, y, 1.0)
        some = positive_y * mean ** (1.0 - power) / (1.0 - power) / dispersion + none
        return jnp.where(y > 0, some + _log_series(positive_y, dispersion, power), none)

    def variance(self, mean: Any, exposure: Any, *, dispersion: Any, power: Any) -> Array:
        """A power of the mean."""
        return dispersion * exposure ** (1.0 - power) * mean**power

    def simulate(self, key: Any, mean: Any, exposure: Any, *, dispersion: Any, power: Any) -> Array:
        """Sums of gamma variables, as many as a Poisson count says."""
        dispersion = dispersion * exposure ** (1.0 - power)
        count_key, size_key = jr.split(key)
        number = jr.poisson(count_key, mean ** (2.0 - power) / (dispersion * (2.0 - power)))
        shape = number * (2.0 - power) / (power - 1.0)
        scale = dispersion * (power - 1.0) * mean ** (power - 1.0)
        sums = scale * jr.gamma(size_key, jnp.where(number > 0, shape, 1.0))
        return jnp.where(number > 0, sums, 0.0)


def _log_series(y: Any, dispersion: Any, power: Any) -> Array:
    """Log of the factor without closed form."""
    y, dispersion, power = jnp.broadcast_arrays(*map(jnp.asarray, (y, dispersion, power)))
    y, dispersion, power = y[..., None], dispersion[..., None], power[..., None]
    alpha = (2.0 - power) / (power - 1.0)
    centre = jnp.maximum(y ** (2.0 - power) / (dispersion * (2.0 - power)), 1.0)
    reach = 8.0 * jnp.sqrt(centre / (1.0 + alpha)) + 8.0
    first = jnp.maximum(jnp.floor(centre - reach), 1.0)
    step = jnp.maximum((centre + reach - first) / (TERMS - 1), 1.0)
    first, step = jax.lax.stop_gradient((first, step))
    j = first + step * jnp.arange(TERMS)
    log_ratio = (
        alpha * (jnp.log(y) - jnp.log(power - 1.0))
        - (1.0 + alpha) * jnp.log(dispersion)
        - jnp.log(2.0 - power)
    )
    terms = j * log_ratio - gammaln(1.0 + j) - gammaln(alpha * j)
    return logsumexp(terms, axis=-1) + jnp.log(step[..., 0]) - jnp.log(y[..., 0])
