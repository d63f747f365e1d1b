"""VarCMP: the conditional mean process with inducing points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel
from jaxtyping import Array

from deconditional.bags import Bags
from deconditional.kernels.linalg import NoiseRoot
from deconditional.models.checks import check_bags, check_count, own_bags
from deconditional.models.cmp import CMP
from deconditional.models.variational import VariationalModel
from deconditional.saving.resume import Checkpoint

__all__ = ["VarCMP"]


class VarCMP(VariationalModel, CMP):
    """Conditional mean process, by variational inference.

    Parameters
    ----------
    kernel, mediator_kernel, cmo, centred, uncertainty
        As in :class:`CMP`.
    cmo_bags
        Estimate the conditional mean operator from so many of the bags, drawn with `seed`, and use
        no others; all by default.
    n_inducing, inducing, learn_inducing, features, inference, trace, inference_options
        As in :class:`VBagg`.
    trend, fine_noise, learn_noise, fixed, priors
        As in :class:`BaggGP`.
    method, method_options, n_restarts, max_iter, points_per_bag, precision, seed
        As in :class:`VBagg`.

    Examples
    --------
    >>> from deconditional import VarCMP
    >>> from deconditional.datasets import swiss_roll
    >>> data = swiss_roll(n_points=500, n_bags=20, matching="indirect", seed=0)
    >>> model = VarCMP(uncertainty=True, n_inducing=100, n_restarts=2)
    >>> post = model.fit(data.bags, data.z, mediator=data.mediator).predict(data.x)
    >>> lower, upper = post.interval(0.95)
    >>> bool(((data.f > lower) & (data.f < upper)).mean() > 0.8)
    True
    """

    def __init__(
        self,
        kernel: AbstractKernel | None = None,
        mediator_kernel: AbstractKernel | None = None,
        *,
        cmo: str = "standard",
        centred: bool = False,
        uncertainty: bool = False,
        cmo_bags: int | None = None,
        n_inducing: int | None = None,
        inducing: str | npt.ArrayLike = "kmeans",
        learn_inducing: bool = False,
        features: int | None = None,
        inference: str = "collapsed",
        trace: str = "auto",
        inference_options: Mapping[str, Any] | None = None,
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
        self.cmo_bags = cmo_bags
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.learn_inducing = learn_inducing
        self.features = features
        self.inference = inference
        self.trace = trace
        self.inference_options = inference_options
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
        """Fit to bags with mediators and observations with mediators; see :meth:`CMP.fit`."""
        check_bags(bags)
        if self.cmo_bags is not None:
            check_count("cmo_bags", self.cmo_bags)
            if self.cmo_bags > bags.n_bags:
                raise ValueError(f"cmo_bags is {self.cmo_bags}, but there are {bags.n_bags} bags.")
            mediator = self._observed_mediator(bags, np.size(z), mediator)
            chosen = np.random.default_rng(self.seed).permutation(bags.n_bags)[: self.cmo_bags]
            own_bag = own_bags(own_bag, np.size(z), bags.n_bags)
            if own_bag is not None:
                place = np.full(bags.n_bags + 1, -1)  # its last entry is that of -1, no bag
                place[np.sort(chosen)] = np.arange(len(chosen))
                own_bag = place[own_bag]
            bags = bags.select(np.sort(chosen))
        return super().fit(
            bags,
            z,
            mediator,
            own_bag=own_bag,
            noise_std=noise_std,
            noise_cov=noise_cov,
            checkpoint=checkpoint,
        )

    def _coarse_moments(
        self, pieces: Any, field: Any, weights: Array, shared: Array, own: Array
    ) -> tuple[Array, Array]:
        """Mean and covariance of g at new mediators, under q; see :meth:`CMP._coarse_moments`."""
        root = NoiseRoot.of(pieces.noise)
        at_new = (pieces.means @ weights).T
        observed = root.whiten(pieces.mediated().T)
        gain = root.whiten(shared.T).T
        q = field.coefficients
        misfit = root.whiten(self._problem_.z) - observed @ q.mean
        left = at_new - gain @ observed
        covariance = q.covariance(left) + own - gain @ gain.T
        if pieces.residual is not None:
            rest = weights.T - gain @ root.whiten(pieces.weights.T)
            covariance = covariance + rest @ pieces.residual.covariance @ rest.T
        return at_new @ q.mean + gain @ misfit, covariance
