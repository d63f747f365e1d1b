"""VarCMP: the conditional mean process with inducing points."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.models.cmp import CMP
from deconditional.models.data import some_bags
from deconditional.models.options import CmoBagsOptions
from deconditional.models.variational import VariationalModel
from deconditional.saving.resume import Checkpoint

__all__ = ["VarCMP"]


@dataclass(kw_only=True, eq=False, repr=False)
class VarCMP(CMP, VariationalModel, CmoBagsOptions):
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
        if self.cmo_bags is not None:
            number, seed = self.cmo_bags, self.seed
            bags, mediator, own_bag = some_bags(bags, number, seed, z, mediator, own_bag)
        noise = {"noise_std": noise_std, "noise_cov": noise_cov}
        return super().fit(bags, z, mediator, own_bag=own_bag, checkpoint=checkpoint, **noise)
