"""Options that models share: constructors only store them, and :meth:`check_options` looks at them.

They are dataclasses, so that a model that takes the options of two others has them by inheritance.
scikit-learn's ``get_params``, ``set_params``, ``clone`` and ``repr`` work as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional.fitting.draws import DRAWS
from deconditional.models.checks import check_count
from deconditional.models.estimator import Estimator
from deconditional.observations.families import Family


@dataclass(kw_only=True, eq=False, repr=False)
class BagOptions(Estimator):
    """What every model of bags takes; :class:`~deconditional.BaggGP` says what it means."""

    kernel: AbstractKernel | None = field(default=None, kw_only=False)
    trend: str | tuple[int, ...] = "constant"
    fine_noise: bool = False
    learn_noise: bool | None = None
    fixed: Mapping[str, Any] | None = None
    priors: Mapping[str, Any] | None = None
    method: str = "map"
    method_options: Mapping[str, Any] | None = None
    n_restarts: int = 4
    max_iter: int = 300
    points_per_bag: int | None = None
    precision: str = "auto"
    seed: int = 0

    def check_options(self) -> None:
        """Raise where an option is none of its choices."""
        choices = {
            "trend": ("none", "constant", "linear"),
            "method": ("map", "draws", "nuts"),
            "precision": ("auto", "float32", "float64"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            some = isinstance(value, tuple) and all(isinstance(v, int) for v in value)
            if not (name == "trend" and some) and value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
        for name in ("n_restarts", "max_iter"):
            check_count(name, getattr(self, name))
        if self.method == "map" and self.method_options:
            raise ValueError(
                "method_options belong to 'draws' and 'nuts'; method='map' takes none."
            )
        if self.method == "draws":
            unknown = sorted(set(self.method_options or {}) - {"num_draws"})
            if unknown:
                raise ValueError(f"method='draws' takes num_draws, not {', '.join(unknown)}.")
            check_count("num_draws", (self.method_options or {}).get("num_draws", DRAWS))


@dataclass(kw_only=True, eq=False, repr=False)
class MediationOptions:
    """What models with a mediator take; :class:`~deconditional.CMP` says what it means."""

    kernel: AbstractKernel | None = field(default=None, kw_only=False)
    mediator_kernel: AbstractKernel | None = field(default=None, kw_only=False)
    cmo: str = "standard"
    centred: bool = False
    uncertainty: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class FamilyOptions:
    """How observations scatter about their means, and how several targets go together."""

    kernel: AbstractKernel | None = field(default=None, kw_only=False)
    family: Family | None = None
    rank: int = 1


@dataclass(kw_only=True, eq=False, repr=False)
class BasisOptions:
    """What variational models take; :class:`~deconditional.VBagg` says what it means."""

    kernel: AbstractKernel | None = field(default=None, kw_only=False)
    n_inducing: int | None = None
    inducing: str | npt.ArrayLike = "kmeans"
    learn_inducing: bool = False
    features: int | None = None
    inference: str = "collapsed"
    trace: str = "auto"
    inference_options: Mapping[str, Any] | None = None
