"""Models compared on coarse observations that they have not seen."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.sparse import csr_array
from sklearn.base import clone

from deconditional.errors import FitWarning, tell_of
from deconditional.fields.downscaler import Downscaler, FitData
from deconditional.fields.downscaling import new_downscaler
from deconditional.fields.validation import Comparison, HeldOut, blocks, compared, sharing
from deconditional.fitting.interrupts import aborting
from deconditional.fitting.progress import show
from deconditional.inference.posterior import Gaussians
from deconditional.models.cautions import leaking

__all__ = ["cross_validate"]

Ints = npt.NDArray[np.int64]


@aborting()
def cross_validate(
    fine: xr.Dataset,
    coarse: xr.Dataset,
    target: str,
    covariates: Sequence[str] = (),
    mediators: Sequence[str] = (),
    *,
    models: Sequence[str] | None = None,
    by: str = "space",
    folds: int = 5,
    refit: bool = True,
    progress: bool = False,
    **options: Any,
) -> Comparison:
    """Compare models on coarse observations they have not seen, held out in blocks.

    An observation with a bag of its own is predicted as the mean of the field over that bag;
    another one through its mediators. Observations that share fine cells with those held out are
    not learnt from; where that cannot be (see `refit`), a :class:`LeakageWarning` says so.

    Parameters
    ----------
    fine, coarse, target, covariates, mediators
        As in :func:`downscale`.
    models
        Names of models; by default those that ``model="auto"`` would compare.
    by
        Blocks in ``"space"`` or in ``"time"``.
    folds
        Number of parts the observations are divided into.
    refit
        Learn the parameters anew without each fold. Otherwise they are learnt once from all
        observations and held: far quicker, a little kinder.
    progress
        Show how far the work is.
    **options
        Further arguments of :class:`Downscaler`.

    Examples
    --------
    >>> import deconditional as dc
    >>> fields = dc.datasets.synthetic_fields(n_lat=12, n_lon=24)
    >>> data = dc.datasets.split_cells(
    ...     fields, "tas", ["altitude"], ["water_vapour"], block=3, matched=1.0
    ... )
    >>> table = dc.cross_validate(
    ...     data.fine, data.coarse, "tas", ["altitude"], models=["gpr"], refit=False
    ... )
    >>> table.columns[:3]
    ('model', 'rmse', 'crps')
    """
    first = new_downscaler(target, covariates, mediators, folds=folds, **options)
    first._prepare(fine, coarse)
    parts = blocks(first.pairing_, by, folds, first.seed)
    names = (models,) if isinstance(models, str) else models or first._names()
    shared = sharing(first.pairing_, parts.fold)
    found, used, leaks = [], [], []
    with show(progress) as stage:
        for name in names:
            one = clone(first)
            if models or isinstance(first.model, str):
                one.set_params(model=name)
            one._prepare(fine, coarse)
            began = time.perf_counter()
            data = one._data(name)
            among = shared[data.used][:, data.used]
            if refit:
                predicted, among = _refitted(one, name, data, parts.fold[data.used], among, stage)
            else:
                stage(f"learning {name}")
                predicted = one._fitted_model(name, data, data.z).predict_held_out(
                    parts.fold[data.used]
                )
            found.append(HeldOut(name, predicted, data.z, time.perf_counter() - began))
            used.append(data.used)
            leaks.append(int((among.sum(1) > 0).sum()))
    # Models that need mediators cannot use all observations; all are compared on the same ones.
    common = reduce(np.intersect1d, used)
    found = [each.of(np.isin(own, common)) for each, own in zip(found, used, strict=True)]
    how = ", parameters held"
    if refit:
        how = ", parameters learnt without the fold"
        how += " and the cells that share fine ones with it" if shared.nnz else ""
    tell_of(leaking(max(leaks), len(first.pairing_.z)))
    parts = parts._replace(how=parts.how + how).of(common)
    return compared(found, first.target_scaling_.scale, parts)


def _refitted(
    one: Downscaler, name: str, data: FitData, labels: Ints, shared: csr_array, stage: Any
) -> tuple[Gaussians, csr_array]:
    """Predictions of every fold, and which observations still share fine cells with others used."""
    means, variances = np.empty(len(data.z)), np.empty(len(data.z))
    left = shared.tolil()
    for fold in np.unique(labels):
        stage(f"{name}, fold {fold + 1}")
        seen, unseen = np.flatnonzero(labels != fold), np.flatnonzero(labels == fold)
        apart = seen[np.asarray(shared[unseen].sum(0)).ravel()[seen] == 0]
        if len(apart) >= len(seen) / 2:
            seen = apart
            left[unseen] = 0
        part = replace(
            data,
            bags=data.bags.select(seen) if data.mediator is None else data.bags,
            z=data.z[seen],
            mediator=None if data.mediator is None else data.mediator[seen],
            own_bag=None if data.own_bag is None else data.own_bag[seen],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            model = one._fitted_model(name, part, part.z)
        noise = float(getattr(model, "model_", model).parameters_.get("noise_std", 0.0)) ** 2
        if data.mediator is None:
            own = unseen
        else:
            own = np.full(len(unseen), -1) if data.own_bag is None else data.own_bag[unseen]
        with_bag = np.flatnonzero(own >= 0)
        without = np.flatnonzero(own < 0)
        if with_bag.size:
            post = model.predict_bags(data.bags.select(own[with_bag]))
            means[unseen[with_bag]] = post.mean
            variances[unseen[with_bag]] = post.variance + noise
        if without.size:
            assert data.mediator is not None
            first = getattr(model, "regressor_", model)
            stage_noise = float(first.parameters_.get("noise_std", 0.0)) ** 2
            post = model.predict_coarse(data.mediator[unseen[without]])
            means[unseen[without]] = post.mean
            variances[unseen[without]] = post.variance + stage_noise
    return Gaussians(means[None], variances[None]), left.tocsr()
