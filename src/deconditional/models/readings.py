"""Ways to read what a regression of z on its mediators says of bags.

:class:`MediatedGP` mixes them.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array

from deconditional.bags import Bags
from deconditional.fitting.draws import PROPOSALS, weighted_draws
from deconditional.fitting.interrupts import stoppable
from deconditional.fitting.parameters import positive
from deconditional.fitting.priors import Prior, SplitLogNormal
from deconditional.inference.exact import ExactProblem, SpreadPrior
from deconditional.inference.learn import Fitted, most_probable
from deconditional.inference.measured import averaged_over_values
from deconditional.inference.tilted import Regression, TiltedProblem
from deconditional.models.base import BagModel, Model, learning, stages, take
from deconditional.models.checks import check_count
from deconditional.models.cmp import CMP
from deconditional.models.data import Data
from deconditional.models.problems import mediated, problem_parts, spread
from deconditional.models.regression import Unmatched
from deconditional.models.solvers import Exact
from deconditional.observations.kinds import Matched, Observation, Weighted
from deconditional.saving.resume import Checkpoint, Part, opened

__all__ = ["JointGP", "MeasuredGP", "TiltedGP", "UnlinkedGP"]

MOST_TOLD = 0.25
"""Share of the covariance of a regression's errors that learning is told of, at most."""


def length_scale_prior(mode: np.ndarray) -> Prior:
    """Prior of length scales that is wider below than elsewhere.

    Of matched data short ones need evidence, and mediators have none. A prior that asked for it
    would have its way, and intervals would be too narrow.
    """
    return SplitLogNormal(mode, below=1.2, above=1.5)


@dataclass(kw_only=True, eq=False, repr=False)
class Reading(BagModel):
    """A model of bags that is fitted to a regression, and averages over hyper-parameters.

    Parameters
    ----------
    n_draws
        Hyper-parameters to average over (:mod:`deconditional.fitting.draws`).
    kernel, trend, fine_noise, fixed, priors, n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`.
    """

    n_draws: int = 8
    learn_noise: bool | None = field(default=None, init=False)
    method: str = field(default="map", init=False)
    method_options: None = field(default=None, init=False)

    def check_options(self) -> None:
        """Raise where an option is none of its choices."""
        super().check_options()
        check_count("n_draws", self.n_draws)

    def forget(self) -> None:
        """Let go of what only learning needs, and :meth:`TiltedGP.conditional`."""
        self.fitted_ = replace(self.fitted_, learning=None, draws=None)


class MeasuredGP(Reading):
    """Mediators are measurements of bag means: see :meth:`Unmatched.measurements`.

    Their noise is learnt. What the regression does not know of itself widens the posterior
    (:mod:`deconditional.inference.measured`), and little of it takes part in learning: a quarter
    where it is most of all error, nothing where half of that is each bag's own.
    """

    def fit(self, data: Unmatched, regressor: Any, checkpoint: Part | None = None) -> Self:
        """Fit to bags, given a fitted regression of z on its mediator."""
        said = data.measurements(regressor)
        told = float(np.clip(0.5 - said.own_share, 0.0, MOST_TOLD))
        values = Data.of(data.bags, said.values, None, None, self)
        if told > 0:
            values = replace(values, known_noise=told * said.uncertainty)
        problem = _problem(values, Matched(), self, data.z)
        untold = (1.0 - told) * said.uncertainty

        def given(vector: Array) -> ExactProblem:
            return averaged_over_values(problem, vector, untold)

        return averaged(self, values.bags, problem, given, checkpoint)


class TiltedGP(Reading):
    """k is learnt so that bag effects have the size that a regression of z on y expects.

    ``bag_noise_std`` takes the place of the noise, and is what bag means have beyond the field.
    Bag means vary as much as observations do. Where more than half of the error of measurements is
    each bag's own, rather than the regression's, they help to learn k.
    """

    def fit(self, data: Unmatched, regressor: Any, checkpoint: Part | None = None) -> Self:
        """Fit to bags, given a fitted regression of z on its mediator."""
        said, z = data.measurements(regressor), data.z
        assert data.bags.mediator is not None
        regression = Regression.of(regressor, data.bags.mediator, data.own_bag)
        values = replace(Data.of(data.bags, z, None, None, self), learn_noise=False)
        own = positive("bag_noise_std", 0.2 * (spread(z) or 1.0), 1.0, reach=6.0)
        problem = _problem(values, Matched(), self, z, more=(own,))
        trend = np.asarray(regressor.fitted_.problem.trend_means)
        problem = replace(problem, spread=SpreadPrior.of(np.asarray(problem.trend_means), z, trend))
        power = max(0.0, 2.0 * said.own_share - 1.0)
        measured = (said.values, said.noise_std**2, power)
        tilted = TiltedProblem.of(problem, regression, *measured)
        return averaged(self, values.bags, tilted, tilted.tilted, checkpoint)

    def conditional(self, n_draws: int) -> Self:
        """The posterior without a tilt, at so many draws of the same parameters."""
        other, fitted = copy.copy(self), self.fitted_
        assert fitted.draws is not None
        other.n_draws = n_draws
        solved = _solved(fitted.learning.conditional, fitted.draws.pick(n_draws))
        other.fitted_ = replace(fitted, **solved)
        return other


class UnlinkedGP(Reading):
    """Mediators say nothing of bag means, and the field has its prior.

    Bag means vary as much as observations do, about the same mean. Of observations of a bag of its
    own the field learns as from matched ones.
    """

    def fit(self, data: Unmatched, regressor: Any, checkpoint: Part | None = None) -> Self:
        """Fit to bags, given a fitted regression of z on its mediator."""
        regression = Regression.without_link(regressor, data.bags.n_bags, data.own_bag)
        noise, z = np.asarray(regression.noise), data.z
        values = Data.of(data.bags, z, None, None, self)
        values = replace(values, known_noise=0.5 * (noise + noise.T), learn_noise=False)
        problem = _problem(values, Weighted(regression.weights), self, z)
        mean = np.ones((len(z), 0 if self.trend == "none" else 1))
        problem = replace(problem, spread=SpreadPrior.of(np.asarray(problem.trend_means), z, mean))
        return averaged(self, values.bags, problem, lambda vector: problem, checkpoint)


@dataclass(kw_only=True, eq=False, repr=False)
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

    n_draws: int = 8

    def check_options(self) -> None:
        """Raise where an option is none of its choices."""
        super().check_options()
        check_count("n_draws", self.n_draws)

    def fit(
        self,
        bags: Bags,
        z: npt.ArrayLike,
        mediator: npt.ArrayLike | None = None,
        *,
        own_bag: npt.ArrayLike | None = None,
        noise_std: npt.ArrayLike | None = None,
        noise_cov: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | Part | None = None,
    ) -> Self:
        """Fit to bags with mediators and observations with mediators; see :meth:`CMP.fit`."""
        with opened(checkpoint) as kept:
            data = Data.of(bags, z, noise_std, noise_cov, self).linked(mediator, own_bag)
            problem = _problem(data, mediated(data, self), self, data.z)
            assert data.mediator is not None
            linear = np.concatenate([np.ones((len(data.z), 1)), data.mediator], axis=1)
            trend = {"none": linear[:, :0], "constant": linear[:, :1], "linear": linear}[self.trend]
            prior = SpreadPrior.of(np.asarray(problem.trend_means), data.z, trend)
            problem = replace(problem, spread=prior)
            return averaged(self, data.bags, problem, lambda vector: problem, kept)


def _problem(
    data: Data, mediation: Observation, model: BagModel, typical_z: np.ndarray, more: Any = ()
) -> ExactProblem:
    """A problem with the priors of readings."""
    priors: dict[str, Any] = {"typical_z": typical_z, "length_scale_prior": length_scale_prior}
    return ExactProblem(**problem_parts(data, mediation, model, more=more, **priors))


def averaged(
    model: Model,
    bags: Bags,
    problem: ExactProblem,
    given: Callable[[Array], ExactProblem],
    kept: Part | None,
) -> Model:
    """The model, averaged over draws of its hyper-parameters.

    Parameters
    ----------
    model, bags
        What is fitted, with `n_draws`, and to what.
    problem
        What the hyper-parameters are learnt by.
    given
        The problem that has the posterior at given hyper-parameters.
    kept
        The fit's part of a checkpoint.
    """
    began = time.perf_counter()
    at = stages(model, bags, problem, kept)
    with stoppable() as stop:
        best = most_probable(problem, learning(model, problem, Exact()), at)
        weighted = weighted_draws(problem, best.vector, model.seed)
        draws = weighted.pick(model.n_draws)
        more = PROPOSALS + 2 * len(best.vector) if len(draws) > 1 else 0
        best = replace(best, evaluations=best.evaluations + more)
        interrupted = f"{best.evaluations} evaluations" if stop.used else ""
        fitted = Fitted(
            **_solved(given, draws),
            optimum=best,
            interrupted=interrupted,
            learning=problem,
            draws=weighted,
        )
        return take(model, bags, fitted, Exact(), ({"inference": "exact"}, ()), at, began)


def _solved(given: Callable[[Array], ExactProblem], draws: np.ndarray) -> dict[str, Any]:
    """Parts of :class:`Fitted` for all draws; equal draws share theirs."""
    solved: dict[bytes, tuple[Any, ...]] = {}
    for draw in draws:
        if draw.tobytes() not in solved:
            problem = given(jnp.asarray(draw))
            solved[draw.tobytes()] = (problem, *problem.solve(jnp.asarray(draw)))
    problems, pieces, fields = zip(*(solved[draw.tobytes()] for draw in draws), strict=True)
    return {"problems": problems, "vectors": draws, "pieces": pieces, "fields": fields}
