r"""Families: how an observation scatters about the mean that the field gives it.

Observation m has the mean :math:`\mu_m = E_m r_m`: its exposure (population, trials, area), or one,
times its rate, the mean of :math:`g^{-1}(f(x_i))` over its bag. A :class:`Family` is the link g and
the density of y given :math:`\mu` and E. Families are compared by value, so that two fits with
equal ones share what is compiled. :mod:`~deconditional.observations.counts` has those that come
with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as npd
from jaxtyping import Array

import deconditional.kernels.jax_setup  # noqa: F401
from deconditional.fitting.parameters import Parameter, positive

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


OVERDISPERSION = "overdispersion_std"
"""The parameter of effects that observations have of their own."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The base of all families; a family of one's own is a subclass.

    A subclass says what its `parameters` are, and has a ``distribution`` of NumPyro about a mean
    that takes them by name; where there is none, ``log_density``, ``variance`` and ``simulate``.

    Parameters
    ----------
    link
        ``"identity"``, ``"log"`` or ``"logit"``; the usual one of the family by default.
    exposure
        Where data come as a table or dataset, the name of the exposure in it, such as
        ``"population"``; with arrays, ``fit(..., exposure=)`` or ``Bags.from_points(exposure=)``.
    overdispersion
        Give every observation an effect of its own, normal with the standard deviation
        ``overdispersion_std``, that is added to f throughout its bag. It is reported apart and is
        no part of the fine map. With ``"points"`` it is every fine point that has one, with a mean
        of one on the scale of the rate: effects average out in large bags, and what is predicted of
        a single place scatters in full. It needs a log link.

    Examples
    --------
    One that is half of a family of one's own, as :doc:`/observations` has it whole:

    >>> from deconditional.fitting.parameters import positive
    >>> class Gamma(Family):
    ...     support, parameters = "positive", (positive("shape", 2.0),)
    >>> Gamma() == Gamma(), Gamma().priors
    (True, {'shape': LogNormal(median=array(2.), sigma=1.0)})
    """

    link: str = ""
    exposure: str | None = None
    overdispersion: bool | Literal["points"] = False

    usual_link: ClassVar[str] = "log"
    support: ClassVar[str] = "real"
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    amount: ClassVar[str] = "exposure"
    """What `fit` calls the factor between rate and mean."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "link", self.link or self.usual_link)
        link_of(self.link)
        if self.overdispersion not in (False, True, "points"):
            raise ValueError(
                f"overdispersion must be True, False or 'points', not {self.overdispersion!r}."
            )
        if self.overdispersion == "points" and self.link != "log":
            raise ValueError(
                f"overdispersion='points' needs a log link, and this is a {self.link} link; "
                "overdispersion=True has effects of observations for any link."
            )

    def distribution(self, mean: Any, exposure: Any, *_: Any, **values: Any) -> npd.Distribution:
        """Distribution of observations about their mean, one of NumPyro's."""
        raise NotImplementedError

    def log_density(self, y: Any, mean: Any, exposure: Any, *_: Any, **values: Any) -> Array:
        """Log density of observations y, or log probability of counts."""
        return self.distribution(mean, exposure, **values).log_prob(y)

    def variance(self, mean: Any, exposure: Any, *_: Any, **values: Any) -> Array:
        """Variance of observations about their mean."""
        return jnp.asarray(self.distribution(mean, exposure, **values).variance)

    def simulate(self, key: Any, mean: Any, exposure: Any, *_: Any, **values: Any) -> Array:
        """Observations drawn with a key."""
        return self.distribution(mean, exposure, **values).sample(key).astype(float)

    def information(self, mean: Any, exposure: Any, *_: Any, **values: Any) -> Array:
        """Fisher information of the mean: one over the variance, as in exponential families."""
        return 1.0 / self.variance(mean, exposure, **values)

    def information_of_link(self, eta: Any, exposure: Any, **values: Any) -> Array:
        """Fisher information of the link of the rate."""
        along = exposure * self.g.slope(eta)
        return self.information(exposure * self.g.rate(eta), exposure, **values) * along**2

    def crude_rate(self, y: Any, exposure: Any) -> np.ndarray:
        """A rate for every observation by itself, inside the domain of the link: a beginning.

        Half an average observation is shared out between all, in proportion to their exposure.
        """
        y, exposure = np.asarray(y, dtype=float), np.asarray(exposure, dtype=float)
        if self.link == "identity":
            return y / exposure
        common = max(float(y.sum()), 0.5) / float(exposure.sum())
        half = 0.5 / max(common, np.finfo(float).tiny) / exposure if self.counts else 0.1
        share = half / (1.0 + half)
        rate = (1.0 - share) * y / exposure + share * common
        return np.clip(rate, None, 1.0 - 0.5 / (exposure + 1.0)) if self.link == "logit" else rate

    @property
    def g(self) -> Link:
        """The link of the family, with its functions."""
        return link_of(self.link)

    @property
    def counts(self) -> bool:
        """Whether observations are whole numbers."""
        return self.support in ("counts", "successes")

    @property
    def priors(self) -> dict[str, Any]:
        """Priors of the parameters by name; ``priors={...}`` of a model replaces them."""
        return {parameter.name: parameter.prior for parameter in self.own_parameters()}

    def own_parameters(self, spread: float = 1.0) -> tuple[Parameter, ...]:
        """The parameters, that of overdispersion included; `spread` is that of observations."""
        effect = (positive(OVERDISPERSION, 0.3, 1.0, reach=6.0),) if self.overdispersion else ()
        return (*self.parameters, *effect)


@dataclass(frozen=True, kw_only=True)
class Normal(Family):
    """Observations with normal errors, of a standard deviation that is known or learnt.

    Examples
    --------
    >>> float(Normal().log_density(1.0, 1.0, 1.0, variance=1.0).round(4))
    -0.9189
    """

    usual_link: ClassVar[str] = "identity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overdispersion:
            raise ValueError(
                "Normal has no overdispersion: an effect of every observation is its noise. Leave "
                "noise_std to be learnt."
            )

    def own_parameters(self, spread: float = 1.0) -> tuple[Parameter, ...]:
        """The noise, in proportion to the spread of observations."""
        return (positive("noise_std", 0.2 * spread, 1.0, reach=6.0),)

    def distribution(self, mean: Any, exposure: Any, *, variance: Any) -> npd.Distribution:
        """Normal errors; their variance is that of known noise and of what is learnt."""
        return npd.Normal(mean, jnp.sqrt(variance))


@dataclass(frozen=True, kw_only=True)
class OfLink(Normal):
    """The link of a rate, with normal errors: what a mediator measures of a bag.

    Attributes
    ----------
    of
        The family of the observations; its parameters are known from them.

    Examples
    --------
    >>> rates = OfLink(of=Family(link="log"))
    >>> float(rates.log_density(0.0, 1.0, 1.0, variance=1.0).round(4))
    -0.9189
    """

    of: Family

    def __post_init__(self) -> None:
        object.__setattr__(self, "link", self.of.link)
        super().__post_init__()

    def crude_rate(self, y: Any, exposure: Any) -> np.ndarray:
        """The rate that was measured."""
        return np.asarray(self.g.rate(jnp.asarray(y)))

    def own_parameters(self, spread: float = 1.0) -> tuple[Parameter, ...]:
        """What the link has beside its measured errors, and the parameters of the family."""
        return (*super().own_parameters(spread), *self.of.parameters)

    def log_density(self, y: Any, mean: Any, exposure: Any, *, variance: Any) -> Array:
        """Log density of a link."""
        return super().log_density(y, self.g.eta(mean / exposure), exposure, variance=variance)

    def variance(self, mean: Any, exposure: Any, *, variance: Any) -> Array:
        """Variance of a mean whose link has normal errors, to first order."""
        return variance * (exposure * self.g.slope(self.g.eta(mean / exposure))) ** 2


def check_observed(family: Family, y: np.ndarray, amount: np.ndarray, names: Any) -> None:
    """Raise where observations, or their exposures or trials, cannot be those of a family.

    `names` are the bags of the observations, as errors name them.
    """
    kind, what = type(family).__name__, family.amount

    def refuse(wrong: np.ndarray, finding: Any, remedy: str) -> None:
        if np.any(wrong):
            k = int(np.argmax(wrong))
            raise ValueError(f"bag {names[k]!r} has {finding(k)}; {remedy}")

    refuse(
        ~(np.isfinite(amount) & (amount >= 0)),
        lambda k: f"{what} {amount[k]:g}",
        f"{what} is finite and not negative.",
    )
    refuse(
        (amount == 0) & (y != 0),
        lambda k: f"{what} 0 and yet an observation of {y[k]:g}",
        f"correct its {what}, or drop it.",
    )
    refuse(amount == 0, lambda k: f"{what} 0, so its observation says nothing", "drop it.")
    if family.support != "real":
        refuse(
            y < 0,
            lambda k: f"an observation of {y[k]:g}",
            f"those of {kind} are not negative.",
        )
    if family.support == "positive":
        refuse(
            y == 0,
            lambda k: "an observation of 0",
            f"those of {kind} are positive. dc.Tweedie() has zeros.",
        )
    if family.counts:
        refuse(
            y != np.round(y),
            lambda k: f"a count of {y[k]:g}",
            f"counts of {kind} are whole numbers. If they were averaged or adjusted, fit to "
            f"numpy.round(z); if they are rates, give the counts and fit(..., {what}=...).",
        )
    if family.support == "successes":
        refuse(
            amount != np.round(amount),
            lambda k: f"{amount[k]:g} trials",
            "trials are whole numbers; round them with numpy.round.",
        )
        refuse(
            y > amount,
            lambda k: f"{y[k]:g} successes in {amount[k]:g} trial{'s' * int(amount[k] != 1)}",
            "give the number tried with fit(..., trials=...), or dc.Poisson() for counts without.",
        )
