"""The problem that a fit of a model would solve, for those who time or test its parts."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from deconditional import CMP, Bags
from deconditional.models.data import Data
from deconditional.models.problems import mediated, problem_parts
from deconditional.models.solvers import Exact, Posed, Variational
from deconditional.models.variational import VariationalModel
from deconditional.observations.kinds import Matched, Observation

__all__ = ["posed", "problem_of"]


def posed(
    model: Any,
    bags: Bags,
    z: npt.ArrayLike,
    mediator: npt.ArrayLike | None = None,
    *,
    noise_std: npt.ArrayLike | None = None,
    noise_cov: npt.ArrayLike | None = None,
    own_bag: npt.ArrayLike | None = None,
) -> Posed:
    """The problem that a fit of the model would solve, and how it was posed."""
    data = Data.of(bags, z, noise_std, noise_cov, model)
    mediation: Observation = Matched()
    if isinstance(model, CMP):
        data = data.linked(mediator, own_bag)
        mediation = mediated(data, model)
    solver: Exact | Variational = Exact()
    if isinstance(model, VariationalModel):
        solver = Variational.of(model)
    return solver.pose(problem_parts(data, mediation, model), data.bags, model.seed)


def problem_of(model: Any, *data: Any, **more: Any) -> Any:
    """The problem alone; see :func:`posed`."""
    return posed(model, *data, **more).problem
