"""Sources of observations: each with bags or points, a family, exposures and a bias of its own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.models.checks import (
    check_bags,
    known_covariance,
    numbers,
    observations,
    observed_mediators,
)
from deconditional.observations.families import Family, Normal, check_observed


@dataclass(frozen=True, eq=False)
class Source:
    """Observations of one kind: what they see of the field, and how they scatter about it.

    ``fit([source, source, ...])`` of :class:`~deconditional.VBagg`, ``BaggGP``, ``VarCMP`` and
    ``MediatedGP`` takes several of one field.

    Parameters
    ----------
    where
        Bags, or an array of points that were observed one by one, such as stations. For
        :class:`~deconditional.Downscaler`, a GeoDataFrame or an xarray Dataset.
    z
        The observations; of a table or dataset, the name of its target.
    family
        :class:`~deconditional.Normal` by default.
    noise_std
        Of normal observations, where it is known: one number, or one for each, or a column.
    exposure, trials
        What rates are multiplied by; ``bags.exposure`` by default where bags have one.
    mediator
        Mediators of the observations, where these belong to none of the bags; the bags have
        mediators then, and the model is a :class:`~deconditional.MediatedGP`, or a ``VarCMP``.
    bias
        ``"none"``; ``"offset"``, a constant on the scale of the link; ``"affine"``, a factor too.
        Another source without bias says what the field is.
    task
        Which of several targets is observed, from 0.
    kind
        Of a table or dataset of normal observations, ``"mean"`` or ``"sum"``.

    Examples
    --------
    Cells, and a few stations:

    >>> import numpy as np
    >>> import deconditional as dc
    >>> x = np.linspace(0, 6, 120)
    >>> cells = dc.Bags.from_points(x, np.arange(120) // 10)
    >>> sources = [
    ...     dc.Source(cells, cells.means(np.sin(x)), noise_std=0.01),
    ...     dc.Source([1.0, 4.0], np.sin([1.0, 4.0]), noise_std=0.01),
    ... ]
    >>> model = dc.BaggGP(n_restarts=1).fit(sources)
    >>> bool(abs(model.predict([4.0]).mean[0] - np.sin(4.0)) < 0.02)
    True
    """

    where: Any
    z: Any
    family: Family | None = None
    noise_std: npt.ArrayLike | None = None
    exposure: npt.ArrayLike | None = None
    trials: npt.ArrayLike | None = None
    mediator: npt.ArrayLike | None = None
    bias: str = "none"
    task: int | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Given:
    """A source that was checked."""

    # bags, z, amount, known: bags, observations, exposures, and known variances of errors.
    bags: Bags
    z: np.ndarray
    amount: np.ndarray
    known: np.ndarray
    # family, learns_noise: the family, and whether there is noise to be learnt.
    family: Family
    learns_noise: bool
    # Mediators of the observations; None where bag m is that of observation m.
    mediator: np.ndarray | None
    # bias, task, prefix: of a source, and what is before the names of its parameters.
    bias: str
    task: int | None
    prefix: str

    @property
    def crude(self) -> np.ndarray:
        """The value of f that every observation has by itself, roughly."""
        rate = self.family.crude_rate(self.z, self.amount)
        return np.asarray(self.family.g.eta(rate))


def sources_of(
    model: Any,
    where: Any,
    z: Any,
    noise_std: Any,
    noise_cov: Any,
    *,
    exposure: Any,
    trials: Any,
    mediator: Any = None,
    refused: Mapping[str, Any] | None = None,
) -> list[Given]:
    """The sources of a call of `fit`, checked: a list of them, or bags and observations."""
    for name, value in (refused or {}).items():
        if value is not None:
            raise ValueError(f"{name} is for normal observations of one kind; leave it out.")
    if noise_cov is not None:
        raise ValueError(
            "noise_cov is for normal observations of one kind; give noise_std to dc.Source, one "
            "standard deviation for each observation."
        )
    if not isinstance(where, list | tuple):
        own = Source(where, z, model.family, noise_std, exposure, trials, mediator)
        return given([own])
    told = {"z": z, "noise_std": noise_std, "exposure": exposure, "trials": trials}
    told["mediator"] = mediator
    beside = [name for name, value in told.items() if value is not None]
    if beside:
        raise ValueError(f"with a list of sources, {beside[0]} belongs to dc.Source.")
    if model.family is not None:
        raise ValueError(
            "with a list of sources, each has its own family: dc.Source(..., family=...)."
        )
    return given(where)


def given(sources: Sequence[Source]) -> list[Given]:
    """Sources, once they are known to be such and to go together."""
    if not sources:
        raise ValueError("fit got an empty list; give it one dc.Source or more.")
    for each in sources:
        if not isinstance(each, Source):
            raise TypeError(
                f"a list for fit holds dc.Source objects, not {type(each).__name__}; give bags "
                "and observations as fit(bags, z)."
            )
    prefixes = [f"source{k}." if len(sources) > 1 else "" for k in range(len(sources))]
    found = [_given(each, p) for each, p in zip(sources, prefixes, strict=True)]
    dims = {each.bags.points.shape[1] for each in found}
    if len(dims) > 1:
        raise ValueError(
            f"sources have {' and '.join(map(str, sorted(dims)))} covariates; all see one field of "
            "the same covariates."
        )
    if len(found) > 1 and all(each.bias != "none" for each in found):
        raise ValueError(
            "every source has a bias, so none says what the field is; leave one with bias='none'."
        )
    if len(found) == 1 and found[0].bias != "none":
        raise ValueError("one source alone has nothing to be biased against; bias='none' for it.")
    tasks = [each.task for each in found]
    if any(t is None for t in tasks) and any(t is not None for t in tasks):
        raise ValueError("some sources have a task and some have none; give every source its task.")
    if tasks[0] is not None and set(tasks) != set(range(max(t or 0 for t in tasks) + 1)):
        raise ValueError(
            f"tasks are whole numbers from 0 without gaps, not {sorted({t or 0 for t in tasks})}."
        )
    return found


def _given(source: Source, prefix: str) -> Given:
    bags = source.where
    if not isinstance(bags, Bags):
        points = np.asarray(bags, dtype=float)
        points = points[:, None] if points.ndim == 1 else points
        bags = Bags.from_points(points, np.arange(len(points)))
    check_bags(bags)
    z = observations(source.z)
    family = Normal() if source.family is None else source.family
    if not isinstance(family, Family):
        raise TypeError(
            f"family must be a family such as dc.Poisson(), not {family!r}; write dc.Poisson() "
            "with its brackets."
        )
    if source.kind is not None:
        raise ValueError("kind is for tables and datasets; leave it out.")
    if source.bias not in ("none", "offset", "affine"):
        raise ValueError(f"bias must be none, offset or affine, not {source.bias!r}.")
    if source.task is not None and (
        not isinstance(source.task, int | np.integer) or source.task < 0
    ):
        raise ValueError(f"task must be a whole number from 0, not {source.task!r}.")
    y, names = _linked(bags, z, source.mediator)
    own = None if source.mediator is not None or isinstance(family, Normal) else bags.exposure
    told = source.exposure, source.trials
    amount = amounts(family, *told, own, len(names), "observations")
    amount = np.ones(len(names)) if amount is None else amount
    check_observed(family, z, amount, names)
    if source.noise_std is not None and not isinstance(family, Normal):
        raise ValueError(
            f"noise_std belongs to dc.Normal(); the spread of {type(family).__name__} follows from "
            "its mean. overdispersion=True gives observations more of it."
        )
    known = known_covariance(len(z), source.noise_std, None)
    learns = isinstance(family, Normal) and source.noise_std is None
    bare = replace(family, exposure=None)
    return Given(bags, z, amount, known, bare, learns, y, source.bias, source.task, prefix)


def _linked(bags: Bags, z: np.ndarray, mediator: Any) -> tuple[Any, Sequence[Hashable]]:
    """Mediators of observations, and what errors call these."""
    if mediator is None:
        if len(z) != bags.n_bags:
            raise ValueError(
                f"{bags.n_bags} bags came with {len(z)} observations, and there is one for every "
                "bag. Where observations belong to none of the bags, both need mediators, and "
                "VarCMP is the model."
            )
        return None, bags.ids
    return observed_mediators(bags, len(z), mediator), range(len(z))


def amounts(
    family: Family, exposure: Any, trials: Any, usual: Any, size: int, what: str
) -> np.ndarray | None:
    """Exposures or trials as the family has them; the usual exposure, or None, if none is given."""
    given = {"exposure": exposure, "trials": trials}
    amount = given.pop(family.amount)
    if next(iter(given.values())) is not None:
        raise ValueError(
            f"{type(family).__name__} takes {family.amount}=, not {next(iter(given))}=."
        )
    amount = usual if amount is None and family.amount == "exposure" else amount
    if amount is None:
        return None
    array = numbers(amount, family.amount)
    if array.shape not in ((), (size,)):
        raise ValueError(
            f"{family.amount} must be one number, or one for each of the {size} {what}; its shape "
            f"is {array.shape}."
        )
    return np.broadcast_to(array, (size,)).copy()


def with_task(bags: Bags, task: int) -> Bags:
    """Bags whose points have the index of their task for a last covariate."""
    column = np.full((bags.n_points, 1), float(task))
    return replace(bags, points=np.concatenate([bags.points, column], axis=1))
