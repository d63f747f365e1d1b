"""Families of counts: without a bound, and of successes in so many trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as npd
from jax.scipy.special import gammaln, xlog1py, xlogy
from jaxtyping import Array

from deconditional.fitting.parameters import Interval, Parameter, positive
from deconditional.observations.families import Family, log_factorial


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

    def log_density(self, y: Any, mean: Any, exposure: Any) -> Array:
        """Log probability of counts."""
        return xlogy(y, mean) - mean - log_factorial(y)

    def variance(self, mean: Any, exposure: Any) -> Array:
        """The mean."""
        return mean

    def simulate(self, key: Any, mean: Any, exposure: Any) -> Array:
        """Counts."""
        return jr.poisson(key, mean).astype(float)


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

    def log_density(self, y: Any, mean: Any, exposure: Any, *, dispersion: Any) -> Array:
        """Log probability of counts."""
        size = 1.0 / dispersion
        choose = gammaln(y + size) - gammaln(size) - log_factorial(y)
        return choose + xlogy(y, mean / (mean + size)) - size * jnp.log1p(mean * dispersion)

    def variance(self, mean: Any, exposure: Any, *, dispersion: Any) -> Array:
        """The mean, and more where it is large."""
        return mean + dispersion * mean**2

    def simulate(self, key: Any, mean: Any, exposure: Any, *, dispersion: Any) -> Array:
        """Counts of rates that are drawn first."""
        rate_key, count_key = jr.split(key)
        rates = mean * dispersion * jr.gamma(rate_key, 1.0 / dispersion, jnp.shape(mean))
        return jr.poisson(count_key, rates).astype(float)


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

    def log_density(self, y: Any, mean: Any, exposure: Any) -> Array:
        """Log probability of successes."""
        share = mean / exposure
        choose = log_factorial(exposure) - log_factorial(y) - log_factorial(exposure - y)
        return choose + xlogy(y, share) + xlog1py(exposure - y, -share)

    def variance(self, mean: Any, exposure: Any) -> Array:
        """N p (1 - p)."""
        return mean * (1.0 - mean / exposure)

    def simulate(self, key: Any, mean: Any, exposure: Any) -> Array:
        """Successes."""
        return jr.binomial(key, exposure, mean / exposure, jnp.shape(mean)).astype(float)


@dataclass(frozen=True, kw_only=True)
class BetaBinomial(OfTrials):
    r"""Successes whose probability varies: the variance is :math:`np(1-p)(1 + (n-1)\rho)`.

    The parameter `correlation`, ρ, is that between two trials of one observation. It takes what
    :class:`Binomial` takes.

    Examples
    --------
    >>> import deconditional as dc
    >>> round(dc.BetaBinomial().variance(5.0, 10.0, correlation=1 / 9), 6)
    5.0
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("correlation", 0.1, npd.Beta(1.0, 9.0), Interval(0.0, 1.0)),  # type: ignore[arg-type]
    )

    def log_density(self, y: Any, mean: Any, exposure: Any, *, correlation: Any) -> Array:
        """Log probability of successes."""
        a, b = _beta(mean / exposure, correlation)
        choose = log_factorial(exposure) - log_factorial(y) - log_factorial(exposure - y)
        return choose + _log_beta(y + a, exposure - y + b) - _log_beta(a, b)

    def variance(self, mean: Any, exposure: Any, *, correlation: Any) -> Array:
        """Variance of independent trials, and more the more trials there are."""
        apart = mean * (1.0 - mean / exposure)
        return apart * (1.0 + (exposure - 1.0) * correlation)

    def simulate(self, key: Any, mean: Any, exposure: Any, *, correlation: Any) -> Array:
        """Successes at probabilities that are drawn first."""
        share_key, count_key = jr.split(key)
        shares = jr.beta(share_key, *_beta(mean / exposure, correlation), jnp.shape(mean))
        return jr.binomial(count_key, exposure, shares, jnp.shape(mean)).astype(float)


def _log_beta(a: Any, b: Any) -> Array:
    """Log of the beta function."""
    return gammaln(a) + gammaln(b) - gammaln(a + b)


def _beta(share: Any, correlation: Any) -> tuple[Any, Any]:
    """The two parameters of the distribution of probabilities."""
    size = 1.0 / correlation - 1.0
    return share * size, (1.0 - share) * size
