"""The field from a regression's view of bag means: what :class:`MediatedGP` is made of."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.bags import Bags
from deconditional.checkpoints import Part, digest
from deconditional.fit import Optimum
from deconditional.inference.problem import ExactProblem, Matched, SpreadPrior
from deconditional.inference.tilted import Regression, TiltedProblem
from deconditional.models.base import BagModel, _spread
from deconditional.parameters import Parameter, positive

__all__ = ["TiltedGP"]


class TiltedGP(BagModel):
    """k is learnt so that bag effects have the size that a regression of z on y expects.

    Parameters
    ----------
    kernel, trend, fine_noise, fixed, priors
        As in :class:`BaggGP`; ``bag_noise_std`` takes the place of the noise, and is what bag means
        have beyond the field.
    n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`.
    """

    learn_noise = None
    method = "map"
    method_options = None
    _regression: Regression
    _trend_of_z: np.ndarray

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

    def fit(
        self, bags: Bags, regressor: Any, own_bag: np.ndarray | None, checkpoint: Part | None = None
    ) -> Self:
        """Fit to bags, given a fitted regression of z on its mediator."""
        assert bags.mediator is not None
        problem = regressor._problem_
        self._regression = Regression.of(regressor, bags.mediator, own_bag)
        self._trend_of_z = np.asarray(problem.trend_means)
        try:
            return self._fit(bags, np.asarray(problem.z), None, None, None, checkpoint)
        finally:
            del self._regression, self._trend_of_z

    def conditional(self) -> Self:
        """The posterior without a tilt, at the same parameters."""
        other = copy.copy(self)
        vector = jnp.asarray(self._vectors_[0])
        other._problem_ = self._learning_.conditional(vector)
        other._solved_ = [other._problem_.solve(vector)]
        other.tilt_ = 0.0
        return other

    def _problem(
        self,
        bags: Bags,
        z: np.ndarray,
        mediator: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
    ) -> TiltedProblem:
        problem = super()._problem(bags, z, mediator, noise_std, noise_cov)
        spread = SpreadPrior.of(np.asarray(problem.trend_means), z, self._trend_of_z)
        return TiltedProblem.of(replace(problem, spread=spread), self._regression)

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
        return digest(super()._identity(bags, problem), seen.covariance, seen.mean, seen.noise)
