r"""Families of counts, of successes in so many trials, and of amounts that can be exactly zero.

A :class:`Tweedie` variable with power 1 < p < 2, such as rain, is a sum of N gamma variables, N a
Poisson count. Its density has a factor without closed form (Dunn and Smyth 2005),

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
import numpyro.distributions as npd
from jax.scipy.special import gammaln, logsumexp, xlogy
from jaxtyping import Array

from deconditional.fitting.parameters import Interval, Parameter, positive
from deconditional.fitting.priors import Normal as NormalPrior
from deconditional.observations.families import Family

TERMS = 128
"""Terms of the sum, eight standard deviations of j to either side of its maximum."""


@dataclass(frozen=True, kw_only=True)
class Poisson(Family):
    """Counts of events that come one by one: their variance is their mean.

    The link is ``"log"`` by default; `exposure` and `overdispersion` are those of
    :class:`~deconditional.Family`.

    Examples
    --------
    >>> import deconditional as dc
    >>> float(dc.Poisson().log_density(0.0, 2.0, 1.0))
    -2.0
    """

    support: ClassVar[str] = "counts"

    def distribution(self, mean: Any, exposure: Any) -> npd.Distribution:
        """Poisson counts."""
        return npd.Poisson(mean)


@dataclass(frozen=True, kw_only=True)
class NegativeBinomial(Family):
    r"""Counts whose rates vary: the variance is :math:`\mu + \alpha\mu^2`, α the `dispersion`.

    It takes what :class:`Poisson` takes.

    Examples
    --------
    >>> import deconditional as dc
    >>> float(dc.NegativeBinomial().variance(2.0, 1.0, dispersion=0.5))
    4.0
    """

    support: ClassVar[str] = "counts"
    parameters: ClassVar[tuple[Parameter, ...]] = (positive("dispersion", 0.2, 1.5, reach=8.0),)

    def distribution(self, mean: Any, exposure: Any, *, dispersion: Any) -> npd.Distribution:
        """Poisson counts of rates that vary."""
        return npd.NegativeBinomial2(mean, 1.0 / dispersion)

    def log_density(self, y: Any, mean: Any, exposure: Any, *, dispersion: Any) -> Array:
        """Log probability of counts; NumPyro's, by a beta function of JAX's, has six digits."""
        size = 1.0 / dispersion
        choose = gammaln(y + size) - gammaln(size) - gammaln(y + 1.0)
        return choose + xlogy(y, mean / (mean + size)) - size * jnp.log1p(mean * dispersion)


@dataclass(frozen=True, kw_only=True)
class OfTrials(Family):
    """The base of families of successes."""

    trials: str | None = None

    usual_link: ClassVar[str] = "logit"
    support: ClassVar[str] = "successes"
    amount: ClassVar[str] = "trials"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exposure is not None:
            raise ValueError(f"{type(self).__name__} has trials={self.exposure!r}, no exposure.")


@dataclass(frozen=True, kw_only=True)
class Binomial(OfTrials):
    """Successes in so many trials.

    The link is ``"logit"`` by default. `trials` is the name of the trials where data come as a
    table or dataset; with arrays, ``fit(..., trials=)``. Overdispersion is as in :class:`Poisson`.

    Examples
    --------
    >>> import deconditional as dc
    >>> float(dc.Binomial().variance(5.0, 10.0))
    2.5
    """

    def distribution(self, mean: Any, exposure: Any) -> npd.Distribution:
        """Successes in independent trials."""
        return npd.BinomialProbs(mean / exposure, jnp.asarray(exposure, int))


@dataclass(frozen=True, kw_only=True)
class BetaBinomial(OfTrials):
    r"""Successes whose probability varies: the variance is :math:`np(1-p)(1 + (n-1)\rho)`.

    The parameter `correlation`, ρ, is that between two trials of one observation. It takes what
    :class:`Binomial` takes.

    Examples
    --------
    >>> import deconditional as dc
    >>> round(float(dc.BetaBinomial().variance(5.0, 10.0, correlation=1 / 9)), 6)
    5.0
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("correlation", 0.1, npd.Beta(1.0, 9.0), Interval(0.0, 1.0)),  # type: ignore[arg-type]
    )

    def distribution(self, mean: Any, exposure: Any, *, correlation: Any) -> npd.Distribution:
        """Successes at probabilities that vary."""
        return npd.BetaBinomial(*_beta(mean / exposure, correlation), jnp.asarray(exposure, int))

    def log_density(self, y: Any, mean: Any, exposure: Any, *, correlation: Any) -> Array:
        """Log probability of successes; NumPyro's, by a beta function of JAX's, has six digits."""
        a, b = _beta(mean / exposure, correlation)
        choose = -_log_beta(y + 1.0, exposure - y + 1.0) - jnp.log(exposure + 1.0)
        return choose + _log_beta(y + a, exposure - y + b) - _log_beta(a, b)


def _log_beta(a: Any, b: Any) -> Array:
    """Log of the beta function, to all digits."""
    return gammaln(a) + gammaln(b) - gammaln(a + b)


def _beta(share: Any, correlation: Any) -> tuple[Any, Any]:
    """The two parameters of the distribution of probabilities."""
    size = 1.0 / correlation - 1.0
    return share * size, (1.0 - share) * size


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
