"""Two ways to read what a regression of z on its mediators says of bags.

:class:`MediatedGP` mixes them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.checkpoints import Part, digest
from deconditional.fit import Optimum
from deconditional.inference.measured import averaged_over_values
from deconditional.inference.problem import ExactProblem, Matched, SpreadPrior
from deconditional.inference.tilted import Regression, TiltedProblem
from deconditional.models.base import BagModel, _spread
from deconditional.models.regression import Measurements, Unmatched
from deconditional.parameters import Parameter, positive

__all__ = ["MeasuredGP", "TiltedGP"]


class _Seen(NamedTuple):
    """What a regression says of bags, for as long as a model is fitted to it."""

    regression: Regression
    measurements: Measurements
    z: np.ndarray
    trend: np.ndarray


class Reading(BagModel):
    """What both share: they are fitted to a regression.

    Parameters
    ----------
    kernel, trend, fine_noise, fixed, priors, n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`.
    """

    learn_noise: bool | None = None
    method = "map"
    method_options = None
    _seen: _Seen

    def __init__(
        self,
        kernel: AbstractKernel | None = None,
        *,
        trend: str = "constant",
        fine_noise: bool = False,
        fixed: Mapping[str, Any] | None = None,
        priors: Mapping[str, Any] | None = None,
        n_restarts: int = 4,
        max_iter: int = 300,
        points_per_bag: int | None = None,
        precision: str = "auto",
        seed: int = 0,
    ):
        self.kernel = kernel
        self.trend = trend
        self.fine_noise = fine_noise
        self.fixed = fixed
        self.priors = priors
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.points_per_bag = points_per_bag
        self.precision = precision
        self.seed = seed

    def fit(self, data: Unmatched, regressor: Any, checkpoint: Part | None = None) -> Self:
        """Fit to bags, given a fitted regression of z on its mediator."""
        assert data.bags.mediator is not None
        self._seen = _Seen(
            Regression.of(regressor, data.bags.mediator, data.own_bag),
            data.measurements(regressor),
            np.asarray(regressor._problem_.z),
            np.asarray(regressor._problem_.trend_means),
        )
        try:
            return self._fit_to_seen(data.bags, checkpoint)
        finally:
            del self._seen

    def _fit_to_seen(self, bags: Bags, checkpoint: Part | None) -> Self:
        raise NotImplementedError

    def _typical_variance(self, z: np.ndarray) -> float:
        return super()._typical_variance(self._seen.z)


class MeasuredGP(Reading):
    """Mediators are measurements of bag means: see :meth:`Unmatched.measurements`.

    Their noise is learnt. What the regression does not know of itself widens the posterior and
    takes no part in learning (:mod:`deconditional.inference.measured`).
    """

    learn_noise = True

    def _fit_to_seen(self, bags: Bags, checkpoint: Part | None) -> Self:
        return self._fit(bags, self._seen.measurements.values, None, None, None, checkpoint)

    def _learn(self, problem: ExactProblem) -> tuple[ExactProblem, Optimum, list[tuple[Any, Any]]]:
        best = self._optimum(problem)
        vector = jnp.asarray(best.vector)
        final = averaged_over_values(problem, vector, self._seen.measurements.uncertainty)
        return final, best, [final.solve(vector)]


class TiltedGP(Reading):
    """k is learnt so that bag effects have the size that a regression of z on y expects.

    ``bag_noise_std`` takes the place of the noise, and is what bag means have beyond the field.
    Bag means vary as much as observations do. Where more than half of the error of measurements is
    each bag's own, rather than the regression's, they help to learn k.
    """

    def _fit_to_seen(self, bags: Bags, checkpoint: Part | None) -> Self:
        return self._fit(bags, self._seen.z, None, None, None, checkpoint)

    def _problem(
        self,
        bags: Bags,
        z: np.ndarray,
        mediator: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
    ) -> TiltedProblem:
        problem = super()._problem(bags, z, mediator, noise_std, noise_cov)
        spread = SpreadPrior.of(np.asarray(problem.trend_means), self._seen.z, self._seen.trend)
        seen = self._seen.measurements
        power = max(0.0, 2.0 * seen.own_share - 1.0)
        return TiltedProblem.of(
            replace(problem, spread=spread),
            self._seen.regression,
            *(seen.values, seen.noise_std**2, power),
        )

    def conditional(self) -> Self:
        """The posterior without a tilt, at the same parameters."""
        other = copy.copy(self)
        vector = jnp.asarray(self._vectors_[0])
        other._problem_ = self._learning_.conditional(vector)
        other._solved_ = [other._problem_.solve(vector)]
        other.tilt_ = 0.0
        return other

    def _mediation(
        self, bags: Bags, z: np.ndarray, mediator: npt.ArrayLike | None
    ) -> tuple[Matched, tuple[Parameter, ...]]:
        return Matched(), (positive("bag_noise_std", 0.2 * (_spread(z) or 1.0), 1.0, reach=6.0),)

    def _known_noise(
        self, z: np.ndarray, noise_std: npt.ArrayLike | None, noise_cov: npt.ArrayLike | None
    ) -> tuple[np.ndarray, bool]:
        return np.zeros(len(z)), False

    def _learn(self, problem: TiltedProblem) -> tuple[ExactProblem, Optimum, list[tuple[Any, Any]]]:
        best = self._optimum(problem)
        self._learning_ = problem
        vector = jnp.asarray(best.vector)
        final = problem.tilted(vector)
        self.tilt_ = problem.tilt_at(vector)
        return final, best, [final.solve(vector)]

    def _identity(self, bags: Bags, problem: TiltedProblem) -> str:
        seen = problem.regression
        more = (seen.covariance, seen.mean, seen.noise, problem.values, problem.value_noise)
        return digest(super()._identity(bags, problem), *more)
