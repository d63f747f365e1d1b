"""Options of a downscaling, checked: what is asked of the data, and the recipe of the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from gpjax.kernels.base import AbstractKernel
from sklearn.base import BaseEstimator

from deconditional.errors import UsageError
from deconditional.fields.default_kernels import Inputs
from deconditional.fields.pair import Pairing
from deconditional.fields.question import Question, listed
from deconditional.fields.recipes import (
    BASELINES,
    MOST_AVERAGED,
    OF_FAMILIES,
    Recipe,
    check_model,
)
from deconditional.fields.scaling import local_frame
from deconditional.fields.series import Series, series_of
from deconditional.fields.sides import CoarseSide, FineSide
from deconditional.observations.families import Family, Normal


@dataclass(kw_only=True, eq=False, repr=False)
class Options(BaseEstimator):
    """Arguments of :class:`~deconditional.Downscaler`, which says what they mean."""

    target: str | None = field(default=None, kw_only=False)
    covariates: Sequence[str] = field(default=(), kw_only=False)
    mediators: Sequence[str] = field(default=(), kw_only=False)
    model: Any = "auto"
    kernel: AbstractKernel | str | None = None
    mediator_kernel: AbstractKernel | None = None
    position: bool = True
    transform: str | None = None
    bounds: tuple[float | None, float | None] | None = None
    consistency: str | None = None
    trend: str = "auto"
    fine_noise: bool = False
    points_per_bag: int | str | None = "auto"
    mask: str | None = None
    min_cover: float = 0.5
    dims: Mapping[str, str] | None = None
    folds: int = 5
    n_restarts: int = 2
    model_options: Mapping[str, Any] | None = None
    seed: int = 0
    progress: bool = False
    time: str = "smooth"
    window: str | None = None
    kind: str | None = None
    exposure: str | None = None
    family: Any = None

    def question(self) -> Question:
        """The variables and their parts, checked."""
        if self.target is not None and (not isinstance(self.target, str) or not self.target):
            raise UsageError("target must be the name of a variable of the coarse data.")
        if self.consistency not in (None, "exact"):
            raise UsageError(f"consistency must be 'exact' or nothing, not {self.consistency!r}.")
        check_model(self.model, self.kernel, self.mediator_kernel)
        same = {f.name: getattr(self, f.name) for f in fields(Question) if hasattr(self, f.name)}
        asked = {
            "target": self.target or "",
            "covariates": listed(self.covariates, "covariates"),
            "mediators": listed(self.mediators, "mediators"),
            "position": bool(self.position),
            "family": self._family(),
        }
        return Question(**same | asked)

    def _family(self) -> Any:
        """The family, None where it is normal; raises where options do not go with it."""
        family = self.family
        if family is None:
            return None
        if not isinstance(family, Family):
            raise UsageError(
                f"family must be a family such as dc.Poisson(), not {family!r}; write dc.Poisson() "
                "with its brackets."
            )
        if isinstance(family, Normal):
            raise UsageError("observations are normal by themselves; leave family out.")
        name = type(family).__name__
        for option in ("transform", "bounds", "consistency"):
            if getattr(self, option) is not None:
                raise UsageError(
                    f"{option} is for normal observations; dc.{name} has a link of its own, so "
                    "leave one of the two out."
                )
        if self.kind is not None and (family.counts or family.exposure is not None):
            raise UsageError(f"observations of dc.{name} are sums by themselves; leave kind out.")
        if isinstance(self.model, str) and self.model not in ("auto", *OF_FAMILIES):
            raise UsageError(
                f"the model {self.model!r} is for normal observations; dc.{name} goes with "
                f"{' or '.join(OF_FAMILIES)}."
            )
        return family

    def series(self, fine: FineSide, coarse: CoarseSide) -> Series | None:
        """The series that two sides are, where models of bags are to learn from one."""
        if isinstance(self.model, str):
            takes_bags = self.model == "auto" or self.model in BASELINES
        else:
            takes_bags = "mediator_kernel" not in self.model.get_params(deep=False)
        found = series_of(fine, coarse) if takes_bags else None
        method = dict(self.model_options or {}).get("method", getattr(self.model, "method", "map"))
        if found is not None and method not in (("map", "draws") if found.is_short else ("map",)):
            raise UsageError(
                f"method={method!r} averages over the parameters of one fit, and "
                f"{len(found.times)} times with {int(found.known.sum())} observations are "
                "conditioned one after the other; use method='map', or fewer times."
            )
        return found

    def check_consistency(self, fine: FineSide) -> None:
        """Raise where area means cannot be made consistent on this data; no fit is needed."""
        if self.consistency == "exact" and fine.chunked:
            raise UsageError(
                "consistency='exact' moves all cells at once, so it needs the fine data in memory: "
                "predict on ds.load(), or on one region or time after the other."
            )

    def recipe(self, pairing: Pairing, sampled: bool = False) -> Recipe:
        """What all candidates share; of a long series, one set of parameters is wanted."""
        if pairing.sources and (self.transform or self.consistency or self.fine_noise):
            raise UsageError(
                "transform, consistency and fine_noise are for one source; leave them out, and "
                "give positive, skewed sources family=dc.Tweedie()."
            )
        family = None if pairing.sources else pairing.question.family
        # Counts say little of single cells, and what they do not say is overdispersion.
        usual = "rough" if self.family is None else "smooth"
        same = {f.name: getattr(self, f.name) for f in fields(Recipe) if hasattr(self, f.name)}
        of_data = {
            "kernel": usual if self.kernel is None else self.kernel,
            "inputs": _inputs(pairing, len(pairing.question.inputs)),
            "mediators": _inputs(pairing, len(pairing.question.mediators)),
            "options": dict(self.model_options or {}),
            "steps": _steps(pairing),
            "family": family,
            "width": _width(pairing),
            "averaged": not sampled and len(np.unique(pairing.observed_cell)) <= MOST_AVERAGED,
            "of_means": not pairing.sources and family is None,
        }
        return Recipe(**same | of_data)


def _inputs(pairing: Pairing, n_others: int) -> Inputs:
    """The inputs of a kernel, with so many beside position and time."""
    clock = pairing.clock
    apart = _steps(pairing)[0] if clock.mode == "independent" else None
    directed = not pairing.coarse.spherical
    if pairing.n_position and not directed:
        directed = local_frame(pairing.spread.mean) is not None
    return Inputs(pairing.n_position, n_others, clock.n_inputs, apart, directed)


def _width(pairing: Pairing) -> float:
    """How far places are from each other (root mean square, over √2), as the kernel sees them."""
    std, n = pairing.spread.std[: pairing.n_position], max(pairing.n_position, 1)
    far = float(np.sqrt((std**2).sum())) or 1.0
    return far if pairing.coarse.spherical else float(np.sqrt(n))


def _steps(pairing: Pairing) -> tuple[float, float]:
    """The step between times and the span of all, in their standard deviations."""
    if not pairing.n_time:
        return 1.0, 1.0
    column, spread = pairing.n_position, pairing.spread
    scale = spread.std[column] or 1.0
    return pairing.clock.step / scale, (spread.high[column] - spread.low[column]) / scale
