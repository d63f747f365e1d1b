"""The regression of observations on their mediators, and what it says of bags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.errors import Caution
from deconditional.fitting.report import FitReport
from deconditional.kernels.radial import prior_variance
from deconditional.models.bagg import BaggGP
from deconditional.models.checks import (
    check_bags,
    check_kernel,
    observations,
    observed_mediators,
    own_bags,
)
from deconditional.observations.families import OVERDISPERSION
from deconditional.observations.measurements import (
    Measurements,
    Population,
    errors_in_common,
    measured,
    steps,
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
        bags: Any,
        z: npt.ArrayLike | None,
        mediator: npt.ArrayLike | None,
        own_bag: npt.ArrayLike | None,
    ) -> Unmatched:
        """Check what the user gave; without mediators, observation j is that of bag j."""
        check_bags(bags)
        z = observations(z)
        y = observed_mediators(bags, len(z), mediator)
        return cls(bags, z, y, own_bags(own_bag, len(z), bags.n_bags))

    @property
    def has_own(self) -> np.ndarray | None:
        """Whether a bag has observations of its own, (N,); None where no bag has."""
        if self.own_bag is None:
            return None
        return np.bincount(self.own_bag[self.own_bag >= 0], minlength=self.bags.n_bags) > 0

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
        self, regressor: BaggGP, draws: int = 0, apart: bool = False, seed: int = 0
    ) -> tuple[Measurements, list[Measurements]]:
        """Bag means as the mediators of the bags measure them, and the same by draws.

        The first are by the most probable regression, the others by so many draws of it: of its
        hyper-parameters, and of those of its errors that bags have in common. With `apart`, errors
        are taken bag by bag. A bag with observations of its own is seen through their mean and
        nothing else.
        """
        fitted = regressor.fitted_
        vector = jnp.asarray(fitted.optimum.vector)
        _, field = fitted.problems[0].solve(vector)
        best = self._at(fitted.problems[0], vector, field, apart)
        # More draws than errors give these mean and covariance exactly.
        most = 0 if apart else draws - 1 if draws else None
        common, pivots = errors_in_common(best.errors, most)
        chosen = np.linspace(0, len(fitted.vectors), draws, endpoint=False).astype(int)
        drawn = []
        for k, step in zip(chosen, steps(draws, len(pivots), seed), strict=True):
            vector = jnp.asarray(fitted.vectors[k])
            one = self._at(fitted.problems[k], vector, fitted.fields[k], apart)
            drawn.append(self._measured(one, errors_in_common(one.errors, pivots=pivots)[0], step))
        return self._measured(best, common, np.zeros(len(pivots))), drawn

    def _at(self, problem: Any, vector: Any, field: Any, apart: bool) -> _Regression:
        """One regression at the mediators of bags and of observations."""
        assert self.bags.mediator is not None
        both = jnp.asarray(np.concatenate([self.bags.mediator, self.mediator]))
        found = (_apart_at if apart else _together_at)(field, both, self.bags.n_bags)
        mean, errors, prior = map(np.asarray, found)
        values = problem.parameters.unpack(vector)
        effect = float(values.get(OVERDISPERSION, values.get("noise_std", 0.0))) ** 2
        known = np.asarray(problem.known_noise)
        known = known if known.ndim == 1 else np.diag(known)
        return _Regression(mean, errors, prior, effect, known)

    def _measured(self, one: _Regression, common: np.ndarray, step: np.ndarray) -> Measurements:
        """Bag means as one regression measures them, some of its errors drawn."""
        n, g, errors = self.bags.n_bags, one.mean + common @ step, one.errors
        left = (errors if errors.ndim == 1 else np.diag(errors)) - (common**2).sum(1)
        explained = float(np.var(g) + np.mean(np.maximum(left, 0.0)))
        population = Population(float(np.mean(g)), explained, one.bag_effect, len(self.z))
        if errors.ndim == 1:
            found = measured(g[:n], one.prior, errors[:n], population)
        else:
            rest = errors[:n, :n] - common[:n] @ common[:n].T
            found = measured(g[:n], one.prior, rest, population)
            found = with_level(found, float(np.mean(self.z)), population)
        return found if self.own_bag is None else self._with_own(found, one.known)

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


class _Regression(NamedTuple):
    """g at the mediators of N bags and then M observations, as one regression has it.

    Its prior is that at bags alone; errors and prior are variances where bags are taken one by one.
    """

    mean: np.ndarray
    errors: np.ndarray
    prior: np.ndarray
    bag_effect: float
    known: np.ndarray


@eqx.filter_jit
def _together_at(field: Any, y: Any, n_bags: int) -> tuple[Any, Any, Any]:
    """Mean and covariance of a regression at mediators, and its prior at those of bags."""
    trend = field.trend.whitened(field.trend.features(y[:n_bags]))
    prior = field.kernel.cross_covariance(y[:n_bags], y[:n_bags]) + trend @ trend.T
    return field.moments(y)[0], field.covariance(y), prior


@eqx.filter_jit
def _apart_at(field: Any, y: Any, n_bags: int) -> tuple[Any, Any, Any]:
    """Mean and variances of a regression at mediators, and its prior at those of bags."""
    trend = field.trend.whitened(field.trend.features(y[:n_bags]))
    mean, variance = field.moments(y)
    return mean, variance, prior_variance(field.kernel, y[:n_bags]) + (trend**2).sum(1)


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
        some = jnp.asarray(regressor.bags_.points[:: 1 + len(z) // MOST_LEFT_OUT])
        mean, covariance, _ = map(np.asarray, _together_at(regressor.fields()[0], some, 1))
        spread = np.var(mean) + np.mean(np.diag(covariance)) - np.mean(covariance)
        return float(spread / (spread + effect))
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


def of_two_stages(
    first: FitReport, second: FitReport, found: list[Caution], more: Mapping[str, str] | None = None
) -> FitReport:
    """The report of a fit to what a regression on mediators says, and what was found of these."""
    resumed = [each.details["resumed"] for each in (first, second) if "resumed" in each.details]
    also = {"resumed": ", ".join(resumed)} if resumed else {}
    return replace(
        second,
        converged=first.converged and second.converged,
        compile_seconds=first.compile_seconds + second.compile_seconds,
        details={**second.details, **(more or {}), **also},
        notes=(*second.notes, *(caution.text for caution in found)),
    )
