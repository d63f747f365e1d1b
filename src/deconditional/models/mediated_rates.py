r"""Unmatched counts, and observations of other families: mediators measure links of mean rates.

The regression of observations on their mediators has their family, and an effect of its own for
every observation, which is what a bag has beside its mediator:
:math:`\eta_m = h(y_m) + \rho\, e_m`. So the mediator of a bag measures the link
:math:`g(\bar r)` of its mean rate, as that of normal observations measures a bag mean
(:mod:`deconditional.observations.measurements`), with errors taken bag by bag; and the field is
seen through these links, in a basis, beside whatever other sources see of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from deconditional.errors import DegenerateFitWarning
from deconditional.inference.learn import Fitted
from deconditional.inference.rate_posterior import BagDraws
from deconditional.models.bagg import BaggGP
from deconditional.models.families import check_options, fit_sources
from deconditional.models.options import BagOptions
from deconditional.models.rates import KEPT, held_out_draws
from deconditional.models.regression import Unmatched
from deconditional.models.sources import Given
from deconditional.models.vbagg import VBagg
from deconditional.observations.families import Normal, OfLink
from deconditional.observations.measurements import Measurements
from deconditional.saving.resume import CheckpointPart, within


def check_linked(sources: Sequence[Given]) -> None:
    """Raise unless the first source, and no other, has mediators that are needed."""
    if len(sources) == 1 and isinstance(sources[0].family, Normal):
        raise ValueError(
            "family= of a MediatedGP is for counts, shares and amounts; for one source of normal "
            "observations leave it out, and the list."
        )
    if [each.mediator is not None for each in sources] != [True] + [False] * (len(sources) - 1):
        raise ValueError(
            "the first source of a MediatedGP has mediators and the others have none; VBagg takes "
            "sources without, and VarCMP several that have them."
        )
    if sources[0].task is not None:
        raise ValueError("a MediatedGP has one target; VarCMP takes sources with a task.")


def fit_rates(
    model: Any,
    data: Unmatched,
    sources: Sequence[Given],
    kept: CheckpointPart | None,
    **of_kernel: Any,
) -> tuple[VBagg, BaggGP, Measurements]:
    """The model of the field, the regression, and the links of bags as mediators measure them.

    `model` is the :class:`~deconditional.MediatedGP`; `data` are the bags and observations of the
    first source, how mediators link them, and the others see bags of their own; `of_kernel` are
    priors of the field.
    """
    check_options(model)
    first, family = sources[0], sources[0].family
    of_field, of_regression = model.parameters_apart()
    regressor = _regression(model, data, first, kept, of_regression)
    measured, drawn = data.measurements(regressor, model.number_of_draws, apart=True)
    known = {f"{first.prefix}{p.name}": regressor.parameters_[p.name] for p in family.parameters}
    options = {f.name: getattr(of_field, f.name) for f in fields(BagOptions)}
    options["fixed"] = {**(of_field.fixed or {}), **known}
    field = VBagg(**options, n_inducing=model.n_inducing)
    links = replace(
        first,
        bags=data.bags,
        z=measured.values,
        known=measured.noise,
        amount=np.ones(len(measured.noise)),
        family=OfLink(of=family),
        mediator=None,
        learns_noise=True,
    )
    part = within(kept, "field").get("checkpoint")
    fit_sources(field, [links, *sources[1:]], part, drawn, **of_kernel)
    field.families_ = tuple(each.family for each in sources)
    return field, regressor, measured


def held_out_beside(model: Any, fitted: Fitted, folds: np.ndarray) -> BagDraws:
    """Draws of all observations, noise included, from those of the other folds.

    Those of the first source are predicted by the regression. The others are by the field, whose
    links stay: of one source, an observation that is not that of any bag moves them next to
    nothing.
    """
    first, links = len(model.regressor_.fitted_.z), len(fitted.problem.sources[0].y)
    m = first + len(fitted.z) - links
    if folds.shape != (m,) or min(len(np.unique(f)) for f in (folds, folds[:first])) < 2:
        raise ValueError(
            f"folds must divide the {m} observations of all sources, and the {first} of the first "
            "one, into two parts or more."
        )
    labels = np.unique(folds, return_inverse=True)[1].ravel()
    of_field = np.concatenate([np.full(links, KEPT), labels[first:]])
    bags, seed = model.bags_, model.seed
    beside = held_out_draws(fitted, model.families_, bags, of_field, seed).values[:, links:]
    own = model.regressor_.predict_held_out(labels[:first])
    return BagDraws(np.concatenate([_drawn(own, len(beside), seed), beside], axis=1))


def _drawn(found: Any, n: int, seed: int) -> np.ndarray:
    """Draws of what is predicted, one observation apart from another."""
    if isinstance(found, BagDraws):
        return found.values
    rng, (k, m) = np.random.default_rng(seed), found.component_means.shape
    which = rng.integers(k, size=n)
    spread = np.sqrt(found.component_variances[which])
    return found.component_means[which] + spread * rng.normal(size=(n, m))


def _regression(
    model: Any,
    data: Unmatched,
    seen: Given,
    kept: CheckpointPart | None,
    parameters: dict[str, Any],
) -> BaggGP:
    """Observations on their mediators under their family, with effects that bags have."""
    names = ("n_restarts", "max_iter", "seed", "method", "method_options")
    options = {name: getattr(model, name) for name in names} | parameters
    options["trend"] = model.trend_of_mediators
    family, part = seen.family, within(kept, "regressor")
    noise_std: Any = None
    if isinstance(family, Normal):
        options["learn_noise"], noise_std = True, np.sqrt(seen.known)
    elif family.overdispersion:
        raise ValueError(
            "family= of a MediatedGP is without overdispersion: bags have effects of their own "
            "beside their mediators anyway."
        )
    else:
        options["family"] = replace(family, overdispersion=True)
        part = {family.amount: seen.amount, **part}
    with warnings.catch_warnings():  # what explains nothing is spoken of as a useless mediator
        warnings.simplefilter("ignore", DegenerateFitWarning)
        return data.regress(model.mediator_kernel, noise_std, part, BaggGP, **options)
