"""Models compared on coarse observations that they have not seen."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.sparse import csr_array

from deconditional.errors import FitWarning, UsageError, tell_of
from deconditional.fields.count_comparison import compared_counts
from deconditional.fields.downscaler import Downscaler
from deconditional.fields.downscaling import new_downscaler
from deconditional.fields.fine_bags import FineBags
from deconditional.fields.learn import STAGED, Learner, final_stage
from deconditional.fields.problem import FitData
from deconditional.fields.sides import two_sides
from deconditional.fields.validation import Comparison, Predicted, Tried, folds_of, sharing
from deconditional.fitting.interrupts import aborting
from deconditional.fitting.progress import show
from deconditional.inference.posterior import Gaussians
from deconditional.models.cautions import leaking
from deconditional.models.estimator import clone

Ints = npt.NDArray[np.int64]


@aborting()
def cross_validate(
    fine: xr.Dataset,
    coarse: xr.Dataset,
    target: str | None = None,
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

    Bilinear interpolation of the other observations is compared with them.

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
    sides = two_sides(fine, coarse, first.question())
    learner = first.prepare(*sides)
    pairing, bags = learner.problem.pairing, learner.bags
    assert isinstance(bags, FineBags)  # as it is of data that is at hand
    divided = folds_of(pairing, by, folds, first.seed)
    if pairing.question.family is not None or pairing.sources:
        return _of_counts(first, replace(learner, folds=divided), models, refit, progress)
    shared = sharing(pairing, bags, divided.fold)
    found, used, leaks = [], [], []
    with show(progress) as stage:
        for name, one in _learners(first, learner, models).items():
            began = time.perf_counter()
            data = one.data(name)
            among = shared[data.used][:, data.used]
            fold = divided.fold[data.used]
            if refit:
                predicted, among = _refitted(one, name, data, fold, among, stage)
            else:
                stage(f"learning {name}")
                predicted = one.fit(name, data, data.z).predict_held_out(fold)
            found.append((name, Predicted(predicted, data.z), time.perf_counter() - began))
            used.append(data.used)
            leaks.append(int((among.sum(1) > 0).sum()))
    # Models that need mediators cannot use all observations; all are compared on the same ones.
    common = reduce(np.intersect1d, used)
    tried = [
        Tried(name, predicted.of(np.isin(own, common)), seconds)
        for (name, predicted, seconds), own in zip(found, used, strict=True)
    ]
    how = ", parameters held"
    if refit:
        how = ", parameters learnt without the fold"
        how += " and the cells that share fine ones with it" if shared.nnz else ""
    tell_of(leaking(max(leaks), len(pairing.z)))
    divided = replace(divided, how=divided.how + how)
    return replace(learner, folds=divided).judged([*tried, learner.interpolated(common, divided)])


def _of_counts(
    downscaler: Downscaler,
    learner: Learner,
    models: Sequence[str] | None,
    refit: bool,
    progress: bool,
) -> Comparison:
    """The comparison of models of a family, beside what a user has without them."""
    assert learner.folds is not None
    family = learner.problem.pairing.question.family
    if family is not None and not family.counts:
        raise UsageError("of families, those of counts can be compared; amounts cannot as yet.")
    found, data = {}, {}
    with show(progress) as stage:
        for name, one in _learners(downscaler, learner, models).items():
            stage(f"learning {name}")
            data[name] = one.data(name)
            found[name] = None if refit else one.fit(name, data[name], data[name].z)
        stage("comparing")
        how = f"{learner.folds.how}, parameters {'learnt without the fold' if refit else 'held'}"
        learner = replace(learner, folds=replace(learner.folds, how=how))
        return compared_counts(learner, found, data, refit)


def _learners(
    downscaler: Downscaler, learner: Learner, models: Sequence[str] | str | None
) -> dict[str, Learner]:
    """What fits every model that is to be compared, by name."""
    given = (models,) if isinstance(models, str) else models or learner.names
    found = {}
    for name in given:
        model = name if models or isinstance(downscaler.model, str) else downscaler.model
        clone(downscaler).set_params(model=model).question()
        found[name] = replace(learner, recipe=replace(learner.recipe, model=model))
    return found


def _refitted(
    learner: Learner,
    name: str,
    data: FitData,
    labels: Ints,
    shared: csr_array,
    stage: Callable[[str], None],
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
        part = data.rows(seen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            model = learner.fit(name, part, part.z)
        for rows, (mean, variance) in _held_out(model, data, unseen):
            means[rows], variances[rows] = mean, variance
    return Gaussians(means[None], variances[None]), left.tocsr()


def _held_out(
    model: Any, data: FitData, unseen: Ints
) -> Iterator[tuple[Ints, tuple[np.ndarray, np.ndarray]]]:
    """Means and variances of observations that were not learnt from.

    Those with a bag of their own are predicted as its mean, others through their mediators.
    """
    if data.mediator is None:
        own = unseen
    else:
        own = np.full(len(unseen), -1) if data.own_bag is None else data.own_bag[unseen]
    if (own >= 0).any():
        post = model.predict_bags(data.bags.select(own[own >= 0]))
        noise = _noise_variance(final_stage(model))
        yield unseen[own >= 0], (post.mean, post.variance + noise)
    if (own < 0).any():
        assert data.mediator is not None
        post = model.predict_coarse(data.mediator[unseen[own < 0]])
        noise = _noise_variance(model.regressor_ if isinstance(model, STAGED) else model)
        yield unseen[own < 0], (post.mean, post.variance + noise)


def _noise_variance(model: Any) -> float:
    return float(model.parameters_.get("noise_std", 0.0)) ** 2
