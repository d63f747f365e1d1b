"""Recipes of models: by their command-line names, with the default kernels and sizes of fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import gpjax.kernels as gk
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel

from deconditional import models
from deconditional.errors import UsageError

__all__ = [
    "BASELINES",
    "MODELS",
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

WHOLE_BAGS = 1_000_000
"""Points per bag of models that take the centroid of a bag and leave nothing out."""

EXACT_POINTS = 8_000
"""Points of all bags together that an exact model is given by default."""

EXACT_OBSERVATIONS = 3_000
"""Bags or observations beyond which "auto" turns to inducing points."""


FIELD_KERNELS = ("rough", "smooth")


@eqx.filter_jit  # GPJax transforms what it is given: compiled as one, not operation by operation
def field_kernel(n_position: int, n_covariates: int, name: str = "rough") -> AbstractKernel:
    """Matérn-3/2 of position and Gaussian of the covariates, added: the kernel ``"smooth"``.

    ``"rough"`` adds a Matérn-1/2 of position, for what a smooth field and its covariates do not
    explain from one fine cell to the next; without it intervals are too narrow on real fields (see
    the results).
    """
    parts = _pattern(n_position, n_covariates)
    if n_position and name == "rough":
        parts.append(_of_position(gk.Matern12, n_position))
    return _sum(parts)


@eqx.filter_jit
def mediator_kernel(n_position: int, n_mediators: int) -> AbstractKernel:
    """Matérn-3/2 of position, Gaussian of the mediators, added."""
    return _sum(_pattern(n_position, n_mediators))


def _pattern(n_position: int, n_others: int) -> list[AbstractKernel]:
    parts: list[AbstractKernel] = []
    if n_position:
        parts.append(_of_position(gk.Matern32, n_position))
    if n_others:
        dims = list(range(n_position, n_position + n_others))
        parts.append(gk.RBF(active_dims=dims, lengthscale=jnp.ones(n_others)))
    return parts


def _of_position(family: Any, n_position: int) -> AbstractKernel:
    """A kernel with a length scale along each axis: oceans and winds are not the same along all."""
    return family(active_dims=list(range(n_position)), lengthscale=jnp.ones(n_position))


def _sum(parts: list[AbstractKernel]) -> AbstractKernel:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


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


def condensed_size(name: str, n_bags: int) -> int:
    """Points that every bag is condensed to by default."""
    if name in ("gpr", "vargpr"):
        return WHOLE_BAGS
    if name in VARIATIONAL:
        return 64
    return int(np.clip(EXACT_POINTS // n_bags, 4, 64))


@dataclass(frozen=True)
class Recipe:
    """What all candidates of one fit share.

    Attributes
    ----------
    kernel, mediator_kernel, trend, fine_noise, n_restarts, seed, options, model, points_per_bag
        As in :class:`~deconditional.Downscaler`.
    n_position, n_covariates, n_mediators
        Numbers of inputs.
    """

    kernel: AbstractKernel | str
    mediator_kernel: AbstractKernel | None
    n_position: int
    n_covariates: int
    n_mediators: int
    trend: str
    fine_noise: bool
    n_restarts: int
    seed: int
    options: Mapping[str, Any]
    model: Any = "auto"
    points_per_bag: int | str | None = "auto"

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
            kernel = field_kernel(self.n_position, self.n_covariates, kernel)
        mediator = self.mediator_kernel
        if self.n_position + self.n_mediators == 0:
            if name in NEED_MEDIATORS:
                raise UsageError(f"{name} needs mediators: name some, or use position or bagg-gp.")
        elif mediator is None:
            mediator = mediator_kernel(self.n_position, self.n_mediators)
        trend = self.trend
        if trend == "auto":
            trend = "constant" if name in CONDITIONAL_MEAN else "linear"
        shared = {
            "trend": trend,
            "fine_noise": self.fine_noise,
            "n_restarts": self.n_restarts,
            "seed": self.seed,
            **self.options,
        }
        try:
            if name == "mediated":
                return models.MediatedGP(kernel, mediator, **shared)
            if name in CONDITIONAL_MEAN:
                family, own = CONDITIONAL_MEAN[name]
                return family(kernel, mediator, **{**own, **shared})
            base = BASELINES[name](kernel, **shared)
        except TypeError as error:
            raise UsageError(f"model_options for {name}: {error}.") from None
        return base if matched else self._by_pseudo_targets(base, mediator, trend)

    def _simple(self, name: str, matched: bool) -> Any:
        """A model whose kernel is one of position alone."""
        if not self.n_position:
            raise UsageError(f"{name} needs position; leave position=False out.")
        family = self.kernel if isinstance(self.kernel, str) else "rough"
        kernel, trend = field_kernel(self.n_position, 0, family), SIMPLE[name]
        base = models.BaggGP(kernel, trend=trend, n_restarts=self.n_restarts, seed=self.seed)
        others = self.n_mediators if trend == "linear" else 0
        return (
            base
            if matched
            else self._by_pseudo_targets(base, mediator_kernel(self.n_position, others), trend)
        )

    def _by_pseudo_targets(self, base: Any, mediator: AbstractKernel, trend: str) -> Any:
        return models.PseudoTarget(
            base, mediator, trend=trend, n_restarts=self.n_restarts, seed=self.seed
        )
