r"""Unmatched counts, and observations of other families: mediators measure links of mean rates.

The regression of observations on their mediators has their family, and an effect of its own for
every observation, which is what a bag has beside its mediator:
:math:`\eta_m = h(y_m) + \rho\, e_m`. So the mediator of a bag measures the link
:math:`g(\bar r)` of its mean rate, as that of normal observations measures a bag mean
(:mod:`deconditional.observations.measurements`), with errors taken bag by bag; and the field is
seen through these links, in a basis.
"""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import Any

import numpy as np

from deconditional.errors import DegenerateFitWarning
from deconditional.models.bagg import BaggGP
from deconditional.models.families import check_options, fit_sources
from deconditional.models.options import BagOptions
from deconditional.models.regression import Unmatched
from deconditional.models.sources import Given
from deconditional.models.vbagg import VBagg
from deconditional.observations.families import Normal, OfLink
from deconditional.observations.measurements import Measurements
from deconditional.saving.resume import CheckpointPart, within


def fit_rates(
    model: Any,
    data: Unmatched,
    seen: Given,
    kept: CheckpointPart | None,
    **of_kernel: Any,
) -> tuple[VBagg, BaggGP, Measurements]:
    """The model of the field, the regression, and the links of bags as mediators measure them.

    `model` is the :class:`~deconditional.MediatedGP`; `data` and `seen` are bags and observations,
    how mediators link them and what family they are of; `of_kernel` are priors of the field.
    """
    family = seen.family
    check_options(model)
    if isinstance(family, Normal) or family.overdispersion:
        raise ValueError(
            "family= of a MediatedGP is for counts, shares and amounts, without overdispersion: "
            "bags have effects of their own beside their mediators anyway."
        )
    of_field, of_regression = model.parameters_apart()
    names = ("n_restarts", "max_iter", "seed", "method", "method_options")
    shared = {name: getattr(model, name) for name in names} | {"trend": model.trend_of_mediators}
    shared["family"] = replace(family, overdispersion=True)
    amounts = {family.amount: seen.amount, **within(kept, "regressor")}
    with warnings.catch_warnings():  # what explains nothing is spoken of as a useless mediator
        warnings.simplefilter("ignore", DegenerateFitWarning)
        regressor = data.regress(
            model.mediator_kernel, None, amounts, BaggGP, **shared, **of_regression
        )
    measured, drawn = data.measurements(regressor, model.number_of_draws, apart=True)
    known = {p.name: regressor.parameters_[p.name] for p in family.parameters}
    options = {f.name: getattr(of_field, f.name) for f in fields(BagOptions)}
    options["fixed"] = {**(of_field.fixed or {}), **known}
    field = VBagg(**options, n_inducing=model.n_inducing)
    links: dict[str, Any] = {
        "z": measured.values,
        "known": measured.noise,
        "amount": np.ones(len(measured.noise)),
    }
    source = replace(seen, bags=data.bags, family=OfLink(of=family), mediator=None, **links)
    part = within(kept, "field").get("checkpoint")
    fit_sources(field, [replace(source, learns_noise=True)], part, drawn, **of_kernel)
    field.families_ = (family,)
    return field, regressor, measured
