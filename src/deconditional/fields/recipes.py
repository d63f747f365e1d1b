"""Recipes of models: by their command-line names, with the default kernels and sizes of fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel, CombinationKernel, ProductKernel
from gpjax.parameters import NonNegativeReal, PositiveReal
from paramax import non_trainable

from deconditional import models
from deconditional.errors import UsageError
from deconditional.fitting.priors import LogNormal, Prior

__all__ = [
    "BASELINES",
    "MODELS",
    "Inputs",
    "Recipe",
    "candidates",
    "check_model",
    "condensed_size",
    "field_kernel",
    "mediator_kernel",
]

CONDITIONAL_MEAN: dict[str, tuple[Any, dict[str, Any]]] = {
    "cmp": (models.CMP, {"centred": True}),
    "s-cmp": (models.CMP, {"centred": True, "cmo": "shrinkage"}),
    "u-cmp": (models.CMP, {"centred": True, "uncertainty": True}),
    "varcmp": (models.VarCMP, {"centred": True, "uncertainty": True}),
}
SIMPLE = {"kriging": "constant", "regression-kriging": "linear"}
"""Models of position alone beside a trend, and that trend: the covariates are in it or nowhere."""

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
VARIATIONAL = ("varcmp", "vbagg", "vargpr")

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


FIELD_KERNELS = ("rough", "smooth")

APART = 8.0
"""Length scales between neighbouring times that are independent: a correlation of exp(-32)."""


@dataclass(frozen=True)
class Inputs:
    """Which inputs a kernel has: position, time and others, in that order.

    Attributes
    ----------
    n_time
        1 where there is time, 3 where the year goes round too.
    apart
        The step between times that have nothing to do with each other; None where they have.
    """

    n_position: int
    n_others: int
    n_time: int = 0
    apart: float | None = None

    @property
    def position(self) -> list[int]:
        """Columns of position."""
        return list(range(self.n_position))

    @property
    def others(self) -> list[int]:
        """Columns of covariates, or of mediators."""
        start = self.n_position + self.n_time
        return list(range(start, start + self.n_others))

    @property
    def season(self) -> list[int]:
        """Columns that go round once a year; none where there is no season."""
        return list(range(self.n_position + 1, self.n_position + self.n_time))


@eqx.filter_jit  # GPJax transforms what it is given: compiled as one, not operation by operation
def field_kernel(inputs: Inputs, name: str = "rough") -> AbstractKernel:
    """Matérn-3/2 of position and Gaussian of the covariates, added: the kernel ``"smooth"``.

    ``"rough"`` adds a Matérn-1/2 of position, for what a smooth field and its covariates do not
    explain from one fine cell to the next; without it intervals are too narrow on real fields (see
    the results).

    With time this lasts, except for what is rough. Beside it is a pattern that changes as a
    Matérn-3/2 of time does, with a level of the whole field, and one that comes back every year
    where the year goes round. What changes of a covariate is its slope rather than the shape of
    its effect: there it has a long scale (see :func:`time_priors`).

    Times that are independent of each other have all of it anew, and a level.
    """
    is_rough = inputs.n_position and name == "rough"
    rough = [_of_position(gk.Matern12, inputs)] if is_rough else []
    if not inputs.n_time:
        return _sum([*_pattern(inputs), *rough])
    lasting = _pattern(inputs) if inputs.apart is None else []
    changing = [*_pattern(inputs, SLOPES if lasting else 1.0), *rough]
    parts = [part * _of_time(inputs) for part in changing] + [_of_time(inputs, free=True)]
    if inputs.season:
        parts += [part * _of_season(inputs) for part in _pattern(inputs, SLOPES)]
        parts.append(_of_season(inputs, free=True))
    return _sum([*lasting, *parts])


@eqx.filter_jit
def mediator_kernel(inputs: Inputs) -> AbstractKernel:
    """Matérn-3/2 of position and of time, Gaussian of the season and of the mediators, added."""
    parts = _pattern(inputs)
    if inputs.n_time:
        parts.append(_of_time(inputs, free=True))
    if inputs.season:
        parts.append(_of_season(inputs, free=True))
    return _sum(parts)


def _pattern(inputs: Inputs, scale: float = 1.0) -> list[AbstractKernel]:
    """Parts of position and of other inputs, the latter with a length scale to begin with."""
    parts: list[AbstractKernel] = []
    if inputs.n_position:
        parts.append(_of_position(gk.Matern32, inputs))
    if inputs.n_others:
        parts.append(
            gk.RBF(active_dims=inputs.others, lengthscale=jnp.full(inputs.n_others, scale))
        )
    return parts


def _of_position(family: Any, inputs: Inputs) -> AbstractKernel:
    """A kernel with a length scale along each axis: oceans and winds are not the same along all."""
    return family(active_dims=inputs.position, lengthscale=jnp.ones(inputs.n_position))


def _of_time(inputs: Inputs, free: bool = False) -> AbstractKernel:
    """How times hang together; of variance one unless it is free."""
    dims, variance = [inputs.n_position], 1.0 if free else ONE
    if inputs.apart is not None:
        scale = non_trainable(PositiveReal(inputs.apart / APART))
        return gk.RBF(active_dims=dims, lengthscale=scale, variance=variance)
    return gk.Matern32(active_dims=dims, variance=variance)


def _of_season(inputs: Inputs, free: bool = False) -> AbstractKernel:
    """How the days of a year hang together; of variance one unless it is free."""
    return gk.RBF(active_dims=inputs.season, variance=1.0 if free else ONE)


ONE = non_trainable(NonNegativeReal(1.0))
"""The variance of a factor whose product has one already."""


def _sum(parts: list[AbstractKernel]) -> AbstractKernel:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


SLOPES = 3.0
"""Standard deviations of a covariate over which an effect of it is hardly more than a slope."""


def time_priors(
    kernel: AbstractKernel, inputs: Inputs, steps: tuple[float, float], name: str
) -> dict[str, Prior]:
    """Priors of the length scales in a kernel that have to do with time, by parameter.

    Of time anything between the step from one time to the next and the span of all is as likely: a
    field of weather forgets itself from one year to the next, one of climate does not. Of
    covariates whose effect changes with time it is long, so that a few observations at a time tell
    how it changes.

    Parameters
    ----------
    steps
        The step between times and the span of all, in the units of the input.
    """
    if not inputs.n_time or inputs.apart is not None:
        return {}
    step, span = steps[0], max(steps)
    width = max(0.5 * float(np.log(span / step)), 1.0)
    prior = LogNormal(float(np.sqrt(step * span)), width)
    found: dict[str, Prior] = {}
    for place, dims, is_factor in _parts(kernel, name):
        if dims == [inputs.n_position]:
            found[f"{place}.lengthscale"] = prior
        elif dims == inputs.others and is_factor:
            scales = np.full(inputs.n_others, SLOPES) if inputs.n_others > 1 else SLOPES
            found[f"{place}.lengthscale"] = LogNormal(scales, 0.5)
    return found


def _parts(
    kernel: AbstractKernel, name: str, is_factor: bool = False
) -> Iterator[tuple[str, Any, bool]]:
    """Name and inputs of every part of a kernel, and whether it is a factor of a product."""
    if isinstance(kernel, CombinationKernel):
        inside = is_factor or isinstance(kernel, ProductKernel)
        for k, child in enumerate(kernel.kernels):
            yield from _parts(child, f"{name}.{k}", inside)
    else:
        yield name, kernel.active_dims, is_factor


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


def candidates(matching: str, n_bags: int, n_observations: int, simple: bool) -> tuple[str, ...]:
    """The models that "auto" compares, the fullest first.

    `simple` says whether there are simple models of position to compare with.

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
    if matching == "matched":
        return ("bagg-gp", *(("regression-kriging", "kriging") if simple else ()))
    return ("mediated", "bagg-gp", *(["kriging"] if simple else []))


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
    kernel, mediator_kernel, trend, fine_noise, n_restarts, seed, options, model, points_per_bag
        As in :class:`~deconditional.Downscaler`.
    inputs, mediators
        Inputs of the kernel and of the mediator kernel.
    steps
        The step between times and the span of all, standardised.
    held
        Parameters that are known, of windows of a series: all of them.
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
    held: Mapping[str, Any] | None = None

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
            **self.options,
            **({} if self.held is None else {"fixed": self.held, "n_restarts": 1}),
        }
        if name != "mediated":
            expected = time_priors(kernel, self.inputs, self.steps, "kernel")
            shared["priors"] = expected | dict(shared.get("priors") or {}) or None
        try:
            if name == "mediated":
                return models.MediatedGP(kernel, mediator, **shared)
            if name in CONDITIONAL_MEAN:
                family, own = CONDITIONAL_MEAN[name]
                return family(kernel, mediator, **{**own, **shared})
            base = BASELINES[name](kernel, **shared)
        except TypeError as error:
            raise UsageError(f"model_options for {name}: {error}.") from None
        return base if matched else self._by_pseudo_targets(base, mediator, trend, self.n_restarts)

    def _simple(self, name: str, matched: bool) -> Any:
        """A model whose kernel is one of position alone."""
        if not self.inputs.n_position:
            raise UsageError(f"{name} needs position; leave position=False out.")
        family = self.kernel if isinstance(self.kernel, str) else "rough"
        inputs, trend = replace(self.inputs, n_others=0), SIMPLE[name]
        kernel = field_kernel(inputs, family)
        base = models.BaggGP(
            kernel,
            trend=trend,
            n_restarts=1,
            seed=self.seed,
            priors=time_priors(kernel, inputs, self.steps, "kernel") or None,
            fixed=self.held,
        )
        if matched:
            return base
        link = self.mediators if trend == "linear" else replace(self.mediators, n_others=0)
        return self._by_pseudo_targets(base, mediator_kernel(link), trend, 1)

    def _by_pseudo_targets(
        self, base: Any, mediator: AbstractKernel, trend: str, n_restarts: int
    ) -> Any:
        return models.PseudoTarget(
            base, mediator, trend=trend, n_restarts=n_restarts, seed=self.seed
        )
