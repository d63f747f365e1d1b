"""VarCMP: the conditional mean process with inducing points."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.models.cmp import CMP
from deconditional.models.families import families_asked, fit_sources
from deconditional.models.options import FamilyOptions
from deconditional.models.sources import Source, sources_of
from deconditional.models.vbagg import VariationalModel
from deconditional.saving.resume import Checkpoint, opened


@dataclass(kw_only=True, eq=False, repr=False)
class VarCMP(CMP, VariationalModel, FamilyOptions):
    """Conditional mean process, by variational inference.

    Parameters
    ----------
    kernel, mediator_kernel, cmo, centred, uncertainty
        As in :class:`CMP`.
    family
        As in :class:`BaggGP`. A mean of rates has to be a rate, so that weights of the operator
        below zero are left out, and the others scaled to a sum of one, where the link is no
        identity.
    rank
        As in :class:`BaggGP`.
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
        bags: Bags | Sequence[Source],
        z: npt.ArrayLike | None = None,
        mediator: npt.ArrayLike | None = None,
        *,
        exposure: npt.ArrayLike | None = None,
        trials: npt.ArrayLike | None = None,
        own_bag: npt.ArrayLike | None = None,
        noise_std: npt.ArrayLike | None = None,
        noise_cov: npt.ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Fit to bags with mediators and observations with mediators; see :meth:`CMP.fit`.

        With a `family`, `exposure` or `trials` are those of the observations; a list of
        :class:`~deconditional.Source`, one of them with mediators, stands for all the rest.
        """
        if families_asked(self, bags, exposure, trials):
            amounts: dict[str, Any] = {"exposure": exposure, "trials": trials, "mediator": mediator}
            refused = {"own_bag": own_bag}
            sources = sources_of(self, bags, z, noise_std, noise_cov, refused=refused, **amounts)
            with opened(checkpoint) as kept:
                return fit_sources(self, sources, kept)
        noise: dict[str, Any] = {"noise_std": noise_std, "noise_cov": noise_cov}
        given: Any = bags, z, mediator
        return super().fit(*given, own_bag=own_bag, checkpoint=checkpoint, **noise)
