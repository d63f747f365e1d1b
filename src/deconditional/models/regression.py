"""The regression of observations on their mediators, and what it says of bags."""

from __future__ import annotations

from typing import Any, NamedTuple

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.models.bagg import BaggGP
from deconditional.models.checks import check_bags, check_kernel, mediators, observations, own_bags

__all__ = [
    "Measurements",
    "Unmatched",
    "bag_gap",
    "enough",
    "explained_share",
    "leaves_much_open",
]

ENOUGH = 0.05
"""Share of the variance of z that mediators must predict to pass for measurements of bag means."""

BY_CHANCE = 1.0, 2.0
"""What regressions on noise seem to predict besides, in observations: in all, for each mediator."""

SURELY_ENOUGH = 0.35
"""Share that is a link however few the observations are."""

MUCH_OPEN = 0.05
"""Variance of a regression's errors, as a share of that of z, from which on much is open."""

MOST_OWN = 0.6
"""Share of bag effects in all error up to which it is for want of observations."""

LEAST_EXPLAINED = 0.02
"""Share of the variance of z that its mediator is taken to explain at least."""


class Measurements(NamedTuple):
    """Bag means as mediators measure them: values and standard deviations of noise, (N,).

    `uncertainty`, (N, N), is the covariance of errors that values have in common, those of the
    regression; `own_share` is the share that the noise has of all error, and `open_share` is how
    large these errors in common are, as a share of the variance of the observations.
    """

    values: np.ndarray
    noise_std: np.ndarray
    uncertainty: np.ndarray
    own_share: float
    open_share: float


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
        **options: Any,
    ) -> BaggGP:
        """Fit a Gaussian process to (mediator, z): a Matérn-3/2 if no kernel is given."""
        assert self.bags.mediator is not None
        p = self.mediator.shape[1]
        if kernel is None:
            kernel = gk.Matern32(lengthscale=jnp.ones(p)) if p > 1 else gk.Matern32()
        check_kernel("mediator_kernel", kernel, self.bags.mediator)
        points = Bags.from_points(self.mediator, np.arange(len(self.z)))
        return BaggGP(kernel, **options).fit(points, self.z, noise_std=noise_std, **kept)

    def pseudo_targets(self, regressor: BaggGP) -> tuple[np.ndarray, np.ndarray]:
        """The regression at the bags, mean and covariance; a bag's own observations go first."""
        assert self.bags.mediator is not None
        at_bags = regressor.predict(self.bags.mediator)
        mean, covariance = at_bags.mean, at_bags.covariance()
        if self.has_own is not None:
            covariance[self.has_own] = 0.0
            covariance[:, self.has_own] = 0.0
        return self._own_first(mean), covariance

    def measurements(self, regressor: BaggGP) -> Measurements:
        r"""Mediators as measurements of bag means.

        Of a cell with mediator y the regression says that its mean is :math:`N(g(y), s^2)`, and the
        observations say that means of cells are :math:`N(m(y), v)` about their trend m, whatever
        else y says. So a mediator tells of the mean of its bag what Bayes' rule leaves,

        .. math:: p(y \mid \bar f) \propto \frac{N(\bar f; g, s^2)}{N(\bar f; m, v)}
                  \propto N\Bigl(\bar f; m + \frac{g - m}{b}, \frac{s^2}{b}\Bigr),
                  \quad b = 1 - \frac{s^2}{v}.

        The rest is for the prior of the field to say. With the predictions g themselves for
        targets it is said twice, and they vary by a factor b less than bag means do.

        A bag's own observations go first.
        """
        assert self.bags.mediator is not None
        problem = regressor.fitted_.problem
        trend = np.asarray(problem.trend_means)
        coefficients = np.linalg.pinv(trend) @ self.z
        usual = problem.trend.features(jnp.asarray(self.bags.mediator)) @ coefficients
        rest = self.z - trend @ coefficients
        degrees = max(len(self.z) - trend.shape[1], 1)
        variance = float(rest @ rest) / degrees - float(np.mean(problem.known_noise))
        effect = float(regressor.parameters_.get("noise_std", 0.0)) ** 2
        explained = 1.0 - effect / variance if variance > effect else 0.0
        explained = max(explained, LEAST_EXPLAINED)
        at_bags = regressor.predict(self.bags.mediator)
        values = np.asarray(usual + (at_bags.mean - usual) / explained)
        noise = np.full(len(values), np.sqrt(effect / explained))
        unknown = at_bags.covariance()
        in_common = float(np.mean(np.diag(unknown)))
        own_share = effect / (effect + in_common) if effect > 0 else 0.0
        total = float(np.var(self.z))
        open_share = in_common / total if total > 0 else 0.0
        uncertainty = unknown / explained**2
        if self.has_own is not None:
            noise[self.has_own] = 0.0
            uncertainty[self.has_own] = 0.0
            uncertainty[:, self.has_own] = 0.0
        return Measurements(self._own_first(values), noise, uncertainty, own_share, open_share)

    def _own_first(self, values: np.ndarray) -> np.ndarray:
        """Values of bags, means of their own observations where there are any."""
        if self.own_bag is None:
            return values
        owned = self.own_bag >= 0
        counts = np.bincount(self.own_bag[owned], minlength=self.bags.n_bags)
        sums = np.bincount(self.own_bag[owned], self.z[owned], minlength=self.bags.n_bags)
        return np.where(counts > 0, sums / np.maximum(counts, 1), values)


def explained_share(regressor: BaggGP) -> float:
    """Share of the variance of z that a regression predicts with its trend, each left out once."""
    z = np.asarray(regressor.fitted_.problem.z)
    if len(z) < 3:
        return 0.0
    left_out = regressor.predict_held_out(np.arange(len(z))).mean
    total = float(np.sum((z - z.mean()) ** 2))
    return max(0.0, 1.0 - float(np.sum((z - left_out) ** 2)) / total) if total > 0 else 0.0


def bag_gap(regressor: BaggGP, mediator: npt.ArrayLike, means: np.ndarray) -> float:
    """Root mean square distance of bag means from a regression, in its standard deviations."""
    expected = regressor.predict(mediator)
    variance = expected.variance + float(regressor.parameters_["noise_std"]) ** 2
    return float(np.sqrt(np.mean((means - expected.mean) ** 2 / variance)))


def enough(n_observations: int, n_mediators: int) -> float:
    """Share of their variance that mediators must predict, each left out once, to be a link."""
    in_all, for_each = BY_CHANCE
    return min(ENOUGH + (in_all + for_each * n_mediators) / n_observations, SURELY_ENOUGH)


def leaves_much_open(said: Measurements) -> bool:
    """Whether a regression knows little of bag means for want of observations.

    Then its errors are common to many bags, and a field that observations are fitted with helps to
    find them. Where mediators tell little of each bag by itself, no field can.
    """
    return said.open_share >= MUCH_OPEN and said.own_share < MOST_OWN
