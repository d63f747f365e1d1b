"""The conditional mean process: exact deconditional posterior through a mediator."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import jax.numpy as jnp
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.inference.posterior import CoarsePosterior
from deconditional.models.base import BagModel, learnt
from deconditional.models.checks import mediators
from deconditional.models.data import Data
from deconditional.models.options import MediationOptions
from deconditional.models.problems import mediated
from deconditional.saving.resume import Checkpoint, opened


@dataclass(kw_only=True, eq=False, repr=False)
class CMP(BagModel, MediationOptions):
    r"""Conditional mean process: the fine field from observations linked by a mediator.

    Observation m sees the field through its conditional mean at mediator :math:`\tilde y_m`, which
    a conditional mean operator estimated from the bags writes as a weighted sum of bag means. The
    bags need not be those of the observations. The operator's ridge λ is learnt with the rest;
    ``fixed={"ridge": value}`` holds it.

    Parameters
    ----------
    kernel
        k, any GPJax kernel of the fine covariates; a Gaussian with a length scale per covariate by
        default.
    mediator_kernel
        ℓ, any GPJax kernel of the mediator; by default a Gaussian, or a Matérn-1/2 with
        `uncertainty`, with a length scale per variable. The variance of a single kernel is fixed
        at one, since the ridge absorbs it.
    cmo
        ``"standard"``: the paper's estimator with replicated mediators, in its N³ form.
        ``"shrinkage"``: its conditional mean shrinkage operator (S-CMP). They are the same for
        bags of equal size.
    centred
        Preserve constants: columns of W sum to one.
    uncertainty
        Add the uncertainty of the estimated operator to the noise (U-CMP).
    trend, fine_noise, learn_noise, fixed, priors
        As in :class:`BaggGP`.
    method, method_options, n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`BaggGP`.

    Examples
    --------
    Covariates in one half of the bags, observations of the other half:

    >>> from deconditional import CMP
    >>> from deconditional.datasets import swiss_roll
    >>> data = swiss_roll(n_points=500, n_bags=20, matching="indirect", seed=0)
    >>> model = CMP(uncertainty=True, n_restarts=2).fit(data.bags, data.z, mediator=data.mediator)
    >>> post = model.predict(data.x)
    >>> lower, upper = post.interval(0.95)
    >>> bool(((data.f > lower) & (data.f < upper)).mean() > 0.8)
    True
    """

    def fit(
        self,
        bags: Bags,
        z: npt.ArrayLike,
        mediator: npt.ArrayLike | None = None,
        *,
        own_bag: npt.ArrayLike | None = None,
        noise_std: npt.ArrayLike | None = None,
        noise_cov: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Fit to bags with mediators and observations with mediators.

        Parameters
        ----------
        bags
            Bags with a mediator each.
        z : (M,)
            Coarse observations.
        mediator : (M, p) or (M,), optional
            The mediator of every observation. Leave it out when observation j is that of bag j.
        own_bag : (M,), optional
            For partly matched data: the index of the bag whose mean an observation is, which then
            needs no mediation, or -1.
        noise_std, noise_cov, checkpoint
            As in :meth:`BaggGP.fit`.
        """
        with opened(checkpoint) as kept:
            data = Data.of(bags, z, noise_std, noise_cov, self).linked(mediator, own_bag)
            return learnt(self, data, mediated(data, self), kept)

    def predict_coarse(self, mediator: npt.ArrayLike) -> CoarsePosterior:
        """Joint posterior of the conditional mean process g at new mediators.

        With `uncertainty` it includes that of the estimated operator.
        """
        fitted = self.check_fitted()
        y = jnp.asarray(mediators(mediator, fitted.problem.mediation.bag_mediator.shape[1]))
        found = fitted.moments(
            lambda problem, vector, its, field: problem.conditional_means(
                jnp.asarray(vector), its, field, y
            )
        )
        return CoarsePosterior(*found)
