"""The regression of observations on their mediators, and what it says of bags."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.kernels.radial import prior_variance
from deconditional.models.bagg import BaggGP
from deconditional.models.checks import check_bags, check_kernel, mediators, observations, own_bags
from deconditional.observations.families import OVERDISPERSION
from deconditional.observations.measurements import (
    Measurements,
    Population,
    measured,
    measured_apart,
    with_level,
)

MOST_LEFT_OUT = 5_000
"""Observations up to which each is left out once."""


class Unmatched(NamedTuple):
    """Bags and observations that mediators link, checked."""

    bags: Bags
    z: np.ndarray
    mediator: np.ndarray
    own_bag: np.ndarray | None

    @classmethod
    def of(
        cls,
        bags: Bags,
        z: npt.ArrayLike,
        mediator: npt.ArrayLike | None,
        own_bag: npt.ArrayLike | None,
    ) -> Unmatched:
        """Check what the user gave; without mediators, observation j is that of bag j."""
        check_bags(bags)
        z = observations(z)
        if bags.mediator is None:
            raise ValueError(
                "the bags have no mediator, so nothing links them to the observations. Give one "
                "to Bags.from_points(..., mediator=y)."
            )
        if mediator is None:
            if len(z) != bags.n_bags:
                raise ValueError(
                    f"{len(z)} observations came for {bags.n_bags} bags and no mediator for them. "
                    "Unmatched observations need fit(..., mediator=y_tilde)."
                )
            mediator = bags.mediator
        y = mediators(mediator, bags.mediator.shape[1])
        if len(y) != len(z):
            raise ValueError(f"{len(z)} observations came with {len(y)} mediators.")
        return cls(bags, z, y, own_bags(own_bag, len(z), bags.n_bags))

    @property
    def has_own(self) -> np.ndarray | None:
        """Whether a bag has observations of its own, (N,); None where no bag has."""
        if self.own_bag is None:
            return None
        return np.bincount(self.own_bag[self.own_bag >= 0], minlength=self.bags.n_bags) > 0

    @property
    def needs_mediators(self) -> bool:
        """Whether a bag has no observation of its own."""
        return self.has_own is None or not self.has_own.all()

    def regress(
        self,
        kernel: AbstractKernel | None,
        noise_std: npt.ArrayLike | None,
        kept: dict[str, Any],
        by: type[BaggGP] = BaggGP,
        **options: Any,
    ) -> BaggGP:
        """Fit a Gaussian process to (mediator, z): a Matérn-3/2 if no kernel is given."""
        assert self.bags.mediator is not None
        p = self.mediator.shape[1]
        if kernel is None:
            kernel = gk.Matern32(lengthscale=jnp.ones(p)) if p > 1 else gk.Matern32()
        check_kernel("mediator_kernel", kernel, self.bags.mediator)
        points = Bags.from_points(self.mediator, np.arange(len(self.z)))
        return by(kernel, **options).fit(points, self.z, noise_std=noise_std, **kept)

    def pseudo_targets(self, regressor: BaggGP) -> tuple[np.ndarray, np.ndarray]:
        """The regression at the bags, mean and covariance; a bag's own observations go first."""
        assert self.bags.mediator is not None
        at_bags = regressor.predict(self.bags.mediator)
        mean, covariance = at_bags.mean, at_bags.covariance()
        if self.has_own is not None:
            covariance[self.has_own] = 0.0
            covariance[:, self.has_own] = 0.0
        return self._own_first(mean), covariance

    def measurements(
        self, regressor: BaggGP, draws: int = 0, apart: bool = False
    ) -> tuple[Measurements, list[Measurements]]:
        """Bag means as the mediators of the bags measure them, and the same by draws.

        The first are by the most probable regression, the others by so many of its draws. With
        `apart`, errors of the regression are taken bag by bag. A bag with observations of its own
        is seen through their mean and nothing else.
        """
        fitted = regressor.fitted_
        vector = jnp.asarray(fitted.optimum.vector)
        _, field = fitted.problems[0].solve(vector)
        best = self._measured(fitted.problems[0], vector, field, apart)
        chosen = np.linspace(0, len(fitted.vectors), draws, endpoint=False).astype(int)
        made: dict[bytes, Measurements] = {}
        for k in chosen:
            vector = fitted.vectors[k]
            if vector.tobytes() not in made:
                each = (fitted.problems[k], jnp.asarray(vector), fitted.fields[k])
                made[vector.tobytes()] = self._measured(*each, apart)
        return best, [made[fitted.vectors[k].tobytes()] for k in chosen]

    def _measured(self, problem: Any, vector: Any, field: Any, apart: bool) -> Measurements:
        """Bag means as one regression measures them."""
        assert self.bags.mediator is not None
        y = jnp.asarray(self.bags.mediator)
        known = problem.known_noise
        variances = np.asarray(known if known.ndim == 1 else jnp.diagonal(known))
        values = problem.parameters.unpack(vector)
        effect = float(values.get(OVERDISPERSION, values.get("noise_std", 0.0))) ** 2
        if OVERDISPERSION in values:
            population = _population_of_links(field, self.mediator, effect)
        else:
            population = Population.of(self.z, float(variances.mean()))
        mean, prior, posterior = map(np.asarray, (_apart_at if apart else _together_at)(field, y))
        if apart:
            found = measured_apart(mean, prior, posterior, effect, population)
        else:
            found = measured(mean, prior, posterior, effect, population)
            found = with_level(found, population)
        return found if self.own_bag is None else self._with_own(found, variances)

    def _with_own(self, found: Measurements, variances: np.ndarray) -> Measurements:
        """Measurements in which bags that were observed are seen through their observations."""
        assert self.own_bag is not None and self.has_own is not None
        owned, n = self.own_bag >= 0, self.bags.n_bags
        counts = np.bincount(self.own_bag[owned], minlength=n)
        summed = np.bincount(self.own_bag[owned], variances[owned], minlength=n)
        own = summed / np.maximum(counts, 1) ** 2
        if found.noise.ndim == 1:
            noise = np.where(self.has_own, own, found.noise)
        else:
            noise = np.where(self.has_own[:, None] | self.has_own, np.diag(own), found.noise)
        return Measurements(self._own_first(found.values), noise)

    def _own_first(self, values: np.ndarray) -> np.ndarray:
        """Values of bags, means of their own observations where there are any."""
        if self.own_bag is None:
            return values
        owned = self.own_bag >= 0
        counts = np.bincount(self.own_bag[owned], minlength=self.bags.n_bags)
        sums = np.bincount(self.own_bag[owned], self.z[owned], minlength=self.bags.n_bags)
        return np.where(counts > 0, sums / np.maximum(counts, 1), values)


@eqx.filter_jit
def _together_at(field: Any, y: Any) -> tuple[Any, Any, Any]:
    """Mean of a regression at mediators, and its covariance before and after z was seen."""
    trend = field.trend.whitened(field.trend.features(y))
    prior = field.kernel.cross_covariance(y, y) + trend @ trend.T
    return field.moments(y)[0], prior, field.covariance(y)


@eqx.filter_jit
def _apart_at(field: Any, y: Any) -> tuple[Any, Any, Any]:
    """Moments at points with variances alone."""
    trend = field.trend.whitened(field.trend.features(y))
    mean, variance = field.moments(y)
    return mean, prior_variance(field.kernel, y) + (trend**2).sum(1), variance


def _population_of_links(field: Any, y: np.ndarray, effect: float) -> Population:
    """Links of mean rates before mediators are looked at, as a regression of counts has them."""
    some = jnp.asarray(y[:: 1 + len(y) // MOST_LEFT_OUT])
    mean, _, covariance = map(np.asarray, _together_at(field, some))
    spread = np.var(mean) + (np.trace(covariance) - covariance.sum() / len(some)) / len(some)
    return Population(float(mean.mean()), float(spread) + effect, len(y))


def explained_share(regressor: BaggGP) -> float:
    """Share of the variance of z that a regression predicts with its trend, each left out once.

    Of more than a few thousand observations, which have no matrix, the share that is not noise; of
    counts and the like, the share of the variance of links that bags do not have to themselves.
    """
    z = np.asarray(regressor.fitted_.problem.z)
    if len(z) < 3:
        return 0.0
    if hasattr(regressor, "families_"):
        effect = float(regressor.parameters_[OVERDISPERSION]) ** 2
        field, y = regressor.fields()[0], regressor.bags_.points
        return _population_of_links(field, y, effect).explained_share(effect)
    if len(z) > MOST_LEFT_OUT:
        noise = float(regressor.parameters_.get("noise_std", 0.0)) ** 2
        return max(0.0, 1.0 - noise / float(np.var(z)))
    left_out = regressor.predict_held_out(np.arange(len(z))).mean
    total = float(np.sum((z - z.mean()) ** 2))
    return max(0.0, 1.0 - float(np.sum((z - left_out) ** 2)) / total) if total > 0 else 0.0


def bag_gap(regressor: BaggGP, mediator: npt.ArrayLike, means: np.ndarray) -> float:
    """Root mean square distance of bag means from a regression, in its standard deviations."""
    expected = regressor.predict(mediator)
    variance = expected.variance + float(regressor.parameters_["noise_std"]) ** 2
    return float(np.sqrt(np.mean((means - expected.mean) ** 2 / variance)))
