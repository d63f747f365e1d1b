"""Ways to read what a regression of z on its mediators says of bags.

:class:`MediatedGP` mixes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array

from deconditional.bags import Bags
from deconditional.fitting.draws import PROPOSALS, weighted_draws
from deconditional.fitting.map import Optimum
from deconditional.fitting.parameters import Parameter, positive
from deconditional.fitting.priors import Prior, SplitLogNormal
from deconditional.inference.field import Field
from deconditional.inference.measured import averaged_over_values
from deconditional.inference.problem import ExactProblem, Matched, Mediated, SpreadPrior, Weighted
from deconditional.inference.tilted import Regression, TiltedProblem
from deconditional.models.base import BagModel, _spread
from deconditional.models.checks import check_count
from deconditional.models.cmp import CMP
from deconditional.models.regression import Measurements, Unmatched
from deconditional.saving.resume import Part, digest

__all__ = ["JointGP", "MeasuredGP", "TiltedGP", "UnlinkedGP"]

MOST_TOLD = 0.25
"""Share of the covariance of a regression's errors that learning is told of, at most."""


def length_scale_prior(mode: np.ndarray) -> Prior:
    """Wider than elsewhere: of matched data short ones need evidence, and mediators have none.

    A prior that asked for it would have its way, and intervals would be too narrow.
    """
    return SplitLogNormal(mode, below=1.2, above=1.5)


class _Seen(NamedTuple):
    """What a regression says of bags, for as long as a model is fitted to it."""

    regression: Regression
    measurements: Measurements
    z: np.ndarray
    trend: np.ndarray


class Reading(BagModel):
    """What they share: they are fitted to a regression, and average over hyper-parameters.

    Parameters
    ----------
    n_draws
        Hyper-parameters to average over (:mod:`deconditional.fitting.draws`).
    kernel, trend, fine_noise, fixed, priors, n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`.
    """

    learn_noise: bool | None = None
    method = "map"
    method_options = None
    _seen: _Seen
    _length_scale_prior = staticmethod(length_scale_prior)

    def __init__(
        self,
        kernel: AbstractKernel | None = None,
        *,
        n_draws: int = 8,
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
        self.n_draws = n_draws
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
        self._seen = _Seen(
            self._regression(data, regressor),
            data.measurements(regressor),
            np.asarray(regressor._problem_.z),
            np.asarray(regressor._problem_.trend_means),
        )
        try:
            return self._fit_to_seen(data.bags, checkpoint)
        finally:
            del self._seen

    @staticmethod
    def _regression(data: Unmatched, regressor: Any) -> Regression:
        assert data.bags.mediator is not None
        return Regression.of(regressor, data.bags.mediator, data.own_bag)

    def forget(self) -> None:
        """Let go of what only learning needs, and :meth:`TiltedGP.conditional`."""
        for name in ("_draws_", "_learning_"):
            self.__dict__.pop(name, None)

    def _learnt_by(self) -> tuple[Any, Any, Any]:
        solved = self._learning_.solve(jnp.asarray(self._vectors_[0]))
        return (self._learning_, *solved)

    def _fit_to_seen(self, bags: Bags, checkpoint: Part | None) -> Self:
        return self._fit(bags, self._seen.z, None, None, None, checkpoint)

    def _typical_variance(self, z: np.ndarray) -> float:
        return super()._typical_variance(self._seen.z)

    def _check_options(self) -> None:
        super()._check_options()
        check_count("n_draws", self.n_draws)

    def _learn(self, problem: Any) -> tuple[ExactProblem, Optimum, list[tuple[Any, Any]]]:
        best = self._optimum(problem)
        self._learning_ = problem
        self._draws_ = weighted_draws(problem, best.vector, self.seed)
        draws = self._draws_.pick(self.n_draws)
        problems, solved = self._solve(partial(self._given, problem), draws)
        return problems[0], _averaged(best, draws), solved

    def _given(self, problem: Any, vector: Array) -> ExactProblem:
        """The observations that have the posterior at given hyper-parameters."""
        raise NotImplementedError

    @staticmethod
    def _solve(
        given: Callable[[Array], ExactProblem], draws: np.ndarray
    ) -> tuple[list[ExactProblem], list[tuple[Any, Any]]]:
        """Problems of all draws, and what they were solved to: those of equal draws are one."""
        problems, solved = {}, {}
        for draw in draws:
            key = draw.tobytes()
            if key not in solved:
                problems[key] = given(jnp.asarray(draw))
                solved[key] = problems[key].solve(jnp.asarray(draw))
        keys = [draw.tobytes() for draw in draws]
        return [problems[key] for key in keys], [solved[key] for key in keys]

    def _fourier_fields(self, features: int) -> list[Field]:
        """As of other models, but that every draw has its own values of observations."""
        mine, found = self._problem_, []
        for vector, solved in zip(self._vectors_, self._solved_, strict=True):
            one = copy.copy(self)
            one._problem_ = replace(mine, z=solved[1].z)
            one._vectors_, one._solved_ = vector[None], [solved]
            found += BagModel._fourier_fields(one, features)
        return found


class MeasuredGP(Reading):
    """Mediators are measurements of bag means: see :meth:`Unmatched.measurements`.

    Their noise is learnt. What the regression does not know of itself widens the posterior
    (:mod:`deconditional.inference.measured`), and little of it takes part in learning: a quarter
    where it is most of all error, nothing where half of that is each bag's own.
    """

    learn_noise = True

    def _fit_to_seen(self, bags: Bags, checkpoint: Part | None) -> Self:
        return self._fit(bags, self._seen.measurements.values, None, None, None, checkpoint)

    @property
    def _told(self) -> float:
        """Share of the regression's errors that is noise of the values."""
        return float(np.clip(0.5 - self._seen.measurements.own_share, 0.0, MOST_TOLD))

    def _known_noise(
        self, z: np.ndarray, noise_std: npt.ArrayLike | None, noise_cov: npt.ArrayLike | None
    ) -> tuple[np.ndarray, bool]:
        told = self._told
        return told * self._seen.measurements.uncertainty if told > 0 else np.zeros(len(z)), True

    def _given(self, problem: ExactProblem, vector: Array) -> ExactProblem:
        untold = (1.0 - self._told) * self._seen.measurements.uncertainty
        return averaged_over_values(problem, vector, untold)


class TiltedGP(Reading):
    """k is learnt so that bag effects have the size that a regression of z on y expects.

    ``bag_noise_std`` takes the place of the noise, and is what bag means have beyond the field.
    Bag means vary as much as observations do. Where more than half of the error of measurements is
    each bag's own, rather than the regression's, they help to learn k.
    """

    def _problem(
        self,
        bags: Bags,
        z: np.ndarray,
        mediator: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        noise_cov: npt.ArrayLike | None,
    ) -> TiltedProblem:
        problem = super()._problem(bags, z, mediator, noise_std, noise_cov)
        seen = self._seen.measurements
        power = max(0.0, 2.0 * seen.own_share - 1.0)
        values = (seen.values, seen.noise_std**2, power)
        return TiltedProblem.of(problem, self._seen.regression, *values)

    def _spread_prior(self, problem: ExactProblem) -> SpreadPrior:
        return SpreadPrior.of(np.asarray(problem.trend_means), self._seen.z, self._seen.trend)

    def conditional(self, n_draws: int) -> Self:
        """The posterior without a tilt, at so many draws of the same parameters."""
        other = copy.copy(self)
        other.n_draws = n_draws
        other._vectors_ = self._draws_.pick(n_draws)
        problems, other._solved_ = self._solve(self._learning_.conditional, other._vectors_)
        other._problem_ = problems[0]
        return other

    def _mediation(
        self, bags: Bags, z: np.ndarray, mediator: npt.ArrayLike | None
    ) -> tuple[Matched, tuple[Parameter, ...]]:
        return Matched(), (positive("bag_noise_std", 0.2 * (_spread(z) or 1.0), 1.0, reach=6.0),)

    def _known_noise(
        self, z: np.ndarray, noise_std: npt.ArrayLike | None, noise_cov: npt.ArrayLike | None
    ) -> tuple[np.ndarray, bool]:
        return np.zeros(len(z)), False

    def _given(self, problem: TiltedProblem, vector: Array) -> ExactProblem:
        return problem.tilted(vector)

    def _identity(self, bags: Bags, problem: TiltedProblem) -> str:
        seen = problem.regression
        more = (seen.covariance, seen.mean, seen.noise, problem.values, problem.value_noise)
        return digest(super()._identity(bags, problem), *more)


class UnlinkedGP(Reading):
    """Mediators say nothing of bag means, and the field has its prior.

    Bag means vary as much as observations do, about the same mean. Of observations of a bag of its
    own the field learns as from matched ones.
    """

    @staticmethod
    def _regression(data: Unmatched, regressor: Any) -> Regression:
        return Regression.without_link(regressor, data.bags.n_bags, data.own_bag)

    def _spread_prior(self, problem: ExactProblem) -> SpreadPrior:
        z = np.asarray(problem.z)
        mean = np.ones((len(z), 0 if self.trend == "none" else 1))
        return SpreadPrior.of(np.asarray(problem.trend_means), z, mean)

    def _mediation(
        self, bags: Bags, z: np.ndarray, mediator: npt.ArrayLike | None
    ) -> tuple[Any, tuple[Parameter, ...]]:
        return Weighted(self._seen.regression.weights), ()

    def _known_noise(
        self, z: np.ndarray, noise_std: npt.ArrayLike | None, noise_cov: npt.ArrayLike | None
    ) -> tuple[np.ndarray, bool]:
        noise = np.asarray(self._seen.regression.noise)
        return 0.5 * (noise + noise.T), False

    def _given(self, problem: ExactProblem, vector: Array) -> ExactProblem:
        return problem


class JointGP(CMP):
    """U-CMP with the priors of readings, averaged over hyper-parameters as they are.

    The wider prior of length scales, and that bag means vary as much as observations do.

    Parameters
    ----------
    n_draws
        Hyper-parameters to average over.
    **options
        As in :class:`CMP`.
    """

    _length_scale_prior = staticmethod(length_scale_prior)

    def __init__(self, *args: Any, n_draws: int = 8, **options: Any):
        super().__init__(*args, **options)
        self.n_draws = n_draws

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted([*CMP._get_param_names(), "n_draws"])

    def _check_options(self) -> None:
        super()._check_options()
        check_count("n_draws", self.n_draws)

    def _learn(self, problem: Any) -> tuple[ExactProblem, Optimum, list[tuple[Any, Any]]]:
        best = self._optimum(problem)
        draws = weighted_draws(problem, best.vector, self.seed).pick(self.n_draws)
        solved = [problem.solve(jnp.asarray(draw)) for draw in draws]
        return problem, _averaged(best, draws), solved

    def _spread_prior(self, problem: ExactProblem) -> SpreadPrior:
        assert isinstance(problem.mediation, Mediated)
        y, z = np.asarray(problem.mediation.observed_mediator), np.asarray(problem.z)
        linear = np.concatenate([np.ones((len(z), 1)), y], axis=1)
        trend = {"none": linear[:, :0], "constant": linear[:, :1], "linear": linear}[self.trend]
        return SpreadPrior.of(np.asarray(problem.trend_means), z, trend)


def _averaged(best: Optimum, draws: np.ndarray) -> Optimum:
    """An optimum with draws about it, and the evaluations that they took."""
    more = PROPOSALS + 2 * len(best.vector) if len(draws) > 1 else 0
    return replace(best, draws=draws, evaluations=best.evaluations + more)
