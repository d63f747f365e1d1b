"""Recipes of models: by their command-line names, with the default kernels and sizes of fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gpjax.kernels.base import AbstractKernel

from deconditional import models
from deconditional.errors import UsageError
from deconditional.fields.default_kernels import (
    FIELD_KERNELS,
    Inputs,
    field_kernel,
    mediator_kernel,
    scale_priors,
)
from deconditional.fitting.priors import LogNormal, SplitLogNormal
from deconditional.models.mediated import length_scale_prior

CONDITIONAL_MEAN: dict[str, tuple[Any, dict[str, Any]]] = {
    "cmp": (models.CMP, {"centred": True}),
    "s-cmp": (models.CMP, {"centred": True, "cmo": "shrinkage"}),
    "u-cmp": (models.CMP, {"centred": True, "uncertainty": True}),
    "varcmp": (models.VarCMP, {"centred": True, "uncertainty": True}),
}
SIMPLE = {"kriging": "constant", "regression-kriging": "linear"}
"""Models of position alone beside a trend, and that trend: the covariates are in it or nowhere."""

SIMPLICITY = {"kriging": 2, "regression-kriging": 1, "mediated": 1}
"""Which models are taken where scores do not tell: the simpler ones, and of unmatched data the one
that knows what its mediators leave open, for held-out coarse values cannot see within cells."""

BASELINES: dict[str, Any] = {
    "bagg-gp": models.BaggGP,
    "vbagg": models.VBagg,
    "gpr": models.CentroidGP,
    "vargpr": models.VarCentroidGP,
    **dict.fromkeys(SIMPLE, models.BaggGP),
}
"""Models of matched data; unmatched data reaches them by pseudo-targets."""

MODELS = ("mediated", *CONDITIONAL_MEAN, *BASELINES)
NEED_MEDIATORS = ("mediated", *CONDITIONAL_MEAN)
MOST_WHOLE = 100_000
"""Points of all bags together that models of families take as they are."""

OF_FAMILIES = ("vbagg", "bagg-gp")
"""Models of observations of other families than the normal."""

VARIATIONAL = ("varcmp", "vbagg", "vargpr")

AVERAGED = ("bagg-gp", "gpr", *SIMPLE)
"""Models of matched data whose hyper-parameters are averaged: a few coarse values leave them open,
and intervals that take them for known are too narrow."""

OF_MEANS = ("bagg-gp", *SIMPLE)
"""Exact models of matched data that take coarse values for means over fine cells."""

NOISE = LogNormal(0.02, 1.0)
"""Prior of the errors of coarse values, in their standard deviations: they are means over what
they cover, and what looks like errors is mostly detail within cells that neighbours do not share.
Taken for noise, it would be missing from the field and its intervals."""

MOST_AVERAGED = 400
"""Observed cells up to which they are: more leave little open, and a draw costs an evaluation."""

SIMPLE_POINTS = 16
"""Most points of a bag for simple models, four by four as is usual for kriging of blocks: their
kernel has no covariates, which is what more points are for."""

WHOLE_BAGS = 1_000_000
"""Points per bag of models that take the centroid of a bag and leave nothing out."""

EXACT_POINTS = 8_000
"""Points of all bags together that an exact model is given by default."""

POINTS_IN_TIME = 3_000
"""The same while a kernel of time is learnt, which has more than twice as many parts."""

EXACT_OBSERVATIONS = 3_000
"""Bags or observations beyond which "auto" turns to inducing points."""


def check_model(model: Any, kernel: Any, mediator: Any) -> None:
    """Raise where a model or a kernel has a name that is none, or they do not go together."""
    if isinstance(model, str) and model not in ("auto", *MODELS):
        raise UsageError(f"there is no model {model!r}; choose auto or one of {', '.join(MODELS)}.")
    if isinstance(kernel, str) and kernel not in FIELD_KERNELS:
        raise UsageError(
            f"there is no kernel {kernel!r}; choose one of {', '.join(FIELD_KERNELS)}, or give a "
            "GPJax kernel."
        )
    for name, value in (("kernel", kernel), ("mediator_kernel", mediator)):
        if value is not None and not isinstance(model, str):
            raise UsageError(f"{name} belongs to named models; give the estimator its own.")
    if isinstance(mediator, str):
        raise UsageError("mediator_kernel must be a GPJax kernel; it has no names.")


def candidates(
    matching: str, n_bags: int, n_observations: int, simple: bool, covariates: bool = True
) -> tuple[str, ...]:
    """The models that "auto" compares, the fullest first.

    `simple` says whether there are simple models of position to compare with. Without covariates
    all models of matched data are the same.

    Examples
    --------
    >>> candidates("matched", 100, 100, True), candidates("unmatched", 100, 100, True)
    (('bagg-gp', 'regression-kriging', 'kriging'), ('mediated', 'bagg-gp', 'kriging'))
    >>> candidates("matched", 9999, 9999, True), candidates("unmatched", 9999, 9999, True)
    (('vbagg',), ('vbagg', 'varcmp'))
    """
    exact = max(n_bags, n_observations) <= EXACT_OBSERVATIONS
    if not exact:
        return ("vbagg",) if matching == "matched" else ("vbagg", "varcmp")
    if matching == "matched" and not covariates:
        return ("kriging",)
    if matching == "matched":
        return ("bagg-gp", *(("regression-kriging", "kriging") if simple else ()))
    return ("mediated", "bagg-gp", *(["kriging"] if simple else []))


def family_size(n_points: int) -> int | None:
    """Points that a bag is condensed to under a family; None for all: the cost is linear."""
    return None if n_points <= MOST_WHOLE else 64


def condensed_size(name: str, n_bags: int, in_time: bool = False) -> int:
    """Points that every bag is condensed to by default; fewer where a kernel has time to learn."""
    if name in ("gpr", "vargpr"):
        return WHOLE_BAGS
    if name in VARIATIONAL:
        return 64
    most = SIMPLE_POINTS if name in SIMPLE else 64
    return int(np.clip((POINTS_IN_TIME if in_time else EXACT_POINTS) // n_bags, 4, most))


@dataclass(frozen=True)
class Recipe:
    """What all candidates of one fit share.

    Attributes
    ----------
    kernel, mediator_kernel, trend, fine_noise, n_restarts, seed, options, model, points_per_bag,
    family
        As in :class:`~deconditional.Downscaler`.
    inputs, mediators
        Inputs of the kernel and of the mediator kernel.
    steps
        The step between times and the span of all, standardised.
    width
        How far places are from each other, standardised.
    held
        Parameters that are known, of windows of a series: all of them.
    averaged
        Whether hyper-parameters of the models of matched data are averaged over draws.
    of_means
        Whether observations are means, all of one kind, and not counts or those of several sources.
    """

    kernel: AbstractKernel | str
    mediator_kernel: AbstractKernel | None
    inputs: Inputs
    mediators: Inputs
    trend: str
    fine_noise: bool
    n_restarts: int
    seed: int
    options: Mapping[str, Any]
    model: Any = "auto"
    points_per_bag: int | str | None = "auto"
    steps: tuple[float, float] = (1.0, 1.0)
    family: Any = None
    width: float = 1.0
    held: Mapping[str, Any] | None = None
    averaged: bool = True
    of_means: bool = True

    def takes_bags(self, name: str) -> bool:
        """Whether a model of this name, or the one that was given, can do without mediators."""
        if isinstance(self.model, str):
            return name in BASELINES
        return "mediator_kernel" not in self.model.get_params(deep=False)

    def estimator(self, name: str, matched: bool) -> Any:
        """The unfitted estimator of a name."""
        if name in SIMPLE:
            return self._simple(name, matched)
        kernel = self.kernel
        if isinstance(kernel, str):
            kernel = field_kernel(self.inputs, kernel)
        mediator = self.mediator_kernel
        if self.mediators.n_position + self.mediators.n_time + self.mediators.n_others == 0:
            if name in NEED_MEDIATORS:
                raise UsageError(f"{name} needs mediators: name some, or use position or bagg-gp.")
        elif mediator is None:
            mediator = mediator_kernel(self.mediators)
        trend = self.trend
        if trend == "auto":
            trend = "constant" if name in CONDITIONAL_MEAN else "linear"
        shared: dict[str, Any] = {
            "trend": trend,
            "fine_noise": self.fine_noise,
            "n_restarts": self.n_restarts,
            "seed": self.seed,
            **self._averaging(name, matched),
            **self.options,
            **({} if self.held is None else {"fixed": self.held, "n_restarts": 1}),
        }
        if self.family is not None:
            shared["family"] = self.family
        if isinstance(self.kernel, str):
            expected = self._priors(kernel, self.inputs, name, matched)
            shared["priors"] = expected | dict(shared.get("priors") or {}) or None
        if name in BASELINES:
            shared["trend"] = self._slopes(shared["trend"], self.inputs)
        try:
            if name == "mediated":
                trends = self._timeless(shared.pop("trend"))
                return models.MediatedGP(kernel, mediator, **{**trends, **shared})
            if name in CONDITIONAL_MEAN:
                family, own = CONDITIONAL_MEAN[name]
                return family(kernel, mediator, **{**own, **shared})
            base = BASELINES[name](kernel, **shared)
        except TypeError as error:
            raise UsageError(f"model_options for {name}: {error}.") from None
        return base if matched else self._by_pseudo_targets(base, mediator, trend, self.n_restarts)

    def _priors(
        self, kernel: AbstractKernel, inputs: Inputs, name: str, matched: bool
    ) -> dict[str, Any]:
        """Priors of the length scales of a default kernel, and of the noise of means over cells."""
        mediated = name == "mediated"
        steps = (1.0, 1.0) if mediated else self.steps
        inputs = replace(inputs, n_time=0) if mediated else inputs
        usual = length_scale_prior if mediated else SplitLogNormal
        found: dict[str, Any] = scale_priors(kernel, inputs, steps, self.width, usual, "kernel")
        learns = self.of_means and self.options.get("learn_noise") is not False
        if matched and learns and name in OF_MEANS:
            found["noise_std"] = NOISE
        return found

    def _timeless(self, trend: Any) -> dict[str, Any]:
        """Trends of the field and of its mediators: linear in all but time, which has a kernel.

        A slope over the few times that were observed is anything, and so is what it says of others.
        """
        if self.trend != "auto" or trend != "linear" or not self.inputs.n_time:
            return {"trend": trend}
        found = (tuple([*of.position, *of.others]) for of in (self.inputs, self.mediators))
        return dict(zip(("trend", "mediator_trend"), found, strict=True))

    def _slopes(self, trend: Any, inputs: Inputs) -> Any:
        """The linear trend of "auto": of what is known besides position and time."""
        is_ours = self.trend == "auto" and trend == "linear"
        return tuple(inputs.others) if is_ours else trend

    def _averaging(self, name: str, matched: bool) -> dict[str, Any]:
        """How hyper-parameters are taken: averaged where few observations leave them open."""
        plain = self.held is not None or self.family is not None or not self.averaged
        plain = plain or not matched or name not in AVERAGED
        asked = {k: v for k, v in self.options.items() if k in ("method", "method_options")}
        return asked if plain else {"method": "draws", **asked}

    def _simple(self, name: str, matched: bool) -> Any:
        """A model whose kernel is one of position alone."""
        if not self.inputs.n_position:
            raise UsageError(f"{name} needs position; leave position=False out.")
        other = sorted(set(self.options) - {"method", "method_options"})
        if other and self.model == name:
            raise UsageError(
                f"model_options for {name} are method and method_options, not {', '.join(other)}."
            )
        family = self.kernel if isinstance(self.kernel, str) else "rough"
        inputs, trend = replace(self.inputs, n_others=0), SIMPLE[name]
        kernel = field_kernel(inputs, family)
        base = models.BaggGP(
            kernel,
            # A trend that is linear in nothing is compiled with one that is in some covariates.
            trend=self._slopes(trend, self.inputs) if trend == "linear" else (),
            n_restarts=1,
            seed=self.seed,
            priors=self._priors(kernel, inputs, name, matched) or None,
            fixed=self.held,
            **self._averaging(name, matched),
        )
        if matched:
            return base
        link = self.mediators if trend == "linear" else replace(self.mediators, n_others=0)
        return self._by_pseudo_targets(base, mediator_kernel(link), trend, 1)

    def _by_pseudo_targets(
        self, base: Any, mediator: AbstractKernel, trend: str, n_restarts: int
    ) -> Any:
        trends = self._timeless(trend)
        trend = trends.get("mediator_trend", trends["trend"])
        return models.PseudoTarget(
            base, mediator, trend=trend, n_restarts=n_restarts, seed=self.seed
        )
