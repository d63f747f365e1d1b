"""Mediation by pseudo-targets: regress z on the mediator, then use a matched model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional import errors
from deconditional.bags import Bags
from deconditional.errors import tell_of
from deconditional.fitting.interrupts import stoppable
from deconditional.inference.posterior import CoarsePosterior, Gaussians, Posterior
from deconditional.models.bagg import BaggGP
from deconditional.models.cautions import of_pseudo_targets
from deconditional.models.estimator import Estimator, clone
from deconditional.models.regression import Unmatched, of_two_stages
from deconditional.saving.api import Savable
from deconditional.saving.resume import Checkpoint, CheckpointPart, opened, within


@dataclass(kw_only=True, eq=False, repr=False)
class PseudoTarget(Savable, Estimator):
    """A matched model made mediated: the fair version of the paper's baselines.

    A Gaussian process g with kernel ℓ is fitted to the observations and their mediators. Its
    prediction at the bags' mediators stands in for the bags' own observations.

    Parameters
    ----------
    base
        The matched model, :class:`BaggGP` by default.
    mediator_kernel
        ℓ; a Matérn-3/2 with a length scale per variable by default.
    propagate
        Hand the covariance of g on to the base model as noise of the pseudo-targets; otherwise
        they are taken at face value, as in the paper.
    trend
        Trend of g: ``"none"``, ``"constant"`` or ``"linear"`` in the mediator.
    n_restarts, seed
        Of the fit of g.

    Attributes
    ----------
    regressor_
        The fitted g, a :class:`BaggGP` of single points.
    model_
        The fitted base model.
    fit_report_
        That of the base model, with the time and the notes of both stages.
    pseudo_targets_, pseudo_target_covariance_
        What the base model was given.

    Examples
    --------
    >>> from deconditional import BaggGP, PseudoTarget
    >>> from deconditional.datasets import swiss_roll
    >>> data = swiss_roll(n_points=500, n_bags=20, matching="indirect", seed=0)
    >>> model = PseudoTarget(BaggGP(n_restarts=2)).fit(data.bags, data.z, mediator=data.mediator)
    >>> model.predict(data.x).mean.shape
    (500,)
    """

    base: Any = field(default=None, kw_only=False)
    mediator_kernel: AbstractKernel | None = field(default=None, kw_only=False)
    propagate: bool = True
    trend: str = "constant"
    n_restarts: int = 4
    seed: int = 0

    def fit(
        self,
        bags: Bags,
        z: npt.ArrayLike,
        mediator: npt.ArrayLike,
        *,
        own_bag: npt.ArrayLike | None = None,
        noise_std: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Fit g to (mediator, z), then the base model to the bags; see :meth:`CMP.fit`.

        A bag that has observations of its own (`own_bag`) gets their mean instead of a
        pseudo-target.
        """
        with opened(checkpoint) as kept, stoppable():
            return self._fit(bags, z, mediator, own_bag, noise_std, kept)

    def _fit(
        self,
        bags: Bags,
        z: npt.ArrayLike,
        mediator: npt.ArrayLike,
        own_bag: npt.ArrayLike | None,
        noise_std: npt.ArrayLike | None,
        kept: CheckpointPart | None,
    ) -> Self:
        data = Unmatched.of(bags, z, mediator, own_bag)
        self.regressor_ = data.regress(
            self.mediator_kernel,
            noise_std,
            within(kept, "regressor"),
            trend=self.trend,
            n_restarts=self.n_restarts,
            seed=self.seed,
        )
        self.pseudo_targets_, self.pseudo_target_covariance_ = data.pseudo_targets(self.regressor_)
        base = BaggGP() if self.base is None else clone(self.base)
        noise_cov = self.pseudo_target_covariance_ if self.propagate else None
        self.model_ = base.fit(
            bags, self.pseudo_targets_, noise_cov=noise_cov, **within(kept, "base")
        )
        first, second = self.regressor_.fit_report_, self.model_.fit_report_
        found = of_pseudo_targets(bags, data.mediator, data.z, data.has_own)
        second = replace(
            second, seconds=first.seconds + second.seconds, notes=(*first.notes, *second.notes)
        )
        self.fit_report_ = of_two_stages(first, second, found)
        tell_of(found)
        return self

    def predict(
        self, x: npt.ArrayLike, fine_noise: bool = False, features: int | None = None
    ) -> Posterior:
        """Posterior of the fine field; see :meth:`BaggGP.predict`."""
        return self._fitted().predict(x, fine_noise=fine_noise, features=features)

    def predict_bags(self, bags: Bags) -> CoarsePosterior:
        """Joint posterior of the means of f over new bags."""
        return self._fitted().predict_bags(bags)

    def predict_coarse(self, mediator: npt.ArrayLike) -> Posterior:
        """Posterior of the conditional mean at new mediators, from the first-stage regression."""
        self._fitted()
        return self.regressor_.predict(mediator)

    def predict_held_out(self, folds: npt.ArrayLike) -> Gaussians:
        """Every observation as those of the other folds predict it, by the first-stage regression.

        See :meth:`BaggGP.predict_held_out`.
        """
        self._fitted()
        return self.regressor_.predict_held_out(folds)

    def _summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = self._fitted()._summary()
        return summary

    def _fitted(self) -> Any:
        if not hasattr(self, "model_"):
            raise errors.NotFittedError("this PseudoTarget is not fitted; call fit first.")
        return self.model_
