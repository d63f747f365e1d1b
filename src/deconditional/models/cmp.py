"""The conditional mean process: exact deconditional posterior through a mediator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array

from deconditional.bags import Bags
from deconditional.fitting.parameters import Parameter, kernel_template, positive
from deconditional.inference.posterior import CoarsePosterior
from deconditional.inference.problem import Matched, Mediated
from deconditional.kernels.linalg import as_matrix, whiten
from deconditional.models.base import BagModel
from deconditional.models.checks import check_kernel, mediators, own_bags
from deconditional.observations.mediation import ridge_shape
from deconditional.saving.resume import Checkpoint

__all__ = ["CMP"]


class CMP(BagModel):
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

    _own_bag: npt.ArrayLike | None = None

    def __init__(
        self,
        kernel: AbstractKernel | None = None,
        mediator_kernel: AbstractKernel | None = None,
        *,
        cmo: str = "standard",
        centred: bool = False,
        uncertainty: bool = False,
        trend: str = "constant",
        fine_noise: bool = False,
        learn_noise: bool | None = None,
        fixed: Mapping[str, Any] | None = None,
        priors: Mapping[str, Any] | None = None,
        method: str = "map",
        method_options: Mapping[str, Any] | None = None,
        n_restarts: int = 4,
        max_iter: int = 300,
        points_per_bag: int | None = None,
        precision: str = "auto",
        seed: int = 0,
    ):
        self.kernel = kernel
        self.mediator_kernel = mediator_kernel
        self.cmo = cmo
        self.centred = centred
        self.uncertainty = uncertainty
        self.trend = trend
        self.fine_noise = fine_noise
        self.learn_noise = learn_noise
        self.fixed = fixed
        self.priors = priors
        self.method = method
        self.method_options = method_options
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.points_per_bag = points_per_bag
        self.precision = precision
        self.seed = seed

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
        self._own_bag = own_bag
        return self._fit(bags, z, mediator, noise_std, noise_cov, checkpoint)

    def predict_coarse(self, mediator: npt.ArrayLike) -> CoarsePosterior:
        """Joint posterior of the conditional mean process g at new mediators.

        With `uncertainty` it includes that of the estimated operator.
        """
        self._check_fitted()
        mediation = self._problem_.mediation
        assert isinstance(mediation, Mediated)
        y = jnp.asarray(mediators(mediator, mediation.bag_mediator.shape[1]))
        means, covariances = [], []
        for vector, (pieces, field) in zip(self._vectors_, self._solved_, strict=True):
            values = self._problem_.parameters.unpack(jnp.asarray(vector))
            operator = mediation.operator(values)
            weights, own = operator.weights_and_covariance(y)
            shared = operator.cross_covariance(y, mediation.observed_mediator)
            shared = shared * mediation.mediated
            scale = pieces.embedding_scale if self.uncertainty else 0.0
            noise = field.fine_noise_variance * as_matrix(self._overlap())
            shared = weights.T @ noise @ pieces.weights + scale * shared
            own = weights.T @ noise @ weights + scale * own
            mean, covariance = self._coarse_moments(pieces, field, weights, shared, own)
            means.append(np.asarray(mean))
            covariances.append(np.asarray(covariance))
        return CoarsePosterior(np.stack(means), np.stack(covariances))

    def _overlap(self) -> Array:
        overlap = self._problem_.overlap
        return jnp.zeros(self._problem_.layout.n_bags) if overlap is None else overlap

    def _coarse_moments(
        self, pieces: Any, field: Any, weights: Array, shared: Array, own: Array
    ) -> tuple[Array, Array]:
        """Mean and covariance of g at new mediators.

        `shared` and `own` are what g there, apart from the smooth field, has in common with the
        noise of the observations and with itself.
        """
        c = field.conditioned
        cross = weights.T @ pieces.gram @ pieces.weights + shared
        prior = weights.T @ pieces.gram @ weights + own
        h = weights.T @ self._problem_.trend_means
        explained = whiten(c.root, cross.T)
        residual = h - explained.T @ c.whitened_trend
        white = whiten(c.trend_root, residual.T)
        misfit = whiten(c.root, field.z) - c.whitened_trend @ c.trend
        mean = explained.T @ misfit + h @ c.trend
        return mean, prior - explained.T @ explained + white.T @ white

    @staticmethod
    def _observed_mediator(
        bags: Bags, n_observations: int, mediator: npt.ArrayLike | None
    ) -> npt.ArrayLike:
        """The mediators of the observations: those of the bags where none are given."""
        if bags.mediator is None:
            raise ValueError(
                "the bags have no mediator. Give one to Bags.from_points(..., mediator=y), or use "
                "BaggGP, which needs none, on matched data."
            )
        if mediator is not None:
            return mediator
        if n_observations != bags.n_bags:
            raise ValueError(
                f"{n_observations} observations came for {bags.n_bags} bags and no mediator for "
                "them. Unmatched observations need fit(..., mediator=y_tilde)."
            )
        return bags.mediator

    def _mediation(
        self, bags: Bags, z: np.ndarray, mediator: npt.ArrayLike | None
    ) -> tuple[Matched | Mediated, tuple[Parameter, ...]]:
        shape = ridge_shape(self.cmo, bags.effective_sizes)
        mediator = self._observed_mediator(bags, len(z), mediator)
        assert bags.mediator is not None
        p = bags.mediator.shape[1]
        y = mediators(mediator, p)
        if len(y) != len(z):
            raise ValueError(f"{len(z)} observations came with {len(y)} mediators.")
        own_bag = own_bags(self._own_bag, len(z), bags.n_bags)
        kernel = self.mediator_kernel
        if kernel is None:
            family = gk.Matern12 if self.uncertainty else gk.RBF
            kernel = family(lengthscale=jnp.ones(p)) if p > 1 else family()
        check_kernel("mediator_kernel", kernel, bags.mediator)
        both = np.concatenate([bags.mediator, np.asarray(y)])
        template = kernel_template(kernel, "mediator_kernel", both, 1.0, unit_variance=True)
        mediation = Mediated(
            kernel=template,
            bag_mediator=jnp.asarray(bags.mediator),
            observed_mediator=jnp.asarray(y),
            ridge_shape=jnp.asarray(shape),
            own_bag=None if own_bag is None else jnp.asarray(own_bag),
            centred=self.centred,
            uncertainty=self.uncertainty,
        )
        ridge = positive("ridge", 0.1 / bags.n_bags, 2.0, reach=14.0)
        return mediation, (*template.parameters, ridge)
