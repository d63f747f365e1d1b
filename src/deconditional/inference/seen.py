r"""What observations of any family see of the field, and the Gaussian problem nearest to it.

A source has bags of its own and sees their mean rates,

.. math:: r = W^\top\bar r, \qquad \eta_m = b\,g(r_m) + a + s\,e_m, \qquad
          \mu_m = E_m\, g^{-1}(\eta_m),

with a and b its bias against the others (zero and one where there is none) and :math:`s e_m` the
effect of its own that overdispersion gives an observation; of effects of points it is that of
their mean, less :math:`s^2/2` (:mod:`~deconditional.inference.point_effects`). W is the identity
for bags that were observed themselves. A conditional mean operator has weights of either sign;
since a mean of rates has to be a rate, those below zero are left out there, and the others scaled
to a sum of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from deconditional.inference.rates import FinePoints
from deconditional.kernels.layout import Layout
from deconditional.observations.families import OVERDISPERSION, Family, Normal
from deconditional.observations.kinds import Observation

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
"""Rule of Gauss and Hermite for expectations of log likelihoods."""


FINE_NOISE = "fine_noise_std"
"""The parameter of what single points of normal sources have beside the smooth field."""


class Nearest(eqx.Module):
    """A linear model with normal errors that stands for a source near some place."""

    slopes: Float[Array, " n"]  # of the rate by f at every point; points weigh by them
    gain: Float[Array, " M"]  # of η by the mean rate of every observation
    information: Float[Array, " M"]  # Λ of η
    target: Float[Array, " M"]  # what η would have been observed as


class Seen(eqx.Module):
    """The data of one source."""

    # layout, y, amount, known: its bags, observations, exposures or trials, and the variance of
    # errors that is known.
    layout: Layout
    y: Float[Array, " M"]
    amount: Float[Array, " M"]
    known: Float[Array, " M"]
    observation: Observation  # how observations see the bags
    nearest: Nearest  # the linear model about the last solution
    # One for observations that are looked at, zero for those that are held out.
    counted: Float[Array, " M"]
    # Of the high-resolution noise of points, the part that is left in an observation.
    shares: Float[Array, " M"]
    offset_std: Float[Array, ""]  # prior standard deviation of a
    # family, prefix, offset, affine: the family, what is before the names of its parameters, and
    # its bias.
    family: Family = eqx.field(static=True)
    prefix: str = eqx.field(static=True)
    offset: bool = eqx.field(static=True)
    affine: bool = eqx.field(static=True)
    learns_noise: bool = eqx.field(static=True)

    def of_family(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the family, as its methods take them."""
        if isinstance(self.family, Normal):
            noise = values[f"{self.prefix}noise_std"] ** 2 if self.learns_noise else 0.0
            fine = values.get(FINE_NOISE, 0.0) ** 2 * self.shares
            return {"variance": self.known + noise + fine}
        names = [p.name for p in self.family.parameters]
        return {name: values[f"{self.prefix}{name}"] for name in names}

    def holding(self, kept: Array) -> Seen:
        """The source with some of its observations held out; shapes stay as they are."""
        counted = self.counted * kept
        nearest = replace(self.nearest, information=self.nearest.information * counted)
        return replace(self, counted=counted, nearest=nearest)

    def effect_std(self, values: Mapping[str, Any], points: FinePoints) -> Float[Array, " M"]:
        """s, zero without overdispersion; of effects of points, that of their mean."""
        if not self.family.overdispersion:
            return jnp.zeros(len(self.y))
        std = jnp.full(len(self.y), values[f"{self.prefix}{OVERDISPERSION}"])
        if self.family.overdispersion != "points":
            return std
        return jnp.sqrt(jnp.log1p(jnp.expm1(std**2) * self.crowding(values, points)))

    def crowding(self, values: Mapping[str, Any], points: FinePoints) -> Float[Array, " M"]:
        """h, the sum of squared shares of points in an observation, about the last solution."""
        slopes = jax.lax.stop_gradient(self.nearest.slopes)  # with a log link, the rates
        squares = points.bag_means(self.layout.weights * slopes**2)
        rates, weights = points.bag_means(slopes), self.weights(values)
        if weights is None:
            return squares / rates**2
        return (weights.T**2 @ squares) / (weights.T @ rates) ** 2

    def weights(self, values: Mapping[str, Any]) -> Float[Array, "N M"] | None:
        """W as means of rates need it; None for the identity."""
        weights, _ = self.observation.weights(values)
        if weights is None or self.family.link == "identity":
            return weights
        kept = jnp.maximum(weights, 0.0)
        return kept / jnp.maximum(jnp.sum(kept, 0), 1e-12)


class View(eqx.Module):
    """A source at one value of the hyper-parameters."""

    seen: Seen
    points: FinePoints
    weights: Float[Array, "N M"] | None
    values: dict[str, Any]
    effect_std: Float[Array, " M"]
    # Variances of f at the points that rates are expectations over; zero for Laplace's method.
    spread: Float[Array, " n"]
    level: Float[Array, " M"]  # variance of g(r), the same for every point of an observation
    # Variance of η, that the log likelihood is an expectation over; None for Laplace's method.
    own_spread: Float[Array, " M"] | None
    # scale, offsets: b, and the prior standard deviation of a in the place of this source.
    scale: Float[Array, ""]
    offsets: Float[Array, " B"]

    def _mixed(self, of_bags: Array) -> Array:
        return of_bags if self.weights is None else self.weights.T @ of_bags

    def _link(self, r: Array) -> Array:
        """The mean of the link of r, which is a mean over what f may be."""
        g = self.seen.family.g
        return g.eta(r) + 0.5 * g.bend(r) * self.level

    def predictor(self, v: Array, e: Array) -> tuple[Array, Array, Array]:
        """Values of f, r and η; the unknowns begin with the offsets of all sources."""
        g, n = self.seen.family.g, len(self.offsets)
        f = self.points.values_at(v[n:])
        r = self._mixed(self.points.bag_means(g.expected(f, self.spread)))
        eta = self.scale * self._link(r) + self.offsets @ v[:n] + self.effect_std * e
        if self.seen.family.overdispersion == "points":
            eta = eta - 0.5 * self.effect_std**2
        return f, r, eta

    def log_likelihood(self, eta: Array) -> Float[Array, ""]:
        """Log density of all observations, the mean over what η may be."""
        return jnp.sum(self.log_likelihoods(eta))

    def log_likelihoods(self, eta: Array) -> Float[Array, " M"]:
        """Log density of every observation, the mean over what η may be."""

        def at(eta: Array) -> Array:
            family, amount = self.seen.family, self.seen.amount
            mean = amount * family.g.rate(eta)
            return family.log_density(self.seen.y, mean, amount, **self.values)

        return self.seen.counted * self._average(at, eta)

    def slopes(self, eta: Array) -> tuple[Array, Array]:
        """Derivative of the log likelihood by η, and Fisher's information of it."""
        known = partial(
            self.seen.family.information_of_link, exposure=self.seen.amount, **self.values
        )
        return jax.grad(self.log_likelihood)(eta), self.seen.counted * self._average(known, eta)

    def _average(self, function: Callable[[Array], Array], eta: Array) -> Array:
        """The mean of a function of η."""
        if self.own_spread is None:
            return function(eta)
        std = jnp.sqrt(jnp.maximum(self.own_spread, 1e-24))
        each = jax.vmap(lambda node: function(eta + std * node))(jnp.asarray(NODES))
        return jnp.asarray(NODE_WEIGHTS) @ each

    def jacobian(self, factors: Array, gain: Array) -> Float[Array, "M D"]:
        """Derivative of η by the unknowns, offsets first."""
        rows = gain[:, None] * self._mixed(self.points.feature_means(factors))
        offsets = jnp.broadcast_to(self.offsets, (len(rows), len(self.offsets)))
        return jnp.concatenate([offsets, rows], axis=1)

    def at(self, f: Array, r: Array) -> tuple[Array, Array]:
        """Slopes of rates by f, and gains of η by mean rates."""
        gain = self.scale * jax.grad(lambda rate: jnp.sum(self._link(rate)))(r)
        return self.seen.family.g.expected_slope(f, self.spread), gain
