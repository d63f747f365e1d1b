"""VarCMP: the conditional mean process with inducing points."""

from __future__ import annotations

from dataclasses import dataclass

from deconditional.models.cmp import CMP
from deconditional.models.variational import VariationalModel

__all__ = ["VarCMP"]


@dataclass(kw_only=True, eq=False, repr=False)
class VarCMP(CMP, VariationalModel):
    """Conditional mean process, by variational inference.

    Parameters
    ----------
    kernel, mediator_kernel, cmo, centred, uncertainty
        As in :class:`CMP`.
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
